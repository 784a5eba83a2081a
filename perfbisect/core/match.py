"""Which cell a workload is that somebody wrote down, or the nearest, and in what it differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.core.cell import Cell, difference
from perfbisect.core.cell_parts import DeployYaml
from perfbisect.core.digest import canonical
from perfbisect.core.sighting import Sighting


@dataclass(frozen=True)
class Match:
    """A cell beside a sighting: (field, what was seen, what the cell has), empty where nothing differs."""

    cell: Cell
    differing: tuple[tuple[str, object, object], ...]

    @property
    def exact(self) -> bool:
        """Nothing that was said differs; what was not said may."""
        return not self.differing


def nearest(seen: Sighting, cells: Iterable[Cell]) -> tuple[Match, ...]:
    """The cells, those that differ in fewest fields first; among equals those of the sighting's test, then by
    name."""
    found = [Match(cell, differing(seen, cell)) for cell in cells]
    return tuple(sorted(found, key=lambda m: (len(m.differing), not _named(seen, m.cell), m.cell.name)))


def apart(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The fields in which cells differ from one another, none where there are not two."""
    return tuple(sorted({row[0] for other in cells[1:] for row in difference(cells[0], other)}))


def differing(seen: Sighting, cell: Cell) -> tuple[tuple[str, object, object], ...]:
    """Fields that were said and that the cell has otherwise."""
    rows: list[tuple[str, object, object]] = []
    if seen.test and not _named(seen, cell):
        rows.append(("test", seen.test, cell.name))
    for name, value in sorted(seen.fields.items()):
        own = _value(cell, name)
        if canonical(value) != canonical(own):
            rows.append((name, value, own))
    rows += _options(seen.arguments, _arguments(cell), closed=seen.closed)
    if seen.serve_args is not None:
        told = _options(seen.serve_args, cell.serve_args, closed=True)
        rows += [(f"serve_args.{name}", left, right) for name, left, right in told]
    return tuple(rows)


def _options(
    seen: Mapping[str, object], have: Mapping[str, object], *, closed: bool
) -> list[tuple[str, object, object]]:
    rows: list[tuple[str, object, object]] = []
    for name in sorted({*seen, *(have if closed else ())}):
        left, right = seen.get(name), have.get(name)
        if canonical(left) != canonical(right):
            rows.append((name, "-" if left is None else left, "-" if right is None else right))
    return rows


def _named(seen: Sighting, cell: Cell) -> bool:
    stem = cell.name.partition("@")[0]
    return bool(seen.test) and (stem == seen.test or stem.startswith(f"{seen.test}-"))


def _value(cell: Cell, name: str) -> object:
    value: object = getattr(cell, name)
    if isinstance(value, DeployYaml):
        return value.path or "a text of the cell's own"
    return value or None if isinstance(value, Mapping) else value


def _arguments(cell: Cell) -> dict[str, object]:
    sampling = cell.sampling.model_dump(exclude_none=True)
    told = {name.replace("_", "-"): value for name, value in sampling.items()}
    return {**cell.dataset_args, **cell.client.args, **told}
