"""Runs attempts on the machines of a fleet: builds here, submits, waits, and brings the results home."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from perfbisect.commands.fleets import FleetJob
from perfbisect.errors import BuildError, Interrupted, MachineError
from perfbisect.fleet.agent import read_manifest
from perfbisect.fleet.bundle import CLIENT, Bundle, BundledLaunch, BundleState, Ticket, UnreachableError
from perfbisect.fleet.folders import FolderFleet
from perfbisect.jobs.plans import cell_data
from perfbisect.jobs.replay import Launch
from perfbisect.jobs.requests import NO_REQUEST
from perfbisect.machine import profile
from perfbisect.machine.slots import Slot
from perfbisect.measure import faults
from perfbisect.measure.attempt import FILE, read_attempt, write_attempt
from perfbisect.measure.executor import AttemptRequest, PhaseLimits, Sink, Started
from perfbisect.measure.record import AttemptRecord
from perfbisect.model.attempt import Attempt, Purpose
from perfbisect.model.change import Change

_T = TypeVar("_T")

POLL_S = 1.0
"""Least seconds between two looks at a bundle ..."""

_POLL_SHARE = 0.05
"""... and their share of the time that it runs: a look costs the machine that measures a little."""

MOST_POLL_S = 5.0

LOST_AFTER_S = 600.0
"""Seconds without an answer after which a machine counts as lost."""

SUBMITTED_WITHIN_S = 60.0
"""Seconds without an answer after which a bundle counts as not submitted."""

_GRACE_S = 30.0
_BROUGHT = ".bundle"
"""Where a bundle's folder is brought to, in the folder of its attempt."""


@dataclass
class FleetExecutor:
    """Implements :class:`perfbisect.measure.executor.Executor`; a bundle is an attempt, or the two of a pair.

    A pair is made under one lease. Both are brought when both have ended: the first attempt waits for that,
    the second is then in its folder. If one of them is lost, so is the other.

    ``lost``: bundles without a result that may go on where they are; they are ended before the next launch
    there.
    """

    fleet: FolderFleet
    job: FleetJob
    lost: set[Ticket] = field(init=False)
    _placed: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)
    """Machines and keys that were brought to them."""

    def __post_init__(self) -> None:
        self.lost = {Ticket(launch.token, launch.machine) for launch in self.job.lost}

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        """Run one attempt on the machine of its slot and write its ``attempt.json`` here.

        Raises:
            Interrupted: Ctrl-C or a stop; the bundle is ended there and the attempt has no result.
        """
        del started  # the token is in the journal before anything exists
        classifier = faults.FaultClassifier(profile.oom_kills(), request.measured_before)
        record = AttemptRecord(request, request.token, classifier, log=request.folder)
        slot = request.slot
        assert slot is not None
        ticket, submitted = Ticket(request.token, slot.machine), False
        home = _Home(request.id, request.folder, slot.name, slot.machine)
        try:
            request.folder.mkdir(parents=True, exist_ok=True)
            second = home.second(request.change.id, request.purpose, request.runs)
            if second is not None:
                return second
            mate = self._build(record, slot.machine, sink)
            record.phase = "launch"
            home = replace(home, build=record.seconds["build"], fetch=record.seconds.get("fetch", 0.0))
            self._end_lost(slot.machine)
            bundle, submitted = self._bundle(request, slot, mate), True
            with self._ended_when_stopped(ticket, request.id):
                self._until_reached(lambda: self.fleet.submit(ticket, bundle), SUBMITTED_WITHIN_S)
                return self._follow(ticket, home, sink)
        except faults.ATTEMPT_ERRORS as error:
            record.fail(error)
            # The launch may go on without this driver and hold the slot that the next launch there needs.
            if submitted:
                self.lost.add(ticket)
                with suppress(MachineError):
                    self._end_lost(slot.machine)
            attempt = record.to_attempt(None, slot)
            with suppress(OSError):
                write_attempt(request.folder, attempt)
            return attempt

    def reclaim(self, launch: Launch, folder: Path, sink: Sink) -> Attempt | None:
        """The attempt that an earlier process of this job submitted, once it has ended.

        None if it was never submitted or came to nothing, or if its machine does not answer: what goes on
        there is ended before the next launch on it. The second launch of a pair is in the first one's folder.

        Raises:
            Interrupted: Ctrl-C or a stop; the bundle is ended.
        """
        home = _Home(launch.id, folder, launch.slot, launch.machine)
        try:
            ticket = self._until_reached(lambda: self.fleet.find(launch.token), SUBMITTED_WITHIN_S)
            if ticket is None:
                return home.second(launch.change.id, launch.purpose, launch.runs)
            with self._ended_when_stopped(ticket, launch.id):
                return self._follow(ticket, home, sink)
        except UnreachableError:
            self.lost.add(Ticket(launch.token, launch.machine))
        except MachineError:
            pass
        return None

    def _end_lost(self, machine: str) -> None:
        """End earlier bundles of a machine: they would hold its slots."""
        # A copy: threads of other machines change the set meanwhile.
        for ticket in [ticket for ticket in tuple(self.lost) if ticket.machine == machine]:
            self.fleet.cancel(ticket, 0.0)
            self.lost.discard(ticket)

    def _build(self, record: AttemptRecord, machine: str, sink: Sink) -> Change | None:
        """Build the environment here, and bring it to the machine with the client's.

        Returns the mate; None where its own environment cannot be built, which its own attempt will say.
        """
        request = record.request
        with record.timed("build", request.folder / "build.log"):
            builder, timeout = self.job.builder, request.limits.build
            environment = builder.ensure(request.change, log=record.log, timeout=timeout)
            record.environment, needed, mate = environment, [environment], request.mate
            if mate is not None:
                log = request.folder / "build-mate.log"
                try:
                    needed.append(builder.ensure(mate, log=log, timeout=timeout))
                except BuildError:
                    mate = None
            needed += [self.job.client] if self.job.client is not None else []
        missing = [one for one in needed if (machine, one.key) not in self._placed]
        if missing:
            with record.timed("fetch"):
                self.fleet.place(machine, missing)
            self._placed |= {(machine, one.key) for one in missing}
        sink("build", {"seconds": record.seconds["build"], "cached": environment.seconds == 0.0})
        if self.job.stop_requested():
            raise Interrupted(f"attempt {request.id} was stopped in phase {record.phase}")
        return mate

    def _bundle(self, request: AttemptRequest, slot: Slot, mate: Change | None) -> Bundle:
        changes = [request.change, *([mate] if mate is not None else [])]
        keys = {change.id: self.job.builder.key(change) for change in changes}
        client = {CLIENT: self.job.client.key} if self.job.client is not None else {}
        name_there = slot.name.removeprefix(slot.machine).removeprefix("/")
        return Bundle(
            cell=cell_data(request.cell),
            digest=request.cell.digest,
            setting=self.job.setting.model_copy(
                update={"repository": "", "fleet": "", "request": NO_REQUEST}
            ),
            metric=request.cell.headline,
            token=request.token,
            slot=replace(slot, name=name_there, machine=""),
            launches=tuple(
                BundledLaunch(change=change, purpose=request.purpose, runs=request.runs) for change in changes
            ),
            environments=keys | client,
            interference=self.job.interference,
            limit=len(changes) * _limit(request.limits, request.cell.ready_timeout),
            wait=self.job.wait,
        )

    @contextmanager
    def _ended_when_stopped(self, ticket: Ticket, identity: str) -> Iterator[None]:
        """End the bundle if this thread is interrupted."""
        try:
            yield
        except (KeyboardInterrupt, Interrupted):
            self.lost.add(ticket)
            with suppress(MachineError):  # the next launch there, stop or resume ends it
                self.fleet.cancel(ticket, _GRACE_S)
                self.lost.discard(ticket)
            raise Interrupted(f"attempt {identity} was interrupted on {ticket.machine}") from None

    def _follow(self, ticket: Ticket, home: _Home, sink: Sink) -> Attempt:
        """Wait for the end of a bundle, bring it home, and return what came of its launch."""
        state = self._await_end(ticket, sink)
        # What a killed agent left running may still write: it is ended before its files are brought.
        if state.kind in ("gone", "failed"):
            self._until_reached(lambda: self.fleet.cancel(ticket, 0.0))
        brought = home.folder / _BROUGHT
        brought.mkdir(parents=True, exist_ok=True)
        is_whole = self._until_reached(lambda: self.fleet.fetch(ticket, brought))
        attempt = home.attempt(brought, 0) if is_whole else None
        if attempt is None:
            raise MachineError(
                state.why or f"nothing came back from {ticket.machine}, or its pair was lost",
                where=home.folder,
                code="machine_failed",
            )
        return attempt

    def _await_end(self, ticket: Ticket, sink: Sink) -> BundleState:
        last, began = BundleState("waiting"), time.monotonic()
        while True:
            state = self._until_reached(lambda: self.fleet.state(ticket))
            if state.phase and (state.phase, state.detail) != (last.phase, last.detail):
                last = state
                sink(state.phase, {**state.detail, "machine": ticket.machine})
            if state.kind not in ("waiting", "running"):
                return state
            if self.job.stop_requested():
                raise Interrupted("a stop was requested")
            self.job.pause(min(MOST_POLL_S, max(POLL_S, _POLL_SHARE * (time.monotonic() - began))))

    def _until_reached(self, call: Callable[[], _T], seconds: float = LOST_AFTER_S) -> _T:
        """Call until the machine answers; raises UnreachableError once it counts as lost."""
        silent_since: float | None = None
        while True:
            try:
                return call()
            except UnreachableError:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > seconds or self.job.stop_requested():
                    raise
                self.job.pause(MOST_POLL_S)


def end_bundles(fleet: FolderFleet, tokens: Sequence[str], grace: float) -> int:
    """End bundles that nobody waits for; returns how many went on. ``grace``: seconds before they are killed.

    Raises:
        MachineError: a machine does not answer, or a bundle cannot be ended; the others are ended.
    """
    count, failed = 0, None
    for token in tokens:
        try:
            ticket = fleet.find(token)
            state = fleet.state(ticket).kind if ticket is not None else "ended"
            if ticket is not None and state != "ended":
                fleet.cancel(ticket, grace)
            count += state in ("waiting", "running")
        except MachineError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return count


@dataclass(frozen=True)
class _Home:
    """Where an attempt is brought to, and the seconds in which its environment was built and fetched."""

    id: str
    folder: Path
    slot: str
    machine: str
    build: float = 0.0
    fetch: float = 0.0

    def attempt(self, brought: Path, place: int) -> Attempt | None:
        """The attempt of a launch in a bundle's folder, as one of this job's.

        None if it has no result, or if another launch of the bundle was lost: its pair is void.
        """
        manifest = read_manifest(brought)
        if manifest is None or place >= len(manifest.launches):
            return None
        attempts = [
            read_attempt(brought / launch.folder) if launch.outcome == "measured" else None
            for launch in manifest.launches
        ]
        attempt = attempts.pop(place)
        # A launch without its mate shows nothing: a pair is two launches of one lease.
        is_void = any(
            mate is None or (mate.failure is not None and mate.failure.fault != "change") for mate in attempts
        )
        if attempt is None or (is_void and attempt.failure is None):
            return None
        for path in (brought / manifest.launches[place].folder).iterdir():
            if path.name != FILE:
                path.replace(self.folder / path.name)
        fetch = self.fetch + attempt.seconds.get("fetch", 0.0)
        seconds = {**attempt.seconds, "build": self.build, **({"fetch": fetch} if fetch else {})}
        facts = attempt.provenance.facts
        facts = {**facts, "machine": {**(facts.get("machine") or {}), "name": self.machine}}
        attempt = replace(
            attempt,
            id=self.id,
            folder=str(self.folder),
            seconds=seconds,
            slot=self.slot,
            provenance=replace(attempt.provenance, facts=facts),
        )
        write_attempt(self.folder, attempt)
        return attempt

    def second(self, change_id: str, purpose: Purpose, runs: int) -> Attempt | None:
        """The second launch of the bundle before it on its slot, if it is the one that is asked for."""
        # Attempts have numbers for names, in the order of their launches.
        siblings = (folder for folder in self.folder.parent.iterdir() if folder.name < self.folder.name)
        for folder in sorted(siblings, reverse=True):
            before = read_attempt(folder)
            if before is not None and before.slot == self.slot:
                break
        else:
            return None
        brought = folder / _BROUGHT
        attempt = read_attempt(brought / "attempts" / "002")
        if attempt is None or (attempt.change_id, attempt.purpose) != (change_id, purpose):
            return None
        is_whole = attempt.failure is not None or len(attempt.runs) == runs
        return self.attempt(brought, 1) if is_whole else None


def _limit(limits: PhaseLimits, ready: float) -> float:
    """Minutes in which a launch ends or is ended, at the limits of its phases but the build."""
    minutes: float = sum(astuple(replace(limits, build=0.0, ready=limits.ready or ready))) / 60
    return minutes
