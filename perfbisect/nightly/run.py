"""A night: measured, read, bisected, told. Starting it again is starting the same loop: what ended is over.

Its journal holds the plan, the job of each cell, what failed and what came of each step; the launches stand
in the jobs' own journals. So a night that was killed at any point goes on where it was.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from perfbisect.errors import EXIT_OURS, BuildError, Interrupted, MachineError, PerfbisectError
from perfbisect.jobs.events import Told
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Journal, stamp
from perfbisect.jobs.runner import clear_up
from perfbisect.nightly import schedule
from perfbisect.nightly.alerts import bring_in, judge, machines, unjudged, write_down
from perfbisect.nightly.bisect import Bench, Rules, cases, earlier, settle
from perfbisect.nightly.context import CellJob, Done, Hands, Scene, Step, prepare
from perfbisect.nightly.document import build_night, plan_night
from perfbisect.nightly.documents import night_document
from perfbisect.nightly.folders import NightFolder
from perfbisect.nightly.model import Night, NightAlert, NightFindings
from perfbisect.nightly.plan import NightPlan, night_plan_of, setting_name
from perfbisect.nightly.state import CellFailure, NightState, StepRecord, Tally, spent, state_of, tallies
from perfbisect.nightly.steps import reading_steps
from perfbisect.series.detect import SeriesAnalysis, look
from perfbisect.series.nightly_report import build_nightly_report
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_whole

GOES_ON = timedelta(hours=12)
"""So long after it began a night that was cut short is still tonight's: it goes on with its own commit."""

_MACHINE = 2
"""Cells in a row that the machine fails, after which no other is tried."""


def nightly(scene: Scene, hands: Hands) -> Night:
    """One night, new or cut short, to its end.

    :raises MachineError: another process is at work on this nightly; or the disk.
    :raises Interrupted: Ctrl-C or a stop; started again it goes on.
    """
    nights, now = scene.nights, hands.clock()
    with nights.held(now):
        before = nights.all()
        tonight = _open(before, now)
        if tonight is not None:
            before = before[:-1]
        elif before:
            _give_up(scene, hands, before[-1])
        tonight = tonight or nights.new(now, scene.commit.id)
        with Journal(tonight.journal, clock=hands.clock) as journal:
            if not journal.events:
                plan = prepare(scene, before, now, hands)
                journal.append("plan", plan.model_dump(mode="json"))
            return _NightRun(scene, hands, tonight, before, journal).run()


def foreseen(scene: Scene, hands: Hands) -> Night:
    """What a night that began now would do; nothing is started or written."""
    before, now = scene.nights.all(), hands.clock()
    cut = _open(before, now)
    if cut is None:
        return plan_night(scene, prepare(scene, before, now, hands), stamp(now))
    told = f"night {cut.id} was cut short: it goes on, with its own commit and what is left of its minutes"
    return plan_night(scene, night_plan_of(cut.events()), stamp(now), told)


def _open(nights: Sequence[NightFolder], now: datetime) -> NightFolder | None:
    """The last night, if it was cut short and is still tonight's."""
    events = nights[-1].events() if nights else ()
    if not events:
        return None
    recent = now - datetime.fromisoformat(events[0].time) < GOES_ON
    return nights[-1] if recent and not state_of(events).over else None


def _give_up(scene: Scene, hands: Hands, night: NightFolder) -> None:
    """A night that was cut short too long ago: what it left is ended, what it measured is kept."""
    with Journal(night.journal, clock=hands.clock) as journal:
        state = state_of(journal.events)
        if state.over or not journal.events:
            return
        for identity in (*state.jobs.values(), *state.searches.values()):
            _clear(scene.jobs.folder / identity, hands)
        plan = night_plan_of(journal.events)
        journal.append("verdict", {"word": "given up", **_verdict(plan, tallies(plan, state, scene.jobs))})


def _clear(path: Path, hands: Hands) -> None:
    """Ends what a killed process left of a job, which stays as it is and can be resumed."""
    job = Job(path)
    if job.journal.exists() and not job.finished:
        with job.held(), Journal(job.journal, clock=hands.clock) as journal:
            clear_up(job, journal, hands)


def _verdict(plan: NightPlan, done: Mapping[str, Tally]) -> dict[str, object]:
    """What later nights want to know of this one."""
    each = {one.digest: done[one.name].each for one in plan.wanted}
    return {
        "setting": setting_name(plan.setting),
        "measured": {one.digest: len(done[one.name].measured) for one in plan.wanted},
        "each": {digest: minutes for digest, minutes in each.items() if minutes is not None},
    }


class _NightRun:
    """The loop of a night."""

    def __init__(
        self, scene: Scene, hands: Hands, folder: NightFolder, before: Sequence[NightFolder], journal: Journal
    ) -> None:
        self.scene, self.hands, self.folder, self.before, self.journal = scene, hands, folder, before, journal
        self.plan = night_plan_of(journal.events)
        self.rules = scene.file.nightly

    @property
    def state(self) -> NightState:
        return state_of(self.journal.events)

    def run(self) -> Night:
        if self.scene.fetched is not None:
            self._step("fetch", self.scene.fetched)
        self._measure()
        with SeriesStore.of(self.scene.state) as store:
            self._step("ingest", partial(self._ingest, store))
            seen = self._read(store)
            if seen is not None:
                for step in reading_steps(self.scene, store, seen, self.folder, self.hands.clock):
                    self._step(step.name, partial(self._run, step))
        for step in self.hands.steps:
            self._step(step.name, partial(self._run, step))
        night = self.night(ended=stamp(self.hands.clock()))
        write_whole(self.folder.document, night_document(night).text() + "\n")
        done = _verdict(self.plan, tallies(self.plan, self.state, self.scene.jobs))
        self.journal.append("verdict", {"word": "over", "exit_code": night.exit_code, **done})
        return night

    def _run(self, step: Step) -> Done:
        return step.run(self.night())

    def night(self, ended: str = "") -> Night:
        """The night as it stands."""
        return build_night(self.scene, self.plan, self.journal.events, self.folder, ended=ended)

    def _measure(self) -> None:
        plan, order, machine = self.plan, self.plan.order, 0
        while True:
            state = self.state
            done = tallies(plan, state, self.scene.jobs)
            counts = {name: len(one.measured) for name, one in done.items()}
            each = {name: one.each for name, one in done.items() if one.each is not None}
            used = spent(plan, state, self.scene.jobs)
            sitting = schedule.next_sitting(order, plan.sets(each), counts, state.failed, used, plan.budget)
            if sitting is None:
                return
            left = sum(one.launches - counts[one.name] for one in plan.wanted if one.name not in state.failed)
            cells = ", ".join(sitting.cells)
            self.hands.sink(Told(f"{cells}: launch {sitting.launch}; {left} launches are left tonight"))
            jobs = [CellJob(plan.cell(name), self._job(name)) for name in sitting.cells]
            failures = self.hands.measure(plan, jobs, sitting.launch)
            for name, error in failures.items():
                self._failed(name, error)
            after = tallies(plan, self.state, self.scene.jobs)
            if not failures and all(len(after[name].measured) == counts[name] for name in sitting.cells):
                raise PerfbisectError(f"a launch of {cells} neither measured nor failed")
            machine = machine + 1 if any(isinstance(e, MachineError) for e in failures.values()) else 0
            first = next(iter(failures.values()), None)
            if isinstance(first, BuildError) or machine >= _MACHINE:
                self._all_fail(first, after)

    def _job(self, name: str) -> Job:
        """The job of a cell: that which the journal names, or a new one, told first."""
        identity = self.state.jobs.get(name)
        if identity is None:
            identity = self.hands.new_job().id
            self.journal.append("job", {"cell": name, "job": identity})
        return Job(self.scene.jobs.folder / identity)

    def _failed(self, name: str, error: PerfbisectError, reason: str = "") -> None:
        failure = CellFailure(
            cell=name,
            reason=reason or error.message,
            log=str(error.where or ""),
            next=error.next_step or "",
            exit_code=error.exit_code,
        )
        self.journal.append("cell", failure.to_json())
        self.hands.sink(Told(f"{name}: failed: {failure.reason}"))

    def _all_fail(self, error: PerfbisectError | None, done: Mapping[str, Tally]) -> None:
        """What no cell can do, every one is spared: the commit cannot be built, or the machine is ill."""
        if error is None:
            return
        for one in self.plan.wanted:
            if one.name not in self.state.failed and len(done[one.name].measured) < one.launches:
                self._failed(one.name, error, f"not tried, since another cell failed so: {error.message}")

    def _ingest(self, store: SeriesStore) -> Done:
        """Those of the night before once more: it may have been given up, and its jobs resumed by hand."""
        states = [state_of(one.events()) for one in self.before[-1:]] + [self.state]
        jobs = [Job(self.scene.jobs.folder / name) for state in states for name in state.jobs.values()]
        return Done(bring_in(store, jobs))

    def _read(self, store: SeriesStore) -> SeriesAnalysis | None:
        """What changed, told and looked into; None where the series cannot be read."""
        table, rules = self.scene.table, self.rules.alerts
        found: list[SeriesAnalysis] = []

        def detect() -> Done:
            seen, alerts = judge(store, table, rules)
            found.append(seen)
            cells, since = {one.name for one in self.plan.wanted}, self.journal.events[0].time[:10]
            findings = NightFindings(
                alerts=alerts,
                rows=build_nightly_report(seen, fdr=rules.fdr).rows,
                notes=tuple(machines(seen, cells, since)),
                unjudged=unjudged(seen, cells),
            )
            counted = Counter(one.change for one in alerts)
            return Done(
                ", ".join(f"{n} {change}" for change, n in counted.items()) or "no alerts", findings=findings
            )

        if not store.cells():
            return None
        self._step("detect", detect)
        findings = self.state.findings
        if findings is None:
            return None
        alerts = findings.alerts
        seen = found[0] if found else look(store, table, rules.fdr)
        now = stamp(self.hands.clock())
        self._step("alerts", lambda: Done(write_down(store, seen, alerts, rules, now)))
        self._step("search", partial(self._search, store, seen, alerts))
        return seen

    def _search(self, store: SeriesStore, seen: SeriesAnalysis, alerts: Sequence[NightAlert]) -> Done:
        rules = self.rules.bisect
        states = {record.alert.id: record.alert.state for record in store.alerts.all()}
        among = cases(
            seen,
            alerts,
            earlier(self.before),
            states,
            self.plan,
            Rules(wanted=rules.when == "new", least=rules.least, tails=rules.tails),
        )
        bench = Bench(self.scene, self.hands, self.plan, self.journal, store, seen, self.folder.path)
        settle(bench, tuple(among))
        return Done(f"{len(self.state.bisections)} events looked into")

    def _step(self, name: str, work: Callable[[], Done]) -> None:
        """A step that was done is not done again; one that fails is told, and those behind it still run.

        :raises Interrupted: Ctrl-C or a stop.
        """
        ended = self.state.steps.get(name)
        if ended is not None and ended.state == "done":
            return
        try:
            done = work()
        except Interrupted:
            raise
        except PerfbisectError as error:
            record = StepRecord(
                name=name,
                state="failed",
                told=error.message,
                where=str(error.where or ""),
                next=error.next_step or "",
                exit_code=error.exit_code,
            )
        except Exception as error:
            record = StepRecord(
                name=name,
                state="failed",
                told=f"a mistake of perfbisect itself: {error!r}",
                where=self._traceback(name),
                next="report it, with that file",
                exit_code=EXIT_OURS,
            )
        else:
            files = {kind: str(path) for kind, path in done.files.items()}
            record = StepRecord(name=name, state="done", told=done.told, files=files, findings=done.findings)
        self.journal.append("step", record.to_json())
        if record.state == "failed":
            self.hands.sink(Told(f"{name} failed: {record.told}"))

    def _traceback(self, name: str) -> str:
        path = self.folder.path / f"{name}.log"
        with suppress(OSError):
            path.write_text(traceback.format_exc(), encoding="utf-8")
        return str(path)
