"""``git fetch`` at the user's request, the only operation that writes to a repository.

It adds objects and moves the references of one remote; branches, index and work tree are unchanged.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from perfbisect.changes.git import Repository, without_credentials
from perfbisect.errors import MachineError, ServerError
from perfbisect.system import processes

TIMEOUT_S = 600.0

_NO_MAINTENANCE = ("-c", "gc.auto=0", "-c", "maintenance.auto=false")
"""Maintenance in the background after a fetch would disturb measurements."""


def remote_of(repository: Repository, revision: str) -> str:
    """The remote of a revision (``origin`` of ``origin/main``); empty if it names none."""
    name = revision.removeprefix("refs/remotes/")
    remotes = repository.text("remote").splitlines()
    named = [remote for remote in remotes if name == remote or name.startswith(f"{remote}/")]
    return max(named, key=len, default="")


def fetch(repository: Repository, remote: str, log: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Fetch a remote without prompts; git's output goes to ``log``.

    :raises MachineError: it failed or timed out; the repository is unchanged.
    """
    where = str(repository.path)
    command = f"git -C {where} fetch {remote}"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        done = processes.run(
            ["git", "-C", where, *_NO_MAINTENANCE, "fetch", "--no-recurse-submodules", "--", remote],
            env=repository.environment(),
            cwd=log.parent,
            log=log,
            token=secrets.token_hex(16),
            timeout=timeout_s,
        )
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ServerError) as error:
        raise MachineError(f"{command} failed: {error}", where=log, next_step=command) from error
    if done.timed_out:
        raise MachineError(f"{command} took more than {timeout_s:.0f} s", where=log, next_step=command)
    if done.code:
        output = " ".join(line.strip() for line in lines if line.strip())
        raise MachineError(f"{command} failed: {without_credentials(output)}", where=log, next_step=command)
