"""Where environments are built, if not here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from perfbisect.model.change import Change


class BuildSite(Protocol):
    """Machines that build environments for the cache of this one."""

    def prepare(self, changes: Iterable[Change]) -> None:
        """Note changes that will be asked for: a builder there looks them up together, as one here does."""
        ...

    def build(self, spec: str, change: Change, key: str, *, log: Path, timeout: float) -> float:
        """Build an environment, and bring it and what it stands on into the cache; returns its seconds.

        ``key``: of the environment here, which that of the other machine must equal. ``timeout``: seconds.

        Raises:
            BuildError: it does not build, or its health check fails; the log has the output.
            MachineError: the machine does not answer, or would build another environment.
        """
        ...
