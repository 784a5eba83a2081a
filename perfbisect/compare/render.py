"""A comparison as lines for a terminal: the plan, and the table of all metrics with the verdict above it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfbisect.common.numbers import minutes, percent, with_unit
from perfbisect.common.text import code, line
from perfbisect.compare.documents import (
    ComparedDocument,
    CompareDocument,
    ComparePlanDocument,
    SideDocument,
    SweepDocument,
    VerifyDocument,
)
from perfbisect.report.console import cell_lines
from perfbisect.report.markdown_text import (
    cell_table,
    change,
    launch_table,
    minutes_table,
    prose,
    reproduce,
    table,
    version_table,
)


def compare_markdown(document: CompareDocument) -> str:
    """The report of a comparison."""
    return f"# perfbisect {_title(document)}\n\n{compare_body(document)}"


def compare_body(document: CompareDocument) -> str:
    """The report of a comparison without its title."""
    parts = [
        "\n".join(f"{prose(text)}  " for text in document.sentences),
        f"A: {_compare_report_side(document.a)}  \nB: {_compare_report_side(document.b)}",
        _metrics(document.metrics),
        cell_table(document.cell.rows),
        launch_table(document.launches, document.metric.unit),
        minutes_table(document.minutes.by_phase, document.minutes.total, document.minutes.lost),
        *(reproduce(commands) for commands in document.reproduce),
        version_table(document.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(document: CompareDocument) -> str:
    guard = "" if document.word == document.headline else ", by a guard"
    if document.claim is None or document.limit is not None:
        return f"compare: {document.word}{guard}"
    settled = {"holds": "the claim holds", "refuted": f"the claim is refuted{guard}"}
    return f"verify: {settled.get(document.claim, 'whether the claim holds is not told yet')}"


def _compare_report_side(side: SideDocument) -> str:
    variant = f" served as {code(side.variant)}" if side.variant else ""
    return f"{change(side.change)}{variant} ({code(side.typed)})"


def _metrics(metrics: tuple[ComparedDocument, ...]) -> str:
    rows = (
        (
            f"**{code(row.name)}**" if row.headline else code(row.name),
            "judged" if row.headline else "guard" if row.guard else "",
            with_unit(row.left, row.unit),
            with_unit(row.right, row.unit),
            percent(row.effect),
            f"{percent(row.low)} to {percent(row.high)}",
            row.word + (f" ({row.note})" if row.note else ""),
        )
        for row in metrics
    )
    head = ("metric", "", "A", "B", "B against A", "95 % interval", "")
    note = "Metrics that are neither judged nor guards are read beside the others and are no verdicts."
    return "## Every metric\n\n" + table(head, rows) + f"\n\n{note}"


WORDS = {
    "regression": "REGRESSION",
    "improvement": "IMPROVEMENT",
    "same": "SAME",
    "inconclusive": "INCONCLUSIVE",
}
CLAIMS = {"holds": "HOLDS", "refuted": "REFUTED", "inconclusive": "INCONCLUSIVE"}
LIMITS = {"holds": "PASSED", "refuted": "FAILED", "inconclusive": "INCONCLUSIVE"}


def limit_sentences(document: CompareDocument) -> tuple[str, ...]:
    """What a check under a limit says of it, and what more would cost where that is not told."""
    limit = percent(document.limit or 0.0, False)
    if document.claim == "refuted" and document.word != document.headline:
        return (f"A guard moved for the worse: that decides, whatever the limit of {limit}.",)
    a, b = document.a.name, document.b.name
    if document.claim == "holds":
        return (f"{b} is not worse than {a} by more than {limit}.",)
    if document.claim == "refuted":
        return (f"{b} is worse than {a} by more than {limit}.",)
    return f"Whether {b} is worse than {a} by more than {limit} is not told yet.", *_cost(document)


def _cost(document: CompareDocument) -> tuple[str, ...]:
    """What it would take for the interval to end at the limit, which lies within it."""
    effect, low, high = document.effect, document.low, document.high
    if effect is None or low is None or high is None or not low < high:
        return ()
    at = (document.limit or 0.0) * (1 if document.metric.direction == "lower" else -1)
    made, half = 2 * document.launches_a_side, max(high - effect, effect - low)
    more = max(4, math.ceil(made * ((half / max(abs(effect - at), 1e-6)) ** 2 - 1)))
    each = document.minutes.total / max(1, len(document.launches))
    return (f"About {more} further launches would settle it, {minutes(more * each)}.",)


def plan_lines(plan: ComparePlanDocument) -> list[str]:
    """What will be measured, and what it will take."""
    out = [
        "Cell",
        *cell_lines(plan.cell),
        "Plan",
        f"  a         {_side(plan.a)}",
        f"  b         {_side(plan.b)}",
        f"  env       {line(plan.environment)}",
        f"  client    {line(plan.client)}",
        f"  launches  4 to {plan.most_launches}, {plan.runs_per_launch} runs each, "
        f"{minutes(plan.minutes_low)} to {minutes(plan.minutes_high)}",
        f"  smallest  {percent(plan.smallest_effect, False)} is worth telling",
        f"  budget    {minutes(plan.budget_minutes)}",
        f"  foreseen  {_foreseen(plan)}",
    ]
    out += [f"  note      {line(text)}" for text in plan.told]
    return out + [text for other in plan.others for text in ("", *plan_lines(other))]


def compare_lines(document: CompareDocument) -> list[str]:
    """The verdict, what it rests on, and every metric that both sides report."""
    guard = "" if document.word == document.headline else " (by a guard)"
    head = [WORDS[document.word] + guard]
    if document.limit is not None:
        head = [LIMITS[document.claim or "inconclusive"] + guard]
        head += [f"  {line(text, 400)}" for text in limit_sentences(document)]
    out = [*head, *(f"  {line(text, 400)}" for text in document.sentences), ""]
    rows = [
        (
            ("*" if row.headline else "!" if row.guard else " ") + " " + row.name,
            with_unit(row.left, row.unit),
            with_unit(row.right, row.unit),
            percent(row.effect),
            f"{percent(row.low)} to {percent(row.high)}",
            row.word + (f" ({row.note})" if row.note else ""),
        )
        for row in document.metrics
    ]
    table = [("  metric", "A", "B", "B against A", "95 % interval", ""), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(6)]
    out += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    out += [
        "  * the metric that is judged, ! a guard; the others are read beside it and are no verdicts",
        f"  report: {document.folder}/report.md",
        f"  next: {line(document.next, 400)}",
    ]
    return out


def sweep_lines(document: SweepDocument) -> list[str]:
    """One line a load, and the signature."""
    return [
        *_cell_lines(document.cells),
        f"signature: {line(document.signature)}",
        *_reports(document.cells),
    ]


def verify_lines(document: VerifyDocument) -> list[str]:
    """The claim, what its cells told, and whether it holds."""
    return [
        CLAIMS[document.word],
        f"  {line(document.claim, 400)}",
        f"  source: {line(document.source, 400)}",
        f"  claimed: {line(document.metric)} {line(document.expected)}",
        *(f"  {text}" for text in _cell_lines(document.cells)),
        *_reports(document.cells),
    ]


def _reports(cells: Sequence[CompareDocument]) -> list[str]:
    """How each cell is read further, those that differ before the others."""
    first = sorted(cells, key=lambda one: one.word == "same")
    return [f"  next: perfbisect report {one.job}  ({line(one.cell.name)})" for one in first]


def _cell_lines(cells: Sequence[CompareDocument]) -> list[str]:
    width = max(len(one.cell.name) for one in cells)
    out = []
    for one in cells:
        told = one.claim or one.word
        span = "" if one.low is None or one.high is None else f"{percent(one.low)} to {percent(one.high)}"
        effect = "-" if one.effect is None else percent(one.effect)
        launches = f"{one.launches_a_side} launches a side"
        out.append(f"{one.cell.name:<{width}}  {told:<12}  {effect:>8}  {span}  {launches}")
    return out


def _foreseen(plan: ComparePlanDocument) -> str:
    blocks = plan.foreseen_blocks
    if blocks is None:
        return f"more than {plan.most_launches} launches, {line(plan.foreseen_from)}"
    launches = 4 * blocks
    cost = minutes(plan.minutes_low * blocks)
    return f"about {launches} launches, {cost}, {line(plan.foreseen_from)}"


def _side(side: SideDocument) -> str:
    variant = f" as {side.variant}" if side.variant else ""
    parts = (f"{side.change.short}{variant}", line(side.change.subject), f"({line(side.typed)})")
    return "  ".join(part for part in parts if part)
