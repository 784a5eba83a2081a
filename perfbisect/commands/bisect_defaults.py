"""What a bisection takes where its cell or its good end was not typed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import click
from pydantic import TypeAdapter

from perfbisect.cells.lint import Checkout
from perfbisect.cells.loading import known_cells
from perfbisect.commands.output import print_progress
from perfbisect.commands.workspace import Workspace
from perfbisect.common.text import line
from perfbisect.errors import RevisionError, UsageError
from perfbisect.experiments.check import CheckResult
from perfbisect.experiments.compare import CompareResult
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.series.detect import analyze_series
from perfbisect.series.points import night_of
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.table import load_suspect_table
from perfbisect.setup.checkout import SETTINGS_FILE

_RESULT: TypeAdapter[CompareResult | CheckResult] = TypeAdapter(CompareResult | CheckResult)

_GOOD_SIDE = {"same": -1, "improvement": -1, "passed": -1, "regression": 0, "failed": 0}
"""Outcome of a comparison or a check -> the side that it calls good."""

Known = tuple[str, Change, str]
"""A day, a commit that was good then, and what says so."""


def choose_cell(workspace: Workspace) -> str:
    """The cell that the user chooses at a terminal, among those of the engine of the repository.

    Raises:
        UsageError: there is no terminal, or no cell to choose from.
    """
    cells, _ = known_cells()
    if workspace.repository is not None:
        checkout = Checkout(workspace.repository, workspace.repository.head().id)
        cells = tuple(cell for cell in cells if not checkout.of_another_engine(cell))
    if not cells or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"no cell was named, and {SETTINGS_FILE} names none",
            where=workspace.root / SETTINGS_FILE,
            next_step="perfbisect bisect CELL; perfbisect cells list has the cells",
        )
    width = max(len(cell.name) for cell in cells)
    for number, cell in enumerate(cells, 1):
        print_progress(f"{number:>3}  {cell.name:<{width}}  {line(cell.description)}")
    chosen: int = click.prompt("cell", type=click.IntRange(1, len(cells)), err=True)
    return cells[chosen - 1].name


def find_last_good(workspace: Workspace, cell: Cell, metric: MetricRef, bad: str) -> tuple[Change, str]:
    """The last commit before ``bad`` that is known to be good, and a note that says by what and of which day.

    Raises:
        UsageError: none is known.
    """

    def compared() -> Iterator[Known]:
        """What comparisons and checks called good, the newest first."""
        for job in reversed(workspace.jobs.all()):
            ended = job.read_exit()
            if ended is None or ended.outcome not in _GOOD_SIDE:
                continue
            try:
                result = _RESULT.validate_json(job.document.read_bytes())
            except (OSError, ValueError):  # of another kind or version of results
                continue
            if (result.cell.digest, result.metric.name) != (cell.digest, str(metric)):
                continue
            if isinstance(result, CheckResult):
                noun, changes = "check", [*(level.change for level in result.recorded), result.change]
            else:
                noun, changes = "comparison", [result.a.change, result.b.change]
            change = changes[_GOOD_SIDE[result.outcome]]
            # A check against values has one side, and two variants of a commit do not judge it.
            is_judged = len(changes) > 1 or result.outcome == "passed"
            if change.kind == "commit" and is_judged and len({x.id for x in changes}) == len(changes):
                day = datetime.strptime(job.id[:8], "%Y%m%d").date().isoformat()
                yield day, change, f"{noun} {job.id} ({result.outcome})"

    def nightly() -> Iterator[Known]:
        """The nights of the cell's series before their first open regression, the newest first."""
        if not SeriesStore.exists(workspace.state):
            return
        with SeriesStore.of(workspace.state) as store:
            if cell.name not in store.cells():
                return
            analysis = analyze_series(store, load_suspect_table())
        for series in analysis.series:
            if series.points[-1].workload.digest != cell.digest or series.metric != str(metric):
                continue
            worse = [
                alert for alert in analysis.alerts if (alert.cell, alert.metric) == series.key and alert.worse
            ]
            still = [alert for alert in worse if not (alert.recovered or alert.state == "closed")]
            # From the night after which it may have begun on, nights may be of the new level.
            until = min((alert.begun[0] for alert in still), default=series.nights[-1])
            source = f"the last night of series {series.cell}"
            source += f" before alert {still[-1].id}" if still else ""
            for point, night in zip(reversed(series.points), reversed(series.nights), strict=True):
                with suppress(RevisionError):
                    if night <= until and point.build.commit:
                        commit = workspace.needed_repository().resolve(point.build.commit)
                        yield night_of(night), commit, source

    repository = workspace.needed_repository()
    end = repository.resolve(bad)
    found: list[Known] = []
    for known in (compared(), nightly()):
        # Each has its newest first.
        on_line = (x for x in known if x[1].id != end.id and repository.is_ancestor(x[1].id, end.id))
        found += [first for first in (next(on_line, None),) if first is not None]
    if not found:
        raise UsageError(
            f"--good is missing, and no check, comparison or night of cell {cell.name} says by "
            f"{metric} which commit before {end.short} was good",
            where=workspace.state,
            next_step="add --good REV, such as the last release",
        )
    day, change, source = max(found, key=lambda known: known[0])
    return change, f"good end {change.short}: the last that is known to be good, by {source} of {day}"
