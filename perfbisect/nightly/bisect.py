"""Which commit is behind what the night found: named without measuring, bisected, or left, each by a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_OUTSIDE,
    Interrupted,
    PerfbisectError,
    UsageError,
)
from perfbisect.jobs.events import Told
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.model.change import Change
from perfbisect.nightly.context import Hands, Scene, Window
from perfbisect.nightly.folders import NightFolder
from perfbisect.nightly.model import BisectionState, NightAlert, NightBisection
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.nightly.state import NightState, bisection_to_json, spent, state_of
from perfbisect.series.alerts import Alert, State
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.findings import Finding
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import Ranked, ranked, track_suspects


@dataclass(frozen=True)
class Rules:
    """``wanted``: bisect at all. ``least``: smallest relative effect that is worth it. ``tails``: also a mean
    or a percentile by itself."""

    wanted: bool = True
    least: float = 0.0
    tails: bool = False


def not_worth(alert: Alert, rules: Rules, *, is_over: bool = False) -> str:
    """Why an alert is not worth a bisection, in words; empty where nothing speaks against it.

    ``is_over``: it was a transient, and has ended.
    """
    effect = abs(alert.effect)
    against = (
        (not rules.wanted, "the configuration says bisect: {when: never}"),
        (alert.state == "acknowledged", "somebody knows of it"),
        (alert.state == "closed", "it is closed"),
        (alert.recovered, "the series is back where it was"),
        (is_over, "it passed"),
        (alert.cause == "instrument", "the instrument changed, not the product"),
        (alert.cause == "workload", "the workload changed, not the product"),
        (alert.cause == "night", "the night was bad, not the product"),
        (not alert.worse, "it became better"),
        (alert.part != "typical" and not rules.tails, "the median did not move"),
        (effect < rules.least, f"{effect:.1%} is less than the {rules.least:.1%} from which it is worth it"),
    )
    return next((why for holds, why in against if holds), "")


def named(commits: int, attributed: str) -> tuple[Literal["named", "attributed", ""], str]:
    """How the commit is known without a measurement, and why; empty where it must be measured.

    ``commits``: how many lie in the window; ``attributed``: the revert after which the series recovered.
    """
    if attributed:
        return "attributed", attributed
    if commits == 1:
        return "named", "the window holds one commit"
    return "", ""


def no_time(left: float, least: float) -> str:
    """Why a bisection does not begin tonight; empty where it does. ``least``: minutes that it takes."""
    if left < least:
        return f"{left:.0f} minutes are left, and it takes {least:.0f} at least"
    return ""


_NIGHTS_BACK = 30
"""Nights after which a bisection that was put off is forgotten."""

_LEAST = 1.0
"""Minutes below which a bisection is not even planned."""


@dataclass(frozen=True)
class Case:
    """An event that the night looks into, by the alert that stands for it. ``cell``: of ours that measures
    it, None where there is none."""

    alert: Alert
    cell: CellPlan | None
    against: str
    """Why it is not worth it; empty where it is."""


@dataclass(frozen=True)
class Earlier:
    """What earlier nights looked into, by the alerts that stood for the events. ``done``: settled, ``left``:
    put off, or given up for a reason outside."""

    done: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


def earlier(nights: Sequence[NightFolder]) -> Earlier:
    """Of the last of these nights. An event has not the same name every night: its cause may be another."""
    done, left = set[str](), set[str]()
    for one in nights[-_NIGHTS_BACK:]:
        for bisection in state_of(one.events()).bisections.values():
            outside = bisection.state == "failed" and bisection.exit_code == EXIT_OUTSIDE
            if bisection.state == "postponed" or outside:
                left.add(bisection.alert)
            elif bisection.state != "not worth it":
                done.add(bisection.alert)
    return Earlier(frozenset(done), frozenset(left - done))


def cases(
    seen: SeriesAnalysis,
    changed: Sequence[NightAlert],
    before: Earlier,
    states: Mapping[str, State],
    plan: NightPlan,
    rules: Rules,
) -> Iterator[Case]:
    """The events of the alerts that tonight opened and of those that were put off, each once: by an alert
    that is worth it and that a cell of ours measures, of the cell's headline before any other, the largest
    first."""
    opened = {one.alert.id: one for one in changed if one.is_new}
    names, events = {*opened, *before.left}, dict[str, list[Case]]()
    known = {alert.event for alert in seen.alerts if alert.id in before.done}
    for alert in seen.alerts:
        if alert.id in names:
            finding = seen.findings[alert.id]
            today = replace(alert, state=states.get(alert.id, "open"))
            against = not_worth(today, rules, is_over=finding.is_over)
            if alert.id in opened and not opened[alert.id].counts:
                against = against or "the rules of the configuration make it no finding"
            if alert.event in known:
                against = against or "its event was looked into in an earlier night"
            cell = _cell(finding, plan)
            against = against or ("" if cell else "no cell of this nightly measures it")
            events.setdefault(alert.event, []).append(Case(alert, cell, against))
    for of_event in events.values():
        yield min(of_event, key=_last)


def _cell(finding: Finding, plan: NightPlan) -> CellPlan | None:
    digest = finding.series.points[-1].workload.digest
    return next((one for one in plan.cells if digest and one.digest == digest), None)


def _last(case: Case) -> tuple[bool, bool, float, str]:
    headline = case.cell is not None and case.cell.metric == case.alert.metric
    return bool(case.against), not headline, -case.alert.size, case.alert.id


@dataclass(frozen=True)
class Bench:
    """What looking into a night's cases needs."""

    scene: Scene
    hands: Hands
    plan: NightPlan
    journal: Journal
    store: SeriesStore
    seen: SeriesAnalysis
    folder: Path

    @property
    def state(self) -> NightState:
        return state_of(self.journal.events)

    def left(self) -> float:
        """Minutes of the night's budget that are left."""
        return self.plan.budget - spent(self.plan, self.state, self.scene.jobs)


def settle(bench: Bench, among: Sequence[Case]) -> None:
    """Looks into every case that the night has not settled yet; what came of each is in the journal.

    :raises Interrupted: Ctrl-C or a stop.
    """
    for case in among:
        if case.alert.event in bench.state.bisections:
            continue
        found = _settled(bench, case)
        bench.journal.append("step", bisection_to_json(found))
        bench.hands.sink(Told(f"{found.event}: {found.state}: {found.why}"))


def _settled(bench: Bench, case: Case) -> NightBisection:
    if case.against or case.cell is None:
        return _result(case, "not worth it", case.against)
    try:
        found = ranked(bench.store, bench.seen, case.alert, bench.scene.repository, bench.scene.table)
        top, attributed = found.ranking.suspects[0], found.ranking.attributed
        state, why = named(len(found.ranking.suspects), attributed.words if attributed else "")
        if state:
            commit = top.commit
            culprit = Change(commit.sha, subject=commit.subject, date=commit.date)
            return _result(case, state, why, found, culprit=culprit, probability=top.p)
        return _bisected(bench, case, case.cell, found)
    except Interrupted:
        raise
    except PerfbisectError as error:
        where = f" ({error.where})" if error.where else ""
        job = bench.state.searches.get(case.alert.event, "")
        # A window that holds nothing to bisect is no mistake of the user's.
        code = EXIT_INCONCLUSIVE if isinstance(error, UsageError) else error.exit_code
        return _result(case, "failed", f"{error.message}{where}", job=job, exit_code=code)


def _bisected(bench: Bench, case: Case, cell: CellPlan, found: Ranked) -> NightBisection:
    event, rules, state = case.alert.event, bench.scene.file.nightly.bisect, bench.state
    window = Window(cell, case.alert.metric, found.good, found.bad, _weights(bench, found))
    identity = state.searches.get(event)
    if identity is None:
        budget = min(rules.minutes, bench.left())
        late = no_time(budget, _LEAST) or _enough(rules.most, len(state.searches))
        search = None if late else bench.hands.prepare(bench.plan, window, budget)
        late = late if search is None else no_time(budget, search.least)
        if search is None or late:
            return _result(case, "postponed", late, found)
        identity = bench.hands.new_job().id
        bench.journal.append("job", {"event": event, "alert": case.alert.id, "job": identity})
    else:
        budget = rules.minutes
        search = bench.hands.prepare(bench.plan, window, budget)
    job = Job(bench.scene.jobs.folder / identity)
    result = search(job)
    return _result(
        case,
        "measured",
        f"bisected: {result.outcome}",
        found,
        job=job.id,
        outcome=result.outcome,
        culprit=result.culprit,
        probability=result.probability,
        sentences=result.sentences,
        minutes=result.minutes,
        budget=result.budget,
        report=str(job.report),
        exit_code=result.exit_code,
    )


def _enough(most: int, begun: int) -> str:
    return "" if begun < most else f"at most {most} bisections a night"


def _weights(bench: Bench, found: Ranked) -> Path:
    path = bench.folder / "suspects" / f"{found.alert.id}.yaml"
    track_suspects(found, top=1, repo=bench.plan.setting.repository, cell="", weights=path)
    return path


def _result(
    case: Case, state: BisectionState, why: str, found: Ranked | None = None, **more: Any
) -> NightBisection:
    known: dict[str, Any] = {"exit_code": EXIT_INCONCLUSIVE if state == "postponed" else EXIT_OK}
    if found is not None:
        known |= {"good": found.good, "bad": found.bad, "commits": len(found.ranking.suspects)}
    return NightBisection(
        event=case.alert.event,
        alert=case.alert.id,
        cell=case.cell.name if case.cell else case.alert.cell,
        metric=case.alert.metric,
        state=state,
        why=why,
        **{**known, **more},
    )
