"""One check of an environment that was built for a commit: its own engine, which is that commit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfbisect.core.change import Change
from perfbisect.environments.base import Built
from perfbisect.environments.identity import check_commit
from perfbisect.environments.packages import Package
from perfbisect.environments.parts import blobs_inside
from perfbisect.environments.venv import as_built, look
from perfbisect.system.git import Repository


def check_built(
    folder: Path,
    package: Package,
    repository: Repository,
    change: Change,
    *,
    inside: str,
    what: str,
    facts: Mapping[str, Any],
    log: Path,
    timeout: float,
    interpreter: Path | None = None,
) -> Built:
    """The environment in ``folder`` as it is stamped, with ``facts``; ``what`` names it in errors.

    ``inside``: the package's folder in the repository.

    :raises BuildError: its engine does not import, comes from elsewhere, or is not the commit.
    """
    found = look(folder, package, what=change.short, log=log, timeout=timeout, interpreter=interpreter)
    tracked = blobs_inside(repository, change.id, inside)
    shown = {
        "identified_by": check_commit(found, change.id, tracked, what=what, log=log),
        "engine_says_commit": found.commit,
    }
    return as_built(folder, found, change.id, {**shown, **facts}, interpreter)
