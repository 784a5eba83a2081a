"""Which points of the store a command reads, and the eras of the instrument that measured them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfbisect.clients.eras import DIFFUSION_ERAS, NIGHTLY_ERAS, OMNI_ERAS
from perfbisect.common.suggest import hint
from perfbisect.errors import UsageError
from perfbisect.series.points import Point, cell_of_series, machine_series
from perfbisect.series.sources.kanban import of_nightly
from perfbisect.series.store import SeriesStore
from perfbisect.serving.eras import Era


def points_of(
    store: SeriesStore, cells: Sequence[str] = (), *, since: str = ""
) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """The points of each machine series of these cells, by default of all; a cell or a series may be named.

    :raises UsageError: there is no such cell or series.
    """
    have = set(store.cells())
    named = {cell for cell in cells if cell not in have and cell_of_series(cell) in have}
    whole = match_cells(store, [cell for cell in cells if cell not in named])
    there: list[str] = []
    for name, own in machine_series(store.points((*whole, *map(cell_of_series, named)), since=since)):
        there.append(name)
        if not named or name in named or own[0].cell in whole:
            yield name, own
    missing = sorted(named - set(there))
    if missing:
        raise UsageError(f"no series of {missing[0]!r}; there are: {', '.join(there)}")


def match_cells(store: SeriesStore, cells: Sequence[str]) -> tuple[str, ...]:
    """The cells that were named: whole names, or beginnings of names up to one of ``/@-``.

    :raises UsageError: one is of no cell in the store; the nearest are named.
    """
    have = store.cells()
    if not have:
        raise UsageError("the store has no points", next_step="perfbisect track ingest PATH")
    found: list[str] = []
    for cell in cells:
        exact = [name for name in have if name == cell] or [
            name
            for name in have
            if cell and name.startswith(cell) and {cell[-1:], name[len(cell)]} & set("/@-")
        ]
        if not exact:
            raise UsageError(
                f"no cell {cell!r} among the {len(have)} in the store{hint(cell, have, 0.3)}",
                next_step="perfbisect track show, without a cell, lists them",
            )
        found += exact
    return tuple(dict.fromkeys(found))


def eras_of(point: Point) -> tuple[Era, ...]:
    """The eras of the instrument that measured a point: its client, and the harness that called it."""
    backend = point.workload.backend
    harness = NIGHTLY_ERAS if of_nightly(point.build) else ()
    if any(key.startswith("latency:") for key in point.values):
        return (*DIFFUSION_ERAS, *harness)
    omni = backend.endswith(("-omni", "-speech"))
    return (*(OMNI_ERAS if omni else ()), *harness)
