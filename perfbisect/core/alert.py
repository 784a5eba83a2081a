"""What is told of a change: an alert with an identity that stays when it is found again, in an event with
others of one cause.

A night that comes later moves the place of a change, its size, even its shape (a transient that stays is a
step). It is the same change where the same metric of the same cell moved the same way and the nights at
which it may have begun overlap.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfbisect.core.cause_facts import Cause
from perfbisect.core.finding import Finding
from perfbisect.core.now import Now
from perfbisect.core.reported_series import night_of

State = Literal["open", "acknowledged", "closed"]

_BACK = 0.25
"""Share of a change, in logs, within which a series is back where it was."""

_NEAR = 3
"""Nights after a change over which is read whether the series came back."""


@dataclass(frozen=True)
class Known:
    """An alert that was told before.

    ``begun``: the nights (days since 1970-01-01) after the one and by the other of which it began; ``way`` is
    +1 where it became worse, -1 where better. ``by_rule``: a nightly's rule set the state, no person.
    """

    id: str
    cell: str
    metric: str
    way: int
    begun: tuple[int, int]
    state: State = "open"
    why: str = ""
    by_rule: bool = False


@dataclass(frozen=True)
class Alert:
    """A change with its cause, identity and event. ``new``: it was not told before. ``until``: the last night
    of all series (days since 1970-01-01)."""

    id: str
    finding: Finding
    cause: Cause
    event: str
    state: State = "open"
    why: str = ""
    by_rule: bool = False
    new: bool = True
    until: int = 0

    @property
    def known(self) -> Known:
        """How it is recognised later."""
        series = self.finding.series
        return Known(
            self.id, series.cell, series.metric, way(self.finding), begun(self.finding), self.state, self.why,
            self.by_rule,
        )  # fmt: skip

    @property
    def recovered(self) -> bool:
        """The series is back where it was."""
        return recovery(self.finding) is not None

    @property
    def now(self) -> Now:
        """What is known of it on the last night."""
        finding, series = self.finding, self.finding.series
        if self.recovered:
            return "recovered"
        if series.nights[-1] < self.until:
            return "not measured since"
        if any(hint.kind == "workload" and hint.index > finding.index for hint in series.hints):
            return "other requests since"
        last = finding.after[-1] + 1 == len(series.nights)
        return "still there" if last else "at another level since"


def way(finding: Finding) -> int:
    """+1 where it became worse, -1 where better."""
    return 1 if finding.shift > 0 else -1


def begun(finding: Finding) -> tuple[int, int]:
    """The nights at which it may have begun: the last before them, the last of them."""
    nights, places = finding.series.nights, finding.places or (finding.index,)
    return nights[max(0, places[0] - 1)], nights[max(places[-1], finding.index)]


def recovery(finding: Finding) -> int | None:
    """The place of the first night after a change at which the series is back at its old level; None while it
    is not, or was never measured again."""
    series = finding.series
    stretch = next(part for part in series.segments() if part.start <= finding.index < part.stop)
    first = finding.after[-1] + 1
    old = [series.values[i] for i in finding.before[-7:] if series.values[i] > 0]
    rest = [series.values[i] for i in range(first, stretch.stop)][:_NEAR]
    if not old or not rest or min(rest) <= 0:
        return None
    away = series.sign * float(np.median(np.log(rest)) - np.median(np.log(old)))
    return first if abs(away) <= _BACK * abs(finding.shift) else None


def beside_worse(alert: Alert, among: Iterable[Alert]) -> Alert | None:
    """Of what became better: the largest change for the worse of the same event and cell, which is still
    there and was not accepted; None where there is none."""
    cell = alert.finding.series.cell
    found = [
        one for one in among
        if (one.event, one.finding.series.cell) == (alert.event, cell)
        and one.finding.shift > 0 and one.finding.series.part == "typical"
        and one.state != "closed" and not one.recovered
    ]  # fmt: skip
    return max(found, key=lambda one: one.finding.shift, default=None) if alert.finding.shift < 0 else None


def alerts_of(
    findings: Sequence[Finding], causes: Sequence[Cause], known: Iterable[Known] = (), *, until: int = 0
) -> tuple[Alert, ...]:
    """Alerts with their identities, in order of time; each known one is recognised once.

    ``until``: the last night of all series (days since 1970-01-01).
    """
    told: dict[tuple[str, str, int], list[Known]] = {}
    for one in known:
        told.setdefault((one.cell, one.metric, one.way), []).append(one)
    events = _events(findings, causes)
    out, taken = [], {one.id for group in told.values() for one in group}
    for finding, cause, event in zip(findings, causes, events, strict=True):
        series = finding.series
        before = _same(finding, told.get((series.cell, series.metric, way(finding)), []))
        if before is None:
            name = _name(finding, taken)
            taken.add(name)
            out.append(Alert(name, finding, cause, event, until=until))
        else:
            told[series.cell, series.metric, way(finding)].remove(before)
            state = (before.state, before.why, before.by_rule)
            out.append(Alert(before.id, finding, cause, event, *state, new=False, until=until))
    return tuple(out)


def _same(finding: Finding, among: Sequence[Known]) -> Known | None:
    """The known alert that this is: that which overlaps and is nearest."""
    low, high = begun(finding)
    found = [one for one in among if one.begun[0] < high and low < one.begun[1]]
    return min(found, key=lambda one: abs(one.begun[1] - high), default=None)


def _name(finding: Finding, taken: set[str]) -> str:
    """``20260412-3f1a``: the night and a digest of what moved; longer where that is taken."""
    series = finding.series
    text = f"{series.cell}\0{series.metric}\0{way(finding)}"
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    night = night_of(finding.first).replace("-", "")
    return next(
        name for length in range(4, 65) if (name := f"{night}-{digest[:length]}") not in taken or length == 64
    )


def _events(findings: Sequence[Finding], causes: Sequence[Cause]) -> tuple[str, ...]:
    """Of each the event: a night that most of those of its cause may have begun at, and that cause.

    The night that explains most servers is taken first, with all that may have begun at it.
    """
    left = list(range(len(findings)))
    found: dict[int, str] = {}
    while left:
        votes: Counter[tuple[int, str]] = Counter()
        for i in left:
            for night in findings[i].nights or {findings[i].first}:
                votes[night, causes[i].word] += 2 if night == findings[i].first else 1
        (night, word), _ = max(votes.items(), key=lambda one: (one[1], -one[0][0], one[0][1]))
        of = [
            i for i in left if causes[i].word == word and night in (findings[i].nights or {findings[i].first})
        ]
        found |= {i: f"{night_of(night).replace('-', '')}-{word}" for i in of}
        left = [i for i in left if i not in found]
    return tuple(found[i] for i in range(len(findings)))
