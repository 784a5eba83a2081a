"""The agent: makes the launches of a bundle on this machine, each once at most."""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from perfbisect.errors import MachineError, UsageError
from perfbisect.fleet.bundle import Bundle, BundleDocument, BundleLaunchDocument
from perfbisect.jobs.events import EventListener, JobEvent, PhaseStarted
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Clock, Journal
from perfbisect.jobs.phases import PhaseRecord, phase_text
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.jobs.replay import LaunchRequest, launches
from perfbisect.jobs.runner import JobContext, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.system.files import write_atomic
from perfbisect.system.processes import stop_leftovers

MANIFEST = "manifest.json"
HEARTBEAT = "heartbeat.json"
BEAT_S = 10.0
"""Seconds between two writes of the heartbeat; a folder whose heartbeat is far older has no agent."""


def run_bundle(bundle: Bundle, folder: Path, clock: Clock, measure: Callable[[Job], None]) -> BundleDocument:
    """What came of a bundle in ``folder``; ``measure`` makes its launches where no earlier call began them.

    A bundle that was cut short is closed and not continued: its launches belong together.

    Raises:
        UsageError: the folder is another bundle's.
    """
    job, machine = Job(folder.absolute()), platform.node()
    ended = read_manifest(job.path)
    if ended is None:
        if job.holder is not None and job.events():
            _require_token(job, require_plan(job, job.events(), Bundle).token, bundle)
            return _document(job, machine)
        with job.held():
            if job.events():
                _require_token(job, require_plan(job, job.events(), Bundle).token, bundle)
                # Ends what it left running; an open launch counts only if it has a result.
                with Journal(job.journal, clock=clock) as journal:
                    recover_interrupted(job, journal, lambda _: None, stop_leftovers)
            else:
                measure(job)
            # A copy may be cut off: a driver fetches a file with another digest again.
            digests = {
                str(path.relative_to(job.path)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted((job.path / "attempts").rglob("*"))
                if path.is_file()
            }
            ended = _document(job, machine, digests)
            # From now on the folder does not change.
            write_atomic(job.path / MANIFEST, ended.text() + "\n", what="the manifest")
    _require_token(job, ended.token, bundle)
    return ended


def _require_token(job: Job, token: str, bundle: Bundle) -> None:
    if token != bundle.token:
        raise UsageError(
            f"the folder is of another bundle, {token}", where=job.path, next_step="a folder for each bundle"
        )


def measure_bundle(job: Job, tools: JobContext) -> None:
    """Make the launches of a new bundle; the caller holds the job's lock and the lease of its slot.

    The first that fails is the last: launches of one bundle are worth nothing without each other.

    Raises:
        Interrupted: Ctrl-C, a stop request, or the bundle's time is up.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        bundle = require_plan(job, journal.events, Bundle)
        with (
            _supervised(job, tools, 60 * bundle.limit) as sink,
            WorkerPool(job, journal, replace(tools, sink=sink), plan_cell(bundle)) as pool,
        ):
            for position, launch in enumerate(bundle.launches):
                why = f"launch {position + 1} of {len(bundle.launches)}"
                pool.start(
                    LaunchRequest(position, launch.change, launch.purpose, launch.runs, why), tools.slots[0]
                )
                pool.ended()
                # A pair whose first launch failed is void: its second would only take the slot.
                if journal.events[-1].kind == "failed":
                    break
        journal.append("verdict", {"verdict": "measured"})


_OUTCOMES: Final[Mapping[str, Literal["running", "measured", "lost"]]] = {
    "running": "running",
    "measured": "measured",
    "failed": "measured",
    "abandoned": "lost",
}
"""What a job says of a launch -> what a bundle says: its attempt has been made, whether it failed or not."""


def _document(job: Job, machine: str, files: Mapping[str, str] | None = None) -> BundleDocument:
    """What came of a bundle so far, from its journal; ``files``: of one that has ended."""
    events = job.events()
    bundle = require_plan(job, events, Bundle)
    made = {launch.position: launch for launch in launches(events)}
    times = [event.time for event in events if event.kind in ("started", "verdict")]
    return BundleDocument(
        token=bundle.token,
        state="running" if files is None else "ended",
        machine=machine,
        leased=(times[0], times[-1]) if finished(events) and len(made) == len(bundle.launches) else None,
        launches=tuple(
            BundleLaunchDocument(
                change=wanted.change.id,
                outcome=_OUTCOMES[launch.outcome],
                reason=launch.cause,
                folder=launch.folder,
                began=launch.started_at,
            )
            if (launch := made.get(position))
            else BundleLaunchDocument(change=wanted.change.id, outcome="not made")
            for position, wanted in enumerate(bundle.launches)
        ),
        files=files or {},
    )


def read_manifest(folder: Path) -> BundleDocument | None:
    """The manifest of a bundle that has ended; None while it runs.

    Raises:
        MachineError: the file is damaged.
    """
    path = folder / MANIFEST
    try:
        return BundleDocument.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise MachineError(
            f"the manifest cannot be read: {error}", where=path, next_step="remove the folder"
        ) from error


@contextmanager
def _supervised(job: Job, tools: JobContext, seconds: float) -> Iterator[EventListener]:
    """Write the heartbeat at every phase and every :data:`BEAT_S` seconds; yields the listener for phases.

    After ``seconds`` it requests a stop of this process.
    """
    ended, newest = threading.Event(), [PhaseRecord()]

    def beat() -> None:
        with suppress(MachineError):  # a full disk fails the launch
            record = newest[0].model_copy(update={"at": tools.clock().isoformat()})
            write_atomic(job.path / HEARTBEAT, phase_text(record))

    def listen(event: JobEvent) -> None:
        if isinstance(event, PhaseStarted):
            newest[0] = PhaseRecord(phase=event.phase, detail=dict(event.detail))
            beat()
        tools.sink(event)

    def run() -> None:
        while not ended.wait(BEAT_S):
            beat()

    beat()
    heartbeat = threading.Thread(target=run, name="heartbeat")
    limit = threading.Timer(seconds, job.request_stop)
    heartbeat.start()
    limit.start()
    try:
        yield listen
    finally:
        limit.cancel()
        ended.set()
        limit.join()
        heartbeat.join()
