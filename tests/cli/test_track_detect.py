"""From results to a commit as it is typed: detect, suspects, repro, report, the site; and bad input."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.bisect.result import BisectResult, PositionDocument
from perfbisect.cli.app import run
from perfbisect.cli.schema import documents
from perfbisect.series.suspects import table
from perfbisect.series.suspects.job import TrackSuspectsDocument
from perfbisect.series.suspects.table import PhaseCode, load_suspect_table
from tests.command_line import type_command, type_json
from tests.fakes.gitwriter import HistoryWriter
from tests.fixtures.reports import narrow
from tests.nightlies import AT, EACH, HARM, NIGHTS, Nightlies, make_nightlies


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Nightlies:
    return make_nightlies(tmp_path_factory.mktemp("nightlies"))


pytestmark = pytest.mark.usefixtures("home")


def told(*words: str) -> str:
    outcome = type_command(words)
    assert outcome.code == 0, outcome
    return outcome.out


def refusal(*words: str) -> str:
    outcome = type_command(words)
    assert outcome.code == 2, outcome
    return outcome.err


def document(*words: str) -> dict[str, Any]:
    """What a verb says as JSON, which must be its document."""
    found = type_json(*words)
    (model,) = documents()[" ".join(words[:2])]
    model.model_validate(found)
    return found


def ingest(path: Path) -> None:
    told("track", "ingest", str(path), "--zone", "UTC")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_verdict_and_the_next_command_end_a_long_result(
    made: Nightlies, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(made.all)
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("COLUMNS", "80")
    for words, verdict, following in (
        (["detect"], "Series up to 2026-01-24: 1 new event", "perfbisect track suspects 20260115-"),
        (["suspects", "20260115-product", "--repo", str(made.repo)], "Suspects of", "perfbisect bisect"),
        (["report"], "Nightly of 2026-01-24: ", "perfbisect track suspects 20260115-"),
    ):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        assert run(["track", *words]) == 0
        *_, heading, command = terminal.getvalue().rstrip().splitlines()
        assert heading.startswith(verdict) and heading.endswith("\x1b[0m"), (words, heading)
        assert following in command, words


def test_from_results_to_the_commit(made: Nightlies) -> None:
    ingest(made.all)
    alerts = document("track", "detect")["alerts"]
    assert {a["cell"].partition("/")[0] for a in alerts} == {"omni_chunk"}
    assert {(a["shape"], a["cause"], a["first"][:10]) for a in alerts} == {("step", "product", "2026-01-15")}
    ranked = document("track", "suspects", "20260115-product", "--repo", str(made.repo))
    suspects = ranked["ranking"]["suspects"]
    assert suspects[0]["sha"] == made.culprit
    assert len(suspects) == EACH
    assert f"--good {made.good} --bad {made.bad}" in str(ranked["bisect"])
    weights = Path(str(ranked["bisect"]).rpartition("--weights ")[2])
    assert made.culprit in weights.read_text()
    shown = told("track", "suspects", "20260115-product", "--repo", str(made.repo), "--md")
    assert f"`{HARM}" in shown, "in a code span, where nothing acts"


def test_the_phase_that_moved_is_a_reason_where_it_is_said(
    made: Nightlies, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = PhaseCode(phases=("decode",), paths=("vllm_omni/engine/**",))
    known = load_suspect_table().model_copy(update={"phases": (row,)})
    monkeypatch.setattr(table, "load_suspect_table", lambda: known)
    ingest(made.all)
    words = ("track", "suspects", "20260115-product", "--repo", str(made.repo))
    silent, said = (
        TrackSuspectsDocument.model_validate(document(*words, *more)) for more in ((), ("--phase", "decode"))
    )
    assert (silent.phase, said.phase) == ("", "decode")
    names = [{factor.name for factor in one.ranking.suspects[0].evidence} for one in (silent, said)]
    assert names[1] - names[0] == {"phase"}
    assert said.ranking.suspects[0].p > silent.ranking.suspects[0].p
    rows = told(*words, "--phase", "decode").splitlines()
    assert any("×1.5" in row and "decode moved, and vllm_omni/engine/orchestrator" in row for row in rows)
    refusal(*words, "--phase", "warm-up")


def test_nothing_is_told_twice(made: Nightlies) -> None:
    ingest(made.early)
    assert "\n2026-01-15  product, step: " in told("track", "detect")
    again = told("track", "detect")
    head = (
        "Series up to 2026-01-20: no new events; to act on today: 1\n\nKnown before\n  - 20260115-product: "
    )
    assert again.startswith(head)
    told("track", "ack", "20260115-product", "--reason", "issue 7")
    ingest(made.all)
    later = document("track", "detect")["alerts"]
    known = [a for a in later if a["state"] == "acknowledged"]
    assert known and all(a["why"] == "issue 7" and not a["new"] for a in known)
    name = known[0]["id"]
    assert document("track", "close", name, "--reason", "fixed")["before"] == "acknowledged"
    assert document("track", "reopen", name, "--reason", "not fixed")["before"] == "closed"


def test_what_is_older_is_not_told_and_new_later(made: Nightlies) -> None:
    ingest(made.early)
    before = document("track", "detect", "--since", "2026-02-01")
    assert before["alerts"] == [] and before["since"] == "2026-02-01"
    after = document("track", "detect")
    assert after["alerts"], "what was not told is new"
    assert all(a["new"] for a in after["alerts"])


def test_the_report_and_the_site(made: Nightlies, home: Path) -> None:
    ingest(made.all)
    told("track", "detect")
    found = document("track", "report")
    rows = found["rows"]
    assert {(row["status"], row["issue"]) for row in rows} == {("regressed", True)}
    assert {row["days"] for row in rows} == {NIGHTS - AT}
    assert "| Source | Model | Hardware | Type | Config | Test | Metric |" in told("track", "report")
    levels = document("track", "report", "--metric", "ttft:p99")["levels"]
    assert len(levels) == 3
    assert "no series of tput_per_gpu" in refusal("track", "report", "--metric", "tput_per_gpu")
    page = told("track", "report", "--format", "html")
    assert page.startswith("<!doctype html>") and "<script src" not in page and "://" not in page
    made_site = document("dashboard", "build", "-o", "site", "--repo", str(made.repo))
    assert (made_site["cells"], made_site["bisections"]) == (3, 0)
    assert (home / "site" / "index.html").is_file()
    data = "".join(path.read_text() for path in (home / "site" / "data").glob("*.js"))
    assert "omni_chunk/random" in data and "<script>alert" not in data


def test_what_measured_another_commit_than_its_label_is_set_aside(made: Nightlies, home: Path) -> None:
    """The night that looks slow was of a server of a day before: no change of the labelled commits."""
    copied = Path(shutil.copytree(made.early, home / "results"))
    for path in sorted(copied.glob("n01[4-9]/*omni_chunk*")):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"engine_version": "0.9.dev3+g0123456ab"}))
    ingested = told("track", "ingest", str(copied), "--zone", "UTC")
    assert "no point, 6 mislabelled: set aside: its build is of" in ingested
    assert "by its engine_version it measured 0123456ab" in ingested
    found = document("track", "detect")
    assert found["alerts"] == []
    newest, *others = found["census"]["set_aside"]
    assert (newest["kind"], len(others)) == ("another commit", 5)
    assert newest["values"] == {
        "build": "n019",
        "key": "engine_version",
        "label": made.commits[20 * EACH - 1],
        "measured": "0123456ab",
        "night": "2026-01-20",
        "results": 1,
    }
    for report in (told("track", "detect"), told("track", "report")):
        assert "build n019 of 2026-01-20, 1 result set aside: its build is of" in report
        assert "set aside in the same way: results of 1 earlier build" in report
    assert "no point: set aside: its build is of" in told("track", "show", "omni_chunk")
    told("dashboard", "build", "-o", "site")
    data = "".join(path.read_text() for path in (home / "site").glob("**/*.js"))
    assert "Results of 6 builds are set aside" in data


def test_an_alert_shows_how_the_environment_changed_with_it(made: Nightlies, home: Path) -> None:
    copied = Path(shutil.copytree(made.all, home / "results"))
    for path in sorted(copied.glob("*/*omni_chunk*")):
        new = int(path.parent.name[1:]) >= AT
        facts = {"engine_version": "0.12.0" if new else "0.11.0", "hardware": "H100"}
        path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    ingest(copied)
    found = document("track", "detect")["alerts"]
    said = [evidence for evidence in found[0]["evidence"] if evidence["kind"] == "environments"]
    assert said == [{"kind": "environments", "values": {"rows": [["engine", "0.11.0", "0.12.0"]], "more": 0}}]
    shown = "environment: engine: 0.11.0 -> 0.12.0"
    suspects = told("track", "suspects", found[0]["id"], "--repo", str(made.repo))
    assert all(
        shown in text for text in (told("track", "report"), suspects, told("track", "detect", "--all"))
    )


def keep_bisection(made: Nightlies, report: BisectResult) -> BisectResult:
    """In the state folder, as a bisection of the slow night's commits."""
    first = made.commits.index(made.good)
    history = tuple(
        PositionDocument(index=i, changes=(replace(report.good, id=sha),))
        for i, sha in enumerate(made.commits[first : first + EACH + 1])
    )
    ends = {"history": history, "good": history[0].changes[0], "bad": history[-1].changes[0]}
    named = {"culprit": history[1].changes[0]} if report.culprit else {}
    kept = report.model_copy(update=ends | named)
    folder = Path(os.environ["PERFBISECT_STATE"]) / "jobs" / report.job
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("")
    (folder / "report.json").write_text(kept.text())
    return kept


@pytest.mark.processes
def test_a_measured_commit_comes_before_the_ranking(
    made: Nightlies, rich: BisectResult, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("PERFBISECT_STATE", str(home / "kept"))
    ingest(made.all)
    kept = keep_bisection(made, rich)
    words = ("track", "suspects", "20260115-product", "--repo", str(made.repo))
    found = document(*words)
    assert found["bisect"] == "" and found["measured"]["job"] == kept.job
    assert [of["id"] for of in found["measured"]["commits"]] == [made.culprit]
    text = told(*words)
    commit = f"commit {made.culprit[:12]} "
    assert text.index(commit) < text.index("P  commit"), "before the ranking"
    assert f"perfbisect report {kept.job}" in text and "perfbisect bisect" not in text
    events = document("track", "report")["detect"]["events"]
    assert [of["event"] for of in events if of["measured"]] == ["20260115-product"]
    (due,) = [row for row in told("track", "report").splitlines() if "to act on: " in row]
    assert f": commit `{made.culprit[:12]}`" in due or f": commit ``{made.culprit[:12]}" in due
    keep_bisection(made, narrow(rich).model_copy(update={"job": "20260103-000000-aaaa"}))
    assert len(document(*words)["measured"]["commits"]) == 1, "a named commit stands before a range"


def test_the_ends_are_compared_here(made: Nightlies) -> None:
    ingest(made.all)
    error = refusal("track", "reproduce", "20260115-product", "--repo", str(made.repo), "--dry-run")
    assert "no cell of ours is known to be omni_chunk/random@c4-n40" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("track", "detect"), "the store has no points"),
        (("track", "detect", "--fdr", "2"), "no share of false alarms"),
        (("track", "detect", "--since", "soon"), "does not match the format"),
        (("track", "suspects", "nosuch"), "no alert 'nosuch' was reported"),
        (("track", "close", "x", "--reason", "y"), "no alert 'x' was reported"),
        (("track", "close", "x"), "missing: --reason TEXT"),
        (("track", "ack", "x", "--reason", " "), "--reason is empty"),
        (("track", "report"), "the store has no points"),
        (("dashboard", "build"), "missing: --out DIRECTORY"),
        (("dashboard", "build", "-o", "site", "--commit-url", "http://x"), "not a commit address"),
        (("dashboard", "open", "."), "contains no site"),
    ],
)
def test_bad_input(made: Nightlies, words: tuple[str, ...], message: str) -> None:
    if "suspects" in words or "2" in words:
        ingest(made.early)
        words = (*words, "--repo", str(made.repo)) if "suspects" in words else words
    assert message in refusal(*words)


def test_a_history_that_lacks_the_commits(made: Nightlies, home: Path) -> None:
    writer = HistoryWriter(home / "other")
    writer.commit("Another history", {"a": b"a"})
    writer.finish(checkout=False)
    ingest(made.all)
    told("track", "detect")
    error = refusal("track", "suspects", "20260115-product", "--repo", "other")
    assert "which the history does not have" in error and "this clone ends 2025-01-01" in error
