"""Commands that build and look: a clean process environment, bounded in time, logged without secrets."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfbisect.errors import BuildError, MachineError, ServerError
from perfbisect.system import environ, proc

_REGISTRY_PREFIXES = ("UV_", "NETRC", "KEYRING", "CC", "CXX")


def interpreter_environment(interpreter: Path, *layers: Mapping[str, str]) -> dict[str, str]:
    """What an engine's interpreter is looked at in: as its server will run, less our own ``PYTHON*``."""
    own = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    return environ.for_interpreter(os.environ, interpreter, own, *layers)


def registry_environment() -> dict[str, str]:
    """What packages are fetched in: the user's proxies and uv settings, no active environment."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(_REGISTRY_PREFIXES)}
    return environ.with_proxies(environ.allowed(os.environ), os.environ) | passed


@dataclass(frozen=True)
class Output:
    """How a command ended, and all it wrote."""

    code: int
    text: str
    timed_out: bool
    seconds: float


def run(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, timeout: float) -> Output:
    """Run a command to its end; its output is appended to ``log`` and returned, redacted in both.

    :raises BuildError: it cannot be started.
    :raises MachineError: the log cannot be written, or a process that was told to end lives on.
    """
    handle, name = tempfile.mkstemp(prefix="perfbisect-", suffix=".log")
    os.close(handle)
    raw = Path(name)
    try:
        done = proc.run(argv, env=env, cwd=cwd, log=raw, token=secrets.token_hex(8), timeout=timeout)
    except ServerError as error:
        raise BuildError(error.message, where=log, code=error.code, output=error.output) from error
    finally:
        hidden = environ.secret_values(os.environ)
        text = environ.without_secrets(raw.read_text(errors="replace"), hidden)
        command = " ".join("SCRIPT" if "\n" in word else word for word in argv)
        shown = environ.without_secrets(command, hidden)
        with contextlib.suppress(OSError):
            raw.unlink()
        append(log, f"$ {shown}\n{text}")
    return Output(done.code, text, done.timed_out, done.seconds)


def append(log: Path, text: str) -> None:
    """Add to a log. :raises MachineError: it cannot be written."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", errors="replace") as stream:
            stream.write(text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise MachineError(f"cannot write the log {log}: {error.strerror or error}") from error
