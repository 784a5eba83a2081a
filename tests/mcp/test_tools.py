"""The tools: their schemas, and the command lines that calls of them are."""

from __future__ import annotations

import sys
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.errors import UsageError
from perfbisect.mcp.tools import MEASURING, TOOLS, CommandTool
from tests.command_line import type_json

NAMED = {tool.name: tool for tool in TOOLS}
BISECT: dict[str, Any] = {"command": "bisect", "cell": "c", "good": "A", "bad": "B", "budget": "3h"}


@pytest.mark.parametrize("tool", TOOLS, ids=NAMED)
def test_a_tool_says_what_it_takes(tool: CommandTool) -> None:
    schema = tool.schema
    assert len(tool.verbs) == len(tool.commands) and tool.description
    assert set(schema["required"]) <= schema["properties"].keys()
    for value in schema["properties"].values():
        assert value["description"]
        assert value.get("items", value)["type"] in ("string", "integer", "number", "boolean")


def test_plan_and_start_take_the_same_arguments() -> None:
    plan, start = (NAMED[name].schema["properties"] for name in ("plan", "start"))
    assert plan == start
    assert plan["command"]["enum"] == list(MEASURING)
    assert plan["metric"]["type"] == "array", "of compare, where bisect takes one"
    assert plan["min_effect"]["description"].endswith("[bisect, compare]")


def test_a_call_is_a_command_line() -> None:
    told = BISECT | {
        "metric": ["tpot"],
        "workers": 2,
        "all_steps": True,
        "confirm_revert": False,
        "env": None,
    }
    assert NAMED["start"].words(told) == [
        *("bisect", "--detach", "--json", "--good=A", "--bad=B", "--all-steps", "--workers=2"),
        *("--metric=tpot", "--budget=3h", "--", "c"),
    ]
    assert NAMED["status"].words({}) == ["status", "--json", "--"]


@given(text=st.text(), one=st.text(), other=st.text())
def test_a_text_is_a_value_whatever_it_is(text: str, one: str, other: str) -> None:
    words = NAMED["plan"].words({"command": "compare", "b": text, "metric": [one, other], "cell": text})
    compare = NAMED["plan"].verbs["compare"]
    parsed, left, _ = compare.make_parser(click.Context(compare)).parse_args(words[1:])
    assert (parsed["b"], parsed["metrics"], parsed["cell"], left) == (text, [one, other], text, [])


@pytest.mark.parametrize(
    ("name", "told", "where"),
    [
        ("plan", {}, "plan.command"),
        ("plan", {"command": "nightly"}, "plan.command"),
        ("plan", {"command": "bisect", "a": "x"}, "plan.a"),
        ("plan", BISECT | {"good": ["A", "B"]}, "plan.good"),
        ("plan", BISECT | {"detach": True}, "plan.detach"),
        ("status", {"command": "bisect"}, "status.command"),
        *(("start", {"command": command}, "start.budget") for command in MEASURING if command != "run"),
    ],
)
def test_a_wrong_call_is_told_where(name: str, told: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError) as caught:
        NAMED[name].words(told)
    assert caught.value.where == where
    assert caught.value.next_step


def test_a_job_of_launches_needs_no_budget() -> None:
    assert "--launches=3" in NAMED["start"].words({"command": "run", "at": "A", "launches": 3})


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "perfbisect.mcp.server", raising=False)
    error = type_json("mcp", code=2)
    assert (error["where"], error["next"]) == (sys.executable, "pip install 'perfbisect[mcp]'")
