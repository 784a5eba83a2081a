"""The report of a bisection: one description for terminal, Markdown and HTML."""

from __future__ import annotations

from perfbisect.bisect.figures import plots
from perfbisect.bisect.result import BisectResult
from perfbisect.report.document import Report
from perfbisect.report.phases import moved_sentences, phase_blocks
from perfbisect.report.template import render_report


def build_report(result: BisectResult) -> Report:
    """The report of a bisection, finished or not."""
    phases = result.phases if result.outcome == "found" else None
    return render_report(
        "bisect/templates/report.md.jinja",
        {"r": result, "moved_phases": moved_sentences(phases)},
        {**plots(result), "phases": phase_blocks(phases) if phases else None},
    )
