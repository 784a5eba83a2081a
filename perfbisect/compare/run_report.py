"""The report of ``perfbisect run`` in Markdown."""

from __future__ import annotations

from perfbisect.common.numbers import number, percent, with_unit
from perfbisect.common.text import code
from perfbisect.jobs.documents import RunDocument
from perfbisect.report.markdown_text import (
    cell_table,
    change,
    launch_table,
    minutes_table,
    reproduce,
    table,
    version_table,
)


def run_markdown(document: RunDocument) -> str:
    """The report of ``perfbisect run``."""
    spent = document.minutes
    rows = (
        (
            code(m.name),
            m.display,
            with_unit(m.median, m.unit),
            number(m.low),
            number(m.high),
            _share(m.within),
        )
        for m in document.metrics
    )
    parts = [
        f"# perfbisect run: {change(document.change)}",
        cell_table(document.cell.rows),
        "## Measured\n\n" + table(("metric", "", "median", "lowest", "highest", "within a run"), rows),
        launch_table(document.launches, document.headline.unit),
        minutes_table(spent.by_phase, spent.total, spent.lost, spent.saved),
        reproduce(document.reproduce),
        version_table(document.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value, False)
