"""``git fetch`` where the user asked for it: of all that perfbisect does, what alone writes to a repository.

The references of one remote move, and objects come in; branches, index and work tree stay as they are.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from perfbisect.changes.git import Repository, without_credentials
from perfbisect.errors import MachineError, ServerError
from perfbisect.system import processes

LIMIT = 600.0
"""Seconds."""

_NO_TIDYING = ("-c", "gc.auto=0", "-c", "maintenance.auto=false")
"""git tidies up behind a fetch, in the background: beside a measurement that would be a hog."""


def remote_of(repository: Repository, revision: str) -> str:
    """The remote whose branch a revision names (``origin`` of ``origin/main``); empty where it names none."""
    name = revision.removeprefix("refs/remotes/")
    remotes = repository.text("remote").splitlines()
    named = [one for one in remotes if name == one or name.startswith(f"{one}/")]
    return max(named, key=len, default="")


def fetch(repository: Repository, remote: str, log: Path, limit: float = LIMIT) -> None:
    """Brings in what a remote has, within ``limit`` seconds; git asks nobody anything. ``log``: what it says.

    :raises MachineError: it failed, or took too long; what was there before is still there.
    """
    where = str(repository.path)
    again = f"git -C {where} fetch {remote}"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        done = processes.run(
            ["git", "-C", where, *_NO_TIDYING, "fetch", "--no-recurse-submodules", "--", remote],
            env=repository.environment(),
            cwd=log.parent,
            log=log,
            token=secrets.token_hex(16),
            timeout=limit,
        )
        told = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ServerError) as error:
        raise MachineError(f"{again} failed: {error}", where=log, next_step=again) from error
    if done.timed_out:
        raise MachineError(f"{again} took more than {limit:.0f} s", where=log, next_step=again)
    if done.code:
        said = " ".join(line.strip() for line in told if line.strip())
        raise MachineError(f"{again} failed: {without_credentials(said)}", where=log, next_step=again)
