"""What nights make of what they find: alerts that open and close by rule, and which of them are bisected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.errors import MachineError, UsageError
from perfbisect.nightly.alerts import judge_series
from perfbisect.nightly.bisect import read_earlier_bisections, select_cases
from perfbisect.nightly.config import BisectRules
from perfbisect.nightly.model import Night
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from perfbisect.series.detect import set_state
from perfbisect.series.store import SeriesStore
from tests.jobs.world import PowerCut
from tests.nightly.nights import EACH, SLOW, Place, is_slow_commit, only_bisection, slow
from tests.unreadable import GIBBERISH, make_unreadable


@pytest.fixture
def cell_names() -> tuple[str, ...]:
    return ("a", "b")


def nights(place: Place, first: int, last: int) -> list[Night]:
    return [place.night(day) for day in range(first, last + 1)]


def test_a_regression_opens_an_alert_is_bisected_once_and_known_after(place: Place) -> None:
    slow(place)
    quiet = nights(place, 0, SLOW - 1)
    assert {one.exit_code for one in quiet} == {0}
    assert not any(one.alerts for one in quiet)
    night = place.night(SLOW)
    assert night.exit_code == 3
    opened = [one for one in night.alerts if one.change == "opened" and one.counts]
    assert {(one.cell, one.worse) for one in opened} == {("a", True)}
    assert {one.cause for one in opened} <= {"product", "unknown"}, "of one cell it is not known which"
    one = only_bisection(night)
    assert one.outcome == "found"
    assert is_slow_commit(place, one)
    assert (one.good, one.bad) == (place.commits[SLOW * EACH - 1], place.commits[SLOW * EACH + EACH - 1])
    assert place.searched[0].is_file()
    assert night.next == f"perfbisect report {one.job}"
    assert [row.test for row in night.rows if row.metric == "tpot"] == ["a"]
    after = place.night(SLOW + 1)
    assert {alert.change for alert in after.alerts} == {"updated"}
    assert (after.exit_code, after.bisections, len(place.searched)) == (0, (), 1)
    assert one.culprit is not None
    commit = f"commit `{one.culprit.short} "
    outcomes = [alert.measured for alert in after.alerts if alert.event == one.event]
    assert {of.commits[0].id for of in outcomes if of} == {one.culprit.id} and None not in outcomes
    assert commit in report_markdown(place.last_report), "a later night still says it"


@pytest.mark.processes
def test_a_night_on_another_machine_says_why_its_series_begin_anew(place: Place) -> None:
    """The driver was updated, and nothing else is as fast as before: no change of the product."""
    place.world.machine_class = "H200 x 1, driver 550"
    nights(place, 0, SLOW - 2)
    place.world.machine_class, place.world.base = "H200 x 1, driver 560", 2 * place.world.base
    night = place.night(SLOW - 1)
    report = place.last_report
    after = place.night(SLOW)
    note = (
        f"the machine changed after 2026-01-0{SLOW - 1}: driver 550 -> driver 560. The series of 2 cells "
        "restart; earlier nights are not compared"
    )
    assert night.notes[0] == note
    assert [len(night.notes), len(after.notes)] == [2, 1]
    assert "with 2 of the 7 nights" in after.notes[0]
    assert f"  - {note}" in report_lines(report)
    assert "the machine changed after" in report_markdown(report)
    assert not night.alerts and not after.alerts


def test_a_bisection_that_is_killed_goes_on(eve: Place) -> None:
    eve.world.fault = lambda n, _: PowerCut() if n == 4 + 3 else None
    with pytest.raises(PowerCut):
        eve.night(SLOW)
    eve.world.fault = lambda *_: None
    night = eve.night(SLOW)
    assert night.exit_code == 3
    assert {one.change for one in night.alerts if one.counts} == {"opened"}, "it is not lost as told before"
    one = only_bisection(night)
    assert is_slow_commit(eve, one)
    searches = [job for job in eve.jobs.all() if (job.path / "journal.jsonl").read_text().count('"bisect"')]
    assert len(searches) == 1


def test_what_the_night_has_no_minutes_for_the_next_one_does(eve: Place) -> None:
    eve.least = 10_000.0
    night = eve.night(SLOW)
    states = {one.state: one.why for one in night.bisections}
    assert "takes at least 10000" in states["postponed"]
    assert night.exit_code == 3
    eve.least = 1.0
    later = eve.night(SLOW + 1)
    one = only_bisection(later)
    assert is_slow_commit(eve, one)
    assert later.exit_code == 3


def test_a_window_of_one_commit_is_named_without_a_launch(eve: Place) -> None:
    night = eve.night(SLOW, head=SLOW * EACH)
    one = only_bisection(night, "named")
    assert is_slow_commit(eve, one)
    assert one.why == "the window contains one commit"
    assert night.exit_code == 3
    assert eve.night(SLOW + 1).bisections == (), "what is settled is not looked into again"
    assert not eve.searched


def test_an_event_that_another_series_joins_later_is_looked_into_once(eve: Place) -> None:
    eve.night(SLOW)
    context = eve.context(SLOW)
    begun = context.nights.all()
    with SeriesStore.of(eve.folder / "state") as store:
        seen, _ = judge_series(store, context.table, context.file.nightly.alerts)
    before = read_earlier_bisections(begun)
    (done,) = [one for one in seen.alerts if before.get(one.id) == "settled"]
    joining = next(
        one.id
        for one in seen.alerts
        if one.event == done.event and one.id != done.id and one.part == "typical"
    )
    record = begun[-1].record()
    findings = record.findings
    assert findings is not None
    told = [one for one in findings.alerts if one.id == joining]
    plan = record.plan
    (case,) = select_cases(seen, told, before, {}, plan, BisectRules())
    assert case.rejection == "examined"
    (case,) = select_cases(seen, told, {}, {}, plan, BisectRules())
    assert case.rejection is None


def test_a_bisection_that_the_machine_stops_is_tried_again(eve: Place) -> None:
    eve.refusal = MachineError("the disk is full")
    night = eve.night(SLOW)
    assert {one.state for one in night.bisections if not one.why.startswith("the median")} == {"failed"}
    eve.refusal = None
    later = eve.night(SLOW + 1)
    assert [one.state for one in later.bisections] == ["measured"]
    assert eve.night(SLOW + 2).bisections == (), "though the cause of its event may have another name by now"


def test_a_bisection_that_cannot_be_is_told(eve: Place) -> None:
    eve.refusal = UsageError("nothing between them changes what runs")
    night = eve.night(SLOW)
    one = only_bisection(night, "failed")
    assert one.why == "nothing between them changes what runs"
    assert (one.exit_code, night.exit_code) == (4, 3)


def test_the_instrument_blames_nobody(eve: Place) -> None:
    eve.world.client_digest = "another client"
    eve.world.of = lambda *_: 1.3
    found = nights(eve, SLOW, SLOW + 1)
    assert {one.exit_code for one in found} == {0}
    told = [alert for one in found for alert in one.alerts if alert.change == "opened"]
    assert {alert.cause for alert in told} <= {"instrument"}
    assert not any(alert.counts for alert in told)
    assert not eve.searched
    assert {one.state for night in found for one in night.bisections} <= {"not worth it"}


def test_a_rule_that_nobody_can_read_closes_and_reopens(eve: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a rule closed an alert, and no person, is not in its reason."""
    make_unreadable(monkeypatch)
    eve.text += "bisect: {when: never}\n"
    eve.night(SLOW)
    with SeriesStore.of(eve.folder / "state") as store, store.transaction():
        for alert in store.alerts.all():
            store.alerts.mark(alert.id, "closed", GIBBERISH, by_rule=True)
    again = eve.night(SLOW + 1)
    assert {alert.change for alert in again.alerts} == {"reopened"}
    with SeriesStore.of(eve.folder / "state") as store:
        for alert in store.alerts.all():
            set_state(store, alert.id, "closed", "by rule: ours")
    assert eve.night(SLOW + 2).alerts == (), "a person closed them"


@pytest.mark.parametrize("lasted", [pytest.param(5, marks=pytest.mark.processes), 3])
def test_what_is_over_is_closed_by_rule_and_told_once(eve: Place, lasted: int) -> None:
    slow(eve, until=SLOW + lasted)
    eve.text += "bisect: {when: never}\n"
    found = nights(eve, SLOW, SLOW + lasted + 3)
    told = [
        (alert.change, alert.why)
        for one in found
        for alert in one.alerts
        if alert.metric == "tpot" and alert.worse
    ]
    changes = [change for change, _ in told]
    assert changes.count("opened") == 1
    assert changes.count("closed") == 1
    assert changes.index("opened") < changes.index("closed")
    assert changes[-1] == "closed", "and is not told again"
    with SeriesStore.of(eve.folder / "state") as store:
        (alert,) = [x for x in store.alerts.all() if x.metric == "tpot" and x.worse]
    assert (alert.state, alert.by_rule, alert.why) == ("closed", True, told[-1][1])
    said = {one.why for night in found for one in night.bisections}
    assert said == {"the configuration says bisect: {when: never}"}
    assert [one.exit_code for one in found].count(3) == 1
    with SeriesStore.of(eve.folder / "state") as store:
        set_state(store, alert.id, "open", "by rule: slow for us")
    later = eve.night(SLOW + lasted + 4)
    assert [one.change for one in later.alerts if one.id == alert.id] == ["updated"]
    with SeriesStore.of(eve.folder / "state") as store:
        (alert,) = store.alerts.find(alert.id)
    assert (alert.state, alert.why) == ("open", "by rule: slow for us"), "a person reopened it"


def test_what_is_not_found_any_more_is_closed_by_rule(eve: Place) -> None:
    eve.text += "bisect: {when: never}\n"
    eve.night(SLOW)
    with SeriesStore.of(eve.folder / "state") as store, store.transaction():
        known = next(one for one in store.alerts.all() if one.metric == "tpot")
        gone = replace(known, id="20260101-beef", cell="b")
        store.alerts.keep([gone, replace(gone, id="20260101-cafe", why="a person reopened it")])
    later = eve.night(SLOW + 1)
    (gone,) = [one for one in later.alerts if one.id == "20260101-beef"]
    until = f"2026-01-{SLOW + 2:02}"
    assert (gone.change, gone.why) == (
        "closed",
        f"by rule: no longer detected in the nights up to {until}",
    )
    with SeriesStore.of(eve.folder / "state") as store:
        states = {one.id: one.state for one in store.alerts.all() if one.cell == "b"}
    assert states == {"20260101-beef": "closed", "20260101-cafe": "open"}
    assert "20260101-beef" not in {one.id for one in eve.night(SLOW + 2).alerts}


def test_people_have_the_last_word(eve: Place) -> None:
    eve.text += "bisect: {when: never}\n"
    eve.night(SLOW)
    with SeriesStore.of(eve.folder / "state") as store:
        for one in store.alerts.all():
            set_state(store, one.id, "closed", "we want it so")
    later = eve.night(SLOW + 1)
    assert later.alerts == ()
    with SeriesStore.of(eve.folder / "state") as store:
        assert {(one.state, one.why) for one in store.alerts.all()} == {("closed", "we want it so")}


def test_what_the_rules_leave_out_is_listed(eve: Place) -> None:
    eve.text += "alerts: {smallest: 90%}\n"
    night = eve.night(SLOW)
    assert [one.change for one in night.alerts].count("opened")
    assert not any(one.counts for one in night.alerts)
    assert night.exit_code == 0
    assert {one.state for one in night.bisections} == {"not worth it"}


@pytest.mark.processes
def test_nights_too_few_to_judge_do_not_say_that_there_is_nothing(place: Place) -> None:
    slow(place, factor=2.0)
    first = place.night(0)
    assert place.last_report.verdict.text == "too few nights to judge"
    assert {cell.too_few_nights for cell in first.cells} == {1}
    (note,) = [text for text in first.notes if text.startswith("not judged yet")]
    assert "2 cells, with 1 of the 7 nights" in note
    assert note in "\n".join(report_lines(place.last_report))
    assert "too few nights to judge" in report_markdown(place.last_report)
    *_, sixth = nights(place, 1, 5)
    assert place.last_report.verdict.text == "too few nights to judge"
    assert {cell.too_few_nights for cell in sixth.cells} == {6}
    seventh = place.night(6)
    assert place.last_report.verdict.text == "nothing new"
    assert {cell.too_few_nights for cell in seventh.cells} == {None}
    assert not any(text.startswith("not judged yet") for text in seventh.notes)
