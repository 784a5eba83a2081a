"""Work that outlives its shell: a child in a session of its own goes on, and its parent returns.

The child is the same command without ``--detach``. Until its job has begun it writes where its parent does,
so whatever is wrong with the command is told there, with its exit code; from then on it writes to a log in
the job's folder. It says that the job has begun on a pipe whose number is in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from perfbisect.commands.documents import DetachedDocument
from perfbisect.commands.invocation import Working
from perfbisect.commands.output import emit
from perfbisect.commands.workspace import place
from perfbisect.errors import EXIT_OK, MachineError, PerfbisectError
from perfbisect.jobs.folders import Job

_VARIABLE = "PERFBISECT_HAND_OVER"
_OPTION = "--detach"
# Without the current folder on the path: a checkout of the engine may hold modules of any name.
_START = "import sys; sys.path = [p for p in sys.path if p]; from perfbisect.cli import main; main()"


def leave(working: Working) -> int:
    """Starts the command of this process without its shell; returns once its job has begun.

    Returns the exit code: that of the child where it ended before a job began; what is wrong it has told.

    :raises MachineError: the child was killed before its job began.
    """
    reading, writing = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", _START, *(word for word in sys.argv[1:] if word != _OPTION)],
            env=os.environ | {_VARIABLE: str(writing)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(writing,),
        )
    finally:
        os.close(writing)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor has no path
        try:
            told = pipe.read()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
    if told:
        document = _document(Path(json.loads(told)["folder"]), child.pid)
        emit(document, _lines(document), as_json=working.as_json)
        return EXIT_OK
    code = child.wait()
    if code < 0:
        raise MachineError(
            f"perfbisect was ended by signal {-code} before its job had begun",
            next_step="the same command without --detach",
        )
    return code


def hand_over(job: Job) -> None:
    """In the child: the job has begun, its log takes what is written from here on, and the parent is told.

    Nothing where no parent waits to be told.
    """
    number = os.environ.pop(_VARIABLE, "")
    if not number.isdigit():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    with contextlib.suppress(BrokenPipeError):  # the parent has gone: the job goes on
        os.write(int(number), json.dumps({"folder": str(job.path)}).encode())
    os.close(int(number))


def _document(folder: Path, pid: int) -> DetachedDocument:
    job, state = Job(folder), folder.parent.parent
    found = False
    with contextlib.suppress(PerfbisectError):
        found = place().state == state
    rest = [job.id] if found else [job.id, "--state", str(state)]
    return DetachedDocument(
        job=job.id,
        pid=pid,
        folder=str(folder),
        log=str(job.log),
        poll=shlex.join(["perfbisect", "status", *rest, "--wait", "--timeout", "10m", "--json"]),
        stop=shlex.join(["perfbisect", "stop", *rest, "--wait"]),
        next=shlex.join(["perfbisect", "status", *rest, "--wait"]),
    )


def _lines(document: DetachedDocument) -> list[str]:
    return [
        f"job {document.job} goes on in process {document.pid}",
        f"  log:   {document.log}",
        f"  stop:  {document.stop}",
        f"  next:  {document.next}",
    ]
