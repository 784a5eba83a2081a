"""The site of a store: its cells, alerts, suspects and the bisections that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.result import BisectResult, CandidateDocument, PositionDocument
from perfbisect.changes.git import Repository
from perfbisect.commands.outcomes import bisections_of_alerts, load_bisections, outcomes_by_alert
from perfbisect.dashboard.collect import Site, collect_site
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.series.alerts import MeasuredOutcome
from perfbisect.series.detect import SeriesAnalysis, analyze_series
from perfbisect.series.ingest import ingest
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import load_suspect_table
from tests.fixtures.jobs import MakePlan
from tests.jobs.world import Watch, World, history, verdict
from tests.nightlies import AT, EACH, NIGHTS, Nightlies, make_nightlies

TABLE = load_suspect_table()
MADE = "2026-02-01T00:00:00Z"


@pytest.fixture(scope="module")
def nightlies(tmp_path_factory: pytest.TempPathFactory) -> Nightlies:
    return make_nightlies(tmp_path_factory.mktemp("nightlies"))


@pytest.fixture(scope="module")
def store(nightlies: Nightlies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path_factory.mktemp("state")) as opened:
        ingest(opened, [str(nightlies.all)], IngestOptions(zone="UTC"))
        yield opened


@pytest.fixture(scope="module")
def seen(store: SeriesStore) -> SeriesAnalysis:
    return analyze_series(store, TABLE)


def made(store: SeriesStore, seen: SeriesAnalysis, **more: object) -> Site:
    return collect_site(store, seen, TABLE, title="Nights", made=MADE, **more)  # type: ignore[arg-type]


def test_every_cell_and_alert_with_its_levels(store: SeriesStore, seen: SeriesAnalysis) -> None:
    document = made(store, seen)
    assert [cell.name.partition("/")[0] for cell in document.cells] == ["image_b", "omni_chunk", "text_c"]
    (cell,) = (cell for cell in document.cells if cell.name.startswith("omni"))
    series = {one.metric.name: one for one in cell.series}
    assert [(level.first, level.last) for level in series["audio_ttfp"].levels] == [
        (0, AT - 1), (AT, NIGHTS - 1),
    ]  # fmt: skip
    assert series["audio_ttfp"].judged and "would be seen in four of five cases" in series["audio_ttfp"].note
    assert not series["output_tokens"].judged
    assert {alert.cell for alert in document.alerts} == {cell.name}
    assert document.suspects == () and "No repository was given" in document.notes[0]
    assert dict(document.census)["medians and single numbers that were judged"] > 10


def test_a_level_that_a_transient_brought_does_not_last(store: SeriesStore, seen: SeriesAnalysis) -> None:
    passing = {
        name: replace(change, point=replace(change.point, shape="transient"))
        for name, change in seen.findings.items()
    }
    for analysis, first in ((seen, AT), (replace(seen, findings=passing), 0)):
        (cell,) = (cell for cell in made(store, analysis).cells if cell.name.startswith("omni"))
        level = next(one.level for one in cell.series if one.metric.name == "audio_ttfp")
        assert level is not None and level.first == first


def test_with_a_repository_one_ranking_an_event(
    store: SeriesStore, seen: SeriesAnalysis, nightlies: Nightlies
) -> None:
    document = made(store, seen, repository=Repository.open(nightlies.repo))
    (ranking,) = document.suspects
    assert ranking.ranking is not None and ranking.ranking.suspects[0].sha == nightlies.culprit
    assert ranking.alert in {alert.id for alert in document.alerts}
    assert f"bisect CELL --repo PATH --good {nightlies.good} --bad {nightlies.bad}" in ranking.bisect
    assert document.notes[:1] != ("No repository was given: there are no suspects.",)


def test_a_bisection_of_the_window_stands_beside_its_event(
    store: SeriesStore,
    seen: SeriesAnalysis,
    nightlies: Nightlies,
    tmp_path: Path,
    plan_for: MakePlan,
    new_job: Callable[[BisectPlan, Watch, World], Job],
) -> None:
    world, watch = World(history(6).changes, slow=3), Watch()
    template = verdict(new_job(plan_for(world), watch, world), watch, world)
    ends = {
        "good": replace(template.good, id=nightlies.good),
        "bad": replace(template.bad, id=nightlies.bad),
    }
    state = tmp_path / "reports"
    jobs = state / "jobs"
    for name, text in (
        ("20260102-000000-aaaa", template.model_copy(update=ends | {"job": "of-the-window"}).text()),
        ("20260102-000001-bbbb", template.model_copy(update={"job": "of-another"}).text()),
        ("20260102-000002-cccc", "{ no report"),
    ):
        (jobs / name).mkdir(parents=True)
        (jobs / name / "journal.jsonl").write_text("")
        (jobs / name / "report.json").write_text(text)
    found = load_bisections(Jobs(state).all())
    assert [one.job for one in found] == ["of-the-window", "of-another"]
    document = made(store, seen, repository=Repository.open(nightlies.repo), reports=found)
    own, other = document.bisections
    assert set(own.alerts) == {alert.id for alert in document.alerts} and other.alerts == ()


def test_an_outcome_belongs_to_the_change_between_whose_builds_it_lies(
    store: SeriesStore,
    seen: SeriesAnalysis,
    nightlies: Nightlies,
    plan_for: MakePlan,
    new_job: Callable[[BisectPlan, Watch, World], Job],
) -> None:
    """The range was three nights when it was bisected; later nights leave one of them."""
    world, watch = World(history(6).changes, slow=3), Watch()
    template = verdict(new_job(plan_for(world), watch, world), watch, world)
    assert template.culprit is not None
    first, metric = (AT - 1) * EACH - 1, template.metric.model_copy(update={"name": "audio_ttfp"})
    changes = [replace(template.culprit, id=sha) for sha in nightlies.commits[first : first + 3 * EACH + 1]]
    places = tuple(PositionDocument(index=i, changes=(of,)) for i, of in enumerate(changes))
    (culprit,) = (at for at in places if at.changes[0].id == nightlies.culprit)
    named = template.model_copy(
        update={
            "metric": metric,
            "history": places,
            "good": changes[0],
            "bad": changes[-1],
            "culprit": culprit.changes[0],
        }
    )
    digest = next(iter(seen.findings.values())).series.points[-1].workload.digest
    if digest:
        named = named.model_copy(update={"cell": named.cell.model_copy(update={"digest": digest})})

    def outcomes(report: BisectResult) -> dict[str, MeasuredOutcome]:
        return outcomes_by_alert(bisections_of_alerts(store, seen, (report,), None))

    found = outcomes(named)
    assert found.keys() == {alert.id for alert in seen.alerts}
    assert {of.commits[0].id for of in found.values()} == {nightlies.culprit}
    pair = (culprit, places[culprit.index + 1])
    candidates = tuple(CandidateDocument(position=at, probability=0.48) for at in pair)
    narrowed = named.model_copy(update={"culprit": None, "candidates": candidates})
    assert {len(of.commits) for of in outcomes(narrowed).values()} == {2}
    for other in (
        {"culprit": changes[1]},
        {"metric": metric.model_copy(update={"name": "tpot"})},
        {"culprit": None},
    ):
        assert outcomes(named.model_copy(update=other)) == {}
