"""Phases of a request on two sides: document, sentences, blocks of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from perfbisect.common.quantities import number
from perfbisect.jobs.documents import Document
from perfbisect.model.attempt import Attempt
from perfbisect.model.counters import RunCounters
from perfbisect.report.document import Block
from perfbisect.report.template import render_report, render_sentences
from perfbisect.stats.phases import PhaseDifference, compare_phases

_NAMES: Final = {
    "api_server": "API server",
    "engine_core": "engine core",
    "worker": "workers",
    "other": "other processes",
}


class PhasesDocument(Document):
    """Where the time of a request goes on two sides, from the engine's counters in all their launches."""

    a: str
    b: str
    launches_a: int
    launches_b: int
    phases: tuple[PhaseDifference, ...]


def phases_document(
    names: tuple[str, str],
    sides: tuple[Sequence[Attempt], Sequence[Attempt]],
    others: Iterable[Sequence[Attempt]] = (),
    *,
    is_blocked: bool,
) -> PhasesDocument | None:
    """The phases of two sides; None where launches were recorded without counters.

    ``others``: launches of other changes, a group each. ``is_blocked``: see :func:`compare_phases`.
    """
    a, b, *rest = ([RunCounters.of_runs(x.runs) for x in group] for group in (*sides, *others))
    counted = [[x for x in group if x != RunCounters()] for group in (a, b, *rest)]
    phases = compare_phases(
        counted[0],
        counted[1],
        counted[2:],
        # Where a launch has no counters its block is not whole.
        is_blocked=is_blocked and (len(counted[0]), len(counted[1])) == (len(a), len(b)),
    )
    if not phases:
        return None
    return PhasesDocument(
        a=names[0],
        b=names[1],
        launches_a=len(counted[0]),
        launches_b=len(counted[1]),
        phases=phases,
    )


def moved_sentences(document: PhasesDocument | None) -> tuple[str, ...]:
    """The sentence for a summary, where a phase moved."""
    if document is None or all(phase.verdict != "moved" for phase in document.phases):
        return ()
    return phase_sentences(document)


def phase_blocks(document: PhasesDocument) -> tuple[Block, ...]:
    """Sentences, the table, and how to read it."""
    values = {
        "x": document,
        "sentences": phase_sentences(document),
        "name": _name,
        "signed": _signed,
    }
    return render_report("report/templates/phases.md.jinja", values).blocks


def phase_sentences(document: PhasesDocument) -> tuple[str, ...]:
    """What moved, what did not, and what cannot be said."""
    values = {"x": document, "name": _name, "signed": _signed}
    sentences = render_sentences("report/templates/phases.jinja", values)
    # A name of a phase begins the sentence, and is no word of the template.
    return tuple(f"{text[:1].upper()}{text[1:]}" for text in sentences)


def _name(phase: PhaseDifference) -> str:
    name = _NAMES.get(phase.name, phase.name)
    stage = f"stage {phase.stage}" if phase.stage.isdecimal() else phase.stage
    return f"{stage}: {name}" if stage else name


def _signed(value: float, unit: str = "") -> str:
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return f"{sign}{number(abs(value), 3)}{' ' if unit else ''}{unit}"
