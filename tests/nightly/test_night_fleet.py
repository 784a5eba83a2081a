"""Nights over a stand-in for a fleet: which machine measures what, at which time, and in which series."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure
from perfbisect.nightly.model import Night
from perfbisect.nightly.run import forecast_night
from perfbisect.report.markdown import report_markdown
from perfbisect.series.store import SeriesStore
from tests.jobs.world import PowerCut
from tests.long import mostly_long
from tests.nightly.nights import CONFIG, FleetPlace, make_place

ON_MACHINE = Failure("launch", "machine", "the GPU is gone", "/log")


@pytest.fixture
def place(tmp_path: Path, repository: tuple[Path, tuple[str, ...]]) -> FleetPlace:
    path, commits = repository
    made = make_place(tmp_path, commits, path, FleetPlace, cell_names=("a", "b", "c", "d"))
    assert isinstance(made, FleetPlace)
    return made


def machines(night: Night) -> dict[str, str]:
    return {cell.name: cell.machine for cell in night.cells}


def measured_on(request: AttemptRequest) -> str:
    return request.slot.machine if request.slot else ""


def series(place: FleetPlace) -> dict[str, list[str]]:
    """The nights of each series."""
    with SeriesStore.of(place.folder / "state") as store:
        return {name: sorted({p.night for p in own}) for name, own in store.machine_series()}


def test_machines_measure_their_cells_at_the_same_time(place: FleetPlace) -> None:
    together = threading.Barrier(2, timeout=20)
    met: list[str] = []

    def meet(request: AttemptRequest) -> None:
        met.append(measured_on(request))
        if met.count(met[-1]) == 1:  # the first launch of each machine waits for that of the other
            together.wait()

    place.world.hold = meet
    night = place.night(0)
    assert Counter(machines(night).values()) == {"box1": 2, "box2": 2}
    assert {cell.state for cell in night.cells} == {"measured"}
    by_cell = {(request.cell.name, measured_on(request)) for request in place.world.requests}
    assert by_cell == set(machines(night).items()), "all launches of a cell are on its machine"
    assert night.minutes == pytest.approx(sum(cell.minutes for cell in night.cells) / 2)
    assert "Machine" in report_markdown(place.last_report)


def test_a_dry_run_names_the_machines_and_the_time_of_the_longest(place: FleetPlace) -> None:
    shown = forecast_night(place.context(0))
    assert Counter(machines(shown).values()) == {"box1": 2, "box2": 2}
    assert shown.minutes == pytest.approx(sum(cell.expected for cell in shown.cells) / 2)
    assert not (place.folder / "state" / "track").exists(), "a dry run writes nothing"


def test_each_machine_has_the_budget_of_the_night(place: FleetPlace) -> None:
    place.text = CONFIG.format(budget="22m")  # two launches of five minutes a cell: two cells a machine
    assert {cell.state for cell in forecast_night(place.context(0)).cells} == {"planned"}
    place.names = ("box1",)
    states = Counter(cell.state for cell in forecast_night(place.context(0)).cells)
    assert states == {"planned": 2, "not reached": 2}


def test_a_cell_stays_on_its_machine_moves_with_a_series_of_its_own_and_comes_back(
    place: FleetPlace,
) -> None:
    first = machines(place.night(0))
    place.names = ("box3", "box2", "box1")
    assert machines(place.night(1)) == first, "another machine takes no cells away"
    place.names, place.down = ("box1", "box2"), {"box2"}
    night = place.night(2)
    assert set(machines(night).values()) == {"box1"}
    moved = sorted(name for name, machine in first.items() if machine == "box2")
    assert "machine box2 is not used: no route to host" in night.notes
    for name in moved:
        assert f"{name} is measured on box1, where it has a series of its own" in " ".join(night.notes)
    assert "box2 -> box1. The series of 2 cells restart" in " ".join(night.notes)
    place.down = set()
    assert machines(place.night(3)) == first
    days = [f"2026-01-0{day}" for day in (1, 2, 3, 4)]
    for name, machine in first.items():
        own = [days[0], days[1], days[3]] if machine == "box2" else days
        assert series(place)[name] == own
    assert {name: nights for name, nights in series(place).items() if name not in first} == {
        f"{name} on box1": [days[2]] for name in moved
    }


def test_a_machine_that_fails_ends_its_own_cells_only(place: FleetPlace) -> None:
    place.world.fault = lambda _, request: ON_MACHINE if measured_on(request) == "box2" else None
    night = place.night(0)
    by_machine = {machine: {c.state for c in night.cells if c.machine == machine} for machine in place.names}
    assert by_machine == {"box1": {"measured"}, "box2": {"failed"}}
    assert night.exit_code == 5


def test_a_broken_build_ends_all_machines(place: FleetPlace) -> None:
    broken = Failure("build", "change", "no wheel", "/log")
    place.world.fault = lambda *_: broken
    night = place.night(0)
    assert {cell.state for cell in night.cells} == {"failed"}
    assert len(place.world.requests) <= 2, "one launch a machine"


def test_without_a_machine_the_cells_fail_and_the_night_ends(
    place: FleetPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.down = set(place.names)
    night = place.night(0)
    assert ({cell.state for cell in night.cells}, night.exit_code) == ({"failed"}, 5)
    assert "machine box1 is not used: no route to host" in night.notes

    def silent(_: object) -> None:
        raise MachineError("the controller does not answer")

    monkeypatch.setattr(place, "machines", silent)
    night = place.night(1)
    assert ({cell.state for cell in night.cells}, night.exit_code) == ({"failed"}, 5)
    assert "no machine measures: the controller does not answer" in night.notes


@pytest.mark.parametrize("cut", mostly_long(range(1, 9), short=[1, 4, 8]))
def test_a_night_that_is_killed_goes_on_and_nothing_is_measured_twice(place: FleetPlace, cut: int) -> None:
    place.world.fault = lambda n, _: PowerCut() if n == cut else None
    with pytest.raises(PowerCut):
        place.night(0)
    place.world.fault = lambda *_: None
    place.down = set(place.names)  # what goes on there keeps them from answering
    night = place.night(0)
    assert {cell.state for cell in night.cells} == {"measured"}
    assert Counter(name for name, _, _ in place.launches()) == {"a": 2, "b": 2, "c": 2, "d": 2}


def test_bundles_of_a_night_that_is_given_up_are_ended_and_their_results_kept(place: FleetPlace) -> None:
    place.night(0)
    place.world.fault = lambda n, _: PowerCut() if n == 8 + 3 else None
    with pytest.raises(PowerCut):
        place.night(1)
    place.world.fault = lambda *_: None
    unfinished = place.jobs.unfinished()
    still_open = {
        job.id: next(launch for launch in launches(read(job.journal).events) if launch.outcome == "running")
        for job in unfinished
        if any(launch.outcome == "running" for launch in launches(read(job.journal).events))
    }
    assert still_open
    done = next(launch for launch in launches(read(place.jobs.all()[0].journal).events))
    assert done.attempt is not None
    place.left = dict.fromkeys(still_open, done.attempt)
    before = len(place.launches())
    place.night(2)
    assert set(place.ended) == {job.id for job in unfinished}
    assert len(place.launches()) == before + len(still_open) + 8


def test_a_machine_that_does_not_answer_does_not_keep_the_next_night_from_its_work(
    place: FleetPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.world.fault = lambda n, _: PowerCut() if n == 3 else None
    with pytest.raises(PowerCut):
        place.night(0)
    place.world.fault = lambda *_: None

    def silent(_: object) -> None:
        raise MachineError("box1 does not answer")

    monkeypatch.setattr(place, "end_bundles", silent)
    assert {cell.state for cell in place.night(1).cells} == {"measured"}
    assert any("may go on: box1 does not answer" in str(notice) for notice in place.watch.notices)


EVERYWHERE = CONFIG.format(budget="10h") + "every_machine: true\n"


def test_each_cell_can_be_measured_on_every_machine_with_a_series_of_each(place: FleetPlace) -> None:
    place.text = EVERYWHERE
    night = place.night(0)
    assert sorted(machines(night).items()) == sorted(
        (f"{name} on {machine}", machine) for name in "abcd" for machine in ("box1", "box2")
    )
    assert {cell.too_few_nights for cell in night.cells} == {1}
    assert not any("machine changed" in note for note in night.notes)
    again = place.night(0, date=1)
    assert {cell.state for cell in again.cells} == {"skipped"}
    place.night(1, date=2)
    assert len(series(place)) == 8
    assert {len(nights) for nights in series(place).values()} == {2}


def test_a_step_that_one_machine_shows_is_no_commits(place: FleetPlace) -> None:
    """One is a third slower from the eighth night on, the other one is as before."""
    place.text, place.cells = EVERYWHERE, place.cells[:2]
    for day in range(8):
        place.night(day)
    place.world.machines["box2"] = 1.33
    alerts = [alert for day in range(8, 12) for alert in place.night(day).alerts]
    assert {alert.cause for alert in alerts} <= {"night"}
    assert not any(alert.counts for alert in alerts)
    assert {alert.cell for alert in alerts}, "it is reported"
    evidence = [item for alert in alerts for item in alert.evidence]
    assert any(item.kind == "other machines spared" for item in evidence)
    assert not place.searched
