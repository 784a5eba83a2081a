"""How commands are run on a machine, and how data gets there."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, ClassVar

import psutil

from perfbisect.errors import MachineError
from perfbisect.fleet.bundle import UnreachableError
from perfbisect.system.logs import excerpt_lines

TIMEOUT_S = 60.0

_SOCKETS = "pb-ssh-"
"""Begins the name of a folder of sockets; the id of its process follows."""


@dataclass(frozen=True)
class Answer:
    """What a command printed. ``errors``: an excerpt of its standard error."""

    code: int
    output: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace").strip()

    @property
    def said(self) -> str:
        """An excerpt of what it printed, for an error."""
        return self.errors or excerpt_lines(self.text) or "no output"

    def checked(self, what: str, where: str = "") -> Answer:
        """Itself. :raises MachineError: the command failed, so ``what`` cannot be done."""
        if self.code:
            why = self.errors or f"exit code {self.code}"
            raise MachineError(f"cannot {what}: {why}", where=where or None)
        return self


class Connection:
    """A machine on which commands can be run: this one, where it is not another class's.

    ``silence``: the exit code that says that the machine does not answer.
    """

    address: str = "this machine"
    silence: ClassVar[int | None] = None

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        """The local command that runs ``argv``."""
        return argv

    def run(
        self,
        argv: Sequence[str],
        given: bytes | IO[bytes] = b"",
        *,
        into: IO[bytes] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Answer:
        """Run a command with ``given`` as its standard input; arguments are data, whatever is in them.

        ``into``: a file for what it prints, in place of the answer's ``output``.

        Raises:
            UnreachableError: the machine does not answer within ``timeout`` seconds.
        """
        command = self.command(argv)
        stream: dict[str, object] = {"input": given} if isinstance(given, bytes) else {"stdin": given}
        stream |= {"stdout": into or subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            done = subprocess.run(  # type: ignore[call-overload]
                list(command), timeout=timeout, check=False, **stream
            )
        except subprocess.TimeoutExpired:
            why = f"{command[0]} took over {timeout:.0f} s"
            raise UnreachableError(f"{self.address} does not answer: {why}") from None
        except OSError as error:
            raise MachineError(f"{command[0]} cannot be run: {error.strerror or error}") from error
        errors = excerpt_lines(done.stderr.decode("utf-8", "replace"))
        if self.silence is not None and done.returncode == self.silence:
            raise UnreachableError(f"{self.address} does not answer: {errors or 'ssh failed'}")
        return Answer(done.returncode, done.stdout or b"", errors)

    def run_script(
        self, script: str, *arguments: str, given: bytes | IO[bytes] = b"", timeout: float = TIMEOUT_S
    ) -> Answer:
        """Run a script of sh; its arguments are ``$1`` and so on."""
        return self.run(["sh", "-c", script, "sh", *arguments], given, timeout=timeout)


@dataclass(frozen=True)
class SshConnection(Connection):
    """A machine that OpenSSH reaches without a question; a connection is kept, shared, and ended with this.

    ``address``: as ssh takes it; ``options``: more arguments of ssh.
    """

    address: str
    options: tuple[str, ...] = ()
    # ssh ends with the code of the command, and with 255 where it failed itself.
    silence = 255

    @cached_property
    def _ssh(self) -> tuple[str, ...]:
        # Of the shared connection's socket: its path must be short, and nobody else may use it.
        folder = Path(tempfile.mkdtemp(prefix=f"{_SOCKETS}{os.getpid()}-"))
        # Of processes that were killed: their kept connections ended a minute after them.
        for left in folder.parent.glob(f"{_SOCKETS}*"):
            pid = left.name.removeprefix(_SOCKETS).partition("-")[0]
            if pid.isdigit() and not psutil.pid_exists(int(pid)):
                with suppress(OSError):  # it is in use, or another user's
                    left.rmdir()
        settings = {
            # Nobody can answer a question for a password or a host key.
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            # A machine that lost power sends nothing: TCP alone would wait for a quarter of an hour.
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "3",
            # A handshake for each look at a bundle would load the machine that measures.
            "ControlMaster": "auto",
            "ControlPath": f"{folder}/%C",
            "ControlPersist": "60",
        }
        flags = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        words = (*flags, *self.options, "--", self.address)

        def end_shared() -> None:
            with suppress(OSError, subprocess.TimeoutExpired):
                if any(folder.iterdir()):
                    argv = ["ssh", "-O", "exit", *words]
                    subprocess.run(argv, capture_output=True, timeout=10, check=False)
            shutil.rmtree(folder, ignore_errors=True)

        weakref.finalize(self, end_shared)
        return ("ssh", *words)

    def command(self, argv: Sequence[str]) -> Sequence[str]:
        # ssh hands one string to the shell of the user there.
        return (*self._ssh, shlex.join(argv))
