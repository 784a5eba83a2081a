"""Determines the commit behind each event of a night, and profiles the culprits that bisections named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from perfbisect.bisect.job import BISECT
from perfbisect.bisect.result import BisectResult
from perfbisect.common.quantities import counted
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OUTSIDE, Interrupted, PerfbisectError, UsageError
from perfbisect.explain.report import explain_bisection
from perfbisect.model.change import Change
from perfbisect.nightly.config import BisectRules
from perfbisect.nightly.journal import NightFolder, reason_text, write_traceback
from perfbisect.nightly.model import BisectionState, NightBisection, NightProfile
from perfbisect.nightly.night import OpenNight, StepResult
from perfbisect.nightly.plan import CellPlan, NightPlan
from perfbisect.series.alerts import Alert, State
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.report import sentences_of
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import RankedAlert, rank_alert, write_weights

_NIGHTS_BACK = 30
"""Nights after which a postponed bisection is dropped."""

_MIN_MINUTES = 1.0
"""Minutes below which no bisection is planned."""


Rejection = Literal[
    "never",
    "acknowledged",
    "closed",
    "recovered",
    "over",
    "instrument",
    "workload",
    "night",
    "improvement",
    "tail",
    "small",
    "no finding",
    "examined",
    "no cell",
]
"""Why an event is not worth a bisection."""


def rejection_of(alert: Alert, rules: BisectRules, *, is_over: bool = False) -> Rejection | None:
    """Why an alert is not worth a bisection; None if it is. ``is_over``: a transient that ended."""
    rejections: tuple[tuple[bool, Rejection], ...] = (
        (rules.when == "never", "never"),
        (alert.state == "acknowledged", "acknowledged"),
        (alert.state == "closed", "closed"),
        (alert.recovered, "recovered"),
        (is_over, "over"),
        (alert.cause == "instrument", "instrument"),
        (alert.cause == "workload", "workload"),
        (alert.cause == "night", "night"),
        (not alert.worse, "improvement"),
        (alert.part != "typical" and not rules.tails, "tail"),
        (abs(alert.effect) < rules.smallest, "small"),
    )
    return next((rejection for holds, rejection in rejections if holds), None)


def culprit_known_from(commits: int, reverted_by: str) -> tuple[Literal["named", "attributed"], str] | None:
    """How the commit is known without measuring, and why; None if it must be measured.

    ``commits``: in the window; ``reverted_by``: the revert with which the series recovered.
    """
    if reverted_by:
        return "attributed", reverted_by
    return ("named", reason_text("one commit")) if commits == 1 else None


@dataclass(frozen=True)
class EventCase:
    """An event, represented by one alert; ``rejection``: why it is not worth a bisection."""

    alert: Alert
    cell: CellPlan | None
    rejection: Rejection | None

    @property
    def rank(self) -> tuple[bool, bool, float, str]:
        """The alerts of an event by how well they represent it."""
        is_headline = self.cell is not None and self.cell.metric == self.alert.metric
        return bool(self.rejection), not is_headline, -self.alert.size, self.alert.id


EarlierBisections = Mapping[str, Literal["settled", "postponed"]]
"""By alert: whether earlier nights settled its event, or left it for later."""


def read_earlier_bisections(nights: Sequence[NightFolder]) -> EarlierBisections:
    """Collect by alert, since an event changes its name with its cause."""
    earlier: dict[str, Literal["settled", "postponed"]] = {}
    for night in nights[-_NIGHTS_BACK:]:
        for bisection in night.record().bisections.values():
            # A failure of the machine says nothing about the event: a later night tries again.
            failed_outside = bisection.state == "failed" and bisection.exit_code == EXIT_OUTSIDE
            if bisection.state == "postponed" or failed_outside:
                earlier.setdefault(bisection.alert, "postponed")
            elif bisection.state != "not worth it":
                earlier[bisection.alert] = "settled"
    return earlier


def select_cases(
    analysis: SeriesAnalysis,
    changes: Sequence[Alert],
    earlier: EarlierBisections,
    states: Mapping[str, State],
    plan: NightPlan,
    rules: BisectRules,
) -> Iterator[EventCase]:
    """Choose an alert for each new or postponed event.

    Alerts worth a bisection come first, then the headline metric of a cell, then the largest effect.
    """
    opened = {change.id: change for change in changes if change.is_opened}
    settled_events = {alert.event for alert in analysis.alerts if earlier.get(alert.id) == "settled"}
    by_event: dict[str, list[EventCase]] = {}
    for alert in analysis.alerts:
        if alert.id not in opened and earlier.get(alert.id) != "postponed":
            continue
        finding = analysis.findings[alert.id]
        last = finding.series.points[-1]
        digest, machine = last.workload.digest, last.machine
        measuring = [cell for cell in plan.cells if digest and cell.digest == digest]
        cell = next((cell for cell in measuring if cell.machine == machine), next(iter(measuring), None))
        current = replace(alert, state=states.get(alert.id, "open"))
        rejection = rejection_of(current, rules, is_over=finding.is_over)
        if not rejection and alert.id in opened and not opened[alert.id].counts:
            rejection = "no finding"
        if not rejection and alert.event in settled_events:
            rejection = "examined"
        if not rejection and cell is None:
            rejection = "no cell"
        by_event.setdefault(alert.event, []).append(EventCase(alert, cell, rejection))
    for cases in by_event.values():
        yield min(cases, key=attrgetter("rank"))


@dataclass(frozen=True)
class EventExaminer:
    """Examines the events of a night and records each result in its journal."""

    night: OpenNight
    store: SeriesStore
    analysis: SeriesAnalysis

    def examine(self, alerts: Sequence[Alert], nights: Sequence[NightFolder]) -> StepResult:
        """Examine the events that have no result yet, then profile the culprits that bisections named.

        Raises:
            Interrupted: Ctrl-C, or a stop.
        """
        night, rules = self.night, self.night.context.file.nightly.bisect
        states = {alert.id: alert.state for alert in self.store.alerts.all()}
        earlier = read_earlier_bisections(nights)
        for case in select_cases(self.analysis, alerts, earlier, states, night.record.plan, rules):
            if case.alert.event in night.record.bisections:
                continue
            result = self._examine_case(case)
            night.append("step", result)
            night.say(f"{result.event}: {result.state}: {result.why}")
        bisections = night.record.bisections.values()
        for bisection in bisections:
            if bisection.culprit is not None and bisection.job and bisection.profile is None:
                _record_profile(night, bisection)
        return StepResult(f"{counted(len(bisections), 'event')} examined")

    def _examine_case(self, case: EventCase) -> NightBisection:
        context = self.night.context
        if case.rejection or case.cell is None:
            smallest, effect = context.file.nightly.bisect.smallest, abs(case.alert.effect)
            why = reason_text(case.rejection or "no cell", effect=effect, smallest=smallest)
            return _result(case, "not worth it", why)
        try:
            ranked = rank_alert(self.store, self.analysis, case.alert, context.repository, context.table)
            suspects, attributed = ranked.ranking.suspects, ranked.ranking.attributed
            why = sentences_of("factors", (attributed,))[0] if attributed else ""
            known = culprit_known_from(len(suspects), why)
            if known is None:
                return self._bisect(case, case.cell, ranked)
        except Interrupted:
            raise
        except PerfbisectError as error:
            where = f" ({error.where})" if error.where else ""
            job = self.night.record.job_ids("event").get(case.alert.event, "")
            # An empty window is not the user's mistake.
            code = EXIT_INCONCLUSIVE if isinstance(error, UsageError) else error.exit_code
            return _result(case, "failed", f"{error.message}{where}", job=job, exit_code=code)
        first = suspects[0]
        culprit = Change(first.sha, subject=first.subject, date=first.date)
        return _result(case, *known, ranked, culprit=culprit, probability=first.p)

    def _bisect(self, case: EventCase, cell: CellPlan, ranked: RankedAlert) -> NightBisection:
        night, event, record = self.night, case.alert.event, self.night.record
        rules, plan, jobs = night.context.file.nightly.bisect, record.plan, record.job_ids("event")
        weights = night.folder.path / "suspects" / f"{ranked.alert.id}.yaml"
        write_weights(ranked, weights)
        minutes, too_long = rules.budget, "bisection too long"
        # A bisection that an interrupted night began goes on with the budget of its own plan.
        if event not in jobs:
            minutes = min(minutes, plan.budget - record.spent)
            reason = _shortage(minutes, too_long, _MIN_MINUTES)
            if not reason and len(jobs) >= rules.most:
                reason = reason_text("many bisections", most=rules.most)
            if reason:
                return _result(case, "postponed", reason, ranked, exit_code=EXIT_INCONCLUSIVE)
        bisection = night.context.machine.prepare_bisection(plan, cell, ranked, weights, minutes)
        if event not in jobs and (reason := _shortage(minutes, too_long, bisection.minutes)):
            return _result(case, "postponed", reason, ranked, exit_code=EXIT_INCONCLUSIVE)
        job = night.job("event", event, alert=case.alert.id)
        report = bisection.run(job)
        return _result(
            case,
            "measured",
            f"bisected: {report.outcome}",
            ranked,
            job=job.id,
            outcome=report.outcome,
            culprit=report.culprit,
            candidates=report.candidates,
            probability=report.probability,
            summary=report.summary,
            phases=phases_of(report) if report.culprit is not None else (),
            minutes=report.minutes.total,
            budget=report.minutes.budget,
            report=str(job.report),
            exit_code=BISECT.status(report).exit_code,
        )


def phases_of(report: BisectResult) -> tuple[str, ...]:
    """Which phase of a request took longer at the culprit, or why that is not known; no launch is needed."""
    explained = explain_bisection(report)
    return (*explained.summary, *explained.notes)


def _record_profile(night: OpenNight, bisection: NightBisection) -> None:
    """Profile a culprit and the change before it in the minutes that are left.

    A profile that cannot be made, or fails, is a note of the night and no failure: the verdict stands.
    """
    try:
        result = _profile(night, bisection)
    except Interrupted:
        raise
    except PerfbisectError as error:
        result = _not_profiled(night, bisection, error.message)
    except Exception as error:
        log = write_traceback(night.folder.path, "explain")
        result = _not_profiled(night, bisection, f"internal error: {error!r}, see {log}")
    night.append("step", result)
    words = f"profile: {result.sentence}" if result.sentence else f"not profiled: {result.why}"
    night.say(f"{bisection.event}: {words}")


def _profile(night: OpenNight, bisection: NightBisection) -> NightProfile:
    record, reason = night.record, ""
    is_new = bisection.event not in record.job_ids("profile_of")
    if is_new and not night.context.file.nightly.explain:
        reason = reason_text("no profiles")
    elif is_new and record.plan.setting.fleet:
        reason = reason_text("fleet")
    if reason:
        return _not_profiled(night, bisection, reason)
    left = max(0.0, record.plan.budget - record.spent)
    prepared = night.context.machine.prepare_profile(record.job(bisection.job), left)
    if is_new and (reason := prepared.problem or _shortage(left, "profile too long", prepared.minutes)):
        return _not_profiled(night, bisection, reason)
    job = night.job("profile_of", bisection.event)
    document = prepared.run(job)
    result = document.result
    # Also where its budget ended it: then the result says that nothing was compared.
    assert result is not None, "a profile that has ended has a result"
    return NightProfile(
        profile_of=bisection.event,
        job=job.id,
        conclusion=result.kind,
        sentence=result.sentence,
        minutes=document.minutes.total,
        next=night.context.command("report", job.id),
    )


def _not_profiled(night: OpenNight, bisection: NightBisection, why: str) -> NightProfile:
    """``next``: of a fleet's job the search of hunks, which a fleet can make; else the profile."""
    wanted = ("--hunks", "--dry-run") if night.record.plan.setting.fleet else ("--profile",)
    return NightProfile(
        profile_of=bisection.event,
        job=night.record.job_ids("profile_of").get(bisection.event, ""),
        why=why,
        next=night.context.command("explain", bisection.job, *wanted),
    )


def _shortage(left: float, kind: str, needed: float) -> str:
    """Why the remaining minutes do not suffice; empty if they do."""
    return reason_text(kind, left=left, needed=needed) if left < needed else ""


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
