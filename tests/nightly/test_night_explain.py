"""Culprits that a night's bisections named are profiled within its budget, and cost it nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.journal import EventKind, Journal, JournalEvent, read
from perfbisect.model.attempt import Failure
from perfbisect.nightly.bisect import phases_of
from perfbisect.nightly.delivery import message
from perfbisect.nightly.model import Night, NightProfile
from perfbisect.nightly.report import night_report
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.phases import PhasesDocument
from perfbisect.report.terminal import report_lines
from perfbisect.stats.phases import PhaseDifference
from tests.fixtures.jobs import Play, new_job, plan_for, play
from tests.jobs.world import PowerCut, World, history
from tests.long import mostly_long
from tests.nightly.night_factory import HOSTILE, make_night, search
from tests.nightly.nights import CONFIG, EACH, SLOW, FleetPlace, Place, is_slow_commit, only_bisection

__all__ = ["new_job", "plan_for", "play"]


@pytest.fixture
def place(eve: Place) -> Place:
    return eve


def profile_launches(place: Place) -> list[str]:
    return [change for _, change, purpose in place.launches() if purpose == "profile"]


@pytest.mark.processes
def test_a_culprit_is_profiled_once(place: Place) -> None:
    culprit, parent = place.commits[SLOW * EACH], place.commits[SLOW * EACH - 1]
    night = place.night(SLOW)
    found = only_bisection(night)
    assert found.culprit is not None and found.culprit.id == culprit
    assert profile_launches(place) == [parent, culprit, culprit, parent]
    profile = found.profile
    assert profile is not None and profile.profile_of == found.event
    assert (profile.conclusion, profile.why) == ("no stacks", ""), "these launches recorded nothing"
    assert profile.next == f"perfbisect report {profile.job}"
    assert profile.minutes > 0
    spent = sum(cell.minutes for cell in night.cells) + found.minutes + profile.minutes
    assert night.minutes == pytest.approx(spent)
    assert night.exit_code == 3 and night.next == f"perfbisect report {found.job}"
    (phases,) = found.phases
    assert phases.startswith("No phases: ")
    report = place.last_report
    for text in ("\n".join(report_lines(report)), report_markdown(report), report_html(report)):
        assert profile.sentence in text and profile.next in text and phases in text
    (sent,) = message(night)["commits"]
    assert sent["phases"] == [phases]
    assert sent["profile"]["sentence"] == profile.sentence
    assert Night.model_validate_json(night.text()) == night
    later = place.night(SLOW + 1)
    assert (later.exit_code, len(profile_launches(place)), len(place.profiled)) == (0, 4, 1)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"profile_minutes": 10_000.0}, "minutes are left, a profile takes about 10000"),
        ({"profile_problem": "py-spy is not installed"}, "py-spy is not installed"),
        ({"text": CONFIG.format(budget="10h") + "explain: false\n"}, "the configuration says explain: false"),
        ({"profile_refusal": MachineError("no device is free")}, "no device is free"),
        ({"profile_refusal": UsageError("there are no two sides")}, "there are no two sides"),
        ({"profile_refusal": KeyError("oops")}, "internal error: KeyError('oops')"),
    ],
)
def test_what_cannot_be_profiled_is_noted_and_costs_the_night_nothing(
    place: Place, changed: Mapping[str, Any], why: str
) -> None:
    for name, value in changed.items():
        setattr(place, name, value)
    night = place.night(SLOW)
    found = only_bisection(night)
    assert is_slow_commit(place, found)
    assert (found.exit_code, night.exit_code) == (3, 3)
    assert all(step.state == "done" for step in night.steps)
    assert found.phases, "these need no launch"
    profile = found.profile
    assert profile is not None and why in profile.why
    assert (profile.job, profile.sentence) == ("", "")
    assert profile.next == f"perfbisect explain {found.job} --profile"
    assert profile_launches(place) == []
    text = "\n".join(report_lines(place.last_report))
    assert f"Not profiled: {profile.why}" in text and profile.next in text
    if isinstance(place.profile_refusal, KeyError):
        log = Path(profile.why.rpartition("see ")[2])
        assert "KeyError: 'oops'" in log.read_text()


def test_a_profile_whose_launches_fail_costs_the_night_nothing(place: Place) -> None:
    place.world.fault = lambda _, request: (
        Failure("launch", "change", "no memory", "/log") if request.purpose == "profile" else None
    )
    night = place.night(SLOW)
    found = only_bisection(night)
    assert found.culprit is not None and night.exit_code == 3
    profile = found.profile
    assert profile is not None and "no memory" in profile.why
    assert profile.job and profile.next == f"perfbisect explain {found.job} --profile"


@pytest.mark.processes
@pytest.mark.parametrize("kind", [FleetPlace])
def test_on_a_fleet_the_command_is_one_that_a_fleet_can_do(place: Place) -> None:
    found = only_bisection(place.night(SLOW))
    profile = found.profile
    assert profile is not None and "a profile is made on one machine" in profile.why
    assert profile.next == f"perfbisect explain {found.job} --hunks --dry-run"
    assert place.profiled == []


@pytest.mark.parametrize("cut", [1, 3])
def test_a_night_that_is_killed_in_a_profile_goes_on_with_it(place: Place, cut: int) -> None:
    profiles = list[str]()

    def fail(_: int, request: object) -> BaseException | None:
        profiles.extend([request.id] if getattr(request, "purpose", "") == "profile" else [])
        return PowerCut() if len(profiles) == cut else None

    place.world.fault = fail
    with pytest.raises(PowerCut):
        place.night(SLOW)
    place.world.fault = lambda *_: None
    night = place.night(SLOW)
    profile = only_bisection(night).profile
    assert profile is not None and profile.sentence
    assert len(profile_launches(place)) == 4
    assert len(_profile_jobs(place)) == 1


@pytest.mark.parametrize(
    ("line", "written"),
    mostly_long(product(("job", "step"), (False, True)), short=[("job", False), ("step", True)]),
)
def test_a_night_that_is_killed_beside_a_profile_makes_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, line: str, written: bool
) -> None:
    append = Journal.append

    def torn(journal: Journal, kind: EventKind, data: Mapping[str, Any]) -> JournalEvent:
        is_cut = kind == line and "profile_of" in data
        if is_cut and not written:
            raise PowerCut
        event = append(journal, kind, data)
        if is_cut:
            raise PowerCut
        return event

    monkeypatch.setattr(Journal, "append", torn)
    with pytest.raises(PowerCut):
        place.night(SLOW)
    monkeypatch.setattr(Journal, "append", append)
    night = place.night(SLOW)
    profile = only_bisection(night).profile
    assert profile is not None and profile.sentence
    assert len(profile_launches(place)) == 4
    assert [job.id for job in _profile_jobs(place)] == [profile.job]


def test_a_night_that_is_given_up_ends_its_profile(place: Place) -> None:
    place.world.fault = lambda _, request: PowerCut() if request.purpose == "profile" else None
    with pytest.raises(PowerCut):
        place.night(SLOW)
    place.world.fault = lambda *_: None
    assert not place.watch.stopped
    place.night(SLOW + 1)
    assert len(place.watch.stopped) == 1


def _profile_jobs(place: Place) -> list[Any]:
    return [job for job in place.jobs.all() if read(job.journal).events[0].data["verb"] == "profile"]


def test_the_phase_that_moved_is_told_without_a_launch(play: Play) -> None:
    report = play(World(history(6).changes, slow=4, factor=1.5))
    assert report.culprit is not None
    decode = PhaseDifference(
        name="decode", kind="time", unit="ms a step", stage="", a=10.0, b=15.0, difference=5.0,
        low=4.9, high=5.1, smallest=0.1, verdict="moved",
    )  # fmt: skip
    phases = PhasesDocument(a="parent", b="culprit", launches_a=4, launches_b=4, phases=(decode,))
    assert phases_of(report.model_copy(update={"phases": phases})) == (
        "Decode +5.00 ms a step (+4.90 to +5.10).",
    )
    assert phases_of(report)[0].startswith("No phases: the launches were recorded without counters")


def test_nothing_of_a_profile_acts_in_the_markdown() -> None:
    profile = NightProfile(profile_of="x", sentence=HOSTILE, next="perfbisect report J")
    found = search(phases=(HOSTILE,), profile=profile)
    text = report_markdown(night_report(make_night(bisections=(found,), rows=(), cells=())))
    outside = re.sub(r"(`+).*?\1", "", text)
    assert "<script>" not in outside and "[x](http" not in outside and "@team" not in outside
