"""Under which conditions an attempt is made: engine, client (a measuring instrument) and commands."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfbisect.clients import Client
from perfbisect.clients.eras import era_of
from perfbisect.environments import Environment
from perfbisect.errors import ClientError
from perfbisect.system import environ, logs, proc
from perfbisect.system.proc import Asked, never

_DIGEST = """
import hashlib, importlib.util, json, pathlib, platform, sys
package, *sources = sys.argv[1:]
spec = importlib.util.find_spec(package)
if spec is None or not spec.submodule_search_locations:
    sys.exit(f"no package {package}")
root = pathlib.Path(next(iter(spec.submodule_search_locations)))
digest, count = hashlib.sha256(), 0
for source in sources:
    path = root / source
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\\n".encode() + content)
        count += 1
told = {"sha256": digest.hexdigest(), "files": count, "root": str(root), "python": platform.python_version()}
print(json.dumps(told))
"""
_LIMIT = 60.0


@dataclass(frozen=True)
class Instrument:
    """The client that measures: its version and the digest of its benchmark sources."""

    name: str
    version: str
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    forced_plain: bool = False
    """It could be run from a host (:mod:`perfbisect.executors.overlap`) and was not."""
    date: str = ""
    """Of the commit it is of, where it is the change's own; empty: its version says what it is."""

    @property
    def digest(self) -> str:
        """What must be the same on both sides of a comparison."""
        return f"{self.name} {self.version} {self.sha256[:16]}" + (" plain" if self.forced_plain else "")

    @property
    def era(self) -> str:
        """The declared way in which it measures; empty where no table says so."""
        era = era_of(self.name, self.date, self.version)
        return f"{era}, plain" if era and self.forced_plain else era


def instrument(
    client: Client, environment: Environment, env: Mapping[str, str], folder: Path, asked: Asked = never
) -> Instrument:
    """Ask the client's interpreter where its sources are and digest them; nothing of the engine is imported.

    :raises ClientError: the interpreter does not start, or has no such package or no such sources.
    """
    log = folder / "client-digest.log"
    log.unlink(missing_ok=True)
    argv = [str(environment.interpreter), "-c", _DIGEST, client.package, *client.sources]
    token = secrets.token_hex(16)
    ended = proc.run(argv, env=env, cwd=folder, log=log, token=token, timeout=_LIMIT, asked=asked)
    text = logs.text_of(log).strip()
    try:
        told = json.loads(text.splitlines()[-1]) if ended.code == 0 and text else None
    except ValueError:
        told = None
    if not isinstance(told, dict) or not told.get("files"):
        output = logs.cause(log) or logs.tail(log, 3)
        raise ClientError(
            f"the client's sources ({client.package}: {', '.join(client.sources)}) cannot be digested with "
            f"{environment.interpreter}: {output}",
            where=log,
            output=output,
        )
    log.unlink(missing_ok=True)
    return Instrument(client.name, environment.engine_version, str(told["sha256"]), told)


def engine_facts(environment: Environment, cold: bool) -> dict[str, Any]:
    """What is known of the environment an attempt's server runs in."""
    return {
        "version": environment.engine_version,
        "commit": environment.engine_commit,
        "file": environment.engine_file,
        "interpreter": str(environment.interpreter),
        "key": environment.key,
        "packages_digest": environment.packages_digest,
        "caches": "cold" if cold else "warm",
        **environment.facts,
    }


def command_facts(argv: tuple[str, ...], env: Mapping[str, str]) -> dict[str, Any]:
    """A command and its process environment as they may be written down."""
    return {"argv": environ.redacted_argv(argv), "env": environ.redacted(env)}


def is_cold(environment: Environment) -> bool:
    """True if the compile and kernel caches of the environment hold nothing yet."""
    try:
        return next((path for path in environment.caches.rglob("*") if path.is_file()), None) is None
    except OSError:
        return True
