"""A check as lines for a terminal and as Markdown, and a comparison under a limit as the check that it is."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.common.numbers import minutes, percent, with_unit
from perfbisect.common.text import code, line
from perfbisect.compare.check_documents import (
    BaselineDocument,
    CheckedDocument,
    CheckPlanDocument,
    CheckWord,
    RecordedDocument,
)
from perfbisect.compare.documents import CompareDocument
from perfbisect.compare.render import compare_body, compare_lines, limit_sentences
from perfbisect.report.console import cell_lines
from perfbisect.report.markdown_text import (
    cell_table,
    launch_table,
    minutes_table,
    prose,
    reproduce,
    table,
    version_table,
)
from perfbisect.report.markdown_text import change as change_code

_CLAIMS: dict[str, CheckWord] = {"holds": "passed", "refuted": "failed"}


def checked_of(document: CompareDocument) -> CheckedDocument:
    """A comparison under a limit as the check that asked for it."""
    limit, row = document.limit or 0.0, next((x for x in document.metrics if x.headline), None)
    line_at = None
    if row is not None:
        worse = limit if document.metric.direction == "lower" else -limit
        line_at = row.left + worse if row.absolute else row.left * (1 + worse)
    word = _CLAIMS.get(str(document.claim), "inconclusive")
    return CheckedDocument(
        job=document.job,
        finished=document.finished,
        word=word,
        how="rev",
        limit=limit,
        sentences=(*limit_sentences(document), *document.sentences),
        next=document.next,
        effect=document.effect,
        low=document.low,
        high=document.high,
        value=row.right if row else None,
        line=line_at,
        change=document.b.change,
        metric=document.metric,
        cell=document.cell,
        minutes=document.minutes,
        told=document.told,
        folder=document.folder,
        comparison=document,
    )


def checked_lines(document: CheckedDocument) -> list[str]:
    """The verdict and what it rests on."""
    if document.comparison is not None:
        return compare_lines(document.comparison)
    out = [document.word.upper(), *(f"  {line(text, 400)}" for text in document.sentences)]
    if document.folder:
        out.append(f"  report: {document.folder}/report.md")
    return [*out, f"  next: {line(document.next, 400)}"]


def check_plan_lines(plan: CheckPlanDocument) -> list[str]:
    """What will be measured, and what it will take."""
    unit = plan.metric.unit
    limit = f", {percent(plan.limit, False)} worse than the baseline" if plan.how == "baseline" else ""
    held = f"{with_unit(plan.line, unit)}: from there on it is too bad{limit}"
    least = plan.most_launches if plan.how == "save" else 2
    return [
        "Cell",
        *cell_lines(plan.cell),
        "Plan",
        f"  change    {plan.change.short}  {line(plan.change.subject)}".rstrip(),
        *([f"  line      {held}"] if plan.line is not None else []),
        *(f"  {'recorded':<9} {_recorded(one, unit)}" for one in plan.recorded),
        f"  env       {line(plan.environment)}",
        f"  client    {line(plan.client)}",
        f"  launches  {least} to {plan.most_launches}, {plan.runs_per_launch} runs each, "
        f"{minutes(plan.minutes_low)} to {minutes(plan.minutes_high)}",
        f"  budget    {minutes(plan.budget_minutes)}",
        *(f"  note      {line(text)}" for text in plan.told),
    ]


def baseline_lines(document: BaselineDocument) -> list[str]:
    """What was recorded, and how it is used."""
    return [
        f"baseline {line(document.file)}",
        f"  {_recorded(document.recorded, document.metric.unit)}",
        f"  next: perfbisect check {document.cell.name} --against baseline --baseline {line(document.file)} "
        "--fail-over 5%",
    ]


def checked_markdown(document: CheckedDocument) -> str:
    """The report of a check."""
    if document.comparison is not None:
        told = "\n".join(f"{prose(text)}  " for text in limit_sentences(document.comparison))
        return f"# perfbisect check: {document.word}\n\n{told}\n\n{compare_body(document.comparison)}"
    unit = document.metric.unit
    parts = [
        f"# perfbisect check: {document.word}",
        "\n".join(f"{prose(text)}  " for text in document.sentences),
        f"Measured: {change_code(document.change)}",
        _levels(document.recorded, unit),
        cell_table(document.cell.rows),
        launch_table(document.launches, unit),
        minutes_table(document.minutes.by_phase, document.minutes.total, document.minutes.lost),
        reproduce(document.reproduce) if document.reproduce else "",
        version_table(document.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _levels(recorded: Sequence[RecordedDocument], unit: str) -> str:
    if not recorded:
        return ""
    rows = (
        (code(one.job), change_code(one.change), one.days, str(one.launches), with_unit(one.value, unit))
        for one in recorded
    )
    return "## Held against\n\n" + table(("job", "change", "measured", "launches", "median"), rows)


def _recorded(one: RecordedDocument, unit: str) -> str:
    return (
        f"{one.change.short}, {one.launches} launches of {one.days} in job {one.job}, "
        f"{with_unit(one.value, unit)}"
    )
