"""The agent: makes the launches of a bundle on this machine, each once at most."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from perfbisect.errors import MachineError
from perfbisect.fleet.bundle import Bundle, BundleDocument, BundleLaunchDocument
from perfbisect.jobs.events import EventListener, JobEvent, PhaseStarted
from perfbisect.jobs.folders import Job, finished
from perfbisect.jobs.journal import Clock, Journal
from perfbisect.jobs.phases import PhaseRecord, phase_text
from perfbisect.jobs.plans import plan_cell, require_plan
from perfbisect.jobs.replay import Launch, LaunchRequest, launches
from perfbisect.jobs.runner import JobContext, recover_interrupted
from perfbisect.jobs.workers import WorkerPool
from perfbisect.system.files import write_atomic
from perfbisect.system.processes import stop_leftovers

MANIFEST = "manifest.json"
HEARTBEAT = "heartbeat.json"
BEAT_S = 10.0
"""Seconds between two writes of the heartbeat; a folder whose heartbeat is far older has no agent."""


def measure_bundle(job: Job, tools: JobContext) -> None:
    """Make the launches of a new bundle; the caller holds the job's lock and the lease of its slot.

    The first that fails is the last: launches of one bundle are worth nothing without each other.

    Raises:
        Interrupted: Ctrl-C, a stop request, or the bundle's time is up.
    """
    with Journal(job.journal, clock=tools.clock) as journal:
        bundle = require_plan(job, journal.events, Bundle)
        with (
            _beating(job, tools.clock, tools.sink) as sink,
            _time_limit(job, 60 * bundle.limit),
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


def close_bundle(job: Job, clock: Clock) -> None:
    """End what a bundle that was cut short has left running; its open launch counts only if it has a result.

    It is not continued: its launches belong together.
    """
    with Journal(job.journal, clock=clock) as journal:
        recover_interrupted(job, journal, lambda _: None, stop_leftovers)


def bundle_document(job: Job, machine: str, files: Mapping[str, str] | None = None) -> BundleDocument:
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
            _launch_document(launch.change.id, made.get(position))
            for position, launch in enumerate(bundle.launches)
        ),
        files=files or {},
    )


_OUTCOMES: Final[Mapping[str, Literal["running", "measured", "lost"]]] = {
    "running": "running",
    "measured": "measured",
    "failed": "measured",
    "abandoned": "lost",
}
"""What a job says of a launch -> what a bundle says: its attempt has been made, whether it failed or not."""


def _launch_document(change: str, launch: Launch | None) -> BundleLaunchDocument:
    if launch is None:
        return BundleLaunchDocument(change=change, outcome="not made")
    return BundleLaunchDocument(
        change=change,
        outcome=_OUTCOMES[launch.outcome],
        reason=launch.cause,
        folder=launch.folder,
        began=launch.started_at,
    )


def write_manifest(job: Job, machine: str) -> BundleDocument:
    """Write the manifest of a bundle that has ended; from then on its folder does not change."""
    # A copy may be cut off: a driver fetches a file with another digest again.
    digests = {
        str(path.relative_to(job.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((job.path / "attempts").rglob("*"))
        if path.is_file()
    }
    document = bundle_document(job, machine, digests)
    write_atomic(job.path / MANIFEST, document.text() + "\n", what="the manifest")
    return document


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
def _beating(job: Job, clock: Clock, sink: EventListener) -> Iterator[EventListener]:
    """Write the heartbeat at every phase and every :data:`BEAT_S` seconds; yields the listener for phases."""
    ended, newest = threading.Event(), [PhaseRecord()]

    def beat() -> None:
        with suppress(MachineError):  # a full disk fails the launch
            record = newest[0].model_copy(update={"at": clock().isoformat()})
            write_atomic(job.path / HEARTBEAT, phase_text(record))

    def listen(event: JobEvent) -> None:
        if isinstance(event, PhaseStarted):
            newest[0] = PhaseRecord(phase=event.phase, detail=dict(event.detail))
            beat()
        sink(event)

    def run() -> None:
        while not ended.wait(BEAT_S):
            beat()

    beat()
    thread = threading.Thread(target=run, name="heartbeat")
    thread.start()
    try:
        yield listen
    finally:
        ended.set()
        thread.join()


@contextmanager
def _time_limit(job: Job, seconds: float) -> Iterator[None]:
    """Request a stop of this process after so many seconds."""
    timer = threading.Timer(seconds, job.request_stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
