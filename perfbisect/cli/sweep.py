"""One comparison for each load of a ladder, and what they have in common in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from perfbisect.cli.place import Place
from perfbisect.config.cells import load_cells
from perfbisect.errors import UsageError
from perfbisect.render.compare_documents import CompareDocument, SweepDocument


def rungs(place: Place, typed: str | None) -> tuple[str, ...]:
    """The cells of a ladder by name, in the order of the file.

    :raises UsageError: no cell was named, or it has one load only.
    """
    name = place.setting("cell", typed)
    if name is None:
        raise UsageError("no cell was named", next_step="perfbisect cells list")
    cells = load_cells(name)
    if len(cells) < 2:
        raise UsageError(
            f"{name} has one load: there is nothing to sweep over",
            next_step="make max_concurrency and num_prompts paired lists in the cell file",
        )
    suffixes = [cell.name.partition("@")[2] for cell in cells]
    return tuple(f"{name}@{suffix}" for suffix in suffixes)


def swept(told: Sequence[CompareDocument]) -> SweepDocument:
    """The comparisons with their signature: ``c1 same, c8 to c64 regression``."""
    loads = [(one.cell.name.partition("@")[2].partition("-n")[0], one.word) for one in told]
    parts = []
    for word, group in groupby(loads, key=lambda pair: pair[1]):
        names = [name for name, _ in group]
        span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        parts.append(f"{span} {word}")
    return SweepDocument(signature=", ".join(parts), cells=tuple(told))
