"""``--detach``: runs a command in a session of its own and returns once its job has begun.

The child process is the same command without ``--detach``. Until its job begins it shares the output of its
parent, so errors of the command line appear there; afterwards it writes to a log in the job's folder. A pipe,
whose number is in the child's environment, tells the parent that the job has begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field

from perfbisect.commands.output import CommandResult
from perfbisect.commands.workspace import open_workspace
from perfbisect.errors import MachineError, PerfbisectError
from perfbisect.jobs.documents import JobFolderDocument
from perfbisect.jobs.folders import Job
from perfbisect.report.document import Command, KeyValues
from perfbisect.report.terminal import block_lines

_VARIABLE = "PERFBISECT_HAND_OVER"
_OPTION = "--detach"
# Without the current folder on the path: a checkout of the engine may hold modules of any name.
START = "import sys; sys.path = [p for p in sys.path if p]; from perfbisect.cli import main; main()"
"""What a Python that is to be perfbisect runs."""


class DetachedDocument(JobFolderDocument):
    """``--detach``: the job, its background process, and the commands that follow and stop it."""

    schema_: Literal["perfbisect.detached/1"] = Field(default="perfbisect.detached/1", alias="schema")
    pid: int
    log: str
    poll: str
    stop: str


def run_detached() -> CommandResult | int:
    """Start this command in the background and return once its job has begun.

    Returns the child's exit code if it ends before that; the child has then printed the error.
    """
    reading, writing = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", START, *(word for word in sys.argv[1:] if word != _OPTION)],
            env=os.environ | {_VARIABLE: str(writing)},
            stdin=subprocess.DEVNULL,
            # Not in the terminal's process group: Ctrl-C and the end of the shell do not reach it.
            start_new_session=True,
            pass_fds=(writing,),
        )
    finally:
        # The read below ends only when every copy of the writing end is closed.
        os.close(writing)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor has no path
        try:
            message = pipe.read()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
    if not message:
        code = child.wait()
        if code < 0:
            raise MachineError(
                f"perfbisect was killed by signal {-code} before its job began",
                next_step="the same command without --detach",
            )
        return code
    folder = Path(json.loads(message)["folder"])
    job, state = Job(folder), folder.parent.parent
    is_default_state = False
    with contextlib.suppress(PerfbisectError):
        is_default_state = open_workspace().state == state
    arguments = [job.id] if is_default_state else [job.id, "--state", str(state)]
    document = DetachedDocument(
        job=job.id,
        pid=child.pid,
        folder=str(folder),
        log=str(job.log),
        poll=shlex.join(["perfbisect", "status", *arguments, "--wait", "--timeout", "10m", "--json"]),
        stop=shlex.join(["perfbisect", "stop", *arguments, "--wait"]),
        next=shlex.join(["perfbisect", "status", *arguments, "--wait"]),
    )
    facts = KeyValues((("log:", document.log), ("stop:", document.stop)))
    title = f"job {document.job} continues in process {document.pid}"
    return CommandResult(document, [title, *block_lines([facts, Command(document.next)])])


def report_job_begun(job: Job) -> None:
    """In the child: redirect output to the job's log and tell the parent that the job has begun.

    Does nothing if the process was not started by ``--detach``.
    """
    number = os.environ.pop(_VARIABLE, "")
    if not number.isdigit():
        return
    # What is buffered belongs to the terminal, not to the log.
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    with contextlib.suppress(BrokenPipeError):  # the parent has gone: the job goes on
        os.write(int(number), json.dumps({"folder": str(job.path)}).encode())
    os.close(int(number))
