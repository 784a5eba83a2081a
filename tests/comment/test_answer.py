"""Whole answers: who is refused, what is written, what a comment cannot do twice, and where no token is."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from perfbisect.commands.detach import START
from tests.command_line import Outcome, isolate, type_command
from tests.comment.pretend_github import (
    BOT,
    HOOK_SECRET,
    NUMBER,
    TOKEN,
    PretendGitHub,
    pretend_github,
    signature_of,
    write_event,
    write_rules,
)
from tests.fakes.gitwriter import run_git
from tests.fakes.history import HOSTILE_SUBJECT
from tests.golden.test_golden import thawed
from tests.skill.worlds import pulls

PROGRAM = """
import json, os, sys
words = sys.argv[1:]
with open(os.environ["PRETEND_LOG"], "a") as log:
    log.write(json.dumps({"words": words, "environment": dict(os.environ)}) + "\\n")
answer = json.loads(os.environ["PRETEND_PLAN" if "--dry-run" in words else "PRETEND_RESULT"])
print(json.dumps(answer))
sys.exit(answer.get("exit_code", 3))
"""
"""In the place of perfbisect: it says what it was typed with, and answers what the test wants."""

PLAN = {"minutes_low": 8.0, "minutes_high": 90.0, "exit_code": 0}
RESULT = {"summary": ["B is 5 % worse than A."], "minutes": {"total": 12.5}}


@dataclass
class Place:
    """A repository with pull request 7, rules, and a pretend GitHub."""

    folder: Path
    repo: Path
    github: PretendGitHub
    patch: pytest.MonkeyPatch
    extra: tuple[str, ...] = ()
    log: list[dict[str, Any]] = field(default_factory=list)

    def deliver(self, body: str, *words: str, **changed: Any) -> Outcome:
        """An event of a comment."""
        event = write_event(self.folder / "event.json", body, **changed)
        rules = self.folder / "rules.yaml"
        typed = ["comment", "--event", str(event), "--rules", str(rules), "--repo", str(self.repo), *words]
        return type_command(typed)

    def answers(self, plan: object = PLAN, result: object = RESULT) -> None:
        self.patch.setenv("PRETEND_PLAN", json.dumps(plan))
        self.patch.setenv("PRETEND_RESULT", json.dumps(result))

    @property
    def typed(self) -> list[dict[str, Any]]:
        """What was typed in processes."""
        path = self.folder / "typed"
        return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    isolate(tmp_path, monkeypatch)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_RUN_ID", "BUILDKITE_BUILD_URL", "PERFBISECT_GITHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setenv("PRETEND_LOG", str(tmp_path / "typed"))
    monkeypatch.setattr("perfbisect.comment.answer.START", PROGRAM)
    repo = tmp_path / "repo"
    repo.mkdir()
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    run_git(repo, "init", "-q", "-b", "main")
    for number in range(2):
        run_git(repo, *who, "commit", "-q", "--allow-empty", "-m", f"Commit {number}")
    base = run_git(repo, "rev-parse", "HEAD").strip()
    run_git(repo, *who, "commit", "-q", "--allow-empty", "-m", HOSTILE_SUBJECT)
    head = run_git(repo, "rev-parse", "HEAD").strip()
    run_git(repo, "update-ref", f"refs/pull/{NUMBER}/head", head)
    run_git(repo, "reset", "-q", "--hard", base)
    with pretend_github(head=head, base=base) as github:
        write_rules(tmp_path / "rules.yaml", github)
        made = Place(tmp_path, repo, github, monkeypatch)
        made.answers()
        yield made


def test_a_request_is_planned_started_and_answered_in_one_comment(place: Place) -> None:
    place.patch.setenv("HF_TOKEN", "hf_ofthehub")
    place.patch.setenv("ACTIONS_RUNTIME_TOKEN", "another of the CI")
    done = place.deliver("Slower?\n/perfbisect compare chat_short --budget 30m")
    assert done.code == 3, done
    (body,) = place.github.ours
    assert "B is 5 % worse than A." in body
    plan, run = place.typed
    head, base = place.github.head, place.github.base
    own = [f"--a={base}", f"--b={head}", "--budget=30m", "--", "chat_short"]
    there = [f"--state={place.folder}/state", f"--repo={place.repo}"]
    assert run["words"] == ["compare", "--json", *there, "--wait=60m", *own]
    assert plan["words"] == ["compare", "--json", *there, "--dry-run", *own]
    starter = f"github: alice, vllm-project/vllm#{NUMBER}, comment 4711"
    assert run["environment"]["PERFBISECT_STARTED_BY"] == starter
    assert run["environment"]["HF_TOKEN"] == "hf_ofthehub"
    assert not {name for name in run["environment"] if name.startswith(("GITHUB_", "ACTIONS_"))}
    assert TOKEN not in json.dumps(place.typed)
    # The plan stood in it before.
    writes = [call for call in place.github.calls if call[0] != "GET"]
    assert [method for method, _ in writes] == ["POST", "PATCH"]
    kept = json.loads(next((place.folder / "state" / "comments").glob("*/request.json")).read_text())
    assert (kept["user"], kept["minutes"], kept["ended"]) == ("alice", 12.5, True)


def test_the_plan_has_its_price(place: Place) -> None:
    done = place.deliver("/perfbisect compare chat_short --budget 30m", "--dry-run")
    assert done.code == 0, done
    assert "8.0 min to 30.0 min, at most 30.0 min" in done.out
    assert place.github.head[:12] in done.out
    assert place.github.written == 0
    assert not (place.folder / "state" / "comments").exists()
    assert len(place.typed) == 1


def test_a_second_delivery_starts_nothing(place: Place) -> None:
    for code in (3, 0):
        assert place.deliver("/perfbisect compare chat_short").code == code
    assert (len(place.typed), len(place.github.ours)) == (2, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"action": "edited"},
        {"action": "deleted"},
        {"user": {"login": BOT, "type": "Bot"}},
        {"user": None},
        {"pull": False},
    ],
)
def test_events_that_are_no_new_comments_start_nothing(place: Place, changed: dict[str, Any]) -> None:
    assert place.deliver("/perfbisect compare chat_short", **changed).code == 0
    assert (place.github.calls, place.typed) == ([], [])


def test_a_comment_of_other_things_starts_nothing(place: Place) -> None:
    assert place.deliver("Looks good to me").code == 0
    assert (place.github.calls, place.typed) == ([], [])


@pytest.mark.parametrize("signature", ["", "sha256=0", "right of another"])
def test_a_bad_signature_reaches_nothing(place: Place, signature: str) -> None:
    place.patch.setenv("PERFBISECT_WEBHOOK_SECRET", HOOK_SECRET)
    body = "/perfbisect compare chat_short"
    if signature.startswith("right"):
        signature = signature_of(write_event(place.folder / "event.json", "/perfbisect check chat_short"))
    done = place.deliver(body, "--signature", signature)
    assert (done.code, place.github.calls, place.typed) == (2, [], [])
    assert HOOK_SECRET not in f"{done}"
    right = signature_of(write_event(place.folder / "event.json", body))
    assert place.deliver(body, "--signature", right).code == 3
    assert HOOK_SECRET not in json.dumps(place.typed)


def test_a_repository_that_the_rules_do_not_name(place: Place) -> None:
    done = place.deliver("/perfbisect compare chat_short", repository="mallory/vllm")
    assert (done.code, place.github.calls, place.typed) == (2, [], [])


@pytest.mark.parametrize(
    ("body", "changed", "why"),
    [
        (
            "compare chat_short",
            {"user": {"login": "mallory", "type": "User"}},
            "mallory may not start compare",
        ),
        (
            "bisect chat_short --since v1",
            {"user": {"login": "bob", "type": "User"}},
            "bob may not start bisect",
        ),
        ("compare text_long", {}, "text_long is no cell that a comment may name"),
        ("compare chat_short --budget 3h", {}, "3 h 00 min is more than the 60.0 min"),
        ("compare chat_short --repo /etc", {}, "compare takes no '--repo' in a comment"),
        ("run chat_short", {}, "'run' cannot be started by a comment"),
    ],
)
def test_a_refusal_is_one_comment(place: Place, body: str, changed: dict[str, Any], why: str) -> None:
    done = place.deliver(f"/perfbisect {body}", **changed)
    assert (done.code, place.typed) == (2, [])
    (told,) = place.github.ours
    assert why in told
    assert "Next: `" in told


@pytest.mark.parametrize(
    "body",
    [
        "compare `id` </details><script>x</script>",
        "compare @everyone #1 [x](https://evil.example) ![y](https://evil.example/z.png)",
        "compare $(touch pwned) ; touch pwned",
        "compare chat_short --a '``` @mallory'",
        "<!-- perfbisect:1 --> | a | b |",
    ],
)
def test_hostile_text_is_quoted(place: Place, body: str) -> None:
    assert place.deliver(f"/perfbisect {body}").code == 2
    (told,) = place.github.ours
    parsed = MarkdownIt("commonmark").enable("table").parse(told.partition("\n")[2])
    tokens = [token for one in parsed for token in (one, *(one.children or ()))]
    assert not {token.type for token in tokens} & {"html_block", "html_inline", "image", "table_open"}
    assert [t.attrs["href"] for t in tokens if t.type == "link_open"] == ["#issuecomment-4711"]
    outside = " ".join(token.content for token in tokens if token.type == "text")
    assert not re.search(r"@\w|\$\(|#\d|://", outside), outside
    assert not list(place.folder.rglob("pwned"))
    assert place.typed == []


def test_a_flood_of_a_user(place: Place) -> None:
    bob = {"user": {"login": "bob", "type": "User"}, "association": "NONE"}
    codes = [place.deliver("/perfbisect compare chat_short", comment=n, **bob).code for n in range(1, 8)]
    assert codes == [3, 3, 2, 2, 2, 2, 2]
    assert len(place.typed) == 4, "a plan and a job each"
    told = [body for body in place.github.ours if "bob has had 2 of 2 requests within a day" in body]
    assert (len(told), len(place.github.ours)) == (3, 5), "after three refusals nothing more is written"
    assert place.deliver("/perfbisect compare chat_short", comment=8).code == 3, "another user"


def test_a_refusal_that_was_not_told_is_none_the_less(place: Place) -> None:
    bob = {"user": {"login": "bob", "type": "User"}, "association": "NONE"}
    for number in (1, 2):
        assert place.deliver("/perfbisect compare chat_short", comment=number, **bob).code == 3
    folder = place.folder / "state" / "comments" / "vllm-project+vllm+3"
    folder.mkdir()
    (folder / "request.json").write_text('{"user": "bob", "at": "2026-01-01T00:00:00Z", "refused": true}')
    assert place.deliver("/perfbisect compare chat_short", comment=3, **bob).code == 2
    assert "bob has had 2 of 2 requests" in place.github.ours[-1]


def test_a_flood_of_all(place: Place) -> None:
    write_rules(place.folder / "rules.yaml", place.github, more="requests_a_day: 2\n")
    codes = [
        place.deliver(
            "/perfbisect compare chat_short",
            comment=number,
            user={"login": f"u{number}", "type": "User"},
            association="MEMBER",
        ).code
        for number in range(1, 7)
    ]
    assert codes == [3, 3, 2, 2, 2, 2]
    assert len(place.github.ours) == 4


def test_minutes_of_a_day(place: Place) -> None:
    write_rules(place.folder / "rules.yaml", place.github, more="minutes_a_day: 70m\n")
    assert place.deliver("/perfbisect compare chat_short", comment=1).code == 3
    # It had 60 minutes and took 12.5.
    assert place.deliver("/perfbisect compare chat_short --budget 57m", comment=2).code == 3
    assert place.deliver("/perfbisect compare chat_short", comment=3).code == 2
    assert "25.0 min of 70.0 min within a day are taken" in place.github.ours[-1]


def test_tomorrow_is_another_day(place: Place) -> None:
    bob = {"user": {"login": "bob", "type": "User"}, "association": "NONE"}
    for number, day, code in ((1, 1, 3), (2, 1, 3), (3, 1, 2), (4, 3, 3)):
        place.patch.setenv("PERFBISECT_NOW", f"2026-11-0{day}T00:00:00+00:00")
        assert place.deliver("/perfbisect compare chat_short", comment=number, **bob).code == code


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"error": "no metric `x`", "next": "perfbisect metrics", "exit_code": 2}, "no metric \\`x\\`"),
        ({"minutes_low": 61.0, "minutes_high": 90.0, "exit_code": 0}, "61.0 min at least"),
        ({"notes": ["no device"], "exit_code": 5}, "this machine cannot run it"),
    ],
)
def test_a_plan_that_cannot_start(place: Place, plan: object, why: str) -> None:
    place.answers(plan)
    assert place.deliver("/perfbisect compare chat_short").code == 2
    (told,) = place.github.ours
    assert why in told
    assert len(place.typed) == 1


def test_a_job_that_fails_says_so(place: Place) -> None:
    place.answers(result={"error": f"no server; {TOKEN}", "next": "perfbisect doctor", "exit_code": 5})
    assert place.deliver("/perfbisect compare chat_short").code == 5
    (told,) = place.github.ours
    assert "**Failed**: no server" in told
    assert TOKEN not in told


def test_a_plan_of_a_bisection(place: Place) -> None:
    place.answers({"expected": {"minutes_low": 8.0, "minutes_high": 20.0}, "exit_code": 0})
    done = place.deliver("/perfbisect bisect chat_short --since main~1", "--dry-run")
    assert "8.0 min to 20.0 min" in done.out
    assert place.typed[0]["words"][-5:] == [
        *("--good=main~1", f"--bad={place.github.head}", "--budget=60m", "--", "chat_short"),
    ]


def test_what_a_fork_pushed_after_the_comment_is_not_run(place: Place) -> None:
    fork = {"full_name": "mallory/vllm", "pushed_at": "2026-11-28T10:00:01Z"}
    place.github.fork = fork
    assert place.deliver("/perfbisect compare chat_short").code == 2
    assert "the fork was pushed to after the comment" in place.github.ours[0]
    place.github.fork = fork | {"pushed_at": "2026-11-28T09:59:59Z"}
    assert place.deliver("/perfbisect compare chat_short", comment=2).code == 3


def test_commits_that_are_missing_are_fetched(place: Place) -> None:
    clone = place.folder / "clone"
    run_git(place.folder, "clone", "-q", f"file://{place.repo}", str(clone))
    place.repo = clone
    assert place.deliver("/perfbisect compare chat_short").code == 3
    assert run_git(clone, "rev-parse", f"refs/pull/{NUMBER}/head").strip() == place.github.head


def test_without_a_token(place: Place) -> None:
    place.patch.delenv("GITHUB_TOKEN")
    done = place.deliver("/perfbisect compare chat_short")
    assert (done.code, place.github.calls, place.typed) == (2, [], [])
    assert "no token" in done.err


def test_the_result_of_a_job_that_has_ended(place: Place) -> None:
    thawed("compare-limit", place.folder / "state")
    summary = place.folder / "summary.md"
    place.patch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(2):
        assert place.deliver("whatever it says", "--job", "last").code == 0
    (body,) = place.github.ours
    assert body.startswith("<!-- perfbisect:compare ")
    assert re.search(r"### .* Check of .*\n\n```text\n", body)
    assert summary.read_text().count("### ") == 2
    assert place.typed == []
    assert place.deliver("x", "--job", "20990101").code == 2


def test_the_document(place: Place) -> None:
    done = place.deliver("/perfbisect compare chat_short", "--json")
    document = json.loads(done.out)
    assert document["schema"] == "perfbisect.comment/1"
    assert (document["state"], document["comment"]) == ("answered", 1000)
    again = json.loads(place.deliver("/perfbisect compare chat_short", "--json").out)
    assert (again["state"], again["why"]) == ("ignored", "it was answered before")


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_real_job_that_is_stopped_goes_on_and_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    (tmp_path / "cells").mkdir()
    names = pulls(tmp_path)
    repo = Path(names["REPO"])
    head = run_git(repo, "rev-parse", f"refs/pull/{NUMBER}/head").strip()
    with pretend_github(head=head, base=names["BAD"]) as github:
        event = write_event(tmp_path / "event.json", "/perfbisect compare chat_short --metric tpot")
        rules = write_rules(tmp_path / "rules.yaml", github)
        words = ["comment", "--event", str(event), "--rules", str(rules), "--repo", str(repo)]
        words += ["--page", str(tmp_path / "report.html")]
        log = tmp_path / "log"

        def begin() -> subprocess.Popen[bytes]:
            with log.open("ab") as out:
                return subprocess.Popen([sys.executable, "-c", START, *words], stdout=out, stderr=out)

        first = begin()
        while not list(tmp_path.glob("state/jobs/*/attempts/002")):
            assert first.poll() is None, log.read_text()
            time.sleep(0.05)
        assert "**Expected**: " in github.ours[0]
        assert begin().wait() == 0, "a delivery beside the first starts nothing"
        first.send_signal(signal.SIGTERM)
        assert first.wait() == 130, log.read_text()
        assert "**Stopped**" in github.ours[0]
        assert begin().wait() == 0, log.read_text()
        (body,) = github.ours
        assert ": improvement" in body and "```text" in body and "| **-" in body
        assert len(list(tmp_path.glob("state/jobs/*"))) == 1
        assert "improvement" in (tmp_path / "report.html").read_text()
        journal = next(tmp_path.glob("state/jobs/*/journal.jsonl")).read_text()
        assert f"github: alice, vllm-project/vllm#{NUMBER}, comment 4711" in journal
        assert begin().wait() == 0
        assert github.tokens == {f"Bearer {TOKEN}"}
    shutil.rmtree(tmp_path / "cache")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN in os.environ["GITHUB_TOKEN"]
