"""The result of a search for a failure: its value and its public JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field, TypeAdapter

from perfbisect.bisect.failure.plan import FailurePlan
from perfbisect.bisect.failure.search import (
    SERVED,
    UNBUILT,
    FailureEvidence,
    FailureOutcome,
    FailureSearch,
    FailureVerdict,
    SearchPurpose,
)
from perfbisect.bisect.figures import evidence_plot
from perfbisect.bisect.result import (
    RangeSearchResult,
    SkipDocument,
    position_documents,
    skip_documents,
)
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import Document, measured_fields
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.plans import plan_cell, read_verdict, require_plan
from perfbisect.jobs.replay import Launch, ended_launches, launches, minutes_saved
from perfbisect.model.cell import ExpectedAnswer
from perfbisect.model.change import Change
from perfbisect.model.trace import TraceLine
from perfbisect.report.document import Report
from perfbisect.report.template import render_report, render_sentences

OUTCOME = TypeAdapter(FailureOutcome)
_PURPOSES: Mapping[str, SearchPurpose] = {"end": "end", "confirm": "confirm"}


def evidence_of(launch: Launch) -> str | None:
    """What an ended launch says of its change; None: nothing, since the machine or the client failed."""
    if launch.outcome == "measured":
        return SERVED
    failure = launch.failure
    if failure is None or not launch.refused:
        return None
    # What cannot be built could not have failed; what was built and cannot be imported does not start.
    return failure.signature if launch.built or failure.code == "engine_import_failed" else UNBUILT


def search_of(plan: FailurePlan, records: Sequence[Launch]) -> FailureSearch:
    """The search after these launches. An end that could not be built is tried anew by a resumed job."""
    said = ((launch, evidence_of(launch)) for launch in ended_launches(records))
    return FailureSearch(
        plan.last,
        frozenset(index for index, position in enumerate(plan.positions) if position.skip),
        [
            FailureEvidence(launch.position, text, _PURPOSES.get(launch.purpose, "search"))
            for launch, text in said
            if text is not None and not (text == UNBUILT and launch.position in (0, plan.last))
        ],
    )


class FailureFinding(Document):
    """A failure, and the launches that failed so; ``frames``: the outermost first, none without traceback.

    ``answer``: of the last of them, where it is not the expected one.
    """

    signature: str
    code: str
    reason: str
    error: str
    answer: str = ""
    frames: tuple[TraceLine, ...]
    changes: tuple[Change, ...]
    launches: tuple[int, ...]
    log: str
    """Of the last of these launches."""

    @classmethod
    def of(cls, plan: FailurePlan, signature: str, failed: Sequence[Launch]) -> FailureFinding:
        """The finding of launches that failed alike."""
        failure, positions = failed[-1].failure, sorted({launch.position for launch in failed})
        assert failure is not None
        return cls(
            signature=signature,
            code=failure.code or "",
            reason=failure.reason,
            error=failure.trace.error if failure.trace else "",
            answer=failure.reason.partition("\n")[2] if failure.code == "wrong_answer" else "",
            frames=failure.trace.frames if failure.trace else (),
            changes=tuple(plan.positions[index].change for index in positions),
            launches=tuple(launch.number for launch in failed),
            log=failure.log,
        )


class FailureResult(RangeSearchResult):
    """How a search for a failure ended, or how far it is.

    ``failure``: the one that is searched for; ``others``: what else failed; ``parent`` served last.
    """

    shown: ClassVar[Mapping[str, int]] = {"launches": -4, "skips": 10}
    schema_: Literal["perfbisect.failure/1"] = Field(default="perfbisect.failure/1", alias="schema")
    outcome: FailureVerdict | Literal["unfinished"]
    expected_answer: ExpectedAnswer | None = None
    failure: FailureFinding | None
    others: tuple[FailureFinding, ...]
    contradicted: tuple[Change, ...]
    """Changes whose launches do not agree, or that served after one that fails."""

    def report(self) -> Report:
        plot = evidence_plot(self.launches, self.positions)
        return render_report("bisect/templates/failure.md.jinja", {"r": self}, {"by-commit": plot})


def read_failure(job: Job, events: Sequence[JournalEvent]) -> FailureResult:
    """What is known so far; a UsageError says why the journal holds no search for a failure."""
    plan, records = require_plan(job, events, FailurePlan), launches(events)
    outcome, search = read_verdict(events, OUTCOME), search_of(plan, records)
    positions, (good, bad) = position_documents(plan), plan.ends
    failed: dict[str, list[Launch]] = {}
    for launch in ended_launches(records):
        said = evidence_of(launch)
        if said not in (None, SERVED, UNBUILT):
            failed.setdefault(str(said), []).append(launch)
    findings = [FailureFinding.of(plan, *found) for found in failed.items()]
    failure = next((x for x in findings if x.signature == search.signature), None)
    culprits = outcome.culprits if outcome else ()
    on_branch = plan.branch is not None and plan.merge_base in culprits
    tried = {launch.position: launch for launch in ended_launches(records) if launch.refused}
    measured = [
        SkipDocument(change=position.change, reason=last.reason, known="measured", log=last.log)
        for index, position in enumerate(plan.positions)
        if index in search.skipped and (last := tried.get(index)) is not None
    ]
    shown = plan.positions[culprits[-1] if culprits else plan.last].change
    named = plan.positions[culprits[0]].change if len(culprits) == 1 and not on_branch else None
    example = next((x.attempt for x in reversed(records) if x.change.id == shown.id and x.attempt), None)
    fields = {
        **measured_fields(
            job,
            plan,
            plan_cell(plan),
            records,
            lambda launch: plan.positions[launch.position].change,
            minutes_saved(events, records),
        ),
        "outcome": outcome.verdict if outcome else "unfinished",
        "finished": outcome is not None,
        "reproduce": commands_document(plan_cell(plan), plan.setting, shown, example),
        "culprit": named,
        "culprits": tuple(positions[index] for index in culprits),
        "expected_answer": plan_cell(plan).expected_answer,
        "parent": plan.positions[outcome.low].change if outcome and culprits else None,
        "failure": failure,
        "others": tuple(x for x in findings if x is not failure),
        "contradicted": tuple(plan.positions[i].change for i in outcome.contradicted) if outcome else (),
        "repository": plan.setting.repository,
        "good": good,
        "bad": bad,
        "changes": len(plan.changes),
        "positions": len(positions),
        "skips": (*skip_documents(plan), *measured),
        "cherry_picks": plan.branch.own if plan.branch and on_branch else (),
    }
    told = {"r": fields, "low": plan.positions[search.low].change, "high": plan.positions[search.high].change}
    *summary, after = render_sentences("bisect/templates/failure.summary.jinja", told)
    return FailureResult(**fields, summary=tuple(summary), next=after)
