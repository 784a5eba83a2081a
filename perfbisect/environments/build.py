"""Runs the commands of one build: process environments, log, time limit and limits of dependencies."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.errors import BuildError, MachineError, ServerError
from perfbisect.redaction import command_secrets, redacted_argv, without_secrets
from perfbisect.system import commands, environ
from perfbisect.system.commands import ProcessResult
from perfbisect.system.logs import excerpt

_ANY_DAY = "2999-12-31"
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_REGISTRY_PREFIXES = ("UV_", "NETRC", "KEYRING", "CC", "CXX")


def interpreter_environment(interpreter: Path, *layers: Mapping[str, str]) -> dict[str, str]:
    """Process environment to inspect an engine's interpreter in: the server's, without our ``PYTHON*``."""
    own = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    return environ.for_interpreter(os.environ, interpreter, own, *layers)


def registry_environment() -> dict[str, str]:
    """Process environment to fetch packages in: the user's proxies and uv settings."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(_REGISTRY_PREFIXES)}
    return environ.with_proxies(environ.allowed(os.environ), os.environ) | passed


@dataclass(frozen=True)
class DependencyLimits:
    """Allowed dependencies: published until a day (``YYYY-MM-DD``), or pinned in a constraints file.

    ``fixed``: packages whose version is fixed, which no day limits.
    """

    exclude_newer: str | None = None
    constraints: Path | None = None
    fixed: tuple[str, ...] = ()

    def arguments(self, engine: str) -> tuple[str, ...]:
        """uv's arguments. ``engine``: the package under test, whose version is fixed, too."""
        limits: list[str] = []
        if self.exclude_newer:
            limits += ("--exclude-newer", self.exclude_newer)
            for name in (engine, *self.fixed):
                limits += ("--exclude-newer-package", f"{name}={_ANY_DAY}")
        return (*limits, "--constraint", str(self.constraints)) if self.constraints else tuple(limits)

    def key_parts(self) -> tuple[str, str]:
        return self.exclude_newer or "", self.constraints.read_text() if self.constraints else ""

    def facts(self) -> dict[str, str]:
        return {"exclude_newer": self.exclude_newer or "", "constraints": str(self.constraints or "")}


@dataclass(frozen=True)
class BuildRun:
    """One build or health check: its log, the time limit of each command, and the allowed dependencies."""

    log: Path
    timeout: float
    limits: DependencyLimits = DependencyLimits()

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float | None = None
    ) -> ProcessResult:
        """Run a command; its output is appended to the log, beside which it is written meanwhile.

        Raises:
            BuildError: it cannot be started.
            MachineError: the log cannot be written, a process does not end, or the command was killed.
        """
        limit, token = timeout or self.timeout, secrets.token_hex(8)
        output, text = self.log.with_name(f"{self.log.stem}-{token}.log"), ""
        # perfbisect's own scripts would fill the log, which is for the command's output.
        command = " ".join("SCRIPT" if "\n" in word else word for word in redacted_argv(tuple(argv)))
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            done = commands.run(argv, env=env, cwd=cwd, log=output, token=token, timeout=limit)
        except ServerError as error:
            raise BuildError(error.message, where=self.log, code=error.code, output=error.output) from error
        except OSError as error:
            raise MachineError(f"cannot write the log {self.log}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                text = output.read_text(errors="replace")
                output.unlink()
            self.note(f"$ {without_secrets(command, command_secrets(argv, env))}\n{text}")
        # If the kernel ends a compiler for lack of memory, the commit is not at fault.
        if done.code in _KILLED and not done.timed_out:
            message = f"{excerpt(command)} was killed from outside by signal {-done.code} (out of memory?)"
            raise MachineError(message, where=self.log, code="killed", output=excerpt(text))
        return replace(done, text=text)

    def note(self, text: str) -> None:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", errors="replace") as stream:
                stream.write(text if text.endswith("\n") else text + "\n")
        except OSError as error:
            raise MachineError(f"cannot write the log {self.log}: {error.strerror or error}") from error
