"""The report of a bisection: one description for terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from perfbisect.bisect.documents import EffectDocument, PositionDocument, ReportDocument
from perfbisect.bisect.figures import plots
from perfbisect.common.quantities import counted, minutes, percent, probability, spent_text, with_unit
from perfbisect.jobs.documents import ChangeDocument
from perfbisect.report.document import (
    Block,
    Command,
    Figure,
    Inline,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Span,
    Tone,
    Verdict,
    code,
    make_table,
    parts_of,
    strong,
)
from perfbisect.report.phases import phases_paragraph, phases_section
from perfbisect.report.plots import Plot
from perfbisect.report.sections import (
    cell_section,
    change_text,
    launch_section,
    minutes_section,
    reproduce_section,
    version_section,
)

_TONES: Final[Mapping[str, Tone]] = {"found": "bad", "not reproduced": "good", "unfinished": "neutral"}

_MEANINGS: Final[Mapping[str, str]] = {
    "found": (
        "The metric moves at this change: launches before it are at one level, launches from it on at "
        "another, and an A/B of it and its parent, measured for this verdict alone, agrees."
    ),
    "narrowed": (
        "An A/B confirmed a step, and more launches of these builds do not tell which of a few commits made "
        "it: builds of one commit may be faster or slower than those of another by themselves, or only some "
        "launches are slow. The commits hold 95 % of the step's probability, by the model that decides."
    ),
    "not reproduced": (
        "The two ends measure alike: on this machine good and bad do not differ by a relevant amount. The "
        "difference has another origin, or this cell does not show it."
    ),
    "too small": (
        "There may be a difference, but launches of one change differ by as much: naming a change would be "
        "guessing."
    ),
    "gradual": (
        "The metric moves a little at many changes: launches between the ends lie on a slope, and no single "
        "commit is to blame."
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

_NO_SINGLE_CHANGE: Final = (
    "An A/B confirmed that two neighbouring builds differ, and launches leave open whether a change made it "
    "or the builds differ by themselves: naming a change would be guessing."
)
"""What ``too small`` means where an A/B confirmed a difference."""

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
}


_ON_BRANCH = (
    "The good end is no ancestor of the bad one, and the step is between it and the commit where the two "
    "lines part."
)
_MACHINES = (
    "Offset: by how much the metric is larger than on the middle machine, for any change. The search "
    "takes it off. Launches of a machine that is out of use do not count."
)
_LOGS = "At parent and culprit, as the engines started; noise between starts is left out."
_NOT_TESTED = "Not launched, since other launches were more informative per minute."
_KNOWN = {"before": "beforehand", "measured": "when tried"}


def build_report(document: ReportDocument) -> Report:
    """The report of a bisection, finished or not."""
    drawn = plots(document)
    details: Mapping[str, Iterable[Block]] = {
        "Culprit": _culprit(document),
        "Steps": _steps(document),
        "By commit": _figures(drawn, "by-commit"),
        "By time": _figures(drawn, "by-time"),
        "Comparisons": _comparisons(document, drawn),
        "Machines": _machines(document),
        "Changes that only the good end has": _listed(_ON_BRANCH, document.cherry_picks),
        "What the engines' logs say differently": _tabled(
            ("", "parent", "culprit"), (tuple(map(code, row)) for row in document.log_differences), _LOGS
        ),
        "Guards": _guards(document),
        f"Skipped ({len(document.skips)})": _tabled(
            ("change", "why", "known"),
            ((change_text(x.change), code(x.reason), _KNOWN[x.known]) for x in document.skips),
        ),
        f"Not tested ({len(document.not_tested)})": _listed(_NOT_TESTED, document.not_tested),
        "Same environment as a neighbour": _merged(document.merged),
    }
    shown = {"What the engines' logs say differently"}
    shown |= {"Guards"} if any(guard.moved for guard in document.guards) else set()
    shown |= {"Machines"} if any(machine.out_of_use for machine in document.machines) else set()
    culprit = document.culprit.id if document.culprit else ""
    phases = phases_section(document.phases if document.outcome == "found" else None)
    sections = (
        *(Section(title, tuple(blocks), title not in shown) for title, blocks in details.items()),
        phases,
        minutes_section(document.minutes),
        launch_section(document.launches, document.metric.unit, culprit),
        cell_section(document.cell, document.notes, _setting_rows(document)),
        reproduce_section([document.reproduce]),
        version_section(document.versions),
    )
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
        yield Paragraph((strong("Culprit:"), " ", *parts_of(change_text(document.culprit))))
    elif document.outcome == "found":
        yield Paragraph(f"One of {len(document.culprits)} changes that cannot be distinguished:")
        yield _items(position.changes[0] for position in document.culprits)
    elif document.candidates:
        yield make_table(
            ("P*", "one of these changes"),
            ((probability(x.probability), change_text(x.position.changes[0])) for x in document.candidates),
        )
    yield from (Paragraph(text) for text in document.summary)
    yield Paragraph(
        f"{counted(len(document.launches), 'launch')}, "
        f"{spent_text(document.minutes.total, 0.0, document.minutes.lost)}"
        f"{_saved(document, ', ')}; {_untested(document)}"
    )
    if document.outcome == "found":
        yield from phases_paragraph(document.phases)
    yield Paragraph(("report: ", code(f"{document.folder}/report.md"), ", report.html"))
    if document.next:
        yield Command(document.next)


def _saved(document: ReportDocument, separator: str) -> str:
    saved = document.minutes.saved
    return f"{separator}{minutes(saved)} saved by overlap" if saved else ""


def _untested(document: ReportDocument) -> str:
    return f"{len(document.skips)} skipped, {len(document.not_tested)} not tested"


def _highlights(document: ReportDocument) -> Iterator[tuple[str, str]]:
    """The few numbers that stand first, with their meaning."""
    effect = document.confirmed or document.whole
    if effect is not None:
        suspect = "culprit" if document.outcome == "found" else "suspect"
        which = f"A/B of parent and {suspect}" if document.confirmed else "bad against good"
        yield percent(effect.effect), f"{which}; 95 %: {_interval(effect)}"
    if document.outcome == "found":
        yield probability(document.probability), "probability, given the model; at most 0.99"
    elif document.outcome == "narrowed":
        size = len(document.culprits)
        of = f"one of {size} commits" if size > 1 else "this commit"
        yield probability(document.probability), f"probability of {of}, given the model; at most 0.99"
    elif document.beliefs is not None:
        yield probability(document.beliefs.none), "probability that nothing changed"
    if document.share is not None:
        yield percent(document.share, False), "of the whole change is this step"
    count = f"launches over {document.positions} environments; {_untested(document)}"
    yield str(len(document.launches)), count
    budget = f"of a budget of {minutes(document.minutes.budget)}{_saved(document, '; ')}"
    yield minutes(document.minutes.total), budget


def _culprit(document: ReportDocument) -> Iterator[Block]:
    is_confirmed = document.outcome == "too small" and document.confirmed is not None
    yield Paragraph(_NO_SINGLE_CHANGE if is_confirmed else _MEANINGS[document.outcome], quiet=True)
    if document.culprit:
        culprit = document.culprit
        rows = (("commit", culprit.id), ("author", culprit.author), ("date", culprit.date))
        yield KeyValues(tuple((label, code(value)) for label, value in rows if value))
    same = [change for position in document.culprits for change in position.changes[1:]]
    if document.outcome == "found" and same:
        yield Paragraph("Its environment is also that of these changes, so they cannot be distinguished:")
        yield _items(same)


def _steps(document: ReportDocument) -> Iterator[Block]:
    rows: list[tuple[Inline, ...]] = []
    for step in document.steps:
        changes = [change_text(position.changes[0]) for position in step.culprits]
        rows.append((_join(" or ", changes), probability(step.probability), *_effect_cells(step.confirmed)))
    return _tabled(("change", "P*", *_EFFECT_COLUMNS), rows)


def _figures(drawn: Mapping[str, Plot], name: str) -> Iterator[Figure]:
    if name in drawn:
        yield Figure(name, _CAPTIONS[name], drawn[name])


def _effect_rows(report: ReportDocument) -> list[tuple[str, EffectDocument]]:
    """Each comparison of a report with its name, the confirming A/B first."""
    suspect = "culprit" if report.outcome == "found" else "suspect"
    rows = [
        (f"{suspect} against parent", report.confirmed),
        ("culprit against parent, on other machines", report.replication),
        ("bad against good", report.whole),
        ("bad without the culprit against bad", report.revert),
    ]
    measured = [(name, effect) for name, effect in rows if effect is not None]
    return measured + [(f"step at {step.confirmed.right.short}", step.confirmed) for step in report.steps]


def _comparisons(document: ReportDocument, drawn: Mapping[str, Plot]) -> Iterator[Block]:
    rows = _effect_rows(document)
    if rows:
        metric = document.metric
        relevant = f"{percent(metric.smallest_effect, False)} is the smallest relevant effect"
        yield Paragraph(
            (code(metric.name), f" ({metric.display}), {metric.direction} is better; {relevant}."), quiet=True
        )
        yield from _figures(drawn, "pairs")
        yield make_table(
            ("", "left", "right", *_EFFECT_COLUMNS),
            (
                (name, code(effect.left.short), code(effect.right.short), *_effect_cells(effect))
                for name, effect in rows
            ),
        )
    if document.replication_note:
        yield Paragraph(f"On the second machine: {document.replication_note}")
    if document.revert_note:
        yield Paragraph(f"Revert check: {document.revert_note}")


def _machines(document: ReportDocument) -> Iterator[Block]:
    rows: list[tuple[Inline, ...]] = []
    for machine in document.machines:
        offset, interval = "not known", ""
        if machine.offset is not None and machine.low is not None and machine.high is not None:
            offset = percent(machine.offset)
            interval = f"{percent(machine.low)} to {percent(machine.high)}"
        step = "yes" if machine.name in document.replicated_on else ""
        step = "not seen" if machine.name in document.not_replicated_on else step
        rows.append((code(machine.name), str(machine.launches), offset, interval, step, machine.out_of_use))
    titles = ("machine", "launches*", "offset*", "95 % interval*", "step", "out of use")
    return _tabled(titles, rows, _MACHINES)


def _guards(document: ReportDocument) -> Iterator[Block]:
    rows: list[tuple[Inline, ...]] = []
    for guard in document.guards:
        moved = strong("moved") if guard.moved else "no"
        note = f" ({guard.note})" if guard.note else ""
        values = with_unit(guard.left, guard.unit), with_unit(guard.right, guard.unit)
        rows.append(((f"{guard.display} ", code(guard.name)), *values, (moved, note)))
    return _tabled(("guard", "left*", "right*", "moved"), rows)


def _merged(positions: Iterable[PositionDocument]) -> Iterator[Block]:
    names = [_join(", ", [code(change.short) for change in position.changes]) for position in positions]
    if names:
        yield Items(tuple(names))


def _setting_rows(document: ReportDocument) -> Iterator[tuple[str, Inline]]:
    ends = _join(" to ", (change_text(document.good), change_text(document.bad)))
    yield "job", code(document.job)
    yield (
        "range",
        (
            *ends,
            f": {counted(document.changes, 'change')}, "
            f"{counted(document.positions, 'different environment')}",
        ),
    )
    yield "environment", code(document.environment)
    yield "client", code(document.client)
    if document.repository:
        yield "repository", code(document.repository)


_EFFECT_COLUMNS = ("effect*", "95 % interval*", "launches a side*")


def _effect_cells(effect: EffectDocument) -> tuple[str, str, str]:
    return percent(effect.effect), _interval(effect), str(effect.launches)


def _interval(effect: EffectDocument) -> str:
    return f"{percent(effect.low)} to {percent(effect.high)}"


def _tabled(titles: tuple[str, ...], rows: Iterable[tuple[Inline, ...]], note: str = "") -> Iterator[Block]:
    """A table under a note; nothing without rows."""
    table = make_table(titles, rows)
    if table.rows:
        yield from ([Paragraph(note, quiet=True)] if note else [])
        yield table


def _listed(note: str, changes: tuple[ChangeDocument, ...]) -> Iterator[Block]:
    """Changes under a note; nothing without changes."""
    if changes:
        yield Paragraph(note, quiet=True)
        yield _items(changes)


def _items(changes: Iterable[ChangeDocument]) -> Items:
    return Items(tuple(map(change_text, changes)))


def _join(separator: str, items: Iterable[Inline]) -> tuple[str | Span, ...]:
    joined: list[str | Span] = []
    for item in items:
        joined += [*([separator] if joined else []), *parts_of(item)]
    return tuple(joined)
