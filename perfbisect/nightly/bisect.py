"""Determines the commit behind each event of a night: without measuring, by bisection, or later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from perfbisect.bisect.job import BISECT
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OUTSIDE, Interrupted, PerfbisectError, UsageError
from perfbisect.jobs.documents import change_document
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.journal import Journal
from perfbisect.model.change import Change
from perfbisect.nightly.config import BisectRules
from perfbisect.nightly.explain import CulpritProfiler, phases_of
from perfbisect.nightly.journal import NightFolder, NightRecord
from perfbisect.nightly.model import BisectionState, NightAlert, NightBisection
from perfbisect.nightly.night import BisectionWindow, NightlyContext, StepResult
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.series.alerts import Alert, State
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.findings import SeriesChange
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import RankedAlert, rank_alert, write_weights

_NIGHTS_BACK = 30
"""Nights after which a postponed bisection is dropped."""

_MIN_MINUTES = 1.0
"""Minutes below which no bisection is planned."""


def rejection_reason(alert: Alert, rules: BisectRules, *, is_over: bool = False) -> str:
    """Say why an alert is not worth a bisection; empty if it is. ``is_over``: a transient that ended."""
    effect = abs(alert.effect)
    reasons = (
        (rules.when == "never", "the configuration says bisect: {when: never}"),
        (alert.state == "acknowledged", "it is acknowledged"),
        (alert.state == "closed", "it is closed"),
        (alert.recovered, "the series recovered"),
        (is_over, "the transient ended"),
        (alert.cause == "instrument", "the instrument changed, not the product"),
        (alert.cause == "workload", "the workload changed, not the product"),
        (alert.cause == "night", "the night was bad, not the product"),
        (not alert.worse, "it is an improvement"),
        (alert.part != "typical" and not rules.tails, "the median did not move"),
        (effect < rules.smallest, f"{effect:.1%} is less than bisect.smallest ({rules.smallest:.1%})"),
    )
    return next((reason for holds, reason in reasons if holds), "")


def culprit_known_from(commits: int, reverted_by: str) -> tuple[Literal["named", "attributed"], str] | None:
    """How the commit is known without measuring, and why; None if it must be measured.

    ``commits``: in the window; ``reverted_by``: the revert with which the series recovered.
    """
    if reverted_by:
        return "attributed", reverted_by
    return ("named", "the window contains one commit") if commits == 1 else None


@dataclass(frozen=True)
class EventCase:
    """An event, represented by one alert; ``rejection``: why it is not worth a bisection."""

    alert: Alert
    cell: CellPlan | None
    rejection: str


@dataclass(frozen=True)
class EarlierBisections:
    """Alerts of events that earlier nights settled, or left for later."""

    settled: frozenset[str] = frozenset()
    postponed: frozenset[str] = frozenset()


def read_earlier_bisections(nights: Sequence[NightFolder]) -> EarlierBisections:
    """Collect by alert, since an event changes its name with its cause."""
    settled, postponed = set[str](), set[str]()
    for night in nights[-_NIGHTS_BACK:]:
        for bisection in night.record().bisections.values():
            failed_outside = bisection.state == "failed" and bisection.exit_code == EXIT_OUTSIDE
            if bisection.state == "postponed" or failed_outside:
                postponed.add(bisection.alert)
            elif bisection.state != "not worth it":
                settled.add(bisection.alert)
    return EarlierBisections(frozenset(settled), frozenset(postponed - settled))


def select_cases(
    analysis: SeriesAnalysis,
    changes: Sequence[NightAlert],
    earlier: EarlierBisections,
    states: Mapping[str, State],
    plan: NightPlan,
    rules: BisectRules,
) -> Iterator[EventCase]:
    """Choose an alert for each new or postponed event.

    Alerts worth a bisection come first, then the headline metric of a cell, then the largest effect.
    """
    opened = {change.id: change for change in changes if change.is_new}
    settled_events = {alert.event for alert in analysis.alerts if alert.id in earlier.settled}
    by_event: dict[str, list[EventCase]] = {}
    for alert in analysis.alerts:
        if alert.id not in opened and alert.id not in earlier.postponed:
            continue
        finding = analysis.findings[alert.id]
        cell = _measuring_cell(finding, plan)
        current = replace(alert, state=states.get(alert.id, "open"))
        rejection = rejection_reason(current, rules, is_over=finding.is_over)
        if not rejection and alert.id in opened and not opened[alert.id].counts:
            rejection = "it is no finding by the rules of the configuration"
        if not rejection and alert.event in settled_events:
            rejection = "an earlier night examined its event"
        if not rejection and cell is None:
            rejection = "no cell of this nightly measures it"
        by_event.setdefault(alert.event, []).append(EventCase(alert, cell, rejection))
    for cases in by_event.values():
        yield min(cases, key=_priority)


def _measuring_cell(finding: SeriesChange, plan: NightPlan) -> CellPlan | None:
    last = finding.series.points[-1]
    measuring = [cell for cell in plan.cells if last.workload.digest and cell.digest == last.workload.digest]
    return next((cell for cell in measuring if cell.machine == last.machine), next(iter(measuring), None))


def _priority(case: EventCase) -> tuple[bool, bool, float, str]:
    is_headline = case.cell is not None and case.cell.metric == case.alert.metric
    return bool(case.rejection), not is_headline, -case.alert.size, case.alert.id


@dataclass(frozen=True)
class EventExaminer:
    """Examines the events of a night and records each result in its journal."""

    context: NightlyContext
    journal: Journal
    store: SeriesStore
    analysis: SeriesAnalysis
    folder: Path

    @property
    def _record(self) -> NightRecord:
        return NightRecord(self.journal.events, self.context.jobs)

    def examine(self, alerts: Sequence[NightAlert], nights: Sequence[NightFolder]) -> StepResult:
        """Examine the events that have no result yet, then profile the culprits that bisections named.

        Raises:
            Interrupted: Ctrl-C, or a stop.
        """
        states = {record.alert.id: record.alert.state for record in self.store.alerts.all()}
        earlier, rules = read_earlier_bisections(nights), self.context.file.nightly.bisect
        for case in select_cases(self.analysis, alerts, earlier, states, self._record.plan, rules):
            if case.alert.event in self._record.bisections:
                continue
            result = self._examine_case(case)
            self.journal.append("step", result.model_dump(mode="json"))
            self.context.sink(JobNote(f"{result.event}: {result.state}: {result.why}"))
        CulpritProfiler(self.context, self.journal, self.folder).profile_culprits()
        return StepResult(f"{len(self._record.bisections)} events examined")

    def _examine_case(self, case: EventCase) -> NightBisection:
        if case.rejection or case.cell is None:
            return _result(case, "not worth it", case.rejection)
        context = self.context
        try:
            ranked = rank_alert(self.store, self.analysis, case.alert, context.repository, context.table)
            suspects, attributed = ranked.ranking.suspects, ranked.ranking.attributed
            known = culprit_known_from(len(suspects), attributed.words if attributed else "")
            if known is None:
                return self._bisect(case, case.cell, ranked)
        except Interrupted:
            raise
        except PerfbisectError as error:
            where = f" ({error.where})" if error.where else ""
            job = self._record.bisection_jobs.get(case.alert.event, "")
            # An empty window is not the user's mistake.
            code = EXIT_INCONCLUSIVE if isinstance(error, UsageError) else error.exit_code
            return _result(case, "failed", f"{error.message}{where}", job=job, exit_code=code)
        first = suspects[0]
        culprit = change_document(Change(first.sha, subject=first.subject, date=first.date))
        return _result(case, *known, ranked, culprit=culprit, probability=first.p)

    def _bisect(self, case: EventCase, cell: CellPlan, ranked: RankedAlert) -> NightBisection:
        event, machine, record = case.alert.event, self.context.machine, self._record
        rules, plan, jobs = self.context.file.nightly.bisect, record.plan, record.bisection_jobs
        weights = self.folder / "suspects" / f"{ranked.alert.id}.yaml"
        write_weights(ranked, weights)
        window = BisectionWindow(cell, case.alert.metric, ranked.good, ranked.bad, weights)
        identity = jobs.get(event)
        if identity is not None:
            bisection = machine.prepare_bisection(plan, window, rules.budget)
        else:
            minutes = min(rules.budget, plan.budget - record.spent)
            reason = _shortage(minutes, _MIN_MINUTES)
            if not reason and len(jobs) >= rules.most:
                reason = f"at most {rules.most} bisections a night"
            if reason:
                return _postponed(case, reason, ranked)
            bisection = machine.prepare_bisection(plan, window, minutes)
            reason = _shortage(minutes, bisection.min_minutes)
            if reason:
                return _postponed(case, reason, ranked)
            identity = machine.new_job().id
            self.journal.append("job", {"event": event, "alert": case.alert.id, "job": identity})
        job = record.job(identity)
        report = bisection.run(job)
        return _result(
            case,
            "measured",
            f"bisected: {report.outcome}",
            ranked,
            job=job.id,
            outcome=report.outcome,
            culprit=report.culprit,
            probability=report.probability,
            summary=report.summary,
            phases=phases_of(report) if report.culprit is not None else (),
            minutes=report.minutes.total,
            budget=report.minutes.budget,
            report=str(job.report),
            exit_code=BISECT.exit_code(report),
        )


def _shortage(minutes: float, min_minutes: float) -> str:
    """Say why the remaining minutes do not suffice; empty if they do."""
    if minutes < min_minutes:
        return f"{minutes:.0f} minutes are left, a bisection takes at least {min_minutes:.0f}"
    return ""


def _postponed(case: EventCase, why: str, ranked: RankedAlert) -> NightBisection:
    return _result(case, "postponed", why, ranked, exit_code=EXIT_INCONCLUSIVE)


def _result(
    case: EventCase, state: BisectionState, why: str, ranked: RankedAlert | None = None, **more: Any
) -> NightBisection:
    if ranked is not None:
        more |= {"good": ranked.good, "bad": ranked.bad, "commits": len(ranked.ranking.suspects)}
    return NightBisection(
        event=case.alert.event,
        alert=case.alert.id,
        cell=case.cell.name if case.cell else case.alert.cell,
        metric=case.alert.metric,
        state=state,
        why=why,
        **more,
    )
