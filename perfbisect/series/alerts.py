"""Alerts: changes of a series with their cause, an identity that stays, and the event that they belong to.

A later night moves the place of a change, its size, even its shape (a transient that stays is a step). It is
the same alert where the same metric of the same cell moved the same way and the nights at which it may have
begun overlap.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from perfbisect.model.commit_details import CauseWord
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.series.causes import Cause
from perfbisect.series.detection.model import Shape
from perfbisect.series.findings import SeriesChange
from perfbisect.series.series import BuildRun, night_of, part_of

State = Literal["open", "acknowledged", "closed"]

AlertStatus = Literal[
    "recovered", "not measured since", "other requests since", "still there", "at another level since"
]
"""What the last night shows of an alert. ``other requests since``: it cannot be compared any more."""

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
Real = Annotated[float, Field(allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]

SET = 0.95
"""Probability of the set of places of a change; its places share it equally."""

HEADLINES = (
    "audio_ttfp",
    "audio_rtf",
    "ttft",
    "e2el",
    "latency",
    "image_generation",
    "video_generation",
    "tpot",
)
"""Metrics by which an event is represented, the first that moved before the others."""

_BACK = 0.25
"""Share of a change, in logs, within which a series is back where it was."""

_NEAR = 3
"""Nights after a change over which is read whether the series came back."""

_JSON = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


@dataclass(frozen=True, kw_only=True)
class AlertPlace:
    """A point at which a series may have moved first, with its probability where that is known."""

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    build: str
    time: Moment
    p: Probability | None = None


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A change of a series that is reported: the stored record and the public JSON.

    ``first``: the point at which it most probably began; ``last``: the newest that shows it (of a drift: at
    which it had ended). ``effect`` is relative to the level before (or a difference of shares), ``interval``
    its 95 % interval. ``places``: the 95 % set of where it began, in order of time. ``builds``: the last one
    before that set, and the set's. Alerts of one cause share ``event``. ``p``: how often a series of that
    length without a change shows one so clear, at any place. ``recovered``: the series is back where it was.
    ``why``: what was said when it was acknowledged or closed. ``new``: it was not reported before.
    ``nights``: how many show it. ``was``: the cause reported before, where it is another one now;
    ``came_back``: it has recovered since then. ``now``: its status on the last night.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    id: str
    cell: str
    metric: str
    first: Moment
    last: Moment
    shape: Shape
    cause: CauseWord
    effect: Real
    interval: tuple[Real, Real]
    places: tuple[AlertPlace, ...]
    builds: tuple[str, ...]
    state: State
    evidence: tuple[str, ...]
    event: str = ""
    p: Probability | None = None
    recovered: bool = False
    why: str = ""
    new: bool
    nights: int
    was: CauseWord | Literal[""] = ""
    came_back: bool = False
    now: AlertStatus | Literal[""] = ""

    @property
    def ref(self) -> MetricRef:
        return parse_metric(self.metric)

    @property
    def part(self) -> BuildRun:
        return part_of(self.ref.statistic)

    @property
    def worse(self) -> bool:
        """Whether the metric moved to its bad side."""
        return self.effect * self.ref.metric.sign > 0

    @property
    def size(self) -> float:
        """Absolute log ratio of the new level to the old one."""
        return abs(math.log1p(max(self.effect, -0.999999)))

    @property
    def is_news(self) -> bool:
        """Not reported before, or not as a change of the product."""
        return self.state == "open" and (self.new or (self.was != "" and self.cause == "product"))


@dataclass(frozen=True)
class AlertRecord:
    """An alert as the store keeps it.

    ``begun``: the nights (days since 1970-01-01) after which and by which it began. ``seen``: when it was
    found last, ISO 8601 in UTC. ``by_rule``: a nightly set its state, no person.
    """

    alert: Alert
    begun: tuple[int, int]
    seen: str
    by_rule: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """A row of the nightly report: an alert whose series is at another level than before.

    ``latest``: the median of the newest nights; ``baseline``: the level before the change. ``days``: nights
    since it began.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    alert: str
    source: str
    model: str
    hardware: str
    type: str
    config: str
    test: str
    metric: str
    unit: str
    latest: float
    baseline: float
    change: float
    status: str
    days: int
    cause: CauseWord


def begun(finding: SeriesChange) -> tuple[int, int]:
    """The nights after which and by which a change may have begun."""
    nights, places = finding.series.nights, finding.places or (finding.index,)
    return nights[max(0, places[0] - 1)], nights[max(places[-1], finding.index)]


def recovery(finding: SeriesChange) -> int | None:
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


def status(finding: SeriesChange, until: int) -> AlertStatus:
    """What the last night shows of a change. ``until``: the last night of all series."""
    series = finding.series
    if recovery(finding) is not None:
        return "recovered"
    if series.nights[-1] < until:
        return "not measured since"
    if any(hint.kind == "workload" and hint.index > finding.index for hint in series.hints):
        return "other requests since"
    last = finding.after[-1] + 1 == len(series.nights)
    return "still there" if last else "at another level since"


def beside_worse(alert: Alert, among: Iterable[Alert]) -> Alert | None:
    """Of what became better: the largest change for the worse of the same event and cell, which is still
    there and was not accepted; None where there is none."""
    if alert.worse:
        return None
    worse = [
        other
        for other in among
        if (other.event, other.cell) == (alert.event, alert.cell)
        and other.worse
        and other.part == "typical"
        and other.state != "closed"
        and not other.recovered
    ]
    return max(worse, key=lambda other: other.size, default=None)


def leading_alert(alerts: Iterable[Alert], event: str) -> Alert:
    """The alert that represents an event: an open one, worse rather than better, of the largest size."""
    among = [alert for alert in alerts if alert.event == event]
    return max(among, key=lambda alert: (*weight(alert), alert.id))


def weight(alert: Alert) -> tuple[bool, bool, int, float]:
    """Order of alerts that stand for others: open, worse, of a headline, large."""
    rank = HEADLINES.index(alert.metric) if alert.metric in HEADLINES else len(HEADLINES)
    return alert.state == "open", alert.worse, -rank, alert.size


def match_alerts(
    findings: Sequence[SeriesChange],
    causes: Sequence[Cause],
    known: Iterable[AlertRecord] = (),
    *,
    until: int = 0,
    describe: Callable[[SeriesChange, Cause], tuple[str, ...]] = lambda _finding, _cause: (),
) -> tuple[Alert, ...]:
    """The alert of each finding, in their order; each known alert is recognised once.

    ``until``: the last night of all series (days since 1970-01-01). ``describe``: the sentences of an alert's
    evidence, which are shown and decide nothing.
    """
    left: dict[tuple[str, str, bool], list[AlertRecord]] = {}
    for record in known:
        left.setdefault((record.alert.cell, record.alert.metric, record.alert.worse), []).append(record)
    taken = {record.alert.id for group in left.values() for record in group}
    alerts = []
    for finding, cause, event in zip(findings, causes, _events(findings, causes), strict=True):
        group = left.get((finding.series.cell, finding.series.metric, finding.shift > 0), [])
        same = _same(finding, group)
        if same is None:
            name = _name(finding, taken)
            taken.add(name)
            alerts.append(_alert(name, finding, cause, event, describe(finding, cause), until, None))
        else:
            group.remove(same)
            evidence = describe(finding, cause)
            alerts.append(_alert(same.alert.id, finding, cause, event, evidence, until, same.alert))
    return tuple(alerts)


def _alert(
    name: str,
    finding: SeriesChange,
    cause: Cause,
    event: str,
    evidence: tuple[str, ...],
    until: int,
    before: Alert | None,
) -> Alert:
    points, change = finding.series.points, finding.found
    around = (max(0, finding.places[0] - 1), *finding.places)
    now = status(finding, until)
    recovered = now == "recovered"
    return Alert(
        id=name,
        cell=finding.series.cell,
        metric=finding.series.metric,
        first=points[finding.index].began,
        last=points[finding.after[0] if change.shape == "drift" else finding.after[-1]].began,
        shape=change.shape,
        cause=cause.word,
        effect=change.effect,
        interval=(change.low, change.high),
        places=tuple(
            AlertPlace(build=points[i].build.name, time=points[i].began, p=SET / len(finding.places))
            for i in finding.places
        ),
        builds=tuple(dict.fromkeys(points[i].build.name for i in around)),
        state="open" if before is None else before.state,
        evidence=evidence,
        event=event,
        p=change.p,
        recovered=recovered,
        why="" if before is None else before.why,
        new=before is None,
        nights=len(finding.after),
        was="" if before is None or before.cause == cause.word else before.cause,
        came_back=before is not None and recovered and not before.recovered,
        now=now,
    )


def _same(finding: SeriesChange, among: Sequence[AlertRecord]) -> AlertRecord | None:
    """The known alert that this is: that which overlaps and is nearest."""
    low, high = begun(finding)
    overlapping = [record for record in among if record.begun[0] < high and low < record.begun[1]]
    return min(overlapping, key=lambda record: abs(record.begun[1] - high), default=None)


def _name(finding: SeriesChange, taken: set[str]) -> str:
    """``20260412-3f1a``: the night and a digest of what moved; longer where that is taken."""
    series = finding.series
    text = f"{series.cell}\0{series.metric}\0{1 if finding.shift > 0 else -1}"
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    night = night_of(finding.first).replace("-", "")
    return next(
        name for length in range(4, 65) if (name := f"{night}-{digest[:length]}") not in taken or length == 64
    )


def _events(findings: Sequence[SeriesChange], causes: Sequence[Cause]) -> tuple[str, ...]:
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
        (night, word), _ = max(votes.items(), key=lambda vote: (vote[1], -vote[0][0], vote[0][1]))
        of = [
            i for i in left if causes[i].word == word and night in (findings[i].nights or {findings[i].first})
        ]
        found |= {i: f"{night_of(night).replace('-', '')}-{word}" for i in of}
        left = [i for i in left if i not in found]
    return tuple(found[i] for i in range(len(findings)))
