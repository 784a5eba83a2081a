"""What decides a commit's compiled files and dependencies: equal states of it mean equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from perfbisect.changes.git import FileChange, Repository
from perfbisect.environments.packages import EnginePackage


@dataclass(frozen=True)
class BuildState:
    """Digests of a commit's build inputs, relative to some commit: ``needed`` and :attr:`optional` ones."""

    needed: int = 0
    optional: int = 0


class BuildStates:
    """States of the build inputs of commits on one platform; comparable with each other only."""

    def __init__(self, repository: Repository, package: EnginePackage) -> None:
        self._repository = repository
        self._package = package
        self._states: dict[str, BuildState] = {}

    def read(self, shas: Collection[str], platform: str) -> dict[str, BuildState]:
        """The states of commits, each read as its difference from the one before, by one git process."""
        unknown = [sha for sha in dict.fromkeys(shas) if sha not in self._states]
        if unknown:
            last = next(reversed(self._states), unknown[0])
            state = self._states.get(last, BuildState())
            pairs = list(zip((last, *unknown), unknown, strict=False))
            changes = self._repository.file_changes(pairs, self._package.pathspecs)
            for sha, changed in zip(unknown, changes, strict=True):
                state = self._after(state, changed, platform)
                self._states[sha] = state
        return {sha: self._states[sha] for sha in shas}

    def _after(self, state: BuildState, changes: Collection[FileChange], platform: str) -> BuildState:
        needed, optional = state.needed, state.optional
        for change in changes:
            if not self._package.is_used(change.path, platform):
                continue
            # Files in any order, each in and out again: the state is a sum of digests without carry.
            difference = _digest(change.path, change.before) ^ _digest(change.path, change.after)
            if self._package.is_optional(change.path):
                optional ^= difference
            else:
                needed ^= difference
        return BuildState(needed, optional)


def _digest(path: str, blob: str) -> int:
    """A file's part of a state; 0 if it does not exist."""
    if not blob.strip("0"):
        return 0
    return int.from_bytes(
        hashlib.sha256(f"{path}\0{blob}".encode(errors="surrogateescape")).digest()[:16], "big"
    )
