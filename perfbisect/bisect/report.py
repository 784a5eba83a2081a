"""The report of a bisection: one description for terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.figures import plots
from perfbisect.common.quantities import counted
from perfbisect.report.document import Inline, Report, code, parts_of
from perfbisect.report.phases import phase_sentences, phases_section
from perfbisect.report.sections import (
    cell_section,
    change_text,
    launch_section,
    minutes_section,
    reproduce_section,
    version_section,
)
from perfbisect.report.template import render_report


def build_report(document: ReportDocument) -> Report:
    """The report of a bisection, finished or not."""
    phases = document.phases if document.outcome == "found" else None
    has_moved = phases is not None and any(phase.verdict == "moved" for phase in phases.phases)
    report = render_report(
        "bisect/templates/report.md.jinja",
        {"r": document, "moved_phases": phase_sentences(phases) if phases and has_moved else ()},
        plots(document),
    )
    shared = (
        phases_section(phases),
        minutes_section(document.minutes),
        launch_section(
            document.launches, document.metric.unit, document.culprit.id if document.culprit else ""
        ),
        cell_section(document.cell, document.notes, _setting_rows(document)),
        reproduce_section([document.reproduce]),
        version_section(document.versions),
    )
    return replace(report, sections=(*report.sections, *(section for section in shared if section.blocks)))


def _setting_rows(document: ReportDocument) -> Iterator[tuple[str, Inline]]:
    counts = f"{counted(document.changes, 'change')}, {counted(document.positions, 'different environment')}"
    good, bad = (parts_of(change_text(change)) for change in (document.good, document.bad))
    yield "job", code(document.job)
    yield "range", (*good, " to ", *bad, f": {counts}")
    yield "environment", code(document.environment)
    yield "client", code(document.client)
    if document.repository:
        yield "repository", code(document.repository)
