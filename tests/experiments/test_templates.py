"""Text of others stands in the reports of run, compare and check as it is, and never acts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.commands.experiments import EXPERIMENTS
from perfbisect.jobs.journal import read
from perfbisect.report.document import Report, Section, Span
from perfbisect.report.html import report_html
from tests.golden.test_golden import thawed

HOSTILE = "`x` **b** [a](https://x.y) | <script>\n# d @all {{ r }} \ue000616263\ue001"


def texts(value: object) -> Iterator[str]:
    """Every text of a report."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Span):
        yield value.text
    elif isinstance(value, tuple):
        for item in value:
            yield from texts(item)
    elif isinstance(value, Report | Section) or type(value).__module__.endswith("report.document"):
        for item in vars(value).values():
            yield from texts(item)


@pytest.mark.parametrize(
    ("name", "sides"), [("compare-claim", ("a", "b")), ("check-regression", ()), ("run", ())]
)
def test_text_of_others_comes_through_a_template_as_it_is(
    name: str, sides: tuple[str, ...], tmp_path: Path
) -> None:
    job = thawed(name, tmp_path)
    kind = EXPERIMENTS[name.partition("-")[0]]
    result = kind.result(job, read(job.journal).events)
    launch = result.launches[0]
    changed: dict[str, Any] = {
        "cell": result.cell.model_copy(update={"name": HOSTILE, "model": HOSTILE}),
        "notes": (HOSTILE,),
        "next": f"perfbisect report {HOSTILE}",
        "launches": (replace(launch, why=HOSTILE, warnings=(HOSTILE,)),),
    }
    for side in sides or ("change",):
        part = getattr(result, side)
        change = part.change if sides else part
        hostile = replace(change, subject=HOSTILE)
        changed[side] = part.model_copy(update={"change": hostile, "typed": HOSTILE}) if sides else hostile
    report = kind.report(result.model_copy(update=changed))
    found = list(texts(report))
    assert sum(HOSTILE in text for text in found) >= 6
    assert not any("\ue000" in text.replace(HOSTILE, "") for text in found), "every value is opened"
    page = report_html(report, plots="p.js")
    assert "<script>\n" not in page and "[a](https" in page
