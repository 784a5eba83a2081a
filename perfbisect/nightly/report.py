"""The report of a night."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from perfbisect.common.quantities import counted, minutes, probability, with_unit
from perfbisect.nightly.model import (
    Night,
    NightBisection,
    NightCell,
    NightProfile,
    new_regressions,
)
from perfbisect.report.document import (
    Block,
    Command,
    Inline,
    Items,
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
from perfbisect.report.sections import change_text
from perfbisect.series.alerts import Alert
from perfbisect.series.detect import size_text
from perfbisect.series.nightly_report import RULE, issue_table
from perfbisect.series.outcomes import OutcomeCommit, outcome_text

_MAX_EVIDENCE = 3
_MAX_NAMES = 5
_CHAT_SIGNS = str.maketrans({"`": "'", "<": "\u2039", ">": "\u203a"})  # Slack reads <!channel> in code, too
_CHANGE_ORDER = ("opened", "reopened", "closed", "updated")
_CELL_TITLES = ("Cell", "State", "Metric", "Value*", "Launches*", "Minutes*", "Note")


def night_report(night: Night, *, paths: bool = False) -> Report:
    """Describe a night, findings first; of a dry run, its plan. ``paths``: list the local files."""
    failures = tuple((code(name), ": ", code(reason)) for name, reason in night.failed())
    levels = (issue_table(night.rows), Paragraph(RULE, quiet=True))
    files = tuple((kind, code(path)) for kind, path in night.files.items())
    sections = (
        Section("Notes", (Items(night.notes),) if night.notes else ()),
        Section("Alerts", tuple(_alert_blocks(night))),
        Section("Commits", tuple(_bisection_blocks(night))),
        Section("Series at a new level", levels if night.rows else (), detail=True),
        Section("Failures", (Items(failures),) if failures else ()),
        Section("Cells", (_cell_table(night),)),
        Section("Files", (KeyValues(files),) if paths and files else ()),
        Section("Next", (Command(night.next, "run"),) if night.next else ()),
    )
    return Report(
        title=f"Nightly {night.name} of {night.began[:10]}",
        verdict=night_verdict(night),
        blocks=(KeyValues(tuple(_facts(night))),),
        sections=tuple(section for section in sections if section.blocks),
    )


def night_verdict(night: Night) -> Verdict:
    """The outcome in a few words: findings, failures, and findings of earlier nights that remain."""
    if night.dry_run:
        refused = len(night.failed())
        text = f"; {counted(refused, 'cell')} cannot be measured" if refused else ""
        return Verdict(f"dry run, nothing was started{text}", "open" if refused else "neutral")
    tone: Tone = "open" if night.failed() or night.exit_code else "good"
    if new_regressions(night.alerts):
        tone = "bad"
    remaining = {alert.event for alert in night.alerts if alert.change == "updated" and alert.counts}
    words = ", ".join(_news(night))
    if not words:
        measured = [cell for cell in night.cells if cell.state == "measured"]
        is_blind = measured and all(cell.too_few_nights is not None for cell in measured)
        words = "too few nights to judge" if is_blind else "nothing new"
    if remaining:
        words += f"; {counted(len(remaining), 'finding')} of earlier nights remaining"
    return Verdict(words, tone)


def _news(night: Night) -> Iterator[str]:
    new = [alert for alert in night.alerts if alert.counts and alert.is_opened]
    resolved = {alert.event for alert in night.alerts if alert.change == "closed" and alert.worse}
    counts = (
        (len({alert.event for alert in new if alert.worse}), "regression", ""),
        (len({alert.event for alert in new if not alert.worse}), "improvement", ""),
        (sum(bisection.culprit is not None for bisection in night.bisections), "commit", " named"),
        (sum(bool(bisection.candidates) for bisection in night.bisections), "range", " narrowed"),
        (len(resolved), "regression", " resolved"),
        (sum(cell.state == "failed" for cell in night.cells), "cell", " failed"),
    )
    yield from (counted(count, noun) + state for count, noun, state in counts if count)
    failed_steps = [step.name for step in night.steps if step.state == "failed"]
    if failed_steps:
        yield f"{' and '.join(failed_steps)} failed"


def _facts(night: Night) -> Iterator[tuple[str, Inline]]:
    states = Counter(cell.state for cell in night.cells)
    estimated = "about " if night.dry_run else ""
    rows = {
        "nightly": night.name,
        "commit": f"{night.commit.short} {night.commit.subject}".strip(),
        "branch": night.branch,
        "engine": night.engine_version,
        "hardware": night.hardware,
        "cells": ", ".join(f"{count} {state}" for state, count in states.items()),
        "time": f"{estimated}{minutes(night.minutes)} of {minutes(night.budget_minutes)}",
        "began": night.began[:19],
        "seed": str(night.seed),
    }
    return ((name, code(value)) for name, value in rows.items() if value)


def _alert_blocks(night: Night) -> Iterator[Block]:
    """Each event once, by its largest finding: new ones first."""
    events: dict[tuple[str, str], list[Alert]] = {}
    for alert in night.alerts:
        events.setdefault((alert.event, alert.change), []).append(alert)
    ordered = [sorted(alerts, key=_rank) for alerts in events.values()]
    for first, *others in sorted(ordered, key=lambda a: (_CHANGE_ORDER.index(a[0].change), _rank(a[0]))):
        yield Paragraph(_alert_text(first, others))
        evidence = first.evidence[:_MAX_EVIDENCE]
        if evidence and first.change != "updated":
            yield Items(evidence)


def _rank(alert: Alert) -> tuple[bool, bool, float, str]:
    return not alert.counts, not alert.worse, -alert.size, alert.id


def _alert_text(alert: Alert, others: Sequence[Alert]) -> Inline:
    """Describe an event by its largest alert; ``others``: of the same event."""
    marks = [f"since {alert.first[:10]}", f"{alert.cause}, {alert.shape}"]
    if others:
        cells = len({alert.cell, *(other.cell for other in others)})
        more = counted(len(others), "more series")
        marks.append(f"{more}, {cells} cells in all" if cells > 1 else more)
    if alert.recovered:
        marks.append("recovered")
    if alert.is_opened and not alert.counts:
        marks.append("no finding by the rules")
    state = "remaining" if alert.change == "updated" else alert.change
    measured = next((of.measured for of in (alert, *others) if of.measured), None)
    return (
        f"{state}: {size_text(alert.effect)} of ",
        code(alert.metric),
        " in ",
        code(alert.cell),
        f", {'worse' if alert.worse else 'better'}; {'; '.join(marks)} (",
        code(alert.event),
        ")",
        *((": ", *outcome_text(measured)) if measured else ()),
    )


def finding_texts(night: Night) -> Iterator[str]:
    """A sentence for each event that is new, whose commit was named or narrowed, or that is resolved: cell,
    metric, size, commit."""
    named = {of.event: _bisected_text(of) for of in night.bisections if of.culprit or of.candidates}
    cells = {of.event: f"{of.metric} in {_chat_code(of.cell)}" for of in night.bisections}
    events: dict[str, list[Alert]] = {}
    for alert in sorted(night.alerts, key=_rank):
        is_new, is_resolved = alert.is_opened and alert.counts, alert.change == "closed" and alert.worse
        if is_new or is_resolved or alert.event in named:
            events.setdefault(alert.event, []).append(alert)
    for event, alerts in events.items():
        first, others = alerts[0], len({alert.cell for alert in alerts}) - 1
        state = "resolved" if first.change == "closed" else "worse" if first.worse else "better"
        text = f"{state}: {size_text(first.effect)} of {first.metric} in {_chat_code(first.cell)}"
        text += f" and {counted(others, 'more cell')}" * (others > 0) + f", since {first.first[:10]}"
        measured = next((alert.measured for alert in alerts if alert.measured), None)
        earlier = _commits_text(measured.commits, measured.probability) if measured else ""
        yield text + named.pop(event, earlier)
    for event, commits in named.items():
        yield cells[event] + commits


def _bisected_text(bisection: NightBisection) -> str:
    culprit, p = bisection.culprit, bisection.probability
    if culprit is not None:
        return _commits_text([OutcomeCommit.of(culprit, p)], p)
    candidates = bisection.candidates
    return _commits_text([OutcomeCommit.of(x.position.changes[0], x.probability) for x in candidates], p)


def _commits_text(commits: Sequence[OutcomeCommit], p: float) -> str:
    """The commit that was named, or those of which one made the step."""
    first, *others = commits
    if not others:
        name = _chat_code(f"{first.short} {first.subject}".strip())
        return f"; commit {name} (probability {probability(p)})"
    names = ", ".join(f"{_chat_code(of.short)} {probability(of.probability)}" for of in commits[:_MAX_NAMES])
    left = len(commits) - _MAX_NAMES
    more = f" and {left} more" if left > 0 else ""
    return f"; one of {len(commits)} commits (probability {probability(p)}): {names}{more}"


def _chat_code(text: str) -> str:
    """Foreign text as a code span of a chat, in which no mention, link or tag acts."""
    return f"`{text.translate(_CHAT_SIGNS)}`"


def _bisection_blocks(night: Night) -> Iterator[Block]:
    for bisection in night.bisections:
        culprit = bisection.culprit
        if bisection.candidates:
            names = [change_text(x.position.changes[0]) for x in bisection.candidates]
            rows = zip(names, (probability(x.probability) for x in bisection.candidates), strict=True)
            chance = (
                f": one of {len(names)}, probability {probability(bisection.probability)}; {bisection.why}"
            )
            yield Paragraph((code(bisection.event), chance))
            yield make_table(("P*", "commit"), ((p, name) for name, p in rows))
        elif culprit is None:
            yield Paragraph((code(bisection.event), f": {bisection.state}: {bisection.why}"))
        else:
            name = f"{culprit.short} {culprit.subject}".strip()
            chance = f" (probability {probability(bisection.probability)}; {bisection.why})"
            yield Paragraph((code(bisection.event), ": ", code(name), chance))
        details: list[Inline] = [*bisection.summary[:_MAX_EVIDENCE], *bisection.phases]
        if bisection.profile is not None:
            details.append(_profile_text(bisection.profile))
        if bisection.good and bisection.bad:
            window = ("good ", code(bisection.good[:12]), ", bad ", code(bisection.bad[:12]))
            count = f", {counted(bisection.commits, 'commit')}"
            details.append((*window, count, *((", job ", code(bisection.job)) if bisection.job else ())))
        if details:
            yield Items(tuple(details))


def _profile_text(profile: NightProfile) -> Inline:
    """The result of a profile with the command that reads it, or why there is none and the one to type."""
    if profile.sentence:
        return (f"Profile: {profile.sentence} ", code(profile.next))
    return (f"Not profiled: {profile.why}. ", code(profile.next))


def _cell_table(night: Night) -> Table:
    """The cells by their first launch, then those without one; on a fleet with the machine of each."""
    on_fleet = any(cell.machine for cell in night.cells)
    place = {name: index for index, name in enumerate(night.order)}
    cells = sorted(night.cells, key=lambda cell: (place.get(cell.name, len(place)), cell.name))
    rows = ((*_cell_row(cell), *((code(cell.machine),) if on_fleet else ())) for cell in cells)
    return make_table((*_CELL_TITLES, "Machine") if on_fleet else _CELL_TITLES, rows)


def _cell_row(cell: NightCell) -> tuple[Inline, ...]:
    is_planned = cell.state == "planned"
    return (
        code(cell.name),
        cell.state,
        cell.metric,
        "" if cell.value is None else with_unit(cell.value, cell.unit),
        str(cell.wanted) if is_planned else f"{cell.launches} of {cell.wanted}",
        f"{cell.expected if is_planned else cell.minutes:.1f}",
        code(cell.forecast_basis if is_planned else cell.reason),
    )
