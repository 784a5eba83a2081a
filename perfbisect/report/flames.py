"""Difference flame graphs: time on two sides by stack, laid out for a page and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perfbisect.common.quantities import counted
from perfbisect.jobs.documents import Document

_RELEVANT: Final = 0.01
"""Differences that are coloured and listed, at least: share of the whole of the slower side."""

_SHADES: Final = (0.3, 0.7)
"""Shares of the largest difference at which a darker shade begins."""

_NARROWEST: Final = 0.0005
"""Share of the width below which a frame is not drawn."""

_SAME: Final = 0.9
"""A call that carries this share of its caller's difference stands for both in the outline."""


class FlameDocument(Document):
    """A frame with the time in ms a step that it and its calls take, before and after.

    ``folded``: how many smaller frames are taken together here, 0 for a frame of its own. The root and the
    processes below it have no path.
    """

    function: str
    path: str
    before: float
    after: float
    folded: int = 0
    children: tuple[FlameDocument, ...] = ()

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def name(self) -> str:
        """The function and its file without folders."""
        if self.folded:
            return counted(self.folded, "smaller frame")
        return f"{self.function} ({self.path.rpartition('/')[2]})" if self.path else self.function

    @property
    def description(self) -> str:
        """Everything that is known of the frame, in one line."""
        place = f", {self.path}" if self.path else ""
        name = self.name if self.folded else f"{self.function}{place}"
        times = f"{self.before:.2f} before, {self.after:.2f} after, {self.difference:+.2f} ms a step"
        return f"{name}: {times}"


@dataclass(frozen=True)
class FlameBox:
    """A frame as it is drawn. ``left`` and ``width``: shares of the graph's width; ``level``: 0 is the root.

    ``shade``: 0 for no difference that counts, to 3 for growth and to -3 for the opposite.
    """

    frame: FlameDocument
    level: int
    left: float
    width: float
    shade: int

    @property
    def label(self) -> str:
        """The name, behind a difference that counts."""
        return f"{self.frame.difference:+.2f} {self.frame.name}" if self.shade else self.frame.name


def flame_boxes(root: FlameDocument) -> tuple[FlameBox, ...]:
    """All frames that can be seen, callers first. Widths are times of the slower side."""
    is_after, whole = root.after >= root.before, max(root.before, root.after)
    if whole <= 0:
        return ()
    largest = max(abs(frame.difference) for frame in _frames(root))

    def boxes(frame: FlameDocument, level: int, left: float) -> Iterator[FlameBox]:
        width = (frame.after if is_after else frame.before) / whole
        if width < _NARROWEST:
            return
        shade, size = 0, abs(frame.difference)
        if size >= _RELEVANT * whole:
            shade = 1 + sum(size >= share * largest for share in _SHADES)
        yield FlameBox(frame, level, left, width, shade if frame.difference > 0 else -shade)
        for child in frame.children:
            yield from boxes(child, level + 1, left)
            left += (child.after if is_after else child.before) / whole

    return tuple(boxes(root, 0, 0.0))


def _frames(frame: FlameDocument) -> Iterator[FlameDocument]:
    yield frame
    for child in frame.children:
        yield from _frames(child)


def flame_lines(root: FlameDocument, most: int = 12) -> list[str]:
    """The frames whose difference is largest, indented below their callers.

    A caller is left out where one of its calls carries its difference.
    """
    least = _RELEVANT * max(root.before, root.after)

    def rows(frame: FlameDocument, level: int) -> Iterator[tuple[int, FlameDocument]]:
        if abs(frame.difference) >= least and frame.difference:
            carried = any(
                not child.folded and _SAME <= child.difference / frame.difference <= 1 / _SAME
                for child in frame.children
            )
            if level == 0 or not carried:
                yield level, frame
                level += 1
        for child in frame.children:
            yield from rows(child, level)

    found = list(rows(root, 0))
    ranked = sorted(range(len(found)), key=lambda index: -abs(found[index][1].difference))
    texts = []
    for level, frame in (found[index] for index in sorted(ranked[:most])):
        name = f"{frame.function} ({frame.path})" if frame.path and not frame.folded else frame.name
        texts.append(f"{frame.difference:+8.2f}  {'  ' * level}{name}")
    return texts
