"""Where a request's values come from: option, environment, perfbisect.yaml, default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from perfbisect.commands.options import Budget, Cell, MeasureOptions, Metrics
from perfbisect.commands.request import Option
from perfbisect.commands.settings import NO_SETTINGS, load_settings, resolve
from perfbisect.errors import LocatedError, UsageError


@dataclass(frozen=True, kw_only=True)
class Asked(MeasureOptions):
    cell: Cell = None
    budget: Budget = 900.0
    metrics: Metrics = ()
    at: Annotated[str, Option("A change.")]


def test_without_a_file_nothing_is_set(tmp_path: Path) -> None:
    assert load_settings(tmp_path) is load_settings(None) is NO_SETTINGS
    (tmp_path / "perfbisect.yaml").write_text("# nothing\n")
    assert load_settings(tmp_path).texts == {}


def test_a_value_is_typed_or_of_the_environment_or_of_the_file_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perfbisect.yaml").write_text("env: release:x\nbudget: 2h\nmetric: ttft:p99\n")
    settings = load_settings(tmp_path)
    given = resolve(Asked, {"at": "HEAD"}, settings)
    assert (given.env, given.budget, given.metrics, given.client) == ("release:x", 120, ("ttft:p99",), None)
    monkeypatch.setenv("PERFBISECT_BUDGET", "90m")
    monkeypatch.setenv("PERFBISECT_METRIC", "tpot")
    monkeypatch.setenv("PERFBISECT_AT", "v1")
    given = resolve(Asked, {"at": "HEAD"}, settings)
    assert (given.env, given.budget, given.metrics, given.at) == ("release:x", 90, ("tpot",), "HEAD")
    given = resolve(Asked, {"at": "HEAD", "budget": 5.0, "metrics": ("itl",), "env": None}, settings)
    assert (given.env, given.budget, given.metrics) == ("release:x", 5, ("itl",))
    monkeypatch.delenv("PERFBISECT_BUDGET")
    assert resolve(Asked, {"at": "HEAD"}, NO_SETTINGS).budget == 900


def test_paths_of_the_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("")
    (tmp_path / "perfbisect.yaml").write_text(
        "state: s\nconstraints: /srv/c.txt\ncell: c.yaml\nmachine: cpu\nfleet: ssh:hosts.yaml\n"
        "env: existing:./bin/python\n"
    )
    given = resolve(Asked, {"at": "HEAD"}, load_settings(tmp_path))
    assert (given.state, given.constraints) == (tmp_path / "s", Path("/srv/c.txt"))
    assert (given.cell, given.machine) == (str(tmp_path / "c.yaml"), "cpu")
    assert given.env == f"existing:{tmp_path / 'bin/python'}"
    assert given.fleet == f"ssh:{tmp_path / 'hosts.yaml'}"


def test_what_is_wrong_names_the_variable_or_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "perfbisect.yaml").write_text("env: release:x\nbudget: soon\n")
    with pytest.raises(LocatedError, match="budget: 'soon' is not a duration") as caught:
        resolve(Asked, {"at": "HEAD"}, load_settings(tmp_path))
    assert caught.value.where == f"{tmp_path / 'perfbisect.yaml'}:2"
    monkeypatch.setenv("PERFBISECT_BUDGET", "later")
    with pytest.raises(UsageError, match=r"\$PERFBISECT_BUDGET: 'later' is not a duration"):
        resolve(Asked, {"at": "HEAD"}, load_settings(tmp_path))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("env: existing:/p\nstat: x\n", 2, "stat: unknown key; did you mean state?"),
        ("budget: 3\n", 1, "budget: expected text"),
        ("- env\n", 1, "expected a mapping of keys"),
        ("env: a\nenv: b\n", 2, "duplicate key 'env'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = tmp_path / "perfbisect.yaml"
    path.write_text(text)
    with pytest.raises(LocatedError) as caught:
        load_settings(tmp_path)
    assert caught.value.where == f"{path}:{line}"
    assert said in caught.value.message
