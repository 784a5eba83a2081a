"""What is judged of a store, what is left out, and what is not absorbed into a baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.errors import UsageError
from perfbisect.report.document import Items, Report
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from perfbisect.series.detect import analyze_series, detect, series_of_main, set_state
from perfbisect.series.night_table import show_nights
from perfbisect.series.nightly_report import build_nightly_report
from perfbisect.series.points import Point
from perfbisect.series.rebaseline import rebaseline
from perfbisect.series.report import detect_report, nightly_report, series_report
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import load_suspect_table
from tests.series.made_series import cell, noise, step

TABLE = load_suspect_table()


def keep(store: SeriesStore, *points: Point) -> None:
    """Points as an ingest leaves them, a build each."""
    with store.transaction():
        for point in points:
            number = store.keep_build(point.build)
            store.replace_results(number, [point], [])


def points(
    test: str = "omni", *, at: int = 99, factor: float = 1.0, branch: str = "main", n: int = 40
) -> list[Point]:
    (series,) = cell({"e2el:median": step(noise(7, n), at, factor)}, test=test)
    return [
        replace(p, build=replace(p.build, name=f"{test}-{p.build.name}", branch=branch))
        for p in series.points
    ]


def test_builds_of_another_branch_are_left_out(store: SeriesStore) -> None:
    keep(store, *points(), *points("pull", branch="a-pull-request", at=20, factor=3.0))
    series, away = series_of_main(store)
    assert ({one.cell for one in series}, away) == ({"omni/random@c4-n40"}, 40)
    document = detect(store, TABLE, now="t")
    assert document.alerts == () and document.census.builds_not_of_main == 40


def test_the_points_of_series_hold_no_values_of_their_own(store: SeriesStore) -> None:
    keep(store, *points())
    ((series,), _) = series_of_main(store)
    assert len(series.values) == len(series.points) == 40
    assert all(not point.values for point in series.points)


def test_a_store_of_other_branches_alone_has_nothing_to_judge(store: SeriesStore) -> None:
    keep(store, *points(branch="a-pull-request"))
    with pytest.raises(UsageError, match="no points of the main branch"):
        analyze_series(store, TABLE)


def test_what_an_open_alert_tells_becomes_no_baseline(store: SeriesStore) -> None:
    """Found and not yet told is enough: no `track detect` need have run before."""
    told = {"baseline": {"median_e2el_ms": 200.0}}
    keep(store, *(replace(p, covariates=told) for p in points(at=20, factor=1.3)))
    (row,) = rebaseline(store, analyze_series(store, TABLE)).rows
    (alert,) = detect(store, TABLE, now="t").alerts
    assert (row.status, row.new, row.alert, row.alert_state) == ("skipped", 200, alert.id, "open")
    shown = show_nights(store, [alert.cell]).tables[0].rows
    assert {place: [mark.kind for mark in row.marks] for place, row in enumerate(shown) if row.marks} == {
        20: ["alert"]
    }
    table = report_markdown(series_report("show", document=show_nights(store, [alert.cell])))
    assert f"+{alert.effect * 100:.1f} % step, product ({alert.id})" in table
    set_state(store, alert.id, "closed", "accepted")
    assert show_nights(store, [alert.cell]).tables[0].rows[20].marks[0].values["state"] == "closed"
    (row,) = rebaseline(store, analyze_series(store, TABLE)).rows
    assert (row.status, row.n, row.left_out) == ("better", 7, ())


def test_the_report_holds_what_is_at_another_level_now(store: SeriesStore) -> None:
    keep(store, *points(at=20, factor=1.3), *points("better", at=20, factor=0.7), *points("quiet"))
    document = build_nightly_report(analyze_series(store, TABLE), fdr=0.05)
    assert [(row.test, row.status, row.issue, row.days) for row in document.rows] == [
        ("omni", "regressed", True, 20), ("better", "improved", False, 20),
    ]  # fmt: skip
    (worse, better) = document.rows
    assert worse.config == "random@c4-n40", "one test has several data sets at one load"
    assert worse.change == pytest.approx(0.3, abs=0.02) and better.change == pytest.approx(-0.3, abs=0.02)
    assert worse.baseline == pytest.approx(100, rel=0.02)
    detect(store, TABLE, now="t")
    set_state(store, worse.alert, "acknowledged", "issue 7")
    assert build_nightly_report(analyze_series(store, TABLE), fdr=0.05).rows[0].status == "known"
    set_state(store, worse.alert, "closed", "accepted")
    assert [row.test for row in build_nightly_report(analyze_series(store, TABLE), fdr=0.05).rows] == [
        "better"
    ]


def test_every_cell_stands_beside_its_seven_nights(store: SeriesStore) -> None:
    """Slow since twenty nights, quiet, ended, and with another model since."""
    other = [
        replace(p, workload=replace(p.workload, model="B")) if place > 36 else p
        for place, p in enumerate(points("other", factor=2.0, at=37))
    ]
    keep(store, *points(at=20, factor=1.3), *points("quiet"), *points("ended", n=30), *points("new", n=1))
    keep(store, *other)
    analysis = analyze_series(store, TABLE)
    document = build_nightly_report(analysis, fdr=0.05, metrics=["e2el:median"])
    rows = {row.cell.partition("/")[0]: row for row in document.levels}
    assert [row.cell for row in document.levels] == sorted(row.cell for row in document.levels)
    values = {series.cell.partition("/")[0]: series.values for series in analysis.series}
    own = values["omni"]
    assert rows["omni"].value == own[-1]
    assert rows["omni"].mean == pytest.approx(sum(own[-8:-1]) / 7)
    assert rows["omni"].change == pytest.approx(own[-1] / (sum(own[-8:-1]) / 7) - 1)
    assert rows["omni"].alert == document.rows[0].alert
    assert (rows["quiet"].alert, rows["quiet"].not_judged, rows["quiet"].reported_by) == ("", None, "")
    assert rows["ended"].night == "2024-11-02"
    assert (rows["new"].mean, rows["new"].change) == (None, None)
    assert rows["new"].not_judged
    assert rows["other"].mean == pytest.approx(sum(values["other"][37:39]) / 2), "nights of another model"
    tails = {"e2el:median": step(noise(7, 40), 20, 1.3), "e2el:p99": step(noise(8, 40), 20, 1.3)}
    keep(store, *cell(tails, test="tail")[0].points)
    both = build_nightly_report(analyze_series(store, TABLE), fdr=0.05, metrics=["e2el:p99"])
    assert [row.reported_by for row in both.levels] == ["e2el"]
    text = report_markdown(nightly_report(document))
    assert "e2el in ms, lower is better" in text
    assert "| cell | last | 7-night mean | sd | change | verdict |" in text
    with pytest.raises(UsageError, match="no series of ttft"):
        build_nightly_report(analysis, fdr=0.05, metrics=["ttft"])


def test_a_regression_whose_requests_changed_since_is_no_issue(store: SeriesStore) -> None:
    """What it is now is of other requests: nobody can say by how much it is worse than before."""
    asked = [{"input_tokens": 100.0 if night < 30 else 300.0} for night in range(40)]
    slow = [replace(p, covariates=more) for p, more in zip(points(at=20, factor=1.3), asked, strict=True)]
    keep(store, *slow)
    (row,) = build_nightly_report(analyze_series(store, TABLE), fdr=0.05).rows
    assert (row.status, row.now, row.issue) == ("regressed", "other requests since", False)


def test_a_row_ends_where_its_series_does(store: SeriesStore) -> None:
    """Another model since: its nights are neither the latest nor days of the regression."""
    values = step(step(noise(7, 28), 12, 1.3), 20, 3.0)
    (series,) = cell({"e2el:median": values})
    models = ["a"] * 20 + ["b"] * 8
    zipped = zip(series.points, models, strict=True)
    keep(store, *(replace(p, workload=replace(p.workload, model=model)) for p, model in zipped))
    (row,) = build_nightly_report(analyze_series(store, TABLE), fdr=0.05).rows
    assert (row.now, row.issue, row.days, len(row.picture)) == ("other requests since", False, 8, 20)
    assert row.model == "a"
    assert row.change == pytest.approx(0.3, abs=0.02)


def test_a_share_that_fell_to_nothing_is_told_by_its_difference(store: SeriesStore) -> None:
    shares = [*noise(1, 12, 0.7), *[0.0] * 12]
    (series, *_) = cell({"spec_decode_acceptance_rate": shares, "e2el:median": noise(2, 24)})
    keep(store, *series.points, *points("slow", at=12, factor=1.2, n=24))
    document = build_nightly_report(analyze_series(store, TABLE), fdr=0.05)
    assert [row.metric for row in document.rows] == ["spec_decode_acceptance_rate", "e2el"]
    first = document.rows[0]
    assert (first.status, first.latest, first.issue) == ("regressed", 0.0, True)
    assert first.change == pytest.approx(-0.7, abs=0.01)
    assert f"| {first.change:+.3g} |" in report_markdown(nightly_report(document))


def test_a_change_of_unknown_cause_is_no_issue(store: SeriesStore) -> None:
    """Three slow nights of one server: the next tell whether it stays."""
    keep(store, *points("a", at=37, factor=1.3), *points("b"), *points("c"))
    (row,) = build_nightly_report(analyze_series(store, TABLE), fdr=0.05).rows
    assert (row.cause, row.days, row.status, row.issue) == ("unknown", 3, "worse", False)
    assert row.change > 0.25


def test_what_lasts_comes_first_and_is_the_next_step(store: SeriesStore) -> None:
    """A larger regression that has recovered, and is newer, is nothing to act on."""
    (back,) = cell({"e2el:median": step(noise(8, 40), 28, 3.0, 34)}, test="back")
    keep(store, *points(at=20, factor=1.15), *back.points, *points("quiet"))
    document = detect(store, TABLE, now="t")
    first, *others = document.events
    assert (first.cell.partition("/")[0], first.needs_action, document.needs_action) == ("omni", 1, 1)
    assert [(event.cell.partition("/")[0], event.recovered) for event in others] == [("back", 1)]
    assert document.next == f"perfbisect track suspects {first.alert} --repo PATH"
    report = detect_report(document)
    assert report.verdict.text == "2 new events (2 alerts); to act on today: 1"
    assert first.event in report.sections[0].title
    set_state(store, first.event, "acknowledged", "issue 7")
    known = detect(store, TABLE, now="t")
    assert (known.needs_action, known.next) == (0, ""), "what has recovered is no next step"


def test_an_improvement_is_no_next_step(store: SeriesStore) -> None:
    keep(store, *points(at=20, factor=0.7), *points("quiet"))
    document = detect(store, TABLE, now="t")
    assert ([alert.worse for alert in document.alerts], document.next) == ([False], "")


def test_tokens_that_are_grouped_otherwise_stand_behind(store: SeriesStore) -> None:
    """The inter-token latency of the server that became slower, whose TPOT stayed."""
    values = {
        "itl:median": step(noise(1, 40), 25, 900.0),
        "tpot:median": noise(2, 40),
        "e2el:median": step(noise(3, 40), 25, 1.2),
    }
    keep(store, *cell(values, test="a")[0].points, *points("b"), *points("c"))
    analysis = analyze_series(store, TABLE)
    alerts = {alert.metric: alert for alert in analysis.alerts}
    assert (alerts["itl"].grouping, alerts["itl"].needs_action) == (True, False)
    assert alerts["itl"].evidence[0].kind == "same stream unchanged"
    rows = build_nightly_report(analysis, fdr=0.05).rows
    assert [(row.metric, row.status) for row in rows] == [
        ("e2el", "regressed"),
        ("itl", "grouped"),
    ]
    (event,) = detect(store, TABLE, now="t").events
    assert (event.metric, event.alerts, event.needs_action) == ("e2el", 2, 1)


def test_documents_are_short_with_all_events(store: SeriesStore) -> None:
    for number in range(12):
        names = ("e2el", "ttft", "tpot", "itl", "request_throughput", "audio_rtf")
        levels = {
            f"{name}:median": step(noise(10 * number + k, 30), 12 + number % 3, 1.5)
            for k, name in enumerate(names)
        }
        own = cell(levels, test=f"cell{number}")[0].points
        keep(store, *(replace(p, build=replace(p.build, name=f"{number}-{p.build.name}")) for p in own))
    document = detect(store, TABLE, now="t")
    report = build_nightly_report(analyze_series(store, TABLE), fdr=0.05)
    assert len(document.alerts) == len(report.rows) >= 60
    for brief in (document.brief(), report.brief().detect):
        assert [x.event for x in brief.events] == [x.event for x in document.events]
        assert brief.next == document.next
        assert brief.left_out["alerts"] == len(document.alerts) - len(brief.alerts)
    assert max(len(document.brief().text()), len(report.brief().text())) < 20_000
    assert report.brief().left_out["rows"] == len(report.rows) - len(report.brief().rows) > 0


def test_what_became_better_beside_a_regression_says_so(store: SeriesStore) -> None:
    """The cell ended on its tenth slow night, and others did not."""
    both = {"e2el:median": step(noise(7, 30), 20, 1.5), "ttft:median": step(noise(8, 30), 20, 0.4)}
    (first, *_) = cell(both, test="omni")
    keep(store, *first.points, *points("b"), *points("c"))
    seen = analyze_series(store, TABLE)
    document = build_nightly_report(seen, fdr=0.05)
    text = report_markdown(nightly_report(document))
    assert "| regressed, not measured since |" in text
    (row,) = [row for row in document.rows if row.metric == "ttft"]
    assert (row.status, row.beside_metric) == ("improved", "e2el")
    beside = f"(e2el {100 * row.beside_effect:+.1f} %)"
    assert f"| improved beside a regression {beside}, not measured since |" in text
    told = detect(store, TABLE, now="t").alerts
    assert {one.now for one in told} == {"not measured since"}
    lines = report_lines(detect_report(detect(store, TABLE, now="t"), everything=True))
    assert any(text.endswith("not measured since, reported before, and 1 more metric") for text in lines)


@pytest.mark.parametrize("factor", [1.3, 1.0])
def test_what_is_not_found_any_more_is_told_once(store: SeriesStore, factor: float) -> None:
    """Whether another alert is still found or none."""
    keep(store, *points(at=20, factor=factor), *points("other", at=20, factor=1.3))
    detect(store, TABLE, now="2026-05-01T00:00:00Z")
    keep(store, *points("other"))
    told = detect(store, TABLE, now="2026-05-02T00:00:00Z")
    (gone,) = told.vanished
    assert gone.new and gone.cell.startswith("other/")
    words = "found last on 2026-05-01"
    assert listed(detect_report(told), words)
    again = detect(store, TABLE, now="2026-05-03T00:00:00Z")
    assert [one.new for one in again.vanished] == [False]
    assert listed(detect_report(again), "since earlier runs: 1 (--all)")
    assert not listed(detect_report(again), words)
    assert listed(detect_report(again, everything=True), words)
    keep(store, *points("other", at=20, factor=1.3))
    (back,) = [one for one in detect(store, TABLE, now="2026-05-04T00:00:00Z").alerts if one.id == gone.id]
    assert (back.now, back.new) == ("still there", False)


def test_an_alert_that_an_older_run_missed_is_not_told_again(store: SeriesStore) -> None:
    """Nightlies, and earlier versions, leave its status."""
    keep(store, *points(at=20, factor=1.3))
    (alert,) = detect(store, TABLE, now="2026-05-02T00:00:00Z").alerts
    store.alerts.keep([replace(alert, id="older", begun=(0, 1), seen="2026-05-01T00:00:00Z")])
    (gone,) = detect(store, TABLE, now="2026-05-03T00:00:00Z").vanished
    assert (gone.id, gone.new) == ("older", False)


def listed(report: Report, ending: str) -> list[object]:
    """Items of a report that end so."""
    items = [b.items for section in report.sections for b in section.blocks if isinstance(b, Items)]
    return [item for part in items for item in part if str(item).endswith(ending)]


def test_a_closed_event_is_not_reported_again(store: SeriesStore) -> None:
    keep(store, *points(at=20, factor=1.3), *points("better", at=30, factor=0.7))
    (fixed,) = [a for a in detect(store, TABLE, now="t").alerts if a.cell.startswith("better")]
    known = next(a for a in detect(store, TABLE, now="t").alerts if a.id != fixed.id)
    set_state(store, fixed.id, "closed", "accepted")
    assert set_state(store, known.event, "acknowledged", "issue 7").alerts == 1
    text = report_markdown(nightly_report(build_nightly_report(analyze_series(store, TABLE), fdr=0.05)))
    assert fixed.event not in text and "Closed events: 1." in text
    assert ", acknowledged: issue 7 (" in text


def test_what_becomes_a_products_is_told_again_and_what_came_back_is_said(store: SeriesStore) -> None:
    """On its second night nobody knows whether it stays; a week later it did, and nobody would hear."""
    nights = step(noise(7, 40), 20, 1.3, until=30)
    (series,) = cell({"e2el:median": nights})
    causes = []
    for until in (22, 27, 28, 34):
        keep(store, *(replace(p, build=replace(p.build, branch="main")) for p in series.points[:until]))
        told = detect(store, TABLE, now=f"2026-05-{until:02d}T00:00:00Z")
        (slow,) = [one for one in told.alerts if one.effect > 0]
        report = detect_report(told)
        causes.append((slow.was, slow.cause, slow.came_back, report.sections[0].title[:10] == "2024-10-24"))
    assert causes == [
        ("", "unknown", False, True),
        ("unknown", "product", False, True),
        ("", "product", False, False),
        ("", "product", True, False),
    ]
    assert listed(report, f"{slow.event}: 1 open; 1 recovered since")
    again = detect_report(detect(store, TABLE, now="2026-05-29T00:00:00Z"))
    assert listed(again, "over or closed: 1 event (--all)")
    assert not [line for line in report_lines(again) if slow.event in line]
