"""An agent that keeps the contract of the real one and measures nothing: ``agent look``, ``agent run``.

It reads two variables: a launch goes on while the file HOLD exists; MEASURED gets a line for each launch.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import perfbisect
from perfbisect.errors import PerfbisectError
from perfbisect.fleet.agent import measure_bundle, run_bundle
from perfbisect.fleet.bundle import Bundle
from perfbisect.jobs.folders import Job
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.plans import write_plan
from perfbisect.jobs.runner import JobContext
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import write_attempt
from perfbisect.measure.executor import AttemptRequest, Sink, Started
from perfbisect.model.attempt import Attempt, Failure, Provenance, RunResult
from perfbisect.system.clock import now
from perfbisect.system.processes import TOKEN_VARIABLE, process, stop_leftovers


class QuickExecutor:
    """Implements :class:`perfbisect.measure.executor.Executor` with a process that sleeps."""

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        with Path(os.environ["MEASURED"]).open("a") as measured:
            measured.write(f"{request.token}\n")
        began, log = now(), request.folder / "server.log"
        log.write_text("a server\n")
        os.link(log, request.folder / "again.log")
        (request.folder / "newest.log").symlink_to(log.name)
        (request.folder / "odd name\n.txt").write_text("with a line break")
        sink("launch", {})
        command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        environment = os.environ | {TOKEN_VARIABLE: request.token}
        server = subprocess.Popen(command, env=environment, cwd="/", start_new_session=True)
        try:
            row = process(server.pid)
            assert row is not None
            started(token=request.token, pid=server.pid, created=row.created, port=1)
            sink("bench", {})
            while Path(os.environ["HOLD"]).exists() and server.poll() is None:
                time.sleep(0.05)
            code = server.poll()
        finally:
            server.kill()
            server.wait()
        (request.folder / "result.json").write_bytes(b"x" * 100_000)
        attempt = Attempt(
            id=request.id,
            change_id=request.change.id,
            purpose=request.purpose,
            provenance=Provenance(cell_digest=request.cell.digest, machine_class="quick", client_digest=""),
            runs=tuple(RunResult(run, run, {"tpot": 1.0}) for run in range(request.runs)),
            failure=Failure("bench", "machine", "the server died", str(log)) if code is not None else None,
            folder=str(request.folder),
            started_at=began.isoformat(timespec="seconds"),
        )
        write_attempt(request.folder, attempt)
        return attempt


def look() -> str:
    machine = os.environ["CUDA_VISIBLE_DEVICES"]
    return MachineDocument(
        name=platform.node(),
        version=perfbisect.__version__,
        machine_class="quick",
        devices=(machine,),
        slots=(Slot(""),),
        leased=(),
        problem="",
        environments=(),
    ).text()


def run(request: Path, folder: Path) -> str:
    """As :func:`perfbisect.fleet.command.run` does."""
    bundle = Bundle.model_validate_json(request.read_bytes())

    def measure(job: Job) -> None:
        write_plan(job, bundle, now)
        measure_bundle(
            job,
            JobContext(
                executor=QuickExecutor(),
                clock=now,
                wait=time.sleep,
                sink=lambda _: None,
                stop_leftovers=stop_leftovers,
            ),
        )

    return run_bundle(bundle, folder, now, measure).text()


def main(words: Sequence[str]) -> int:
    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        print(look() if words[1] == "look" else run(Path(words[2]), Path(words[4])))
    except KeyboardInterrupt:
        return 130
    except PerfbisectError as error:
        with suppress(OSError):
            print(f'{{"error": "{error.message}"}}', flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
