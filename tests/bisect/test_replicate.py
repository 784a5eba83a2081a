"""The A/B of a named step again on a second machine of a fleet."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfbisect.bisect.bisection import outcome_of
from perfbisect.bisect.decision import confirm
from perfbisect.bisect.figures import plots
from perfbisect.bisect.job import BISECT
from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import launches
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from tests.bisect.test_machines import SPEEDS, fleet, machine_of, world_of
from tests.fixtures.jobs import Start
from tests.jobs.world import PowerCut, World, named

TWO = {"a": 1.0, "b": 1.06}
CULPRIT = 15


def pairs(report: BisectResult) -> dict[str, list[int]]:
    """The positions that the A/B and its replication measured, in turn, by machine."""
    made: dict[str, list[int]] = {}
    for launch in report.launches:
        if launch.purpose in ("confirm", "replicate") and launch.outcome == "measured":
            made.setdefault(launch.slot[0], []).append(launch.position)
    return made


def added(report: BisectResult) -> list[str]:
    """The slots of the launches that the replication added."""
    return [x.slot for x in report.launches if x.purpose == "replicate" and x.outcome == "measured"]


def elsewhere(world: World, factor: float) -> World:
    """On b the culprit takes so many times as long, in the A/B, as in the search."""
    pace, culprit = world.pace, world.changes[CULPRIT].id

    def changed(request: AttemptRequest) -> float:
        is_other = request.purpose in ("confirm", "replicate") and machine_of(request) == "b"
        return pace(request) * (factor if is_other and request.change.id == culprit else 1.0)

    world.pace = changed
    return world


@pytest.mark.parametrize("each", [1, 2])
def test_the_step_holds_on_a_second_machine(start: Start, each: int) -> None:
    world = world_of(TWO, seed=3)
    begun = start(world)
    report = begun.run(slots=fleet("a", "b", each=each))
    assert named(report) == world.changes[CULPRIT].id
    again = report.replication
    first, (other,) = again.machine, again.others
    assert {first, other} == {"a", "b"}
    assert again.said == "holds"
    made = pairs(report)
    assert all(
        sorted(positions) == sorted([CULPRIT, CULPRIT - 1] * (len(positions) // 2))
        for positions in made.values()
    )
    assert len(made[first]) >= 2
    assert len(made[other]) >= 4
    assert len(set(added(report))) <= 1
    assert again.effect is not None
    assert again.effect.low < 0.3 < again.effect.high
    assert any(text.startswith(f"Holds on 2 of 2 machines: {first}, and {other}") for text in report.summary)
    assert begun.kinds[-1] == "verdict"
    assert BISECT.status(report).exit_code == 3
    assert {x.name for x in report.machines} == {"a", "b"}
    offsets = {x.name: x.offset for x in report.machines}
    assert sum(x.launches for x in report.machines) == len(report.launches)
    assert offsets["b"] is not None
    assert offsets["a"] is not None
    assert (1 + offsets["b"]) / (1 + offsets["a"]) == pytest.approx(1.06, abs=0.05)
    assert BisectResult.model_validate_json(report.text()) == report


@pytest.mark.processes
def test_a_step_of_one_machine_alone_is_said(start: Start) -> None:
    world = elsewhere(world_of(TWO), 1 / 1.3)
    begun = start(world)
    report = begun.run(slots=fleet("a", "b"))
    assert named(report) == world.changes[CULPRIT].id
    assert BISECT.status(report).exit_code == 3, "it is a step all the same"
    first, other = "a", "b"
    again = report.replication
    assert (again.machine, again.others, again.said) == (first, (other,), "absent")
    outcome = outcome_of(begun.events)
    assert outcome is not None
    (note,) = [note for note in outcome.notes if note.kind == "one machine"]
    assert note.machines == (first, other)
    assert note.positions == (CULPRIT,)
    (text,) = [text for text in report.summary if "machine" in text or "Only on" in text]
    assert text.startswith(f"Only on {first}: on {other} it was not seen, ")
    assert "95 % interval" in text
    page = report_html(build_report(report))
    assert "not seen" in page
    assert "on other machines" in page
    assert "not seen" in report_markdown(build_report(report))
    assert "by-commit" in plots(report)


def test_a_step_of_another_size_there_is_not_called_absent(start: Start) -> None:
    world = elsewhere(world_of(TWO, sigma=0.005, tau=0.005), 1.08 / 1.3)
    begun = start(world)
    report = begun.run(slots=fleet("a", "b"))
    again = report.replication
    assert (again.machine, again.said) == ("a", "another size")
    assert again.effect is not None
    # Two slots decide side by side: which launches are compared is not the same in each run.
    assert 0.03 < again.effect.effect < 0.13
    assert any("the step is of another size" in text for text in report.summary)


def test_what_stays_open_on_the_others_is_neither_absent_nor_of_another_size(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undecided(parent: Sequence[object], culprit: Sequence[object], look: object) -> str | None:
        del look
        return "undecided" if min(len(parent), len(culprit)) >= 2 else None

    monkeypatch.setattr(confirm, "elsewhere", undecided)
    report = start(world_of(TWO)).run(slots=fleet("a", "b"))
    again = report.replication
    first, (other,) = again.machine, again.others
    assert (again.said, {first, other}) == ("undecided", {"a", "b"})
    assert again.effect is not None
    (text,) = [text for text in report.summary if "machine" in text]
    assert text.startswith(f"Confirmed on one machine only: {first}. On {other} it was not settled, ")


def test_a_job_of_one_machine_says_nothing_of_machines(start: Start) -> None:
    world = world_of({})
    begun = start(world)
    report = begun.run(slots=(Slot("one"), Slot("two")))
    assert named(report) == world.changes[CULPRIT].id
    assert (report.replication.machine, report.replication.effect, report.machines) == ("", None, ())
    assert not any("machine" in text for text in report.summary)
    assert "replicate" not in begun.kinds
    assert "Machines" not in {section.title for section in build_report(report).sections}


@pytest.mark.processes
def test_a_machine_that_is_out_of_use_is_not_asked(start: Start) -> None:
    world = world_of(SPEEDS)
    begun = start(world, confirm_revert=True)
    report = begun.run(slots=fleet("odd", "a", "b", "c"), revert=lambda *_: "not clean")
    assert named(report) == world.changes[CULPRIT].id
    again = report.replication
    assert again.said == "holds" and again.others
    assert "odd" not in (again.machine, *again.others)
    rows = {machine.name: machine for machine in report.machines}
    assert rows["odd"].out_of_use.startswith("odd is slower than the other machines")
    assert rows["odd"].offset is not None
    assert rows["odd"].offset > 0.3
    assert all(not row.out_of_use for name, row in rows.items() if name != "odd")
    text = report_markdown(build_report(report))
    assert "odd is slower than the other machines" in text


def test_the_budget_ends_it(start: Start) -> None:
    world = world_of(TWO)
    begun = start(world)
    world.fault = lambda _, request: PowerCut() if request.purpose == "replicate" else None
    begun.cut(slots=fleet("a", "b"))
    with Journal(begun.job.journal, clock=begun.watch.tools(world).clock) as journal:
        plan = require_plan(begun.job, journal.events, BisectPlan)
        spent = sum(launch.minutes for launch in launches(journal.events))
        journal.append("plan", plan.model_copy(update={"budget": spent}).model_dump(mode="json"))
    report = begun.run(slots=fleet("a", "b"))
    assert named(report) == world.changes[CULPRIT].id
    first = report.replication.machine
    assert (report.replication.said, added(report)) == (None, [])
    assert "is spent" in report.replication.note
    assert any(text.startswith(f"Confirmed on one machine only: {first}.") for text in report.summary)


def test_a_second_machine_that_fails_takes_nothing_from_the_step(start: Start) -> None:
    world = world_of(TWO)
    failed = Failure("launch", "machine", "no memory", "/log")
    world.fault = lambda _, request: failed if request.purpose == "replicate" else None
    begun = start(world)
    report = begun.run(slots=fleet("a", "b"), backoff=(0.0,))
    assert named(report) == world.changes[CULPRIT].id
    assert report.replication.machine and report.replication.said is None
    assert "no memory" in report.replication.note
    (text,) = [text for text in report.summary if "Confirmed on one machine only" in text]
    assert "no memory" in text


def test_a_cut_in_the_middle_of_it_goes_on(start: Start) -> None:
    world = world_of(TWO)
    begun = start(world)
    slots = fleet("a", "b")

    world.fault = lambda *_: (
        PowerCut() if [x.purpose for x in world.requests].count("replicate") == 2 else None
    )
    begun.cut(slots=slots)
    before = len(world.requests)
    report = begun.run(slots=slots)
    assert {request.purpose for request in world.requests[before:]} == {"replicate"}
    assert report.replication.said == "holds"
    assert begun.kinds.count("replicate") == 2
    made = pairs(report)[report.replication.others[0]]
    assert made.count(CULPRIT) == made.count(CULPRIT - 1)


def test_a_change_that_fails_there_is_tried_again_by_the_replication_alone(start: Start) -> None:
    """Its first failure is followed by a cut: the search of the resumed job must not take it up."""
    world = world_of(TWO)
    begun = start(world)
    refused = Failure("launch", "change", "ImportError", "/log")
    failed: list[str] = []

    def fault(_: int, request: AttemptRequest) -> Failure | BaseException | None:
        if request.purpose != "replicate":
            return None
        failed.append(machine_of(request))
        return refused if len(failed) == 1 else PowerCut()

    world.fault = fault
    begun.cut(slots=fleet("a", "b"))
    before = len(world.requests)
    report = begun.run(slots=fleet("a", "b"))
    assert {request.purpose for request in world.requests[before:]} == {"replicate"}
    assert {machine_of(request) for request in world.requests[before:]} == set(failed)
    assert report.replication.said == "holds"
    assert report.skips == ()
