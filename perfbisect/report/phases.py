"""Phases of a request on two sides: document, sentences, blocks of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from perfbisect.common.quantities import number
from perfbisect.jobs.documents import Document
from perfbisect.model.attempt import Attempt
from perfbisect.model.counters import RunCounters
from perfbisect.report.document import Block
from perfbisect.report.template import render_report
from perfbisect.stats.phases import PhaseDifference, compare_phases

_NAMES: Final = {
    "api_server": "API server",
    "engine_core": "engine core",
    "worker": "workers",
    "other": "other processes",
}
_ORDER: Final = ("time", "work", "cpu")


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
        "excludes_zero": _excludes_zero,
    }
    return render_report("report/templates/phases.md.jinja", values).blocks


def phase_sentences(document: PhasesDocument) -> tuple[str, ...]:
    """What moved, what did not, and what cannot be said."""
    parts = [
        clause
        for kind in _ORDER
        for clause in _clauses(kind, [phase for phase in document.phases if phase.kind == kind])
    ]
    return (f"{_capitalized('; '.join(parts))}.",) if parts else ()


def _clauses(kind: str, phases: Sequence[PhaseDifference]) -> Iterator[str]:
    moved = [phase for phase in phases if phase.verdict in ("moved", "unknown")]
    if moved:
        yield ", ".join(map(_difference, moved))
    cpu = " CPU" if kind == "cpu" else ""
    unchanged = [_name(phase) for phase in phases if phase.verdict == "unchanged"]
    if unchanged and (kind != "work" or moved):
        yield f"{_listed(unchanged)}{cpu} {'as before' if cpu else 'unchanged'}"
    is_open = [phase for phase in phases if phase.verdict == "open"]
    if likely := [phase for phase in is_open if _excludes_zero(phase)]:
        yield f"likely {', '.join(map(_difference, likely))}"
    if unseen := [_name(phase) for phase in is_open if not _excludes_zero(phase)]:
        yield f"no difference seen in {_listed(unseen)}{cpu}"


def _excludes_zero(phase: PhaseDifference) -> bool:
    return (phase.low or 0.0) > 0 or (phase.high or 0.0) < 0


def _difference(phase: PhaseDifference) -> str:
    text = f"{_name(phase)} {_signed(phase.difference, phase.unit)}"
    if phase.low is None or phase.high is None:
        return f"{text} (one launch a side: no interval)"
    return f"{text} ({_signed(phase.low)} to {_signed(phase.high)})"


def _name(phase: PhaseDifference) -> str:
    name = _NAMES.get(phase.name, phase.name)
    return f"{phase.stage}: {name}" if phase.stage else name


def _signed(value: float, unit: str = "") -> str:
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return f"{sign}{number(abs(value), 3)}{' ' if unit else ''}{unit}"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
