"""Several bases of overlays: each commit lies over the nearest one that fits it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.overlay import OverlayBuilder
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


def version_at(repository: Repository, sha: str) -> str:
    """The version that a build of a commit is given: after its nearest tag, as setuptools-scm guesses it.

    ``v1.2.3`` and five commits: ``1.2.4.dev5+gSHA``; ``v1.2.3rc1``: ``1.2.3rc2.dev5+gSHA``. A tagged commit
    has the tag's version; without a tag ``0.1.dev0+gSHA``.
    """
    described = _git(repository, "describe", "--tags", "--long", "--abbrev=12", sha)
    found = re.match(r"^(.*)-(\d+)-g[0-9a-f]+$", described.strip())
    local = f"g{sha[:12]}"
    if found is None:
        return f"0.1.dev0+{local}"
    try:
        tag = Version(found[1].rpartition("/")[2])
    except InvalidVersion:
        return f"0.1.dev{found[2]}+{local}"
    if found[2] == "0":
        return str(tag)
    if tag.pre is not None:
        after = f"{tag.base_version}{tag.pre[0]}{tag.pre[1] + 1}"
    else:
        after = ".".join(map(str, (*tag.release[:-1], tag.release[-1] + 1)))
    return f"{after}.dev{found[2]}+{local}"


class Lines:
    """First-parent lines of a repository, each read once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._lines: dict[str, dict[str, int]] = {}

    def distance(self, base: str, sha: str) -> int | None:
        """First-parent commits between two: from both back to where their lines meet; None: nowhere."""
        ours, theirs = self._line(sha), self._line(base)
        below = itertools.islice(theirs, theirs[base], None)
        meeting = next((commit for commit in below if commit in ours), None)
        if meeting is None:
            return None
        return theirs[meeting] - theirs[base] + abs(ours[meeting] - ours[sha])

    def prepare(self, shas: Iterable[str]) -> None:
        """Read the lines of commits, given oldest first: usually one line that holds them all."""
        for sha in reversed(list(shas)):
            self._line(sha)

    def _line(self, sha: str) -> dict[str, int]:
        """Commit -> place, of a line that holds ``sha``: newest first."""
        for line in self._lines.values():
            if sha in line:
                return line
        words = _git(self.repository, "rev-list", "--first-parent", sha).split()
        self._lines[sha] = {commit: place for place, commit in enumerate(words or [sha])}
        return self._lines[sha]


def _git(repository: Repository, *arguments: str) -> str:
    """What git says; empty where it refuses."""
    done = repository.run(*arguments)
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


_FAR = 1 << 40


class NearestOverlay:
    """Overlays side by side: of the bases that a commit may lie over, the one with the nearest commit.

    Nearest in first-parent commits, to where the lines meet and from there to the base (a release is tagged
    off the main line); the one that was named first where two are equally near.
    """

    name = "overlay"

    def __init__(self, overlays: Sequence[OverlayBuilder]) -> None:
        self.overlays = tuple(overlays)
        self.spec = ",".join(overlay.spec for overlay in overlays)
        self._lines = Lines(overlays[0].repository)
        self._chosen: dict[str, OverlayBuilder | None] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        asked = [change for change in changes if change.kind == "commit"]
        for overlay in self.overlays:
            overlay.prepare(asked)
        self._lines.prepare(change.id for change in asked)

    def refuses(self, change: Change) -> Refusal | None:
        refusals = [overlay.refuses(change) for overlay in self.overlays]
        wrong = next((refusal for refusal in refusals if refusal is not None and refusal.error), None)
        if wrong is not None:
            return wrong
        if any(refusal is None for refusal in refusals):
            return None
        return Refusal("; ".join(refusal.reason for refusal in refusals if refusal is not None))

    def chosen(self, change: Change) -> OverlayBuilder | None:
        """The overlay that a commit is built by; None if all refuse it."""
        if change.id not in self._chosen:
            fitting = [overlay for overlay in self.overlays if overlay.refuses(change) is None]
            self._chosen[change.id] = min(
                fitting, key=lambda overlay: self._distance(overlay, change), default=None
            )
        return self._chosen[change.id]

    def key(self, change: Change) -> str:
        overlay = self.chosen(change)
        return overlay.key(change) if overlay else environment_key("nearest refused/1", self.spec, change.id)

    def cached(self, change: Change) -> bool:
        overlay = self.chosen(change)
        return overlay is not None and overlay.cached(change)

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        overlay = self.chosen(change)
        if overlay is None:
            refusal = self.refuses(change)
            raise BuildError(f"{change.short}: {refusal.reason if refusal else 'no base fits'}")
        return overlay.ensure(change, log=log, timeout=timeout)

    def client(self) -> Environment | None:
        """That of the base which was named first."""
        return self.overlays[0].client()

    def minutes(self, change: Change) -> float | None:
        overlay = self.chosen(change)
        return overlay.minutes(change) if overlay else None

    def notes(self) -> tuple[str, ...]:
        counts = Counter(overlay.base.what for overlay in self._chosen.values() if overlay is not None)
        if len(counts) < 2:
            return ()
        told = ", ".join(f"{count} over {what}" for what, count in counts.items())
        return (
            f"overlays lie over several bases ({told}): two neighbours over unlike bases may differ by them",
        )

    def disk(self, changes: Iterable[Change]) -> int | None:
        shares: dict[OverlayBuilder, list[Change]] = {}
        for change in changes:
            overlay = self.chosen(change)
            if overlay is not None:
                shares.setdefault(overlay, []).append(change)
        sizes = [overlay.disk(share) for overlay, share in shares.items()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def _distance(self, overlay: OverlayBuilder, change: Change) -> int:
        if overlay.commit is None:
            return _FAR
        found = self._lines.distance(overlay.commit.id, change.id)
        return _FAR if found is None else found
