"""The series in the store, as whoever scores them takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from perfbisect.changes.git import Repository
from perfbisect.clients.eras import DIFFUSION, NIGHTLY, OMNI
from perfbisect.common.durations import moment
from perfbisect.common.suggest import hint
from perfbisect.errors import UsageError
from perfbisect.series.points import Build, Point, cell_of_series, lineages
from perfbisect.series.sources.kanban import of_nightly
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.window import LEAD, CommitWindow, MainLine, ordered, window
from perfbisect.serving.eras import Era


def points_of(
    store: SeriesStore, cells: Sequence[str] = (), *, since: str = ""
) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """The points of every lineage of these cells (none named: of all); a lineage may be named itself.

    :raises UsageError: as :func:`match_cells`; or a lineage that there is not.
    """
    have = set(store.cells())
    named = {cell for cell in cells if cell not in have and cell_of_series(cell) in have}
    whole = match_cells(store, [cell for cell in cells if cell not in named])
    there: list[str] = []
    for name, own in series_points(store.points((*whole, *map(cell_of_series, named)), since=since)):
        there.append(name)
        if not named or name in named or own[0].cell in whole:
            yield name, own
    missing = sorted(named - set(there))
    if missing:
        raise UsageError(f"no series of {missing[0]!r}; there are: {', '.join(there)}")


def series_points(points: Iterable[Point]) -> Iterator[tuple[str, tuple[Point, ...]]]:
    """Points by cell, then by kind of machine, with the name of each lineage."""
    for _, group in groupby(points, key=lambda point: point.cell):
        yield from lineages(tuple(group))


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
    harness = NIGHTLY if of_nightly(point.build) else ()
    if any(key.startswith("latency:") for key in point.values):
        return (*DIFFUSION, *harness)
    omni = backend.endswith(("-omni", "-speech"))
    return (*(OMNI if omni else ()), *harness)


def began(points: Sequence[Point], build: Build) -> datetime:
    """When a build's first result began."""
    return min(moment(point.began) for point in points if point.build.key == build.key)


def line_of(repository: Repository, tip: str = "HEAD") -> MainLine:
    """The main line of a repository, oldest first. :raises RevisionError: no such revision."""
    return ordered([record.change for record in repository.records("--first-parent", tip)])


def window_between(
    line: MainLine, points: Sequence[Point], before: Build, after: Build, lead: timedelta = LEAD
) -> CommitWindow:
    """The commits between two builds of these points. :raises RevisionError: the history lacks them."""
    return window(line, (before, began(points, before)), (after, began(points, after)), lead)
