"""Simulated jobs of every kind in every state: what the frozen journals are made of.

``python -m tests.golden.worlds [NAME ...]`` freezes the journals of worlds that have none.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfbisect.bisect.failure.job import FAILURE
from perfbisect.bisect.job import BISECT, amend
from perfbisect.bisect.plan import BisectPlan, make_plan
from perfbisect.engine.experiment import Amendment, run_experiment
from perfbisect.environments.base import Refusal
from perfbisect.experiments.check import CHECK, level_of_job
from perfbisect.experiments.compare import COMPARE
from perfbisect.experiments.run import RUN
from perfbisect.experiments.setup import build_check_plan
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import with_checksum
from perfbisect.jobs.plans import JobPlan, resolve_metric, write_plan
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Costs, Failure
from perfbisect.model.change import Change, History
from perfbisect.model.metric import parse_metric
from tests.bisect.failures import crashes, failure_plan
from tests.bisect.test_machines import SPEEDS, fleet
from tests.bisect.test_machines import world_of as fleet_world
from tests.bisect.test_revert import taken
from tests.bisect.test_revert import world_of as revert_world
from tests.changes.repositories import write_commits
from tests.experiments.factory import CHANGES, compare_plan, run_plan, setup_of
from tests.explain.test_attribution import AFTER, BEFORE, PATH
from tests.explain.test_hunk_job import GUILTY, Bench
from tests.explain.test_profile_job import new_job, profiled, recorder
from tests.fixtures.jobs import SETTING
from tests.jobs.world import Clock, FakeBuilder, PowerCut, Watch, World, cell, history

FROZEN = Path(__file__).parent / "frozen"
JOURNAL = "journal.jsonl"
PLACE = "/state"
"""What the folder of the states is called in frozen journals."""


def _job(folder: Path, plan: JobPlan) -> Job:
    job = Jobs(folder).new(Clock()(), "abcd")
    write_plan(job, plan, Clock())
    return job


def _bisection(
    world: World,
    *,
    builder: FakeBuilder | None = None,
    cut: int = 0,
    amended: Mapping[str, Any] | None = None,
    tools: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Path], Job]:
    """``cut``: the launch at which the power is cut once; ``amended``: a change at its end."""

    def make(folder: Path) -> Job:
        measured, watch = cell(), Watch()
        plan = make_plan(
            BisectPlan,
            cell=measured,
            history=History(world.changes),
            builder=builder or FakeBuilder(),
            metric=resolve_metric(measured, None),
            setting=SETTING,
            **{"budget": 600.0, "costs": Costs(0.1, 1.0, 0.3)} | options,
        )
        job = _job(folder, plan)
        if cut:
            fault = world.fault
            world.fault = lambda n, request: PowerCut() if n == cut else fault(n, request)
            with suppress(PowerCut), job.held():
                run_experiment(BISECT, job, watch.tools(world, **tools or {}))
            world.fault = fault
        for change in ({}, amended) if amended is not None else ({},):
            if change:
                amend(job, watch.tools(world), Amendment(**change))
            with job.held():
                run_experiment(BISECT, job, watch.tools(world, **tools or {}))
        return job

    return make


def _failure(world: World, *, cut: int = 0, builder: FakeBuilder | None = None) -> Callable[[Path], Job]:
    """A search for a failure; ``cut``: the launch at which the power is cut once."""

    def make(folder: Path) -> Job:
        job, watch = _job(folder, failure_plan(world, builder)), Watch()
        fault = world.fault
        if cut:
            world.fault = lambda n, request: PowerCut() if n == cut else fault(n, request)
            with suppress(PowerCut), job.held():
                run_experiment(FAILURE, job, watch.tools(world))
            world.fault = fault
        with job.held():
            run_experiment(FAILURE, job, watch.tools(world))
        return job

    return make


def _comparison(world: World, cut: int = 0, **options: Any) -> Callable[[Path], Job]:
    def make(folder: Path) -> Job:
        job = _job(folder, compare_plan(**options))
        if cut:
            world.fault = lambda n, _: PowerCut() if n == cut else None
            with suppress(PowerCut), job.held():
                run_experiment(COMPARE, job, Watch().tools(world))
            world.fault = lambda *_: None
        with job.held():
            run_experiment(COMPARE, job, Watch().tools(world))
        return job

    return make


def _check(factor: float, **options: Any) -> Callable[[Path], Job]:
    """A check against the recorded launches of a change that takes 1.1 times as long as its parent."""

    def make(folder: Path) -> Job:
        recorded = World(CHANGES, 1, factor=1.1, tau=0.01, seed=50)
        known = _job(folder / "recorded", run_plan(recorded, 8))
        with known.held():
            run_experiment(RUN, known, Watch().tools(recorded))
        fields = {"recorded": (level_of_job(known),), "change": CHANGES[1], "launches": 12, "budget": 600.0}
        if "values" in options:
            fields["recorded"] = ()
        given = dict(options)
        setup = setup_of(given)
        job = _job(folder, build_check_plan(setup, **fields | given))
        with job.held():
            run_experiment(CHECK, job, Watch().tools(World(CHANGES, 1, factor=factor, tau=0.01)))
        return job

    return make


def _run(folder: Path) -> Job:
    world = World(CHANGES, 1)
    job = _job(folder, run_plan(world, 3))
    with job.held():
        run_experiment(RUN, job, Watch().tools(world))
    return job


def _hunks(**options: Any) -> Callable[[Path], Job]:
    def make(folder: Path) -> Job:
        bench = Bench(folder, {GUILTY: 1.2})
        job = bench.job(**options)
        with job.held():
            bench.run(job)
        return job

    return make


def _profile(folder: Path) -> Job:
    _, (before, after) = write_commits(folder / "repo", *({PATH: text.encode()} for text in (BEFORE, AFTER)))
    changes = (Change(before), Change(after))
    job = new_job(folder, changes)
    profiled(job, recorder(changes))
    return job


def _untestable(_: int, request: AttemptRequest) -> Failure | None:
    """Changes 8 to 10 do not start."""
    fails = 8 <= int(request.change.id[:2], 16) <= 10
    return Failure("launch", "change", "no module named x", "/log") if fails else None


TWELVE, MANY = history(12).changes, history(24).changes
SLOTS = (Slot("one"), Slot("two"))

WORLDS: Mapping[str, Callable[[Path], Job]] = {
    "run": _run,
    "compare-regression": _comparison(World(CHANGES, 1, factor=1.1, tau=0.01)),
    "compare-same": _comparison(World(CHANGES, 1, factor=1.0, tau=0.01, seed=1)),
    "compare-inconclusive": _comparison(World(CHANGES, 1, factor=1.02, tau=0.12, seed=2), blocks=3),
    "compare-claim": _comparison(World(CHANGES, 1, factor=0.8, tau=0.01), expect="<= -10 %"),
    "compare-limit": _comparison(World(CHANGES, 1, factor=1.03, tau=0.01), max_regression=0.05),
    "compare-metrics": _comparison(World(CHANGES, 1, factor=1.1), further=(parse_metric("tpot:p99"),)),
    "compare-budget": _comparison(World(CHANGES, 1, factor=1.02, tau=0.12), budget=8.0),
    "compare-guard": _comparison(World(CHANGES, 1, factor=0.8, tau=0.005, tokens=lambda p: 32.0 - 12 * p)),
    "compare-killed": _comparison(World(CHANGES, 1, factor=1.1, tau=0.01, seed=3), cut=5),
    "check-good": _check(1.1, max_regression=0.03),
    "check-regression": _check(1.2, max_regression=0.03),
    "check-values": _check(1.2, values=(10.0, 12.0)),
    "bisect-found": _bisection(World(TWELVE, 6, factor=1.3)),
    "bisect-not-reproduced": _bisection(World(TWELVE, None, tau=0.005, sigma=0.005)),
    "bisect-too-small": _bisection(World(TWELVE, 6, factor=1.03, tau=0.05)),
    "bisect-skipped": _bisection(
        World(MANY, 9, factor=1.3, fault=_untestable),
        builder=FakeBuilder(
            merged=frozenset({MANY[3].id}), refused={MANY[4].id: Refusal("csrc differs from the wheel's")}
        ),
    ),
    "bisect-budget-amended": _bisection(World(MANY, 15, factor=1.2), budget=8.0, amended={"budget": 600.0}),
    "bisect-killed": _bisection(World(MANY, 15, factor=1.2, seed=2), cut=6),
    "bisect-slots": _bisection(
        World(MANY, 15, factor=1.3, hold=fleet_world({}).hold), tools={"slots": SLOTS}
    ),
    "bisect-fleet": _bisection(fleet_world(SPEEDS), tools={"slots": fleet("a", "b", "odd", "c")}),
    "bisect-reverted": _bisection(revert_world(), confirm_revert=True, tools={"revert": taken}),
    "failure-found": _failure(World(TWELVE, None, fault=crashes(7)), cut=4),
    "failure-narrowed": _failure(
        World(TWELVE, None, fault=crashes(7, other=(5, 6))),
        builder=FakeBuilder(refused={TWELVE[8].id: Refusal("csrc differs from the wheel's")}),
    ),
    "failure-not-reproduced": _failure(World(TWELVE, None)),
    "failure-good-fails": _failure(World(TWELVE, None, fault=crashes(7, other=(0,)))),
    "failure-inconclusive": _failure(World(TWELVE, None, fault=crashes(7, chance=(2, 5)))),
    "hunks": _hunks(),
    "hunks-budget": _hunks(budget=6.0),
    "profile": _profile,
}


def freeze(name: str) -> None:
    """Keep the journal of a world. :raises FileExistsError: it has one: it is input, not output."""
    kept = FROZEN / name
    kept.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        text = WORLDS[name](Path(folder)).journal.read_bytes().replace(folder.encode(), PLACE.encode())
    lines = [line.rpartition(b',"crc32"')[0] + b"}" for line in text.splitlines()]
    (kept / JOURNAL).write_bytes(b"".join(map(with_checksum, lines)))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or [name for name in WORLDS if not (FROZEN / name).exists()]:
        freeze(wanted)
