"""The report of a bisection: one description for terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from perfbisect.bisect.documents import EffectDocument, ReportDocument
from perfbisect.bisect.figures import PHASES, Plot, effect_rows, plots
from perfbisect.common.numbers import minutes, number, percent, probability, with_unit
from perfbisect.jobs.documents import ChangeDocument, LaunchDocument
from perfbisect.report.document import (
    Block,
    Code,
    Column,
    Command,
    Figure,
    Inline,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Span,
    Table,
    Tone,
    Verdict,
    code,
    strong,
)
from perfbisect.report.sections import version_rows

_TONES: Final[Mapping[str, Tone]] = {"found": "bad", "not reproduced": "good", "unfinished": "neutral"}

_MEANINGS: Final[Mapping[str, str]] = {
    "found": (
        "The metric moves at this change: launches before it are at one level, launches from it on at "
        "another, and an A/B of it and its parent, measured for this verdict alone, agrees."
    ),
    "not reproduced": (
        "The two ends measure alike: on this machine good and bad do not differ by a relevant amount. The "
        "difference has another origin, or this cell does not show it."
    ),
    "too small": (
        "There may be a difference, but launches of one change differ by as much: naming a change would be "
        "guessing."
    ),
    "out of budget": (
        "The budget ended first, and no change stands out yet. Every launch is kept; with more minutes the "
        "search continues from here."
    ),
    "inconclusive": (
        "The launches were chosen for another metric and do not settle this one. The summary says what the "
        "remaining launches would cost."
    ),
    "unfinished": "The job is under way or was interrupted, and can be resumed.",
}

_CAPTIONS: Final[Mapping[str, str]] = {
    "by-commit": (
        "Above: the posterior probability of each commit. Below: every launch, with its runs as dashes; "
        "hollow before the step, filled from it on; dotted lines are the medians of each level. Point at a "
        "mark to read it; drag to enlarge, double-click to go back."
    ),
    "by-time": (
        "The same launches in the order of time, and their distance from their level: drift of the machine "
        "shows as a slope, a slot of another speed as a line of its own."
    ),
    "pairs": "The A/B of parent and culprit: consecutive launches, joined.",
    "effects": "Effects with their 95 % intervals; grey: below the smallest relevant effect.",
    "phases": "Minutes of each launch by phase.",
}


def build_report(document: ReportDocument) -> Report:
    """The report of a bisection, finished or not."""
    drawn = plots(document)
    sections = [
        Section("Culprit", tuple(_culprit(document)), detail=True),
        Section("Steps", tuple(_steps(document)), detail=True),
        *_figure_sections(drawn),
        Section("Comparisons", tuple(_comparisons(document, drawn)), detail=True),
        Section("Changes that only the good end has", tuple(_cherry_picks(document)), detail=True),
        Section("What the engines' logs say differently", tuple(_log_differences(document))),
        Section("Guards", tuple(_guards(document)), detail=not any(x.moved for x in document.guards)),
        Section("Where the minutes went", tuple(_minutes(document, drawn)), detail=True),
        Section("Every launch", tuple(_launches(document)), detail=True),
        Section(f"Skipped ({len(document.skips)})", tuple(_skips(document)), detail=True),
        Section(f"Not tested ({len(document.not_tested)})", tuple(_not_tested(document)), detail=True),
        Section("Same environment as a neighbour", tuple(_merged(document)), detail=True),
        Section("What was measured", tuple(_measured(document)), detail=True),
        Section("Reproduce with", tuple(_reproduce(document)), detail=True),
        Section("Versions", (_code_rows(version_rows(document.versions)),), detail=True),
    ]
    return Report(
        title=f"Bisection of {document.cell.name}, {document.metric.display}",
        verdict=Verdict(document.outcome, _TONES.get(document.outcome, "open")),
        blocks=tuple(_summary(document)),
        sections=tuple(section for section in sections if section.blocks),
        highlights=tuple(_highlights(document)),
        footer=(
            f"Made by perfbisect {document.versions.get('perfbisect', '')} from the journal in "
            f"{document.folder}."
        ),
    )


def _summary(document: ReportDocument) -> Iterator[Block]:
    if document.culprit:
        yield Paragraph((strong("Culprit:"), " ", *_change(document.culprit)))
    elif document.outcome == "found":
        yield Paragraph(f"One of {len(document.culprits)} changes that cannot be told apart:")
        yield Items(tuple(_change(position.changes[0]) for position in document.culprits))
    yield from (Paragraph(text) for text in document.summary)
    saved = f", {minutes(document.minutes.saved)} saved by overlap" if document.minutes.saved else ""
    yield Paragraph(
        f"{len(document.launches)} launches, {minutes(document.minutes.total)}{saved}; "
        f"{len(document.skips)} skipped, {len(document.not_tested)} not tested"
    )
    yield Paragraph(("report: ", code(f"{document.folder}/report.md"), ", report.html"))
    if document.next:
        yield Command(document.next)


def _highlights(document: ReportDocument) -> Iterator[tuple[str, str]]:
    """The few numbers that stand first, with their meaning."""
    effect = document.confirmed or document.whole
    if effect is not None:
        which = "A/B of parent and culprit" if document.confirmed else "bad against good"
        yield percent(effect.effect), f"{which}; 95 %: {_interval(effect)}"
    if document.outcome == "found":
        yield probability(document.probability), "probability, given the model; at most 0.99"
    elif document.beliefs is not None:
        yield probability(document.beliefs.none), "probability that nothing changed"
    if document.share is not None:
        yield percent(document.share, False), "of the whole change is this step"
    left = f"{len(document.skips)} skipped, {len(document.not_tested)} not tested"
    yield str(len(document.launches)), f"launches over {document.positions} environments; {left}"
    saved = f"; {minutes(document.minutes.saved)} saved by overlap" if document.minutes.saved else ""
    yield minutes(document.minutes.total), f"of a budget of {minutes(document.minutes.budget)}{saved}"


def _culprit(document: ReportDocument) -> Iterator[Block]:
    yield Paragraph(_MEANINGS[document.outcome], quiet=True)
    if document.culprit:
        rows = (("commit", document.culprit.id), ("author", document.culprit.author))
        yield _code_rows([*rows, ("date", document.culprit.date)])
    same = [change for position in document.culprits for change in position.changes[1:]]
    if document.outcome == "found" and same:
        yield Paragraph("Its environment is also that of these changes, so they cannot be told apart:")
        yield Items(tuple(map(_change, same)))


def _steps(document: ReportDocument) -> Iterator[Block]:
    if document.steps:
        yield _table(
            ("change", "P*", "effect*", "95 % interval*", "launches a side*"),
            (
                (
                    _join(" or ", (_change(position.changes[0]) for position in step.culprits)),
                    probability(step.probability),
                    percent(step.confirmed.effect),
                    _interval(step.confirmed),
                    str(step.confirmed.launches),
                )
                for step in document.steps
            ),
        )


def _figure_sections(drawn: Mapping[str, Plot]) -> Iterator[Section]:
    for name, title in (("by-commit", "By commit"), ("by-time", "By time")):
        if name in drawn:
            yield Section(title, (Figure(name, _CAPTIONS[name], drawn[name]),), detail=True)


def _comparisons(document: ReportDocument, drawn: Mapping[str, Plot]) -> Iterator[Block]:
    rows = effect_rows(document)
    if rows:
        metric = document.metric
        relevant = f"{percent(metric.smallest_effect, False)} is the smallest relevant effect"
        yield Paragraph(
            (code(metric.name), f" ({metric.display}), {metric.direction} is better; {relevant}."), quiet=True
        )
        yield from (
            Figure(name, _CAPTIONS[name], drawn[name]) for name in ("pairs", "effects") if name in drawn
        )
        yield _table(
            ("", "left", "right", "effect*", "95 % interval*", "launches a side*"),
            (
                (
                    name,
                    code(effect.left.short),
                    code(effect.right.short),
                    percent(effect.effect),
                    _interval(effect),
                    str(effect.launches),
                )
                for name, effect in rows
            ),
        )
    if document.revert_note:
        yield Paragraph(f"Revert check: {document.revert_note}")


def _cherry_picks(document: ReportDocument) -> Iterator[Block]:
    if document.cherry_picks:
        yield Paragraph(
            "The good end is no ancestor of the bad one, and the step is between it and the commit where the "
            "two lines part.",
            quiet=True,
        )
        yield Items(tuple(map(_change, document.cherry_picks)))


def _log_differences(document: ReportDocument) -> Iterator[Block]:
    if document.log_differences:
        yield Paragraph(
            "At parent and culprit, as the engines started; noise between starts is left out.", True
        )
        rows = ((code(fact), code(parent), code(own)) for fact, parent, own in document.log_differences)
        yield _table(("", "parent", "culprit"), rows)


def _guards(document: ReportDocument) -> Iterator[Block]:
    if document.guards:
        yield _table(
            ("guard", "left*", "right*", "moved"),
            (
                (
                    (f"{guard.display} ", code(guard.name)),
                    with_unit(guard.left, guard.unit),
                    with_unit(guard.right, guard.unit),
                    (
                        strong("moved") if guard.moved else "no",
                        f" ({guard.note})" if guard.note else "",
                    ),
                )
                for guard in document.guards
            ),
        )


def _minutes(document: ReportDocument, drawn: Mapping[str, Plot]) -> Iterator[Block]:
    spent = document.minutes
    if "phases" in drawn:
        yield Figure("phases", _CAPTIONS["phases"], drawn["phases"])
    rows = [
        (PHASES.get(phase, phase), minutes(taken), percent(taken / spent.total, False) if spent.total else "")
        for phase, taken in spent.by_phase.items()
    ]
    if spent.lost:
        rows.append(("lost to failures that are no evidence", minutes(spent.lost), ""))
    rows.append((f"all, of a budget of {minutes(spent.budget)}", minutes(spent.total), ""))
    if spent.saved:
        rows.append(("saved, since work overlapped", minutes(spent.saved), ""))
    yield _table(("phase", "time*", "share*"), rows)


def _launches(document: ReportDocument) -> Iterator[Block]:
    launches = document.launches
    if not launches:
        return
    slots = len({launch.slot for launch in launches}) > 1
    culprit = document.culprit.id if document.culprit else ""
    titles = ("#*", "change", "for", *(("slot",) if slots else ()), "value*", "runs", "took*")
    table = _table(
        (*titles, "began (UTC)", "why"),
        (
            (
                str(launch.number),
                code(launch.change.short),
                launch.purpose,
                *((code(launch.slot),) if slots else ()),
                launch.outcome if launch.value is None else with_unit(launch.value, document.metric.unit),
                _runs(launch),
                minutes(launch.minutes),
                launch.started_at[:19],
                launch.why,
            )
            for launch in launches
        ),
    )
    marked = frozenset(i for i, launch in enumerate(launches) if launch.change.id == culprit)
    yield Table(table.columns, table.rows, marked)


def _runs(launch: LaunchDocument) -> Inline:
    values = " ".join(number(value) for value in launch.values)
    return (values or code(launch.reason or "-"), *(f"; {text}" for text in launch.warnings))


def _skips(document: ReportDocument) -> Iterator[Block]:
    if document.skips:
        known = {"before": "beforehand", "measured": "when tried"}
        rows = ((_change(skip.change), code(skip.reason), known[skip.known]) for skip in document.skips)
        yield _table(("change", "why", "known"), rows)


def _not_tested(document: ReportDocument) -> Iterator[Block]:
    if document.not_tested:
        yield Paragraph("Not launched, since other launches were more informative per minute.", quiet=True)
        yield Items(tuple(map(_change, document.not_tested)))


def _merged(document: ReportDocument) -> Iterator[Block]:
    if document.merged:
        yield Items(
            tuple(
                _join(", ", ((code(change.short),) for change in position.changes))
                for position in document.merged
            )
        )


def _measured(document: ReportDocument) -> Iterator[Block]:
    ends = (*_change(document.good), " to ", *_change(document.bad))
    counts = f": {document.changes} changes, {document.positions} different environments"
    rows: list[tuple[str, Inline]] = [("job", code(document.job))]
    rows += [(label, code(value)) for label, value in document.cell.rows]
    rows += [("range", (*ends, counts)), ("environment", code(document.environment))]
    rows.append(("client", code(document.client)))
    if document.repository:
        rows.append(("repository", code(document.repository)))
    yield KeyValues(tuple(rows))
    if document.notes:
        yield Items(document.notes)


def _reproduce(document: ReportDocument) -> Iterator[Block]:
    commands = document.reproduce
    text = f"# serve {commands.change}\n{commands.serve}\n# bench\n{commands.bench}"
    if commands.perfbisect:
        text += f"\n# or all of it\n{commands.perfbisect}"
    yield Code(text)
    yield Paragraph(f"{commands.note}.", quiet=True)


def _change(change: ChangeDocument) -> tuple[str | Span, ...]:
    return (code(change.short), " ", code(change.subject)) if change.subject else (code(change.short),)


def _interval(effect: EffectDocument) -> str:
    return f"{percent(effect.low)} to {percent(effect.high)}"


def _join(separator: str, items: Iterable[tuple[str | Span, ...]]) -> tuple[str | Span, ...]:
    joined: list[str | Span] = []
    for item in items:
        joined += [*([separator] if joined else []), *item]
    return tuple(joined)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[Inline, ...]]) -> Table:
    """``titles`` that end with ``*`` are those of numbers."""
    return Table(tuple(Column(title.rstrip("*"), title.endswith("*")) for title in titles), tuple(rows))


def _code_rows(rows: Iterable[tuple[str, str]]) -> KeyValues:
    return KeyValues(tuple((label, code(value)) for label, value in rows if value))
