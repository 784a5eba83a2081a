"""The report in Markdown, to paste into an issue. Everything that others wrote stands in code spans."""

from __future__ import annotations

from collections.abc import Iterable

from perfbisect.render.documents import (
    ChangeDocument,
    CommandsDocument,
    EffectDocument,
    LaunchDocument,
    ReportDocument,
    RunDocument,
)
from perfbisect.render.numbers import minutes, number, percent, probability, with_unit
from perfbisect.render.safe import block, code, line

_ACTIVE = frozenset("\\`*_[]<>#|@~$!&")


def markdown(report: ReportDocument) -> str:
    """The report of a bisection."""
    parts = [
        _head(report),
        _comparison(report),
        _guards(report),
        _measured(report),
        _launches(report.launches, report.metric.unit),
        _skips(report),
        _rest(report),
        _minutes(report.minutes.by_phase, report.minutes.total, report.minutes.lost),
        _reproduce(report.reproduce),
        _versions(report.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def run_markdown(document: RunDocument) -> str:
    """The report of ``perfbisect run``."""
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
        f"# perfbisect run: {_change(document.change)}",
        _cell(document.cell.rows),
        "## Measured\n\n" + _table(("metric", "", "median", "lowest", "highest", "within a run"), rows),
        _launches(document.launches, document.headline.unit),
        _minutes(document.minutes.by_phase, document.minutes.total, document.minutes.lost),
        _reproduce(document.reproduce),
        _versions(document.versions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(report: ReportDocument) -> str:
    out = [f"# perfbisect: {report.outcome}", ""]
    if report.culprit:
        out += [f"**Culprit:** {_change(report.culprit)}", ""]
        if report.culprit.author or report.culprit.date:
            out += [f"by {code(report.culprit.author)}, {code(report.culprit.date)}", ""]
    elif report.outcome == "found":
        out += ["**Culprit:** one of", "", *(f"- {_change(p.changes[0])}" for p in report.culprits), ""]
    if report.outcome == "found":
        same = [change for p in report.culprits for change in p.changes[1:]]
        if same:
            out += ["The same environment as it, so not to be told apart:", ""]
            out += [*(f"- {_change(change)}" for change in same), ""]
    out += [f"{_prose(text)}  " for text in report.sentences]
    return "\n".join(out).rstrip()


def _comparison(report: ReportDocument) -> str:
    rows = []
    for name, effect in (("A/B of culprit and parent", report.confirmed), ("bad against good", report.whole)):
        if effect is not None:
            rows.append(_effect_row(name, effect))
    if not rows:
        return ""
    share = (
        f"\n\nThe step is {percent(report.share, False)} of the whole change."
        if report.share is not None
        else ""
    )
    shown = f" P(culprit) = {probability(report.probability)}." if report.outcome == "found" else ""
    head = ("", "left", "right", "effect", "95 % interval", "launches a side")
    better = f"{code(report.metric.name)} ({report.metric.display}), {report.metric.direction} is better."
    return f"## Comparison\n\n{better}{shown}\n\n" + _table(head, rows) + share


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
    return "## Guards\n\n" + _table(("guard", "left", "right", "moved"), rows)


def _measured(report: ReportDocument) -> str:
    facts = [
        f"- range: {_change(report.good)} to {_change(report.bad)}: {report.changes} changes, "
        f"{report.positions} different environments",
        f"- environment {code(report.environment)}, client {code(report.client)}",
    ]
    if report.repository:
        facts.append(f"- repository {code(report.repository)}")
    facts += [f"- {_prose(text)}" for text in report.told]
    return _cell(report.cell.rows) + "\n\n" + "\n".join(facts)


def _cell(rows: Iterable[tuple[str, str]]) -> str:
    return "## What was measured\n\n" + _table(("", ""), ((label, code(value)) for label, value in rows))


def _launches(launches: Iterable[LaunchDocument], unit: str) -> str:
    rows = [
        (
            str(x.number),
            code(x.change.short),
            x.purpose,
            with_unit(x.value, unit) if x.value is not None else x.outcome,
            " ".join(number(v) for v in x.values) or code(x.reason or "-"),
            minutes(x.minutes),
            x.started_at[:19],
        )
        for x in launches
    ]
    if not rows:
        return ""
    head = ("#", "change", "for", "value", "runs", "took", "began (UTC)")
    return "## Every launch\n\n" + _table(head, rows)


def _skips(report: ReportDocument) -> str:
    if not report.skips:
        return ""
    rows = (
        (_change(skip.change), code(skip.reason), "beforehand" if skip.known == "before" else "when tried")
        for skip in report.skips
    )
    return "## Skipped\n\n" + _table(("change", "why", "known"), rows)


def _rest(report: ReportDocument) -> str:
    out = []
    if report.not_tested:
        out += [f"## Not tested ({len(report.not_tested)})", ""]
        out += [
            "Not launched: nothing that would have told more per minute.",
            "",
        ]
        out += _folded([f"- {_change(change)}" for change in report.not_tested])
    if report.merged:
        out += ["", "## Same environment as a neighbour", ""]
        out += _folded([f"- {', '.join(code(c.short) for c in p.changes)}" for p in report.merged])
    return "\n".join(out).strip()


def _folded(rows: list[str]) -> list[str]:
    if len(rows) <= 12:
        return rows
    return [f"<details><summary>{len(rows)} changes</summary>", "", *rows, "", "</details>"]


def _minutes(phases: dict[str, float], total: float, lost: float) -> str:
    rows = [(phase, minutes(spent)) for phase, spent in phases.items()]
    rows += [("lost to failures that are no evidence", minutes(lost))] if lost else []
    return "## Where the minutes went\n\n" + _table(("phase", "time"), [*rows, ("all", minutes(total))])


def _reproduce(commands: CommandsDocument) -> str:
    text = f"# serve {commands.change}\n{commands.serve}\n# bench\n{commands.bench}"
    if commands.perfbisect:
        text += f"\n# or all of it\n{commands.perfbisect}"
    return f"## Reproduce with\n\n{block(text, 'sh')}\n\n{_prose(commands.note)}."


def _versions(versions: dict[str, object]) -> str:
    rows = []
    for name, value in versions.items():
        if not value:
            continue
        if isinstance(value, dict):
            rows += [(f"{name}: {line(str(key))}", code(str(item))) for key, item in value.items() if item]
        else:
            shown = ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
            rows.append((name, code(shown)))
    return "## Versions\n\n" + _table(("", ""), rows)


def _change(change: ChangeDocument) -> str:
    return f"{code(change.short)} {code(change.subject)}" if change.subject else code(change.short)


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value, False)


def _prose(text: str) -> str:
    """A sentence of ours with names of others in it: nothing in it acts as markup."""
    return "".join(f"&#{ord(c)};" if c in _ACTIVE else c for c in line(text, 1000))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*out, *("| " + " | ".join(row) + " |" for row in rows)])
