"""Comparisons as jobs, from their plans to their documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from perfbisect.cells.loading import load_cells
from perfbisect.commands import wiring
from perfbisect.commands.compare_request import CompareRequest, plan_document
from perfbisect.commands.invocation import JobOptions
from perfbisect.commands.measurement import measure
from perfbisect.commands.session import record_exit, recording_error
from perfbisect.commands.workspace import Workspace
from perfbisect.compare.documents import CompareDocument, SweepDocument
from perfbisect.compare.kinds import COMPARE
from perfbisect.compare.report import plan_lines
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job


def ladder_cells(place: Workspace, typed: str | None) -> tuple[str, ...]:
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


def sweep_document(comparisons: Sequence[CompareDocument]) -> SweepDocument:
    """The comparisons with their signature: ``c1 same, c8 to c64 regression``."""
    loads = [(doc.cell.name.partition("@")[2].partition("-n")[0], doc.verdict) for doc in comparisons]
    parts = []
    for verdict, group in groupby(loads, key=lambda pair: pair[1]):
        names = [name for name, _ in group]
        span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        parts.append(f"{span} {verdict}")
    return SweepDocument(signature=", ".join(parts), cells=tuple(comparisons))


_Document = TypeVar("_Document", bound=Document)


def measure_comparisons(
    here: Workspace,
    requests: Sequence[CompareRequest],
    working: JobOptions,
    conclude: Callable[[list[CompareDocument]], tuple[_Document, int]],
) -> tuple[_Document, int, Job]:
    """Measures comparisons one after another, each in a job of its own. Raises what a job raises.

    Returns the document and the exit code of ``conclude``, and the first job. That one is held until the last
    has ended, and keeps the result, so that waiting for it is waiting for all.
    """
    first = wiring.new_job(here)
    with first.held(), recording_error(first):
        comparisons = [measure_comparison(here, requests[0], working, first, held=True)]
        comparisons += [
            measure_comparison(here, request, working, wiring.new_job(here)) for request in requests[1:]
        ]
        document, code = conclude(comparisons)
        record_exit(first, code, document)
    return document, code, first


def measure_comparison(
    here: Workspace, asked: CompareRequest, working: JobOptions, job: Job, *, held: bool = False
) -> CompareDocument:
    """Measures a comparison in a new job, until its verdict. ``held``: this process has the job already."""
    lines = plan_lines(plan_document(asked))
    return measure(here, job, COMPARE, asked.plan, asked.builder, asked.slots, working, lines, held=held)
