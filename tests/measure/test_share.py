"""Several cells on one server: real processes, real HTTP, and what happens when one of them fails."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfbisect.environments.base import Environment
from perfbisect.errors import BuildError, Interrupted
from perfbisect.measure.attempt import read_attempt
from perfbisect.measure.executor import AttemptRequest
from perfbisect.measure.local import LocalExecutor
from perfbisect.model.attempt import Attempt, Failure
from perfbisect.model.cell import Cell
from perfbisect.serving.families import suites
from tests.long import mostly_long
from tests.measure.pretend import CHANGE, LIMITS, OneEnvironment, Watch, cell, environment

TOKEN = secrets.token_hex(16)
"""Of this process of the tests: others run beside it."""

LONG = {"random-input-len": 48, "random-output-len": 4}


def three(**middle: Any) -> list[Cell]:
    """Cells of one server; the loads of the first and the last are the same, prompts included."""
    cells = [
        cell(name="a", dataset_args=LONG),
        cell(name="b", **{"num_prompts": 2, **middle}),
        cell(name="c", dataset_args=LONG),
    ]
    assert len(suites(cells)) == 1
    return cells


def share(
    folder: Path,
    cells: list[Cell],
    made: Environment | BaseException | None = None,
    *,
    watch: Watch | None = None,
    each: Callable[[Attempt, bool], None] = lambda *_: None,
    **options: Any,
) -> list[Attempt]:
    """The attempts that the cells come to; nothing of them lives afterwards."""
    watch = watch or Watch()
    executor = LocalExecutor(OneEnvironment(made or environment(folder)), **options)

    def request(number: int) -> AttemptRequest:
        (folder / cells[number].name).mkdir()
        return AttemptRequest(
            f"job{number}-001", cells[number], CHANGE, 1, "run", folder / cells[number].name, LIMITS, TOKEN,
            suite="0123",
        )  # fmt: skip

    turns = [lambda number=number: request(number) for number in range(len(cells))]  # type: ignore[misc]
    found = []
    try:
        with closing(executor.share(turns, started=watch.started, sink=watch.sink)) as attempts:
            for attempt, more in attempts:
                found.append(attempt)
                each(attempt, more)
    finally:
        assert watch.left() == []
    return found


def failures(attempts: list[Attempt]) -> list[Failure | None]:
    return [attempt.failure for attempt in attempts]


def test_one_start_serves_every_cell(tmp_path: Path) -> None:
    watch, told = Watch(), []
    made = share(tmp_path, three(), watch=watch, each=lambda attempt, more: told.append((attempt.id, more)))
    assert failures(made) == [None] * 3
    assert watch.phases.count("launch") == watch.phases.count("stop") == 1
    assert watch.phases.count("warm") == watch.phases.count("bench") == 3
    assert told == [("job0-001", True), ("job1-001", True), ("job2-001", False)]
    assert [list(attempt.provenance.facts["launch"].values()) for attempt in made] == [
        ["job0-001", "0123", 1, []],
        ["job0-001", "0123", 2, ["a"]],
        ["job0-001", "0123", 3, ["a", "b"]],
    ]
    assert [attempt.provenance.cell_digest for attempt in made] == [one.digest for one in three()]
    assert len({attempt.provenance.facts["model_name"] for attempt in made}) == 1
    assert [("launch" in attempt.seconds, "stop" in attempt.seconds) for attempt in made] == [
        (True, False), (False, False), (False, True),
    ]  # fmt: skip
    assert [len(attempt.runs) for attempt in made] == [1, 1, 1]
    for attempt, one in zip(made, three(), strict=True):
        assert attempt.runs[0].facts["completed"] == one.num_prompts
        assert read_attempt(tmp_path / one.name) == attempt


def test_the_caches_are_emptied_between_the_cells(tmp_path: Path) -> None:
    """The third cell sends the first one's prompts again: none but the client's own repetition is found."""
    made = share(tmp_path, three())
    # The client's check sends the first of the four prompts once before.
    rates = [attempt.runs[0].values["prefix_cache_hit_rate"] for attempt in made]
    assert (rates[0], rates[2]) == (1 / 5, 1 / 5)
    paths = [
        line.split('"')[1].split()[1]
        for line in (tmp_path / "a" / "server.log").read_text().splitlines()
        if '"POST' in line
    ]
    between = " ".join(paths).split("/reset_prefix_cache")
    # Before each measured run, and between two cells: the first request, twice, and the discarded run follow.
    assert len(between) == 3 + 2 + 1
    assert [len(part.split()) for part in between][:2] == [2 + 1 + 4, 1 + 4]


def test_a_server_that_cannot_forget_serves_one(tmp_path: Path) -> None:
    watch = Watch()
    env = {"VLLM_SERVER_DEV_MODE": "0"}
    made = share(tmp_path, [cell(name="a", env=env), cell(name="b", env=env)], watch=watch)
    assert [attempt.id for attempt in made] == ["job0-001"]
    assert failures(made) == [None]
    assert any("not shared with the next cell" in str(d["text"]) for p, d in watch.events if p == "warning")
    assert not (tmp_path / "b").exists()


def test_a_client_that_fails_loses_its_own_cell_alone(tmp_path: Path) -> None:
    cells = three(client={"name": "vllm_bench", "env": {"PRETEND_FAULT": "client_exit1"}})
    made = share(tmp_path, cells)
    assert [len(attempt.runs) for attempt in made] == [1, 0, 1]
    first, middle, last = failures(made)
    assert first is None and last is None
    assert middle is not None and (middle.phase, middle.fault) == ("warm", "client")


@pytest.mark.parametrize("place", mostly_long(range(3), short=[1]))
def test_a_client_that_is_not_there_loses_its_own_cell_alone(tmp_path: Path, place: int) -> None:
    cells = three()
    cells[place] = cells[place].model_copy(
        update={"client": cells[place].client.model_copy(update={"env": {"PYTHONPATH": ""}})}
    )
    made = share(tmp_path, cells, overlap=False)
    found = failures(made)
    assert found[place] is not None and found[place].fault == "client"  # type: ignore[union-attr]
    assert [len(attempt.runs) for attempt in made] == [0 if at == place else 1 for at in range(3)]


def test_a_server_that_dies_takes_the_rest_with_it(tmp_path: Path) -> None:
    def kill(watch: Watch) -> None:
        if watch.phases.count("warm") == 2:
            os.kill(watch.launched["pid"], signal.SIGABRT)

    made = share(tmp_path, three(), watch=Watch(at={"warm": kill}))
    first, middle, last = failures(made)
    assert first is None and len(made[0].runs) == 1
    assert middle is not None and (middle.phase, middle.fault) == ("bench", "change")
    assert "signal 6" in middle.reason
    assert last is not None and (last.phase, last.fault) == ("launch", "change")
    assert last.reason == f"the shared server failed with cell b: {middle.reason}"
    assert last.log == middle.log == str(tmp_path / "a" / "server.log")
    assert read_attempt(tmp_path / "c") == made[2]


def test_a_server_that_does_not_start_fails_every_cell(tmp_path: Path) -> None:
    made = share(tmp_path, three(), environment(tmp_path, PRETEND_FAULT="exit1"))
    assert [(f.phase, f.fault) for f in failures(made) if f] == [("launch", "change")] * 3


def test_what_cannot_be_built_fails_every_cell_once(tmp_path: Path) -> None:
    made = share(tmp_path, three(), BuildError("no wheel"))
    assert [(f.phase, f.fault) for f in failures(made) if f] == [("build", "change")] * 3
    assert not (tmp_path / "a" / "server.log").exists()


def test_a_stop_between_two_cells_keeps_what_was_measured(tmp_path: Path) -> None:
    stop: list[bool] = []
    with pytest.raises(Interrupted):
        share(tmp_path, three(), stop_requested=lambda: bool(stop), each=lambda *_: stop.append(True))
    kept = read_attempt(tmp_path / "a")
    assert kept is not None and kept.failure is None and len(kept.runs) == 1
    assert read_attempt(tmp_path / "b") is None


def test_who_stops_listening_ends_the_server(tmp_path: Path) -> None:
    class GoneError(Exception):
        pass

    def leave(*_: object) -> None:
        raise GoneError

    with pytest.raises(GoneError):
        share(tmp_path, three(), each=leave)
