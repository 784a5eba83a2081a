"""Overlays over several bases: each commit lies over the nearest base that fits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.chain import SelectingBuilder
from perfbisect.environments.builders.overlay import OverlayBuilder
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


class FirstParentLines:
    """First-parent lines of a repository, each read once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._lines: dict[str, dict[str, int]] = {}

    def distance(self, base: str, sha: str) -> int | None:
        """First-parent commits from both back to where their lines meet; None if they never do."""
        commit_line, base_line = self._line(sha), self._line(base)
        below = itertools.islice(base_line, base_line[base], None)
        fork = next((commit for commit in below if commit in commit_line), None)
        if fork is None:
            return None
        return base_line[fork] - base_line[base] + abs(commit_line[fork] - commit_line[sha])

    def prepare(self, shas: Iterable[str]) -> None:
        """Read the lines of commits, given oldest first: usually one line has them all."""
        for sha in reversed(list(shas)):
            self._line(sha)

    def _line(self, sha: str) -> dict[str, int]:
        """Commit -> position on a line that contains ``sha``, newest first."""
        for line in self._lines.values():
            if sha in line:
                return line
        done = self.repository.run("rev-list", "--first-parent", sha)
        commits = done.stdout.decode().split() if done.returncode == 0 else []
        self._lines[sha] = {commit: position for position, commit in enumerate(commits or [sha])}
        return self._lines[sha]


_UNKNOWN_DISTANCE = 1 << 40


class NearestBaseOverlay(SelectingBuilder):
    """Adjacent overlays: selects the base whose commit is nearest, of those that fit.

    Distance is counted in first-parent commits via the fork point (a release is tagged off the main line). Of
    equally near bases the one named first is taken.
    """

    name = "overlay"
    refused_key = "nearest refused/1"

    def __init__(self, overlays: Sequence[OverlayBuilder]) -> None:
        super().__init__(overlays)
        self.overlays = tuple(overlays)
        self._lines = FirstParentLines(overlays[0].repository)
        self._selected: dict[str, OverlayBuilder | None] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        commits = [change for change in changes if change.kind == "commit"]
        for overlay in self.overlays:
            overlay.prepare(commits)
        self._lines.prepare(change.id for change in commits)

    def refuses(self, change: Change) -> Refusal | None:
        refusals = [overlay.refuses(change) for overlay in self.overlays]
        wrong = next((refusal for refusal in refusals if refusal is not None and refusal.error), None)
        if wrong is not None or None in refusals:
            return wrong
        return Refusal("; ".join(refusal.reason for refusal in refusals if refusal is not None))

    def select(self, change: Change) -> OverlayBuilder | None:
        if change.id not in self._selected:
            fitting = [overlay for overlay in self.overlays if overlay.refuses(change) is None]
            nearest = min(fitting, key=lambda overlay: self._distance(overlay, change), default=None)
            self._selected[change.id] = nearest
        return self._selected[change.id]

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        overlay = self.select(change)
        if overlay is None:
            refusal = self.refuses(change)
            raise BuildError(f"{change.short}: {refusal.reason if refusal else 'no base fits'}")
        return overlay.ensure(change, log=log, timeout=timeout)

    def client(self) -> Environment | None:
        """The client of the base that was named first."""
        return self.overlays[0].client()

    def notes(self) -> tuple[str, ...]:
        counts = Counter(overlay.base.what for overlay in self._selected.values() if overlay is not None)
        if len(counts) < 2:
            return ()
        shares = ", ".join(f"{count} over {what}" for what, count in counts.items())
        return (
            f"overlays lie over several bases ({shares}): a difference between two neighbours over different "
            "bases may come from the bases",
        )

    def _distance(self, overlay: OverlayBuilder, change: Change) -> int:
        if overlay.commit is None:
            return _UNKNOWN_DISTANCE
        distance = self._lines.distance(overlay.commit.id, change.id)
        return _UNKNOWN_DISTANCE if distance is None else distance
