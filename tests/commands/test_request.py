"""The fields of a request are options: how they are typed, what their help says, in which panel."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import click
import pytest
from click.testing import CliRunner

from perfbisect.cli.verbs import Verb
from perfbisect.commands.options import Budget, InState, JobOptions
from perfbisect.commands.request import DAY, Argument, Option, prints, request_fields
from perfbisect.commands.workspace import Workspace
from perfbisect.jobs.requests import RequestRecord

SEEN: list[Asked] = []


@dataclass(frozen=True, kw_only=True)
class Asked(JobOptions):
    """Ask for something."""

    names: Annotated[tuple[str, ...], Argument("[NAME...]")] = ()
    good: Annotated[str, Option("The good end.", metavar="REV")]
    form: Annotated[Literal["md", "html"], Option("The form.", ("--format",))] = "md"
    count: Annotated[int, Option("How many.", type=click.IntRange(1))] = 2
    since: Annotated[str, Option("A day.", type=DAY, default="any")] = ""
    among: Annotated[tuple[Path, ...], Option("Folders.")] = ()
    budget: Budget = 900.0
    metrics: Annotated[tuple[str, ...], Option("One.", ("--metric",), is_repeated=False)] = ()

    def run(self, workspace: Workspace) -> int:
        del workspace
        SEEN.append(self)
        return 3


@prints("module:Document", has_full=True)
def look(workspace: InState, *, at: Annotated[str, Option("A change.")], budget: Budget = 900.0) -> int:
    """Look at something."""
    LOOKED.append((workspace.state, at, budget))
    return 4


LOOKED: list[tuple[Path, str, float]] = []
VERB = Verb("ask", "Ask.", f"{__name__}:Asked")


def ask(*typed: str, color: bool = False) -> Any:
    return CliRunner().invoke(VERB, typed, catch_exceptions=False, standalone_mode=False, color=color)


def test_options_fill_the_fields_and_are_told_apart_from_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "alice")
    SEEN.clear()
    typed = "a b --good x --format html --since 2026-01-02 --among p --among q --budget 90m -q --json"
    assert ask(*typed.split()).return_value == 3
    (asked,) = SEEN
    assert (asked.names, asked.good, asked.form, asked.count) == (("a", "b"), "x", "html", 2)
    assert (asked.since, asked.among, asked.budget) == ("2026-01-02", (Path("p"), Path("q")), 90)
    assert (asked.quiet, asked.verbose, asked.as_json, asked.state) == (True, False, True, tmp_path)
    assert asked.record == RequestRecord(
        "ask",
        {"names": ("a", "b")},
        {
            "good": ("x",),
            "since": ("2026-01-02",),
            "among": ("p", "q"),
            "format": ("html",),
            "budget": ("90m",),
            "quiet": (),
            "json": (),
        },
        started_by="alice",
    )


def test_an_option_that_is_typed_once_is_a_tuple_of_one(tmp_path: Path) -> None:
    SEEN.clear()
    ask("--good", "https://me:s3cret-word@host/x", "--metric", "ttft", "--state", str(tmp_path))
    (asked,) = SEEN
    assert (asked.metrics, asked.record.options["metric"]) == (("ttft",), ("ttft",))
    assert asked.record.options["good"] == ("https://(redacted)@host/x",), "the journal keeps no secret"


def test_a_function_is_a_command_with_the_options_of_its_workspace(tmp_path: Path) -> None:
    verb = Verb("look", "Look.", f"{__name__}:look")
    assert [param.name for param in verb.params] == ["at", "budget", "state", "full", "as_json"]
    typed = ["--at", "x", "--state", str(tmp_path), "--budget", "2h", "--full", "--json"]
    result = CliRunner().invoke(verb, typed, catch_exceptions=False, standalone_mode=False)
    assert (result.return_value, LOOKED) == (4, [(tmp_path, "x", 120)])
    assert verb.prints == ("module:Document",)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--good x --count 0", "Invalid value for '--count': 0 is not in the range x>=1."),
        ("--good x --format pdf", "Invalid value for '--format'"),
        ("--good x --budget soon", "Invalid value for '--budget': 'soon' is not a duration"),
        ("--good x --since soon", "Invalid value for '--since'"),
    ],
)
def test_a_wrong_value_names_its_option(typed: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        ask(*typed.split())
    assert caught.value.format_message().startswith(said)


def test_python_3_10_makes_a_default_of_none_optional() -> None:
    def look(*, at: Optional[Annotated[str | None, Option("A change.")]] = None) -> None:  # noqa: UP045
        del at

    assert [field.name for field in request_fields(look)] == ["at", "as_json"]


def test_the_help_has_panels_and_says_where_a_default_comes_from() -> None:
    text = ask("--help").output
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options:", "Job:", "Output:"]
    flat = " ".join(text.split())
    assert "--good REV The good end. [required]" in flat
    assert "--count INTEGER RANGE How many. [default: 2; x>=1]" in flat
    assert "[default: $PERFBISECT_BUDGET, perfbisect.yaml or 15h]" in flat
    assert "A day. [default: any]" in flat
    assert text.index("--good") < text.index("--budget") < text.index("--wait") < text.index("--json")
    assert not any(line != line.rstrip() for line in text.splitlines()), "no padding where nothing is drawn"


def test_on_a_terminal_the_same_help_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ask("--help").output
    monkeypatch.setattr("perfbisect.cli.verbs.is_terminal", lambda: True)
    coloured = ask("--help", color=True).output
    assert click.style("Job", bold=True) in coloured and click.style("--good REV", fg="cyan") in coloured
    assert click.unstyle(coloured) == plain


def test_the_help_of_a_command_imports_no_model() -> None:
    code = (
        "import sys; from perfbisect.cli.app import run; run(['bisect', '-h']); "
        "print([m for m in ('numpy', 'requests', 'pydantic', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
