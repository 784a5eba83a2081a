"""The report in Markdown, to paste into an issue. Everything that others wrote stands in code spans."""

from __future__ import annotations

from perfbisect.common.numbers import percent, probability, with_unit
from perfbisect.common.text import code
from perfbisect.jobs.documents import EffectDocument, ReportDocument
from perfbisect.report.markdown_text import (
    cell_table,
    change,
    folded,
    launch_table,
    minutes_table,
    prose,
    reproduce,
    table,
    version_table,
)
from perfbisect.report.rows import effect_rows


def markdown(report: ReportDocument) -> str:
    """The report of a bisection."""
    parts = [
        _head(report),
        _comparison(report),
        _steps(report),
        _aside(report),
        _logs(report),
        _guards(report),
        _measured(report),
        launch_table(report.launches, report.metric.unit),
        _skips(report),
        _rest(report),
        _spent(report),
        reproduce(report.reproduce),
        version_table(report.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: ReportDocument) -> str:
    out = [f"# perfbisect: {report.outcome}", ""]
    if report.culprit:
        out += [f"**Culprit:** {change(report.culprit)}", ""]
        if report.culprit.author or report.culprit.date:
            out += [f"by {code(report.culprit.author)}, {code(report.culprit.date)}", ""]
    elif report.outcome == "found":
        out += ["**Culprit:** one of", "", *(f"- {change(p.changes[0])}" for p in report.culprits), ""]
    if report.outcome == "found":
        same = [one for p in report.culprits for one in p.changes[1:]]
        if same:
            out += ["The same environment as it, so not to be told apart:", ""]
            out += [*(f"- {change(one)}" for one in same), ""]
    out += [f"{prose(text)}  " for text in report.sentences]
    return "\n".join(out).rstrip()


def _comparison(report: ReportDocument) -> str:
    rows = [_effect_row(prose(name), effect) for name, effect in effect_rows(report)]
    note = f"Revert check: {prose(report.revert_note)}" if report.revert_note else ""
    if not rows:
        return f"## Comparison\n\n{note}" if note else ""
    share = (
        f"\n\nThe step is {percent(report.share, False)} of the whole change."
        if report.share is not None
        else ""
    )
    shown = f" P(culprit) = {probability(report.probability)}." if report.outcome == "found" else ""
    head = ("", "left", "right", "effect", "95 % interval", "launches a side")
    better = f"{code(report.metric.name)} ({report.metric.display}), {report.metric.direction} is better."
    return (
        f"## Comparison\n\n{better}{shown}\n\n" + table(head, rows) + share + (f"\n\n{note}" if note else "")
    )


def _effect_row(name: str, effect: EffectDocument) -> tuple[str, ...]:
    between = f"{percent(effect.low)} to {percent(effect.high)}"
    return (
        name,
        code(effect.left.short),
        code(effect.right.short),
        percent(effect.effect),
        between,
        str(effect.launches),
    )


def _steps(report: ReportDocument) -> str:
    if not report.steps:
        return ""
    rows = (
        (
            " or ".join(change(position.changes[0]) for position in step.culprits),
            probability(step.probability),
            percent(step.confirmed.effect),
            f"{percent(step.confirmed.low)} to {percent(step.confirmed.high)}",
        )
        for step in report.steps
    )
    return "## Steps\n\n" + table(("change", "P", "effect", "95 % interval"), rows)


def _aside(report: ReportDocument) -> str:
    if not report.cherry_picks:
        return ""
    listed = folded([f"- {change(picked)}" for picked in report.cherry_picks])
    return "\n".join(["## Changes that only the good end has", "", *listed])


def _logs(report: ReportDocument) -> str:
    if not report.log_differences:
        return ""
    rows = ((code(fact), code(left), code(right)) for fact, left, right in report.log_differences)
    head = "## What the engines' logs say differently\n\n"
    return head + table(("", "parent", "culprit"), rows)


def _guards(report: ReportDocument) -> str:
    if not report.guards:
        return ""
    rows = (
        (
            code(g.name),
            with_unit(g.left, g.unit),
            with_unit(g.right, g.unit),
            ("**moved**" if g.moved else "no") + (f" ({g.note})" if g.note else ""),
        )
        for g in report.guards
    )
    return "## Guards\n\n" + table(("guard", "left", "right", "moved"), rows)


def _measured(report: ReportDocument) -> str:
    facts = [
        f"- range: {change(report.good)} to {change(report.bad)}: {report.changes} changes, "
        f"{report.positions} different environments",
        f"- environment {code(report.environment)}, client {code(report.client)}",
    ]
    if report.repository:
        facts.append(f"- repository {code(report.repository)}")
    facts += [f"- {prose(text)}" for text in report.told]
    return cell_table(report.cell.rows) + "\n\n" + "\n".join(facts)


def _skips(report: ReportDocument) -> str:
    if not report.skips:
        return ""
    rows = (
        (change(skip.change), code(skip.reason), "beforehand" if skip.known == "before" else "when tried")
        for skip in report.skips
    )
    return "## Skipped\n\n" + table(("change", "why", "known"), rows)


def _rest(report: ReportDocument) -> str:
    out = []
    if report.not_tested:
        out += [f"## Not tested ({len(report.not_tested)})", ""]
        out += [
            "Not launched: nothing that would have told more per minute.",
            "",
        ]
        out += folded([f"- {change(one)}" for one in report.not_tested])
    if report.merged:
        out += ["", "## Same environment as a neighbour", ""]
        out += folded([f"- {', '.join(code(c.short) for c in p.changes)}" for p in report.merged])
    return "\n".join(out).strip()


def _spent(document: ReportDocument) -> str:
    spent = document.minutes
    return minutes_table(spent.by_phase, spent.total, spent.lost, spent.saved)
