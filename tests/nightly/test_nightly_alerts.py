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
from tests.nightly.nights import CONFIG, EACH, Place
from tests.unreadable import GIBBERISH, make_unreadable

SLOW = 8
"""The first night that is slow."""

SHOWN = SLOW
"""The night on which that is told: of so large a step the first that shows it."""


@pytest.fixture
def cell_names() -> tuple[str, ...]:
    return ("a", "b")


def slow(place: Place, factor: float = 1.4, until: int = 99) -> None:
    """Cell a is slower from the first commit of the night on that is :data:`SLOW`, until another night."""

    def of(name: str, position: int) -> float:
        return factor if name == "a" and SLOW * EACH <= position < until * EACH else 1.0

    place.world.of = of


def nights(place: Place, first: int, last: int) -> list[Night]:
    return [place.night(day) for day in range(first, last + 1)]


def test_a_regression_opens_an_alert_is_bisected_once_and_known_after(place: Place) -> None:
    slow(place)
    quiet = nights(place, 0, SHOWN - 1)
    assert {one.exit_code for one in quiet} == {0}
    assert not any(one.alerts for one in quiet)
    night = place.night(SHOWN)
    assert night.exit_code == 3
    opened = [one for one in night.alerts if one.change == "opened" and one.counts]
    assert {(one.cell, one.worse) for one in opened} == {("a", True)}
    assert {one.cause for one in opened} <= {"product", "unknown"}, "of one cell it is not known which"
    (one,) = [one for one in night.bisections if one.state == "measured"]
    assert one.outcome == "found"
    assert one.culprit is not None
    assert one.culprit.id == place.commits[SLOW * EACH]
    assert (one.good, one.bad) == (place.commits[SLOW * EACH - 1], place.commits[SLOW * EACH + EACH - 1])
    assert place.searched[0].weights.is_file()
    assert night.next == f"perfbisect report {one.job}"
    assert [row.test for row in night.rows if row.metric == "tpot"] == ["a"]
    after = place.night(SHOWN + 1)
    assert {alert.change for alert in after.alerts} == {"updated"}
    assert (after.exit_code, after.bisections, len(place.searched)) == (0, (), 1)


def test_a_night_on_another_machine_says_why_its_series_begin_anew(place: Place) -> None:
    """The driver was updated, and nothing else is as fast as before: no change of the product."""
    place.world.machine_class = "H200 x 1, driver 550"
    nights(place, 0, SHOWN - 2)
    place.world.machine_class, place.world.base = "H200 x 1, driver 560", 2 * place.world.base
    night = place.night(SHOWN - 1)
    report = place.last_report
    after = place.night(SHOWN)
    note = (
        f"the machine changed after 2026-01-0{SHOWN - 1}: driver 550 -> driver 560. The series of 2 cells "
        "restart; earlier nights are not compared"
    )
    assert night.notes[0] == note
    assert [len(night.notes), len(after.notes)] == [2, 1]
    assert "with 2 of the 7 nights" in after.notes[0]
    assert f"  - {note}" in report_lines(report)
    assert "the machine changed after" in report_markdown(report)
    assert not night.alerts and not after.alerts


def test_a_bisection_that_is_killed_goes_on(place: Place) -> None:
    slow(place)
    nights(place, 0, SHOWN - 1)
    before = len(place.world.requests)
    place.world.fault = lambda n, _: PowerCut() if n == before + 4 + 3 else None
    with pytest.raises(PowerCut):
        place.night(SHOWN)
    place.world.fault = lambda *_: None
    night = place.night(SHOWN)
    assert night.exit_code == 3
    assert {one.change for one in night.alerts if one.counts} == {"opened"}, "it is not lost as told before"
    (one,) = [one for one in night.bisections if one.state == "measured"]
    assert one.culprit is not None
    assert one.culprit.id == place.commits[SLOW * EACH]
    searches = [job for job in place.jobs.all() if (job.path / "journal.jsonl").read_text().count('"bisect"')]
    assert len(searches) == 1


def test_what_the_night_has_no_minutes_for_the_next_one_does(place: Place) -> None:
    slow(place)
    nights(place, 0, SHOWN - 1)
    place.least = 10_000.0
    night = place.night(SHOWN)
    states = {one.state: one.why for one in night.bisections}
    assert "takes at least 10000" in states["postponed"]
    assert night.exit_code == 3
    place.least = 1.0
    later = place.night(SHOWN + 1)
    (one,) = [one for one in later.bisections if one.state == "measured"]
    assert one.culprit is not None
    assert one.culprit.id == place.commits[SLOW * EACH]
    assert later.exit_code == 3


def test_a_window_of_one_commit_is_named_without_a_launch(place: Place) -> None:
    slow(place)
    for day in range(SHOWN):
        place.night(day)
    night = place.night(SHOWN, head=SLOW * EACH)
    (one,) = [one for one in night.bisections if one.state == "named"]
    assert one.culprit is not None
    assert one.culprit.id == place.commits[SLOW * EACH]
    assert one.why == "the window contains one commit"
    assert night.exit_code == 3
    assert place.night(SHOWN + 1).bisections == (), "what is settled is not looked into again"
    assert not place.searched


def test_an_event_that_another_series_joins_later_is_looked_into_once(place: Place) -> None:
    slow(place)
    nights(place, 0, SHOWN)
    context = place.context(SHOWN)
    begun = context.nights.all()
    with SeriesStore.of(place.folder / "state") as store:
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
    assert case.rejection == "an earlier night examined its event"
    (case,) = select_cases(seen, told, {}, {}, plan, BisectRules())
    assert case.rejection == ""


def test_a_bisection_that_the_machine_stops_is_tried_again(place: Place) -> None:
    slow(place)
    place.refusal = MachineError("the disk is full")
    night = nights(place, 0, SHOWN)[-1]
    assert {one.state for one in night.bisections if not one.why.startswith("the median")} == {"failed"}
    place.refusal = None
    later = place.night(SHOWN + 1)
    assert [one.state for one in later.bisections] == ["measured"]
    assert place.night(SHOWN + 2).bisections == (), (
        "though the cause of its event may have another name by now"
    )


def test_a_bisection_that_cannot_be_is_told(place: Place) -> None:
    slow(place)
    place.refusal = UsageError("nothing between them changes what runs")
    night = nights(place, 0, SHOWN)[-1]
    (one,) = [one for one in night.bisections if one.state == "failed"]
    assert one.why == "nothing between them changes what runs"
    assert (one.exit_code, night.exit_code) == (4, 3)


def test_the_instrument_blames_nobody(place: Place) -> None:
    nights(place, 0, SLOW - 1)
    place.world.client_digest = "another client"
    place.world.of = lambda *_: 1.3
    found = nights(place, SLOW, SHOWN + 1)
    assert {one.exit_code for one in found} == {0}
    told = [alert for one in found for alert in one.alerts if alert.change == "opened"]
    assert {alert.cause for alert in told} <= {"instrument"}
    assert not any(alert.counts for alert in told)
    assert not place.searched
    assert {one.state for night in found for one in night.bisections} <= {"not worth it"}


def test_a_rule_that_nobody_can_read_closes_and_reopens(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a rule closed an alert, and no person, is not in its reason."""
    make_unreadable(monkeypatch)
    slow(place)
    place.text += "bisect: {when: never}\n"
    nights(place, 0, SHOWN)
    with SeriesStore.of(place.folder / "state") as store, store.transaction():
        for record in store.alerts.all():
            store.alerts.mark(record.alert.id, "closed", GIBBERISH, by_rule=True)
    again = place.night(SHOWN + 1)
    assert {alert.change for alert in again.alerts} == {"reopened"}
    with SeriesStore.of(place.folder / "state") as store:
        for record in store.alerts.all():
            set_state(store, record.alert.id, "closed", "by rule: ours")
    assert place.night(SHOWN + 2).alerts == (), "a person closed them"


@pytest.mark.parametrize("lasted", [5, 3])
def test_what_is_over_is_closed_by_rule_and_told_once(place: Place, lasted: int) -> None:
    slow(place, until=SLOW + lasted)
    place.text += "bisect: {when: never}\n"
    found = nights(place, 0, SLOW + lasted + 3)
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
    with SeriesStore.of(place.folder / "state") as store:
        (record,) = [x for x in store.alerts.all() if x.alert.metric == "tpot" and x.alert.worse]
    assert (record.alert.state, record.by_rule, record.alert.why) == ("closed", True, told[-1][1])
    said = {one.why for night in found for one in night.bisections}
    assert said == {"the configuration says bisect: {when: never}"}
    assert [one.exit_code for one in found].count(3) == 1


def test_what_is_not_found_any_more_is_closed_by_rule(place: Place) -> None:
    slow(place)
    place.text += "bisect: {when: never}\n"
    nights(place, 0, SHOWN)
    with SeriesStore.of(place.folder / "state") as store, store.transaction():
        known = next(one for one in store.alerts.all() if one.alert.metric == "tpot")
        store.alerts.keep([replace(known, alert=replace(known.alert, id="20260101-beef", cell="b"))])
    later = place.night(SHOWN + 1)
    (gone,) = [one for one in later.alerts if one.id == "20260101-beef"]
    until = f"2026-01-{SHOWN + 2:02}"
    assert (gone.change, gone.why) == (
        "closed",
        f"by rule: no longer detected in the nights up to {until}",
    )
    with SeriesStore.of(place.folder / "state") as store:
        assert store.alerts.find("20260101-beef")[0].state == "closed"
    assert "20260101-beef" not in {one.id for one in place.night(SHOWN + 2).alerts}


def test_people_have_the_last_word(place: Place) -> None:
    slow(place)
    place.text += "bisect: {when: never}\n"
    nights(place, 0, SHOWN)
    with SeriesStore.of(place.folder / "state") as store:
        for one in store.alerts.all():
            set_state(store, one.alert.id, "closed", "we want it so")
    later = place.night(SHOWN + 1)
    assert later.alerts == ()
    with SeriesStore.of(place.folder / "state") as store:
        assert {(one.alert.state, one.alert.why) for one in store.alerts.all()} == {
            ("closed", "we want it so")
        }


def test_what_the_rules_leave_out_is_listed(place: Place) -> None:
    slow(place)
    place.text += "alerts: {smallest: 90%}\n"
    night = nights(place, 0, SHOWN)[-1]
    assert [one.change for one in night.alerts].count("opened")
    assert not any(one.counts for one in night.alerts)
    assert night.exit_code == 0
    assert {one.state for one in night.bisections} == {"not worth it"}
    assert place.text.startswith(CONFIG.format(budget="10h"))


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
