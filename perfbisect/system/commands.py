"""Commands that end by themselves: short ones, and owned ones with a time limit."""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfbisect.errors import Interrupted
from perfbisect.system import processes
from perfbisect.system.logs import excerpt
from perfbisect.system.processes import TICK_S, StopRequested, never


def capture(
    argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a short command; its exit code is 124 if it takes too long, 127 if it cannot be started."""
    name = Path(argv[0]).name
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL, env=env,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        problem = f"{name} did not answer within {timeout_s:.0f} s"
        return subprocess.CompletedProcess(argv, 124, "", problem)
    except OSError as error:
        problem = f"{name} cannot be started: {error.strerror or error}"
        return subprocess.CompletedProcess(argv, 127, "", problem)


@dataclass(frozen=True)
class ProcessResult:
    """Result of a bounded command; a negative code is a signal.

    ``cpu_seconds``: of the command and its reaped children. ``text``: what it printed, where that was read.
    """

    code: int
    seconds: float
    timed_out: bool
    cpu_seconds: float = 0.0
    text: str = ""

    @property
    def lines(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines() if line.strip()]

    @property
    def last_line(self) -> str:
        return excerpt(self.lines[-1]) if self.lines else "no output"

    @property
    def ending(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    token: str,
    timeout: float,
    stop_requested: StopRequested = never,
    at_limit: Callable[[], None] | None = None,
    cores: Sequence[int] = (),
) -> ProcessResult:
    """Run a command for at most ``timeout`` seconds; none of its processes survive.

    ``at_limit`` is called at the timeout, before anything is ended.

    Raises:
        Interrupted: ``stop_requested`` returned True.
        ServerError: the command cannot be started or ended.
    """
    began = time.monotonic()
    owned = processes.spawn(argv, env=env, cwd=cwd, log=log, token=token, cores=cores)
    try:
        code, timed_out = None, False
        while code is None and not timed_out:
            if stop_requested():
                raise Interrupted(f"stopped while {Path(argv[0]).name} ran", where=log)
            code = owned.wait(TICK_S)
            timed_out = code is None and time.monotonic() - began > timeout
        if timed_out and at_limit is not None:
            at_limit()
        seconds = time.monotonic() - began
    finally:
        # After the end of a command there is no leader to wait for: what it left is killed at once.
        processes.stop(owned, 0.0 if owned.exited() is not None else 2.0)
    code = owned.exited() if code is None else code
    return ProcessResult(-signal.SIGKILL if code is None else code, seconds, timed_out, owned.cpu_seconds)


def run_script(
    script: str,
    *arguments: str,
    interpreter: Path,
    env: Mapping[str, str],
    log: Path,
    timeout: float,
    token: str = "",
    stop_requested: StopRequested = never,
) -> ProcessResult:
    """Run a Python program like :func:`run`, with a new ``log`` and in its folder."""
    # The result is read from the log: that of an earlier run must not stand in it.
    log.unlink(missing_ok=True)
    return run(
        [str(interpreter), "-c", script, *arguments],
        env=env,
        cwd=log.parent,
        log=log,
        token=token or secrets.token_hex(16),
        timeout=timeout,
        stop_requested=stop_requested,
    )
