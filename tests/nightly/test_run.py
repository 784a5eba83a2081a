"""Whole nights over a stand-in for the machine: what is measured, told, bisected, and what a cut leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import Interrupted, MachineError, UsageError
from perfbisect.jobs.journal import EventKind, Journal, JournalEvent
from perfbisect.model.attempt import Failure
from perfbisect.nightly.journal import Nights
from perfbisect.nightly.model import Night
from perfbisect.nightly.night import StepResult
from perfbisect.nightly.run import forecast_night, run_night
from perfbisect.series.store import SeriesStore
from tests.jobs.world import Clock, PowerCut
from tests.long import mostly_long
from tests.nightly.nights import CONFIG, EACH, Place

BAD_BUILD = Failure("build", "change", "no wheel", "/log")
NO_SERVE = Failure("launch", "change", "it ended with exit code 1", "/log")


def states(document: Night) -> dict[str, str]:
    return {one.name: one.state for one in document.cells}


def step(document: Night, name: str) -> str:
    return next(one.state for one in document.steps if one.name == name)


def test_a_night_measures_each_cell_twice_in_launches_far_apart(place: Place) -> None:
    document = place.night(0)
    assert states(document) == {"a": "measured", "b": "measured", "c": "measured"}
    assert document.exit_code == 0
    assert {one.launches for one in document.cells} == {2}
    order = [request.cell.name for request in place.world.requests]
    assert sorted(order[:3]) == sorted(order[3:]) == ["a", "b", "c"]
    assert document.order == tuple(order[:3])
    assert document.minutes == pytest.approx(place.world.now / 60)
    assert document.commit.id == place.commits[EACH - 1]
    assert document.hardware == "toy"
    assert document.ended > document.began
    assert Night.model_validate_json(document.text()) == document
    again = Nights(place.folder / "state", "n").all()[0].document
    assert Night.model_validate_json(again.read_text()) == document
    report = Path(document.files["report"])
    assert "Nightly of 2026-01-01" in report.read_text()
    assert "# Nightly n of 2026-01-01" in Path(document.files["night"]).read_text()


def test_what_was_measured_at_this_commit_is_left_out(place: Place) -> None:
    first = place.night(0)
    again = place.night(0, date=1)
    assert states(again) == {"a": "skipped", "b": "skipped", "c": "skipped"}
    assert again.cells[0].reason == f"measured at this commit in night {first.night}"
    assert len(place.world.requests) == 6
    assert "git -C" in again.next
    assert states(place.night(1, date=2)) == states(first)


def test_a_night_has_its_own_seed(place: Place) -> None:
    def seed(commit: int, day: int) -> int:
        clock = Clock(place.world.moment + timedelta(days=day))
        return forecast_night(replace(place.context(commit), clock=clock)).seed

    assert len({seed(0, 0), seed(0, 1), seed(1, 0)}) == 3
    assert seed(0, 0) == seed(0, 0)


def test_cells_take_as_long_as_they_took_and_the_shortest_that_fit_are_measured(place: Place) -> None:
    first = place.night(0)
    assert {one.forecast_basis.partition(",")[0] for one in first.cells} == {"a guess"}
    each = place.world.now / 6 / 60
    place.text = CONFIG.format(budget=f"{4.5 * each:.2f}m")
    shown = forecast_night(place.context(1))
    assert Counter(states(shown).values()) == {"planned": 2, "not reached": 1}
    assert {one.forecast_basis for one in shown.cells} == {"from 1 earlier night"}
    assert len(place.world.requests) == 6, "a dry run starts nothing"
    second = place.night(1)
    assert Counter(states(second).values()) == {"measured": 2, "not reached": 1}
    assert {name for name, state in states(second).items() if state == "measured"} == set(shown.order)


def test_a_cell_that_fails_stops_no_other(place: Place) -> None:
    place.world.fault = lambda _, request: NO_SERVE if request.cell.name == "b" else None
    document = place.night(0)
    assert states(document) == {"a": "measured", "b": "failed", "c": "measured"}
    assert document.exit_code == 5
    failed = document.cells[1]
    assert "does not serve: launch: it ended with exit code 1" in failed.reason
    assert (failed.log, failed.launches) == ("/log", 0)
    assert step(document, "report") == "done"
    place.world.fault = lambda *_: None
    assert states(place.night(0, date=1)) == {"a": "skipped", "b": "measured", "c": "skipped"}


def test_a_cell_that_its_commit_cannot_run_is_not_started(place: Place) -> None:
    place.refused["b"] = UsageError("no such data set", next_step="perfbisect cells lint")
    place.checked, place.too_large = ("its client is not checked",), {"c"}
    shown = forecast_night(place.context(0))
    assert states(shown) == {"a": "planned", "b": "failed", "c": "failed"}
    assert (shown.exit_code, shown.order) == (2, ("a",))
    assert shown.notes == ("its client is not checked",), "once for all cells"
    place.refused.clear()
    assert forecast_night(place.context(0)).exit_code == 5, "no machine for one cell"
    place.refused["b"] = UsageError("no such data set", next_step="perfbisect cells lint")
    night = place.night(0)
    assert states(night) == {"a": "measured", "b": "failed", "c": "measured"}
    assert (night.exit_code, night.next) == (2, "perfbisect cells lint")
    assert {request.cell.name for request in place.world.requests} == {"a", "c"}
    place.refused.clear()
    assert states(place.night(0, date=1)) == {"a": "skipped", "b": "measured", "c": "skipped"}


def test_a_broken_build_is_tried_once_and_told(place: Place) -> None:
    place.night(0)
    requests = len(place.world.requests)
    place.world.fault = lambda *_: BAD_BUILD
    document = place.night(1)
    assert len(place.world.requests) == requests + 1
    assert set(states(document).values()) == {"failed"}
    assert sum("not tried: another cell failed with" in one.reason for one in document.cells) == 2
    assert document.exit_code == 5
    assert step(document, "detect") == "done"


def test_a_broken_build_on_the_first_night_leaves_nothing_to_read(place: Place) -> None:
    place.world.fault = lambda *_: BAD_BUILD
    document = place.night(0)
    assert document.exit_code == 5
    assert [one.name for one in document.steps] == ["ingest"]


def test_a_machine_that_is_ill_is_not_tried_with_every_cell(place: Place) -> None:
    place.world.fault = lambda *_: Failure("launch", "machine", "no port")
    document = place.night(0)
    assert {request.cell.name for request in place.world.requests} == set(document.order[:2])
    assert document.exit_code == 5


@pytest.mark.parametrize("cut", mostly_long(range(1, 7), short=[1, 4, 6]))
def test_a_night_that_is_killed_goes_on_and_nothing_is_measured_twice(place: Place, cut: int) -> None:
    place.world.fault = lambda n, _: PowerCut() if n == cut else None
    with pytest.raises(PowerCut):
        place.night(0)
    shown = forecast_night(place.context(3))
    assert "was interrupted: it resumes with its own commit" in shown.notes[-1]
    document = place.night(3, date=0)
    assert document.commit.id == shown.commit.id == place.commits[EACH - 1]
    assert Counter(name for name, _, _ in place.launches()) == {"a": 2, "b": 2, "c": 2}
    assert len(place.world.requests) == 7
    assert len(Nights(place.folder / "state", "n").all()) == 1
    assert len(place.jobs.all()) == 3
    with SeriesStore.of(place.folder / "state") as store:
        assert len(store.points()) == 6


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("cut", range(1, 26, 3))
def test_a_night_that_is_killed_at_a_line_of_a_journal_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, cut: int, written: bool
) -> None:
    place.cells = place.cells[:2]
    append, lines = Journal.append, list[str]()

    def torn(journal: Journal, kind: EventKind, data: Mapping[str, Any]) -> JournalEvent:
        lines.append(kind)
        if len(lines) == cut and not written:
            raise PowerCut
        event = append(journal, kind, data)
        if len(lines) == cut:
            raise PowerCut
        return event

    monkeypatch.setattr(Journal, "append", torn)
    with pytest.raises(PowerCut):
        place.night(0)
    monkeypatch.setattr(Journal, "append", append)
    document = place.night(0)
    assert Counter(name for name, _, _ in place.launches()) == {"a": 2, "b": 2}
    assert states(document) in ({"a": "measured", "b": "measured"}, {"a": "skipped", "b": "skipped"})
    begun = [one for one in Nights(place.folder / "state", "n").all() if one.events()]
    assert [one.events()[-1].kind for one in begun] == ["verdict"] * len(begun)
    assert len(begun) == (2 if "skipped" in states(document).values() else 1)
    with SeriesStore.of(place.folder / "state") as store:
        assert len(store.points()) == 4


def test_a_night_that_is_killed_in_a_step_does_the_others_once(place: Place) -> None:
    done: list[str] = []

    def cut(_: Night) -> StepResult:
        done.append("second")
        if len(done) == 2:
            raise PowerCut
        return StepResult("x")

    def first(_: Night) -> StepResult:
        done.append("first")
        return StepResult("x", {"made": place.folder / "made"})

    place.tasks = {"first": first, "second": cut}
    with pytest.raises(PowerCut):
        place.night(0)
    document = place.night(0)
    assert done == ["first", "second", "second"]
    assert document.files["made"] == str(place.folder / "made")
    assert len(place.world.requests) == 6


def test_a_step_that_fails_is_told_and_the_others_run(place: Place) -> None:
    def full(_: Night) -> StepResult:
        raise MachineError("the disk is full", next_step="make room")

    def mistaken(_: Night) -> StepResult:
        raise KeyError("oops")

    told: list[int] = []

    def tell(night: Night) -> StepResult:
        told.append(night.exit_code)
        return StepResult()

    place.tasks = {"full": full, "mistaken": mistaken, "tell": tell}
    document = place.night(0)
    assert [step(document, name) for name in ("full", "mistaken", "tell")] == ["failed", "failed", "done"]
    assert told == [5]
    assert document.exit_code == 5
    assert document.next == "make room"
    log = next(one.where for one in document.steps if one.name == "mistaken")
    assert "KeyError: 'oops'" in Path(log).read_text()


def test_a_night_that_was_cut_long_ago_is_given_up_and_what_it_measured_is_kept(place: Place) -> None:
    place.world.fault = lambda n, _: PowerCut() if n == 5 else None
    with pytest.raises(PowerCut):
        place.night(0)
    assert len(place.watch.stopped) == 0
    document = place.night(1)
    assert document.commit.id == place.commits[2 * EACH - 1]
    assert place.watch.stopped, "what the killed night left is ended"
    by_commit = Counter(change for _, change, _ in place.launches())
    assert by_commit == {place.commits[EACH - 1]: 4, place.commits[2 * EACH - 1]: 6}
    with SeriesStore.of(place.folder / "state") as store:
        assert len(store.points()) == 10
    again = place.night(0, date=2)
    assert Counter(states(again).values()) == {"skipped": 1, "measured": 2}
    place.text += "launches: 3\n"
    more = place.night(0, date=3)
    assert set(states(more).values()) == {"measured"}, "fewer launches than are asked for do not count"


def test_a_fetch_that_fails_is_told_and_the_night_goes_on(place: Place) -> None:
    def failed() -> StepResult:
        raise MachineError("git fetch origin failed: no route", next_step="git fetch origin")

    context = replace(place.context(0), fetch=failed)
    document = run_night(context)
    assert set(states(document).values()) == {"measured"}
    assert (step(document, "fetch"), document.exit_code, document.next) == ("failed", 5, "git fetch origin")
    context = replace(place.context(0), fetch=lambda: StepResult("as before"))
    document = run_night(replace(context, clock=Clock(place.world.moment + timedelta(days=1))))
    assert set(states(document).values()) == {"skipped"}
    assert (step(document, "fetch"), document.exit_code) == ("done", 0)
    assert "fetch" not in document.next, "it was just done"


def test_an_interruption_ends_the_night_and_it_goes_on(place: Place) -> None:
    place.world.fault = lambda n, _: Interrupted("stop") if n == 2 else None
    with pytest.raises(Interrupted):
        place.night(0)
    assert states(place.night(0)) == {"a": "measured", "b": "measured", "c": "measured"}
