"""Engines that fail from a position on, and the plan of a search for it."""

from __future__ import annotations

from collections.abc import Collection

from perfbisect.bisect.failure.plan import FailurePlan
from perfbisect.bisect.plan import make_plan
from perfbisect.jobs.plans import resolve_metric
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Costs, Failure
from perfbisect.model.change import History
from perfbisect.model.trace import Trace, TraceLine
from tests.fixtures.jobs import SETTING
from tests.jobs.world import FakeBuilder, Fault, World, cell

CRASH = Trace("ValueError: no block 17", (TraceLine("vllm/core/blocks.py", 40, "take"),))
OTHER = Trace("KeyError: 'q_proj'", (TraceLine("vllm/model.py", 7, "load"),))


def failure_plan(world: World, builder: FakeBuilder | None = None, budget: float = 600.0) -> FailurePlan:
    measured = cell()
    return make_plan(
        FailurePlan,
        cell=measured,
        history=History(world.changes),
        builder=builder or FakeBuilder(),
        metric=resolve_metric(measured, None),
        setting=SETTING,
        budget=budget,
        costs=Costs(0.1, 1.0, 0.3),
    )


def crashes(
    since: int,
    *,
    other: Collection[int] = (),
    unbuilt: Collection[int] = (),
    machine: Collection[int] = (),
    chance: Collection[int] = (),
) -> Fault:
    """Launches fail alike from a position on, and in another way at others.

    ``machine``: launches, from 1, that the machine ends; ``chance``: launches that come out the other way.
    """

    def fault(n: int, request: AttemptRequest) -> Failure | None:
        position = int(request.change.id[:2], 16)
        if n in machine:
            return Failure("bench", "machine", "the kernel ended a process", "/log", "oom_killed")
        if position in unbuilt:
            return Failure("build", "change", "no compiler", "/log", "build_failed")
        if position in other:
            return Failure("launch", "change", "the server ended", "/log", "server_failed", OTHER)
        if (position >= since) != (n in chance):
            return Failure("bench", "change", f"it ended after run {n}", "/log", "server_failed", CRASH)
        return None

    return fault
