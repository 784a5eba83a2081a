"""Reports of comparisons, claims, sweeps, checks and runs, and what their plans show."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.common.numbers import minutes, number, percent, with_unit
from perfbisect.compare.documents import (
    CheckDocument,
    CheckPlanDocument,
    CompareDocument,
    ComparePlanDocument,
    MetricComparisonDocument,
    RecordedDocument,
    RunDocument,
    SavedBaselineDocument,
    SideDocument,
    SweepDocument,
    VerifyDocument,
)
from perfbisect.compare.results import check_of_comparison
from perfbisect.jobs.documents import CellDocument, LaunchDocument, MetricDocument, MinutesDocument
from perfbisect.report.document import (
    Block,
    Column,
    Command,
    Figure,
    Inline,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Table,
    Tone,
    Verdict,
    code,
)
from perfbisect.report.plots import LaunchGroup, Limit, launches_plot
from perfbisect.report.sections import (
    cell_section,
    change_text,
    launch_section,
    minutes_section,
    reproduce_section,
    version_section,
)
from perfbisect.report.terminal import report_lines, section_lines

ResultDocument = (
    CompareDocument | CheckDocument | RunDocument | VerifyDocument | SweepDocument | SavedBaselineDocument
)

_TONES: dict[str, Tone] = {
    "regression": "bad",
    "failed": "bad",
    "refuted": "bad",
    "improvement": "good",
    "same": "good",
    "passed": "good",
    "holds": "good",
    "inconclusive": "open",
}
_LEGEND = "* judged, ! guard; the other metrics are read beside them and are no verdicts"


def build_report(document: ResultDocument) -> Report:
    """The report of a result."""
    if isinstance(document, CompareDocument):
        if document.limit is not None:
            return build_report(check_of_comparison(document))
        return _compare_report(document)
    if isinstance(document, CheckDocument):
        if document.comparison is not None:
            return _limit_report(document, document.comparison)
        return _check_report(document)
    if isinstance(document, RunDocument):
        return _run_report(document)
    if isinstance(document, VerifyDocument):
        return _verify_report(document)
    if isinstance(document, SweepDocument):
        return _sweep_report(document)
    return _baseline_report(document)


def result_lines(document: ResultDocument) -> list[str]:
    """The report of a result on a terminal, and where its files are."""
    one_job = isinstance(document, CompareDocument | CheckDocument | RunDocument) and document.folder
    files = f"{document.folder}/report.md, report.html" if one_job else ""  # type: ignore[union-attr]
    return report_lines(build_report(document), files)


def _compare_report(document: CompareDocument) -> Report:
    by_guard = document.verdict != document.headline
    word = document.verdict + (" by a guard" if by_guard else "")
    title = f"{document.b.name} against {document.a.name}"
    if document.claim is not None:
        outcome = {"holds": "claim holds", "refuted": "claim refuted"}
        word = outcome.get(document.claim, "inconclusive")
        word += " by a guard" if by_guard and document.claim == "refuted" else ""
    verdict = Verdict(word, _TONES[document.claim or document.verdict])
    return _comparison(document, title, verdict, document.summary)


def _limit_report(document: CheckDocument, comparison: CompareDocument) -> Report:
    by_guard = comparison.verdict != comparison.headline and document.verdict == "failed"
    word = document.verdict + (" by a guard" if by_guard else "")
    title = f"Check of {comparison.b.name} against {comparison.a.name}"
    return _comparison(comparison, title, Verdict(word, _TONES[document.verdict]), document.summary)


def _comparison(document: CompareDocument, title: str, verdict: Verdict, summary: Sequence[str]) -> Report:
    spent = document.minutes
    blocks: list[Block] = [*map(Paragraph, summary)]
    if document.metrics:
        blocks += [_metrics_table(document.metrics), Paragraph(_LEGEND, quiet=True)]
    headline = next((row for row in document.metrics if row.headline), None)
    groups = [
        LaunchGroup(
            f"{label}: {side.name}",
            color,
            symbol,
            tuple(launch for launch in document.launches if launch.position == position),
            level,
        )
        for position, (label, side, color, symbol, level) in enumerate(
            (
                ("A", document.a, "@end", "circle", headline.left if headline else None),
                ("B", document.b, "@search", "square", headline.right if headline else None),
            )
        )
    ]
    sides = KeyValues((("A", _side_text(document.a)), ("B", _side_text(document.b))))
    return Report(
        title=title,
        verdict=verdict,
        blocks=(*blocks, Command(document.next)),
        sections=(
            *_plot_section(groups, document.metric),
            Section("Sides", (sides,), detail=True),
            *_details(document.cell, document.notes, document.launches, document.metric.unit, spent),
            reproduce_section(document.reproduce),
            version_section(document.versions),
        ),
        highlights=_highlights(document.effect, document.low, document.high, document.launches, spent),
        footer=_footer(document.job),
    )


def _metrics_table(metrics: Sequence[MetricComparisonDocument]) -> Table:
    columns = (
        Column("metric"),
        Column("A", numeric=True),
        Column("B", numeric=True),
        Column("B against A", numeric=True),
        Column("95 % interval"),
        Column("verdict"),
    )
    rows: list[tuple[Inline, ...]] = [
        (
            ("* " if row.headline else "! " if row.guard else "  ", code(row.name)),
            with_unit(row.left, row.unit),
            with_unit(row.right, row.unit),
            percent(row.effect),
            f"{percent(row.low)} to {percent(row.high)}",
            row.verdict + (f" ({row.note})" if row.note else ""),
        )
        for row in metrics
    ]
    highlighted = frozenset(index for index, row in enumerate(metrics) if row.headline)
    return Table(columns, tuple(rows), highlighted)


def _check_report(document: CheckDocument) -> Report:
    unit, spent = document.metric.unit, document.minutes
    group = LaunchGroup(document.change.short, "@search", "square", document.launches, document.value)
    limits = [] if document.line is None else [Limit("threshold", document.line)]
    limits += [
        Limit(f"recorded {level.change.short}", level.value)
        for level in document.recorded
        if level.value is not None
    ]
    return Report(
        title=f"Check of {document.change.short}",
        verdict=Verdict(document.verdict, _TONES[document.verdict]),
        blocks=(*map(Paragraph, document.summary), Command(document.next)),
        sections=(
            *_plot_section([group], document.metric, limits),
            Section("Checked against", _recorded_table(document.recorded, unit), detail=True),
            *_details(document.cell, document.notes, document.launches, unit, spent),
            *([reproduce_section((document.reproduce,))] if document.reproduce else []),
            version_section(document.versions),
        ),
        highlights=_highlights(document.effect, document.low, document.high, document.launches, spent),
        footer=_footer(document.job),
    )


def _recorded_table(recorded: Sequence[RecordedDocument], unit: str) -> tuple[Block, ...]:
    columns = ("job", "change", "measured", "launches", "median")
    rows: tuple[tuple[Inline, ...], ...] = tuple(
        (
            code(level.job),
            change_text(level.change),
            level.days,
            str(level.launches),
            with_unit(level.value, unit),
        )
        for level in recorded
    )
    return (Table(tuple(map(Column, columns)), rows),) if rows else ()


def _run_report(document: RunDocument) -> Report:
    count = sum(launch.outcome == "measured" for launch in document.launches)
    rows: list[tuple[Inline, ...]] = [
        (
            code(metric.name),
            with_unit(metric.median, metric.unit),
            f"{number(metric.low)} to {number(metric.high)}" if len(metric.launches) > 1 else "",
            "" if metric.within is None else percent(metric.within, False),
        )
        for metric in document.metrics
    ]
    columns = (
        Column("metric"),
        Column("median", numeric=True),
        Column("range of launches"),
        Column("spread of requests", numeric=True),
    )
    spent = document.minutes
    phases = ", ".join(f"{name} {value * 60:.1f} s" for name, value in spent.by_phase.items())
    headline = document.headline
    value = next((m.median for m in document.metrics if m.display == headline.display), None)
    group = LaunchGroup(document.change.short, "@end", "circle", document.launches, value)
    return Report(
        title=f"Run of {document.change.short} {document.change.subject}".rstrip(),
        verdict=Verdict("measured" if document.finished else "unfinished"),
        blocks=(
            Table(columns, tuple(rows), frozenset({0}) if rows else frozenset()),
            KeyValues(
                (
                    ("change", change_text(document.change)),
                    ("launches", f"{count} measured"),
                    ("phases", phases),
                )
            ),
            Command(f"perfbisect {'report' if document.finished else 'resume'} {document.job}"),
        ),
        sections=(
            *_plot_section([group], headline),
            *_details(document.cell, document.notes, document.launches, headline.unit, spent),
            reproduce_section((document.reproduce,)),
            version_section(document.versions),
        ),
        footer=_footer(document.job),
    )


def _verify_report(document: VerifyDocument) -> Report:
    claim = KeyValues(
        (
            ("claim", document.claim),
            ("source", document.source),
            ("claimed", (code(document.metric), " ", code(document.expected))),
        )
    )
    word = {"holds": "claim holds", "refuted": "claim refuted"}.get(document.verdict, "inconclusive")
    return Report(
        title="Claim",
        verdict=Verdict(word, _TONES[document.verdict]),
        blocks=(claim, _cells_table(document.cells), *_report_commands(document.cells)),
    )


def _sweep_report(document: SweepDocument) -> Report:
    words = {cell.verdict for cell in document.cells}
    word = next((word for word in ("regression", "inconclusive", "improvement") if word in words), "same")
    signature = KeyValues((("signature", document.signature),))
    return Report(
        title="Sweep over loads",
        verdict=Verdict(word, _TONES[word]),
        blocks=(signature, _cells_table(document.cells), *_report_commands(document.cells)),
    )


def _cells_table(cells: Sequence[CompareDocument]) -> Table:
    columns = (
        Column("cell"),
        Column("verdict"),
        Column("effect", numeric=True),
        Column("95 % interval"),
        Column("launches a side", numeric=True),
    )
    rows: list[tuple[Inline, ...]] = []
    for cell in cells:
        known = cell.low is not None and cell.high is not None
        span = f"{percent(cell.low or 0.0)} to {percent(cell.high or 0.0)}" if known else ""
        effect = "-" if cell.effect is None else percent(cell.effect)
        word = cell.claim or cell.verdict
        rows.append((code(cell.cell.name), word, effect, span, str(cell.launches_a_side)))
    return Table(columns, tuple(rows))


def _report_commands(cells: Sequence[CompareDocument]) -> list[Command]:
    """How each cell is read further, those that differ first."""
    ordered = sorted(cells, key=lambda cell: cell.verdict == "same")
    return [Command(f"perfbisect report {cell.job}  # {cell.cell.name}") for cell in ordered]


def _baseline_report(document: SavedBaselineDocument) -> Report:
    command = (
        f"perfbisect check {document.cell.name} --against baseline --baseline {document.file} "
        "--max-regression 5%"
    )
    recorded = _recorded_text(document.recorded, document.metric.unit)
    return Report(
        title="Baseline",
        verdict=Verdict("baseline recorded", "good"),
        blocks=(KeyValues((("file", code(document.file)), ("level", recorded))), Command(command)),
    )


def plan_lines(plan: ComparePlanDocument | CheckPlanDocument) -> list[str]:
    """What will be measured, and what it will take, on a terminal."""
    rows = _compare_plan_rows(plan) if isinstance(plan, ComparePlanDocument) else _check_plan_rows(plan)
    rows += [("note", note) for note in plan.notes]
    sections = (workload_section(plan.cell), Section("Plan", (KeyValues(tuple(rows)),)))
    lines = [text for section in sections for text in section_lines(section)]
    if isinstance(plan, ComparePlanDocument):
        lines += [text for other in plan.others for text in ("", *plan_lines(other))]
    return lines


def workload_section(cell: CellDocument) -> Section:
    """The block that is shown before anything is measured."""
    return Section("Cell", (KeyValues(tuple((label, code(value)) for label, value in cell.rows)),))


def _compare_plan_rows(plan: ComparePlanDocument) -> list[tuple[str, Inline]]:
    blocks = plan.forecast_blocks
    expected = (
        f"more than {plan.most_launches} launches"
        if blocks is None
        else f"about {4 * blocks} launches, {minutes(plan.minutes_low * blocks)}"
    )
    return [
        ("a", _side_text(plan.a)),
        ("b", _side_text(plan.b)),
        ("env", plan.environment),
        ("client", plan.client),
        ("launches", _launches_text(4, plan)),
        ("smallest", f"effects within {percent(plan.smallest_effect, False)} count as the same"),
        ("budget", minutes(plan.budget_minutes)),
        ("forecast", f"{expected}, {plan.forecast_from}"),
    ]


def _check_plan_rows(plan: CheckPlanDocument) -> list[tuple[str, Inline]]:
    unit = plan.metric.unit
    rows: list[tuple[str, Inline]] = [("change", change_text(plan.change))]
    if plan.line is not None:
        limit = f", {percent(plan.limit, False)} worse than the baseline" if plan.how == "baseline" else ""
        rows.append(("threshold", f"{with_unit(plan.line, unit)}{limit}"))
    rows += [("recorded", _recorded_text(level, unit)) for level in plan.recorded]
    return [
        *rows,
        ("env", plan.environment),
        ("client", plan.client),
        ("launches", _launches_text(plan.most_launches if plan.how == "save" else 2, plan)),
        ("budget", minutes(plan.budget_minutes)),
    ]


def _launches_text(least: int, plan: ComparePlanDocument | CheckPlanDocument) -> str:
    return (
        f"{least} to {plan.most_launches}, {plan.runs_per_launch} runs each, "
        f"{minutes(plan.minutes_low)} to {minutes(plan.minutes_high)}"
    )


def _side_text(side: SideDocument) -> Inline:
    variant = f" served as {side.variant}" if side.variant else ""
    change = change_text(side.change)
    parts = change if isinstance(change, tuple) else (change,)
    return (*parts, f"{variant} (", code(side.typed), ")")


def _recorded_text(level: RecordedDocument, unit: str) -> str:
    return (
        f"{level.change.short}, {level.launches} launches of {level.days} in job {level.job}, "
        f"{with_unit(level.value, unit)}"
    )


def _plot_section(
    groups: Sequence[LaunchGroup], metric: MetricDocument, limits: Sequence[Limit] = ()
) -> tuple[Section, ...]:
    plot = launches_plot(groups, metric, limits)
    if plot is None:
        return ()
    caption = f"Every launch by time, with its runs; {metric.direction} is better. Dotted: levels."
    return (Section("Launches by time", (Figure("launches", caption, plot),), detail=True),)


def _details(
    cell: CellDocument,
    notes: Sequence[str],
    launches: Sequence[LaunchDocument],
    unit: str,
    spent: MinutesDocument,
) -> tuple[Section, ...]:
    return cell_section(cell, notes), launch_section(launches, unit), minutes_section(spent)


def _highlights(
    effect: float | None,
    low: float | None,
    high: float | None,
    launches: Sequence[LaunchDocument],
    spent: MinutesDocument,
) -> tuple[tuple[str, str], ...]:
    if effect is None or low is None or high is None:
        return ()
    count = sum(launch.outcome == "measured" for launch in launches)
    return (
        (percent(effect), "effect"),
        (f"{percent(low)} to {percent(high)}", "95 % interval"),
        (str(count), "launches"),
        (minutes(spent.total), "measured"),
    )


def _footer(job: str) -> str:
    return f"Job {job}. This page loads nothing from the network."
