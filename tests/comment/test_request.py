"""From a comment to a command line: what may be typed, and that nothing else gets through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.cli.app import app
from perfbisect.comment.request import CommentEvent, command_words, read_event, typed_line
from perfbisect.comment.rules import FORMS, CommentRules, Grant
from perfbisect.common.yaml_source import load, validate
from perfbisect.errors import LocatedError, UsageError
from tests.comment.pretend_github import HOOK_SECRET, RULES, event_of, signature_of, write_event

ENDS = ("a" * 40, "b" * 40)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("/perfbisect compare c", "/perfbisect compare c"),
        ("Slow!\r\n\r\n  /perfbisect compare c  \nthanks", "/perfbisect compare c"),
        ("/perfbisect\n/perfbisect compare c", "/perfbisect"),
        ("> /perfbisect compare c", ""),
        ("/perfbisector compare c", ""),
        ("see /perfbisect compare c", ""),
        ("", ""),
    ],
)
def test_the_first_line_for_it_counts(body: str, line: str) -> None:
    assert typed_line(body) == line


def words(text: str, most: float = 60.0) -> list[str]:
    verb, cell, options = CommentEvent("o/r", 7, "created", body=text).parse()
    grant = Grant(who=("MEMBER",), verbs=("compare",), minutes=f"{most:g}m")  # type: ignore[arg-type]
    budget = grant.budget(verb, options.get("budget"))
    return command_words(verb, cell, {"max-regression": "5%"} | options, budget, ENDS)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("compare c", ["compare", f"--a={ENDS[0]}", f"--b={ENDS[1]}", "--budget=60m", "--", "c"]),
        (
            "compare text_c@c64 --a v0.31.0~2 --metric=ttft:p99 --budget 30m",
            [
                "compare",
                "--a=v0.31.0~2",
                f"--b={ENDS[1]}",
                "--metric=ttft:p99",
                "--budget=30m",
                "--",
                "text_c@c64",
            ],
        ),
        (
            "check c",
            [
                "check",
                f"--against={ENDS[0]}",
                f"--at={ENDS[1]}",
                "--max-regression=5%",
                "--budget=60m",
                "--",
                "c",
            ],
        ),
        (
            "check 'c' --max-regression 2.5%",
            [
                "check",
                f"--against={ENDS[0]}",
                f"--at={ENDS[1]}",
                "--max-regression=2.5%",
                "--budget=60m",
                "--",
                "c",
            ],
        ),
        (
            "bisect c --since release/v0.31",
            ["bisect", "--good=release/v0.31", f"--bad={ENDS[1]}", "--budget=60m", "--", "c"],
        ),
    ],
)
def test_a_request_is_a_command_line(text: str, typed: list[str]) -> None:
    assert words(f"/perfbisect {text}") == typed


def test_every_form_is_of_a_command() -> None:
    for verb, form in FORMS.items():
        text = form.replace("[", "").replace("]", "").replace("REV", "v1").replace(" M ", " tpot ")
        command = app.commands[verb]
        command.make_parser(click.Context(command)).parse_args(words(text, 120.0)[1:])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run c --at HEAD",
        "compare",
        "compare a b",
        "compare c --repo /etc",
        "compare c --repo=/etc",
        "compare c --env command:x",
        "compare c --b main",
        "compare c -v",
        "compare c --",
        "compare -- c",
        "compare c --budget",
        "compare c --budget 30m --budget 60m",
        "compare c --budget 61m",
        "compare c --budget soon",
        "compare c --metric $(id)",
        "compare c --metric --repo",
        "compare $(touch pwned)",
        "compare `id`",
        "compare c;id",
        "compare c|id",
        "compare c --a main+patch:/etc/passwd",
        "compare c --a main+pip:evil==1",
        "compare c --a evil==1",
        "compare c --a pr/666",
        "compare c --a main..x",
        "compare c --a main@{u}",
        "compare c --a --output=x",
        "compare c --a https://evil.example/x",
        "compare /etc/passwd",
        "compare ../../etc/passwd",
        "compare cells/../../x",
        "compare 'c",
        "compare c\x1b[2J",
        "compare c\u202e",
        "compare c " + "x" * 500,
        "check c --max-regression lots",
        "check c --against main",
        "check c --git-bisect",
        "bisect c",
        "bisect c --since -1",
        "bisect c --good v1",
    ],
)
def test_what_may_not_be_typed_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        words(f"/perfbisect {text}")
    assert caught.value.next_step


@given(text=st.text(alphabet=st.sampled_from("ac -='\"$`;|&()/\\.~^+:%0159m\n\t<>"), max_size=60))
def test_whatever_is_typed_only_known_options_come_out(text: str) -> None:
    try:
        made = words(f"/perfbisect compare c {text}")
    except UsageError:
        return
    assert made[0] == "compare" and made[-2:] == ["--", "c"]
    assert {word.partition("=")[0] for word in made[1:-2]} <= {"--a", "--b", "--metric", "--budget"}
    assert not set("$`;|&()<>\n'\"\\ ") & set("".join(made))


def test_an_event_is_read(tmp_path: Path) -> None:
    event = read_event(write_event(tmp_path / "event.json", "/perfbisect compare c"), "", "")
    assert (event.repository, event.number, event.comment, event.user) == (
        "vllm-project/vllm",
        7,
        4711,
        "alice",
    )
    assert event.why_ignored == ""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"action": "edited"}, "the comment was edited"),
        ({"action": "deleted"}, "the comment was deleted"),
        ({"pull": False}, "of no comment on a pull request"),
        ({"user": {"login": "x[bot]", "type": "Bot"}}, "of a bot"),
        ({"user": None}, "of a deleted user"),
    ],
)
def test_events_that_start_nothing(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    event = read_event(write_event(tmp_path / "event.json", "/perfbisect compare c", **changed), "", "")
    assert why in event.why_ignored


def test_an_event_of_a_pull_request_is_of_no_comment(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    document = {"action": "opened", "repository": {"full_name": "o/r"}, "pull_request": {"number": 3}}
    path.write_text(json.dumps(document))
    event = read_event(path, "", "")
    assert (event.number, event.comment) == (3, 0)
    assert event.why_ignored


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"repository": 1}',
        json.dumps({"repository": {"full_name": "o/r"}, "issue": {}}),
    ],
)
def test_what_is_no_event_is_told_where(tmp_path: Path, text: str) -> None:
    (tmp_path / "event.json").write_text(text)
    with pytest.raises(LocatedError) as caught:
        read_event(tmp_path / "event.json", "", "")
    assert caught.value.file == str(tmp_path / "event.json")


@pytest.mark.parametrize("number", ["7/../../x", -1, 1.5, True, None])
def test_a_number_that_is_none_makes_no_address(tmp_path: Path, number: object) -> None:
    event = event_of("/perfbisect compare c")
    event["issue"]["number"] = number
    (tmp_path / "event.json").write_text(json.dumps(event))
    with pytest.raises(LocatedError):
        read_event(tmp_path / "event.json", "", "")


def test_a_signature(tmp_path: Path) -> None:
    path = write_event(tmp_path / "event.json", "/perfbisect compare c")
    assert read_event(path, signature_of(path), HOOK_SECRET).comment == 4711
    right = signature_of(path)
    for given_, secret in (
        ("", HOOK_SECRET),
        ("sha256=", HOOK_SECRET),
        (right[:-1], HOOK_SECRET),
        (right.removeprefix("sha256="), HOOK_SECRET),
        (signature_of(path, "another"), HOOK_SECRET),
        ("sha256=é", HOOK_SECRET),
        (right, ""),
        (signature_of(path, ""), ""),
    ):
        with pytest.raises(UsageError, match="signature") as caught:
            read_event(path, given_, secret)
        assert HOOK_SECRET not in str(caught.value)
    path.write_text(path.read_text().replace("alice", "mallo"))
    with pytest.raises(UsageError, match="signature"):
        read_event(path, right, HOOK_SECRET)


def rules(tmp_path: Path, text: str = RULES) -> CommentRules:
    (tmp_path / "rules.yaml").write_text(text)
    return validate(load(tmp_path / "rules.yaml"), CommentRules)


def test_who_may_start_what(tmp_path: Path) -> None:
    allowed = rules(tmp_path)
    assert allowed.grant("Alice", "NONE", "bisect").minutes == 60
    assert allowed.grant("carol", "MEMBER", "check").minutes == 60
    assert allowed.grant("bob", "NONE", "compare").minutes == 10
    assert allowed.grant("bob", "MEMBER", "compare").minutes == 60, "the more generous one"
    for user, association, verb in (
        ("bob", "NONE", "bisect"),
        ("mallory", "NONE", "compare"),
        ("MEMBER", "NONE", "compare"),
    ):
        with pytest.raises(UsageError, match="may not start"):
            allowed.grant(user, association, verb)
    allowed.require_cell("chat_short")
    with pytest.raises(UsageError, match="no cell that a comment may name"):
        allowed.require_cell("text_long")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("vllm-project/vllm", "../x", "repositories.0"),
        ("minutes: 60m", "minutes: 60", "start.0.minutes"),
        ("[chat_*]", "[]", "cells"),
        ('"@alice"', "alice", "start.0.who.1"),
        ("check, bisect", "check, shell", "start.0.verbs.2"),
        ("cells:", "api: http://api.example\ncells:", "api"),
        ("cells:", "max_regression: 5\ncells:", "max_regression"),
        ("cells:", "anything: 1\ncells:", "anything"),
    ],
)
def test_wrong_rules_are_told_where(tmp_path: Path, old: str, new: str, field: str) -> None:
    with pytest.raises(LocatedError) as caught:
        rules(tmp_path, RULES.replace(old, new))
    assert caught.value.line and field in str(caught.value)
