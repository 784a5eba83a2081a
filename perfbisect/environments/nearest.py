"""Several bases of overlays: each commit lies over the nearest one that fits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfbisect.core.change import Change
from perfbisect.environments import Environment, Refusal
from perfbisect.environments.keys import digest
from perfbisect.environments.lines import Lines
from perfbisect.environments.overlay import OverlayBuilder
from perfbisect.errors import BuildError

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
        return overlay.key(change) if overlay else digest("nearest refused/1", self.spec, change.id)

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
