"""Comparisons as jobs, from their plans to their documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from perfbisect.cells.loading import load_cells
from perfbisect.commands import wiring
from perfbisect.commands.compare_request import Contest, planned
from perfbisect.commands.execution import beginning, carry_out
from perfbisect.commands.invocation import Working
from perfbisect.commands.output import teller
from perfbisect.commands.session import at_work, keep, remembered
from perfbisect.commands.workspace import Place
from perfbisect.compare.documents import CompareDocument, SweepDocument
from perfbisect.compare.kinds import COMPARE
from perfbisect.compare.render import plan_lines
from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job


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


_Document = TypeVar("_Document", bound=Document)


def settle_all(
    here: Place,
    asked: Sequence[Contest],
    working: Working,
    conclude: Callable[[list[CompareDocument]], tuple[_Document, int]],
) -> tuple[_Document, int, Job]:
    """Measures comparisons one after another, each in a job of its own. Raises what a job raises.

    Returns what ``conclude`` makes of them, the document and the exit code, and the first job. That one is
    held until the last has ended, and keeps the result: who waits for it waits for all.
    """
    first = wiring.new_job(here)
    with first.held(), remembered(first):
        told = [settle(here, asked[0], working, first, held=True)]
        told += [settle(here, one, working, wiring.new_job(here)) for one in asked[1:]]
        document, code = conclude(told)
        keep(first, code, document)
    return document, code, first


def settle(here: Place, asked: Contest, working: Working, job: Job, *, held: bool = False) -> CompareDocument:
    """Measures a comparison in a new job, until its verdict. ``held``: this process has the job already."""
    shown, say = planned(asked), teller(working)
    with at_work(job, asked.slots, working, begin=beginning(job, asked.plan), held=held) as desk:
        for text in (*plan_lines(shown), f"job {job.id}", ""):
            say(text)
        return carry_out(here, desk, COMPARE, asked.plan, asked.builder)
