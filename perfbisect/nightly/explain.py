"""Profiles the culprits that a night's bisections named, in the minutes that the night has left."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfbisect.bisect.documents import ReportDocument
from perfbisect.errors import Interrupted, PerfbisectError
from perfbisect.explain.documents import explain_bisection
from perfbisect.jobs.events import JobNote
from perfbisect.jobs.journal import Journal
from perfbisect.nightly.journal import NightRecord, write_traceback
from perfbisect.nightly.model import NightBisection, NightProfile
from perfbisect.nightly.night import NightlyContext, PreparedProfile


def phases_of(report: ReportDocument) -> tuple[str, ...]:
    """Which phase of a request took longer at the culprit, or why that is not known; no launch is needed."""
    explained = explain_bisection(report)
    return (*explained.summary, *explained.notes)


@dataclass(frozen=True)
class CulpritProfiler:
    """Profiles culprits and their parents and records each result in the night's journal.

    A profile that cannot be made, or fails, is a note of the night and no failure: the verdict stands.
    """

    context: NightlyContext
    journal: Journal
    folder: Path

    @property
    def _record(self) -> NightRecord:
        return NightRecord(self.journal.events, self.context.jobs)

    def profile_culprits(self) -> None:
        """Profile what the night's bisections named; raises Interrupted after Ctrl-C or a stop."""
        for bisection in tuple(self._unexplained()):
            try:
                result = self._profile(bisection)
            except Interrupted:
                raise
            except PerfbisectError as error:
                result = self._not_profiled(bisection, error.message)
            except Exception as error:
                log = write_traceback(self.folder, "explain")
                result = self._not_profiled(bisection, f"internal error: {error!r}, see {log}")
            self.journal.append("step", result.model_dump(mode="json"))
            words = f"profile: {result.sentence}" if result.sentence else f"not profiled: {result.why}"
            self.context.sink(JobNote(f"{bisection.event}: {words}"))

    def _unexplained(self) -> Iterator[NightBisection]:
        for bisection in self._record.bisections.values():
            if bisection.culprit is not None and bisection.job and bisection.profile is None:
                yield bisection

    def _profile(self, bisection: NightBisection) -> NightProfile:
        rules, record = self.context.file.nightly, self._record
        identity = record.profile_jobs.get(bisection.event)
        if identity is None:
            if not rules.explain:
                return self._not_profiled(bisection, "the configuration says explain: false")
            if record.plan.setting.fleet:
                return self._not_profiled(
                    bisection, "a fleet measured it, and a profile is made on one machine"
                )
        left = max(0.0, record.plan.budget - record.spent)
        prepared = self.context.machine.prepare_profile(record.job(bisection.job), left)
        if identity is None:
            if reason := prepared.problem or _shortage(left, prepared):
                return self._not_profiled(bisection, reason)
            identity = self.context.machine.new_job().id
            self.journal.append("job", {"profile_of": bisection.event, "job": identity})
        document = prepared.run(record.job(identity))
        result = document.result
        assert result is not None, "a profile that has ended has a result"
        return NightProfile(
            profile_of=bisection.event,
            job=identity,
            conclusion=result.kind,
            sentence=result.sentence,
            minutes=document.minutes.total,
            next=self._command("report", identity),
        )

    def _not_profiled(self, bisection: NightBisection, why: str) -> NightProfile:
        """``next``: of a fleet's job the search of hunks, which a fleet can make; else the profile."""
        wanted = ("--hunks", "--dry-run") if self._record.plan.setting.fleet else ("--profile",)
        return NightProfile(
            profile_of=bisection.event,
            job=self._record.profile_jobs.get(bisection.event, ""),
            why=why,
            next=self._command("explain", bisection.job, *wanted),
        )

    def _command(self, *words: str) -> str:
        state = ("--state", str(self.context.state)) if self.context.file.nightly.state else ()
        return shlex.join(("perfbisect", *words, *state))


def _shortage(left: float, prepared: PreparedProfile) -> str:
    """Say why the remaining minutes do not suffice; empty if they do."""
    if left < prepared.minutes:
        return f"{left:.0f} minutes are left, a profile takes about {prepared.minutes:.0f}"
    return ""
