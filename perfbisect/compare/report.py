"""Reports of comparisons, claims, sweeps, checks and runs, and what their plans show."""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.common.quantities import counted, minutes, number, percent, with_unit
from perfbisect.compare.documents import (
    CheckDocument,
    CheckPlanDocument,
    CompareDocument,
    ComparePlanDocument,
    LaunchPlanDocument,
    MetricCheckDocument,
    MetricComparisonDocument,
    RecordedDocument,
    RunDocument,
    RunPlanDocument,
    SavedBaselineDocument,
    SideDocument,
    SweepDocument,
    VerifyDocument,
    check_of_comparison,
    check_word,
)
from perfbisect.fleet.forecast import machine_rows
from perfbisect.jobs.documents import CommandsDocument, MeasuredDocument
from perfbisect.report.document import (
    Block,
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
    make_table,
)
from perfbisect.report.phases import phases_paragraph, phases_section
from perfbisect.report.plots import LaunchGroup, Limit, launches_plot
from perfbisect.report.sections import (
    cell_section,
    change_text,
    command_lines,
    launch_section,
    minutes_section,
    reproduce_section,
    version_section,
    workload_section,
)
from perfbisect.report.template import render_report
from perfbisect.report.terminal import section_lines

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
_CLAIMS = {"holds": "claim holds", "refuted": "claim refuted"}
_LEGEND = "* judged, ! guard; the other metrics are read beside them and are no verdicts"


def compare_report(document: CompareDocument, check: CheckDocument | None = None) -> Report:
    """The report of a comparison, or of the check that asked for it."""
    if document.limit is not None and check is None:
        check = check_of_comparison(document)
    sides = f"{document.b.name} against {document.a.name} on {document.cell.name}"
    verdict: str = check.verdict if check else document.claim or document.verdict
    by_guard = document.by_guard and verdict in ("regression", "refuted", "failed")
    word = verdict if check else _CLAIMS.get(verdict, verdict)
    blocks: list[Block] = [*map(Paragraph, (check or document).summary)]
    if document.metrics:
        blocks += [
            _metrics_table(document.metrics, is_check=check is not None),
            Paragraph(_LEGEND, quiet=True),
        ]
    headline = next((row for row in document.metrics if row.headline), None)
    levels = (headline.left, headline.right) if headline else (None, None)
    left, right = (tuple(x for x in document.launches if x.position == side) for side in (0, 1))
    groups = [
        LaunchGroup(f"A: {document.a.name}", "@end", "circle", left, levels[0]),
        LaunchGroup(f"B: {document.b.name}", "@search", "square", right, levels[1]),
    ]
    rows = KeyValues((("A", _side_text(document.a)), ("B", _side_text(document.b))))
    return _job_report(
        document,
        title=f"Check of {sides}" if check else f"Comparison of {sides}",
        verdict=Verdict(word + (" by a guard" if by_guard else ""), _TONES[verdict]),
        blocks=(*blocks, *phases_paragraph(document.phases), Command(document.next)),
        groups=groups,
        more=(
            Section("Sides", (rows,), detail=True),
            phases_section(document.phases),
            _log_section(document),
        ),
        commands=document.reproduce,
    )


def check_report(document: CheckDocument) -> Report:
    """The report of a check, or of the comparison that it asked for."""
    if document.comparison is not None:
        return compare_report(document.comparison, document)
    unit = document.metric.unit
    limits = [] if document.line is None else [Limit("threshold", document.line)]
    limits += [
        Limit(f"recorded {level.change.short}", level.value)
        for level in document.recorded
        if level.value is not None
    ]
    recorded = make_table(
        ("job", "change", "measured", "launches", "median"),
        (
            (code(x.job), change_text(x.change), x.days, str(x.launches), with_unit(x.value, unit))
            for x in document.recorded
        ),
    )
    return _job_report(
        document,
        title=f"Check of {document.change.short} on {document.cell.name}",
        verdict=Verdict(document.verdict, _TONES[document.verdict]),
        blocks=(
            *map(Paragraph, document.summary),
            *([_checks_table(document.metrics)] if len(document.metrics) > 1 else []),
            Command(document.next),
        ),
        groups=[LaunchGroup(document.change.short, "@search", "square", document.launches, document.value)],
        limits=limits,
        more=(Section("Checked against", (recorded,) if recorded.rows else (), detail=True),),
        commands=(document.reproduce,) if document.reproduce else (),
    )


def run_report(document: RunDocument) -> Report:
    """The report of a run."""
    rows = (
        (
            code(metric.name),
            with_unit(metric.median, metric.unit),
            f"{number(metric.low)} to {number(metric.high)}" if len(metric.launches) > 1 else "",
            "" if metric.within is None else percent(metric.within, False),
        )
        for metric in document.metrics
    )
    titles = ("metric", "median*", "range of launches", "spread of requests*")
    phases = (f"{name} {value * 60:.1f} s" for name, value in document.minutes.by_phase.items())
    facts = (
        ("change", change_text(document.change)),
        ("launches", f"{_count_measured(document)} measured"),
        ("phases", ", ".join(phases)),
    )
    headline = document.headline
    change = f"{document.change.short} {document.change.subject}".rstrip()
    level = next((m.median for m in document.metrics if m.display == headline.display), None)
    return _job_report(
        document,
        title=f"Run of {change} on {document.cell.name}",
        verdict=Verdict("measured"),
        blocks=(
            make_table(titles, rows, {0} if document.metrics else ()),
            KeyValues(facts),
            Command(f"perfbisect {'report' if document.finished else 'resume'} {document.job}"),
        ),
        groups=[LaunchGroup(document.change.short, "@end", "circle", document.launches, level)],
        commands=(document.reproduce,),
    )


def _job_report(
    document: RunDocument | CheckDocument | CompareDocument,
    *,
    title: str,
    verdict: Verdict,
    blocks: tuple[Block, ...],
    groups: Sequence[LaunchGroup],
    limits: Sequence[Limit] = (),
    more: Sequence[Section] = (),
    commands: Sequence[CommandsDocument],
) -> Report:
    """The blocks, and the sections that all jobs have; ``more``: those of this job."""
    metric = document.headline if isinstance(document, RunDocument) else document.metric
    sections = [section for section in more if section.blocks]
    if plot := launches_plot(groups, metric, limits):
        caption = f"Every launch by time, with its runs; {metric.direction} is better. Dotted: levels."
        sections.insert(0, Section("Launches by time", (Figure("launches", caption, plot),), detail=True))
    sections += [
        cell_section(document.cell, document.notes),
        launch_section(document.launches, metric.unit),
        minutes_section(document.minutes),
        *([reproduce_section(commands)] if commands else []),
        version_section(document.versions),
    ]
    highlights: tuple[tuple[str, str], ...] = ()
    if not isinstance(document, RunDocument) and document.effect is not None:
        highlights = (
            (percent(document.effect), f"effect on {document.metric.name}"),
            (_interval_text(document), "95 % interval"),
            (str(_count_measured(document)), "launches"),
            (minutes(document.minutes.total), "measured"),
        )
    if document.folder:
        blocks = (*blocks, Paragraph(("report: ", code(f"{document.folder}/report.md"), ", report.html")))
    footer = f"Job {document.job}. This page loads nothing from the network."
    shown = verdict if document.finished else Verdict("unfinished")
    return Report(title, shown, blocks, tuple(sections), highlights, footer)


def _log_section(document: CompareDocument) -> Section:
    rows = (tuple(map(code, row)) for row in document.log_differences)
    table = make_table(("", "A", "B"), rows)
    return Section("What the engines' logs say differently", (table,) if table.rows else (), detail=True)


def _count_measured(document: MeasuredDocument) -> int:
    return sum(launch.outcome == "measured" for launch in document.launches)


def _interval_text(
    document: CheckDocument | CompareDocument | MetricCheckDocument | MetricComparisonDocument,
) -> str:
    """``-1.9 % to +2.8 %``; empty before the first verdict."""
    if document.low is None or document.high is None:
        return ""
    return f"{percent(document.low)} to {percent(document.high)}"


def _metrics_table(metrics: Sequence[MetricComparisonDocument], *, is_check: bool) -> Table:
    """``is_check``: judged metrics have the words of a check."""
    rows = (
        (
            ("* " if row.judged else "! " if row.guard else "  ", code(row.name)),
            with_unit(row.left, row.unit),
            with_unit(row.right, row.unit),
            percent(row.effect),
            _interval_text(row),
            _word(row, is_check) + (f" ({row.note})" if row.note else ""),
        )
        for row in metrics
    )
    judged = (index for index, row in enumerate(metrics) if row.judged)
    return make_table(("metric", "A*", "B*", "B against A*", "95 % interval", "verdict"), rows, judged)


def _word(row: MetricComparisonDocument, is_check: bool) -> str:
    """The verdict of a metric: about what was claimed of it, if anything."""
    if not row.judged or row.claim is None:
        return row.verdict
    return check_word(row.claim) if is_check else _CLAIMS.get(row.claim, row.claim)


def _checks_table(metrics: Sequence[MetricCheckDocument]) -> Table:
    rows = (
        (
            code(row.name),
            with_unit(row.value, row.unit),
            with_unit(row.line, row.unit),
            "-" if row.effect is None else percent(row.effect),
            _interval_text(row),
            row.verdict,
        )
        for row in metrics
    )
    return make_table(("metric", "value*", "threshold*", "effect*", "interval", "verdict"), rows)


def verify_report(document: VerifyDocument) -> Report:
    """The report of a claim."""
    return render_report("experiments/templates/verify.md.jinja", {"document": document})


def sweep_report(document: SweepDocument) -> Report:
    """The report of a sweep."""
    return render_report("experiments/templates/sweep.md.jinja", {"document": document})


def baseline_report(document: SavedBaselineDocument) -> Report:
    """The report of a recorded baseline."""
    return render_report("experiments/templates/baseline.md.jinja", {"document": document})


def plan_lines(plan: RunPlanDocument | ComparePlanDocument | CheckPlanDocument) -> list[str]:
    """What will be measured, and what it will take, on a terminal."""
    rows = _compare_plan_rows(plan) if isinstance(plan, ComparePlanDocument) else _change_plan_rows(plan)
    rows.append(("minutes", f"of a launch: {plan.minutes_basis}"))
    rows += machine_rows(plan.machines)
    rows += [("note", note) for note in plan.notes]
    sections = (workload_section(plan.cell), Section("Plan", (KeyValues(tuple(rows)),)))
    return [text for section in sections for text in section_lines(section)]


def plan_commands(plan: ComparePlanDocument) -> list[str]:
    """The exact commands of both sides, once where they are the same."""
    a, b = plan.commands
    if (a.serve, a.bench) == (b.serve, b.bench):
        return command_lines(a)
    return command_lines(a, " of a") + command_lines(b, " of b")


def _compare_plan_rows(plan: ComparePlanDocument) -> list[tuple[str, Inline]]:
    blocks = plan.forecast_blocks
    expected = f"more than {plan.most_launches} launches"
    if blocks is not None:
        expected = f"about {4 * blocks} launches, {minutes(plan.minutes_low * blocks)}"
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


def _change_plan_rows(plan: RunPlanDocument | CheckPlanDocument) -> list[tuple[str, Inline]]:
    unit, least = plan.metric.unit, plan.most_launches
    rows: list[tuple[str, Inline]] = [("change", change_text(plan.change))]
    if isinstance(plan, CheckPlanDocument) and plan.how != "save":
        least = 2
        if plan.line is not None:
            limit = (
                f", {percent(plan.limit, False)} worse than the baseline" if plan.how == "baseline" else ""
            )
            rows.append(("threshold", f"{with_unit(plan.line, unit)}{limit}"))
        rows += [("recorded", _recorded_text(level, unit)) for level in plan.recorded]
    rows += [("env", plan.environment), ("client", plan.client), ("launches", _launches_text(least, plan))]
    if isinstance(plan, CheckPlanDocument):
        rows.append(("budget", minutes(plan.budget_minutes)))
    return rows


def _launches_text(least: int, plan: LaunchPlanDocument) -> str:
    count = f"{least} to {plan.most_launches}" if least < plan.most_launches else f"{least}"
    spent = [minutes(value) for value in dict.fromkeys((plan.minutes_low, plan.minutes_high))]
    runs = counted(plan.runs_per_launch, "run")
    return f"{count}, {runs} each, {' to '.join(spent)}"


def _side_text(side: SideDocument) -> Inline:
    variant = f" served as {side.variant}" if side.variant else ""
    change = change_text(side.change)
    parts = change if isinstance(change, tuple) else (change,)
    return (*parts, f"{variant} (", code(side.typed), ")")


def _recorded_text(level: RecordedDocument, unit: str) -> str:
    return (
        f"{level.change.short}, {counted(level.launches, 'launch')} of {level.days} in job {level.job}, "
        f"{with_unit(level.value, unit)}"
    )
