"""The search for a failure as an experiment: what it launches next, and its amendments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from perfbisect.bisect.failure.plan import FailurePlan
from perfbisect.bisect.failure.result import OUTCOME, FailureResult, evidence_of, read_failure, search_of
from perfbisect.bisect.failure.search import SERVED, UNBUILT, FailureEvidence, FailureOutcome
from perfbisect.engine.experiment import Amendment, Experiment, JobStatus
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION, UsageError
from perfbisect.jobs.events import JobEvent
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.loop import Decision, Done, Idle, JobState, LaunchPolicy, SlotView, fits_budget
from perfbisect.jobs.plans import read_verdict, require_more_budget, require_plan
from perfbisect.jobs.replay import Launch, LaunchRequest
from perfbisect.jobs.runner import JobContext
from perfbisect.measure.executor import PhaseLimits
from perfbisect.model.change import Change
from perfbisect.report.template import render_sentences

_PATIENCE, _LEAST_S = 10.0, 60.0
"""A launch hangs where it takes so many times as long as the good end did, and at least these seconds."""


@dataclass(frozen=True)
class FailurePolicy:
    """What a search for a failure launches; the journal alone says what it knows."""

    plan: FailurePlan

    def next(self, state: JobState, view: SlotView) -> Decision:
        """One launch of the position that tells most. A failure of the machine leaves its question open."""
        del view
        plan = self.plan
        search = search_of(plan, state.launches)
        running = {launch.position for launch in state.launches if launch.outcome == "running"}
        step = search.next(running)
        if isinstance(step, FailureOutcome):
            return Idle() if running else Done(asdict(step))
        if step is None:
            return Idle()
        if not fits_budget(state.launches, plan.budget):
            return Idle() if running else Done(asdict(search.outcome("out of budget")))
        position, purpose = step
        lost = [x for x in state.launches if x.position == position and x.outcome != "running"]
        values = {
            "plan": plan,
            "search": search,
            "position": position,
            "purpose": purpose,
            "lost": lost[-1].cause.partition("\n")[0] if lost and evidence_of(lost[-1]) is None else "",
            "left": search.high - search.low - 1 - len(search.skipped),
        }
        (why,) = render_sentences("bisect/templates/failure.reason.jinja", values)
        change = plan.positions[position].change
        return LaunchRequest(position, change, purpose, 1, why, time_limits=self.limits(state.launches))

    def limits(self, records: Sequence[Launch]) -> PhaseLimits | None:
        """From what the good end took: a hang need not take an hour to be known for one."""
        good = next((x.attempt for x in records if x.position == 0 and x.outcome == "measured"), None)
        if good is None:
            return None
        usual = PhaseLimits()
        first, load = good.seconds.get("first_request", 0.0), good.seconds.get("warm", 0.0)
        load = max(load, good.seconds.get("bench", 0.0))
        return replace(
            usual,
            first_request=min(usual.first_request, max(_LEAST_S, _PATIENCE * first)),
            bench=min(usual.bench, max(_LEAST_S, _PATIENCE * load)),
        )

    def broken(self, launch: Launch, order: LaunchRequest, state: JobState) -> tuple[str, str] | None:
        """An end that cannot be built: nothing can be known of the range."""
        del order, state
        if launch.position not in (0, self.plan.last) or evidence_of(launch) != UNBUILT:
            return None
        end = self.plan.end_name(launch.position)
        return f"the {end} end {launch.change.short}", f"choose another --{end}, or another --env"

    def progress(self, launch: Launch, state: JobState) -> tuple[str, Sequence[JobEvent]]:
        """What a launch came to, and what is left."""
        search, said = search_of(self.plan, state.launches), evidence_of(launch)
        if said is None:
            return "", ()
        came = "serves" if said == SERVED else "passed over" if launch.position in search.skipped else "fails"
        low, high = (self.plan.positions[index].change.short for index in (search.low, search.high))
        return f"{came}; between {low} and {high}", ()

    def likely(self, state: JobState, running: Launch, view: SlotView) -> Iterator[tuple[int, Change]]:
        """What follows if the launch that has begun serves, and if it fails."""
        del view
        search = search_of(self.plan, state.launches)
        for said in (SERVED, search.signature):
            evidence = (*search.evidence, FailureEvidence(running.position, said))
            step = replace(search, evidence=evidence).next()
            if isinstance(step, tuple):
                yield step[0], self.plan.positions[step[0]].change

    @staticmethod
    def amend(job: Job, tools: JobContext, amendment: Amendment) -> None:
        """Give a search more minutes; nothing else can change.

        Raises:
            UsageError: something else was asked, or minutes change nothing.
        """
        with Journal(job.journal, clock=tools.clock) as journal:
            plan = require_plan(job, journal.events, FailurePlan)
            if amendment.metric is not None or amendment.confirm_revert or amendment.budget is None:
                raise UsageError(
                    f"job {job.id} is a {plan.noun}: only its budget can be changed",
                    next_step=f"perfbisect resume {job.id} --budget 3h",
                )
            outcome = read_verdict(journal.events, OUTCOME)
            settled = outcome.verdict if outcome and outcome.verdict != "out of budget" else ""
            require_more_budget(job, plan, amendment.budget, settled)
            more = plan.model_copy(update={"budget": amendment.budget})
            journal.append("plan", more.model_dump(mode="json"))


def _status(result: FailureResult) -> JobStatus:
    named = [position.changes[0] for position in result.culprits]
    first = named[0].short if named else ""
    who = f"one of {len(named)} from {first}" if len(named) > 1 else first
    how = result.failure.signature if result.failure else ""
    return JobStatus(
        outcome=result.outcome,
        exit_code={"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}.get(
            result.outcome, EXIT_INCONCLUSIVE
        ),
        verdict=", ".join(filter(None, (who, how))),
        next=result.next,
    )


def _policy(job: Job, plan: FailurePlan, tools: JobContext) -> LaunchPolicy:
    del job, tools
    policy = FailurePolicy(plan)
    return LaunchPolicy(
        policy.next,
        plan.ref,
        plan.budget,
        plan.last,
        broken=policy.broken,
        progress=policy.progress,
        likely=policy.likely,
    )


FAILURE: Final = Experiment(
    plan=FailurePlan,
    policy=_policy,
    result=read_failure,
    status=_status,
    report=FailureResult.report,
    client_change=lambda plan: plan.positions[0].change,
    workers=lambda plan: plan.workers,
    amend=FailurePolicy.amend,
)
