"""The search for a failure: its decisions as properties, and whole jobs on a pretend machine."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.bisect.failure.job import FAILURE
from perfbisect.bisect.failure.plan import AROUND
from perfbisect.bisect.failure.result import FailureResult
from perfbisect.bisect.failure.search import (
    SERVED,
    UNBUILT,
    FailureEvidence,
    FailureOutcome,
    FailureSearch,
)
from perfbisect.engine.experiment import Amendment, run_experiment
from perfbisect.errors import BuildError, MachineError, UsageError
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.plans import write_plan
from perfbisect.machine.slots import Slot
from tests.bisect.failures import crashes, failure_plan
from tests.experiments.factory import figures
from tests.jobs.world import Clock, FakeBuilder, PowerCut, Watch, World, history

CRASH, OTHER = "under load: ValueError", "start: KeyError"


def play(
    last: int, answers: dict[int, str], known: frozenset[int] = frozenset(), slots: int = 1
) -> tuple[FailureOutcome, list[FailureEvidence]]:
    """Launches until the search ends; ``slots`` at once, the oldest of which ends first."""
    evidence: list[FailureEvidence] = []
    running: list[FailureEvidence] = []
    for _ in range(4 * last + 20):
        step = FailureSearch(last, known, evidence).next([x.position for x in running])
        if isinstance(step, FailureOutcome) and not running:
            return step, evidence
        if isinstance(step, tuple) and len(running) < slots:
            running.append(FailureEvidence(step[0], answers[step[0]], step[1]))
        else:
            evidence.append(running.pop(0))
    raise AssertionError("it does not end")


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    last = draw(st.integers(1, 300))
    return last, draw(st.integers(1, last))


@given(ranges())
def test_any_change_is_named_in_about_log2_launches(drawn: tuple[int, int]) -> None:
    last, culprit = drawn
    outcome, evidence = play(last, {i: CRASH if i >= culprit else SERVED for i in range(last + 1)})
    assert (outcome.verdict, outcome.culprits) == ("found", (culprit,))
    assert len(evidence) <= math.ceil(math.log2(last)) + AROUND
    assert [x.position for x in evidence if x.purpose == "confirm"] == [culprit, culprit - 1]


@given(ranges(), st.data())
def test_skips_leave_the_set_that_holds_the_change(drawn: tuple[int, int], data: st.DataObject) -> None:
    last, culprit = drawn
    inner = st.integers(1, max(1, last - 1))
    passed = {
        i: data.draw(st.sampled_from(["known", UNBUILT, OTHER]))
        for i in data.draw(st.sets(inner, max_size=40))
        if i < last
    }
    known = frozenset(i for i, why in passed.items() if why == "known")
    answers = {i: passed.get(i, CRASH if i >= culprit else SERVED) for i in range(last + 1)}
    outcome, evidence = play(last, answers, known, slots=data.draw(st.integers(1, 3)))
    low = max(i for i in range(culprit) if i not in passed)
    high = min(i for i in range(culprit, last + 1) if i not in passed)
    assert outcome.culprits == tuple(range(low + 1, high + 1))
    assert outcome.verdict == ("found" if high - low == 1 else "narrowed")
    assert not known & {x.position for x in evidence}


@pytest.mark.parametrize("wrong", [0, 1, 2, 3, 4, 5])
def test_launches_that_contradict_each_other_name_nothing(wrong: int) -> None:
    """A failure that comes by chance: each of the last launches, once the other way round."""
    truth = [CRASH if i >= 3 else SERVED for i in range(7)]
    evidence = [FailureEvidence(i, text) for i, text in enumerate(truth)]
    again = FailureEvidence(wrong, SERVED if truth[wrong] else CRASH, "confirm")
    outcome = FailureSearch(6, frozenset(), [*evidence, again]).next()
    assert isinstance(outcome, FailureOutcome)
    assert (outcome.verdict, outcome.culprits, outcome.contradicted) == ("inconclusive", (), (wrong,))


WORLD = history(12).changes


def job_of(folder: Path, world: World, builder: FakeBuilder | None = None, budget: float = 600.0) -> Job:
    job = Jobs(folder).new(Clock()(), "abcd")
    write_plan(job, failure_plan(world, builder, budget), Clock())
    return job


def ended(job: Job, world: World, watch: Watch | None = None, **tools: object) -> FailureResult:
    with job.held():
        return run_experiment(FAILURE, job, (watch or Watch()).tools(world, **tools))


@pytest.mark.parametrize("machine", [(), (1,), (2,), (3, 4), (6,), (7, 9)])
def test_a_failure_of_the_machine_is_repeated_and_changes_nothing(
    tmp_path: Path, machine: tuple[int, ...]
) -> None:
    world = World(WORLD, None, fault=crashes(7, machine=machine))
    result = ended(job_of(tmp_path, world), world)
    assert result.culprit is not None
    assert (result.outcome, result.culprit.id, FAILURE.status(result).exit_code) == ("found", WORLD[7].id, 3)
    assert len(result.launches) == 8 + len(machine)
    assert sum("it says nothing of the change" in launch.why for launch in result.launches) == len(machine)


def test_launches_stand_at_their_commits_in_the_row_of_what_they_say(tmp_path: Path) -> None:
    world = World(WORLD, None, fault=crashes(7, machine=(2,)))
    result = ended(job_of(tmp_path, world), world)
    (panel,) = figures(result.report())["by-commit"].panels
    drawn = {trace.name: list(trace.x) for trace in panel.traces}
    assert min(drawn["fails"]) == 7 and max(drawn["serves"]) == 6
    assert len(drawn["unclear"]) == 1
    assert [name for _, name in panel.axis.ticks] == list(drawn)
    assert all(set(trace.y) == {row} for row, trace in enumerate(panel.traces))


def test_a_machine_that_fails_always_ends_the_job_without_a_verdict(tmp_path: Path) -> None:
    world = World(WORLD, None, fault=crashes(0, machine=range(1, 50)))
    job = job_of(tmp_path, world)
    with pytest.raises(MachineError):
        ended(job, world)
    assert not FAILURE.result(job, job.events()).finished


@pytest.mark.parametrize("cut", range(1, 9))
def test_kill_and_resume_give_the_same_result(tmp_path: Path, cut: int) -> None:
    fault = crashes(7, other=(5,))
    world = World(WORLD, None, fault=lambda n, request: PowerCut() if n == cut else fault(n, request))
    job = job_of(tmp_path, world)
    with suppress(PowerCut):
        ended(job, world)
    world.fault = fault
    result = ended(job, world)
    assert result.culprit is not None
    assert result.culprit.id == WORLD[7].id
    assert len([x for x in result.launches if x.outcome != "abandoned"]) <= 9


def test_two_slots_share_the_launches(tmp_path: Path) -> None:
    world = World(WORLD, None, fault=crashes(4))
    result = ended(job_of(tmp_path, world), world, slots=(Slot("one"), Slot("two")))
    assert result.culprit is not None
    assert result.culprit.id == WORLD[4].id
    assert {launch.slot for launch in result.launches} == {"one", "two"}


def test_what_cannot_be_built_is_a_skip_and_an_end_of_it_an_error(tmp_path: Path) -> None:
    world = World(WORLD, None, fault=crashes(7, unbuilt=(6,)))
    result = ended(job_of(tmp_path, world), world)
    assert (result.outcome, result.culprit, FAILURE.status(result).exit_code) == ("narrowed", None, 4)
    assert [position.index for position in result.culprits] == [6, 7]
    assert [skip.change.id for skip in result.skips] == [WORLD[6].id]
    world = World(WORLD, None, fault=crashes(7, unbuilt=(11,)))
    with pytest.raises(BuildError):
        ended(job_of(tmp_path / "ends", world), world)


def test_both_ends_that_fail_are_one_finding_or_two(tmp_path: Path) -> None:
    alike = World(WORLD, None, fault=crashes(0))
    result = ended(job_of(tmp_path / "alike", alike), alike)
    assert (result.outcome, len(result.others)) == ("good fails", 0)
    unlike = World(WORLD, None, fault=crashes(7, other=(0,)))
    result = ended(job_of(tmp_path / "unlike", unlike), unlike)
    assert result.failure is not None
    assert (result.outcome, FAILURE.status(result).exit_code) == ("good fails", 4)
    findings = (result.failure, *result.others)
    assert [[change.id for change in x.changes] for x in findings] == [[WORLD[11].id], [WORLD[0].id]]


def test_a_launch_hangs_by_what_the_good_end_took(tmp_path: Path) -> None:
    world = World(WORLD, None, fault=crashes(7))
    ended(job_of(tmp_path, world), world)
    first, *later = [request.limits for request in world.requests]
    assert (first.first_request, first.bench) == (300.0, 3600.0)
    assert {(limits.first_request, limits.bench) for limits in later} == {(60.0, 200.0)}


def test_more_minutes_go_on_where_the_budget_ended(tmp_path: Path) -> None:
    world, watch = World(WORLD, None, fault=crashes(7)), Watch()
    job = job_of(tmp_path, world, budget=5.0)
    short = ended(job, world, watch)
    assert (short.outcome, FAILURE.status(short).exit_code) == ("out of budget", 4)
    assert FAILURE.amend is not None
    with pytest.raises(UsageError):
        FAILURE.amend(job, watch.tools(world), Amendment(confirm_revert=True))
    FAILURE.amend(job, watch.tools(world), Amendment(budget=60.0))
    result = ended(job, world, watch)
    assert result.outcome == "found"
    assert len(result.launches) == 8
