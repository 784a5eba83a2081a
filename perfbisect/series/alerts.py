"""Alerts: reported changes of a series, with cause, stable name and event.

A later night moves the place of a change, its size, even its shape (a transient that stays is a step). It is
the same alert if the same metric of the same cell moved the same way and the nights on which it may have
begun overlap.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from perfbisect.errors import UsageError
from perfbisect.jobs.documents import Document
from perfbisect.model.change import Change
from perfbisect.model.commit_details import CauseWord, Evidence
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.series.causes import Cause
from perfbisect.series.detection.model import SET, WEEK, WIDTH, Shape
from perfbisect.series.findings import NOISE_NIGHTS, SeriesChange, SuppressionReason, noise_of
from perfbisect.series.points import Night, night_of
from perfbisect.series.series import StatisticKind, part_of
from perfbisect.stats.two_sample import Scale

State = Literal["open", "acknowledged", "closed"]

AlertChange = Literal["opened", "reopened", "updated", "closed"]
"""What became of an alert on a night; ``updated``: reported by an earlier night and still there."""

AlertStatus = Literal[
    "recovered", "not measured since", "other requests since", "still there", "at another level since"
]
"""What the last night shows of an alert. ``other requests since``: it cannot be compared any more, because of
its requests or of how they are measured. ``still there``: most of it, whatever smaller steps came after."""

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
Real = Annotated[float, Field(allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]

HEADLINES = (
    *("audio_ttfp", "audio_rtf", "ttft", "e2el", "latency"),
    *("image_generation", "video_generation", "tpot"),
)
"""Metrics by which an event is represented, the first that moved before the others."""

RECOVERED = 0.25  # share of a change within which a series is back at its old level ...
RECOVERY_NIGHTS = 3  # ... by the median of so many nights after it
_SHORT_SERIES = 20  # nights below which a series is called short: its noise is known to a sixth at best

_JSON = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class OutcomeCommit(Document):
    """A commit with the probability that it made the step."""

    id: str
    short: str
    subject: str
    probability: float

    @classmethod
    def of(cls, change: Change, probability: float) -> OutcomeCommit:
        return cls(id=change.id, short=change.short, subject=change.subject, probability=probability)


class MeasuredOutcome(Document):
    """How a bisection of an alert ended.

    ``commits``: the one that it named, or those of a narrowed range, the likeliest first. ``probability``:
    that one of them made the step.
    """

    job: str
    probability: float
    commits: tuple[OutcomeCommit, ...]

    @property
    def report(self) -> str:
        """The command that shows it whole."""
        return f"perfbisect report {self.job}"


NO_OUTCOMES: Mapping[str, MeasuredOutcome] = {}


@dataclass(frozen=True, kw_only=True)
class AlertPlace:
    """A point at which a series may have moved first, with its probability where that is known."""

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    build: str
    time: Moment
    p: Probability | None = None


@dataclass(frozen=True, kw_only=True)
class DetectedChange:
    """A change of a series.

    ``night``: on which it most probably began. ``effect``: relative to the level before (or a difference of
    shares), ``interval``: 95 %. ``p``: how often a series of that length without a change shows one so clear.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    cell: str
    metric: str
    night: Night
    shape: Shape
    effect: Real
    interval: tuple[Real, Real]
    p: Probability | None = None


@dataclass(frozen=True, kw_only=True)
class SuppressedChange(DetectedChange):
    """A change that is not reported, and the ``kind`` of reason.

    ``smallest``: the smallest effect worth telling; ``reported_by``: the median that reports the change.
    """

    kind: SuppressionReason
    smallest: float
    reported_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Alert(DetectedChange):
    """A change of a series that is reported: the stored record and the public JSON.

    ``first``: the point at which it most probably began; ``last``: the newest that
    shows it (of a drift: at which it had ended). ``begun``: the nights after which and by which it began.
    ``worse``: whether the metric moved to its bad side. ``places``: the 95 % set of where it began;
    ``builds``: the last one before that set, and the set's. ``grouping``: tokens are grouped into chunks
    otherwise, and take as long as before. ``nights``: how many show it. ``now``: its status on the last
    night.

    Of earlier runs: ``new``: none reported it; ``seen``: when one found it last, of one that is not found
    any more; ``was``: the cause reported before, where it is another one now; ``came_back``: it has recovered
    since then. ``why``: what was said when its state was set; ``by_rule``: a nightly set it, no person.

    Of a night: ``change``: what became of it; ``counts``: it is a finding by the rules of the configuration.
    ``measured``: what a bisection says of it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    id: str = ""
    event: str
    first: Moment
    last: Moment
    begun: tuple[Night, Night]
    cause: CauseWord
    worse: bool
    places: tuple[AlertPlace, ...]
    builds: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()
    grouping: bool = False
    nights: int
    now: AlertStatus | Literal[""] = ""
    recovered: bool = False
    state: State = "open"
    why: str = ""
    by_rule: bool = False
    new: bool = True
    seen: str = ""
    was: CauseWord | Literal[""] = ""
    came_back: bool = False
    change: AlertChange | Literal[""] = ""
    counts: bool = False
    measured: MeasuredOutcome | None = None

    @property
    def ref(self) -> MetricRef:
        return parse_metric(self.metric)

    @property
    def part(self) -> StatisticKind:
        return part_of(self.ref.statistic)

    @property
    def is_of_person(self) -> bool:
        """Whether a person set its state."""
        return self.why != "" and not self.by_rule

    @property
    def size(self) -> float:
        """The distance of the new level from the old one, on the metric's scale."""
        return abs(Scale.of(self.ref.metric).difference(self.effect))

    @property
    def needs_action(self) -> bool:
        """Whether it is an open regression that the last night still shows: of the product, or for a week."""
        if self.state != "open" or not self.worse or self.part != "typical" or self.grouping:
            return False
        is_lasting = self.cause == "unknown" and self.nights >= WEEK
        return (self.cause == "product" or is_lasting) and self.now == "still there"

    @property
    def is_news(self) -> bool:
        """Not reported before, or not as a change of the product."""
        return self.state == "open" and (self.new or (self.was != "" and self.cause == "product"))

    @property
    def is_settled(self) -> bool:
        """Whether it is closed, or had recovered when it was reported last."""
        return self.state == "closed" or (self.recovered and not self.came_back)

    @property
    def is_opened(self) -> bool:
        """Whether the night opened or reopened it."""
        return self.change in ("opened", "reopened")


def begun(change: SeriesChange) -> tuple[int, int]:
    """The nights after which and by which a change may have begun."""
    nights, places = change.series.nights, change.point.places
    return nights[max(0, places[0] - 1)], nights[max(places[-1], change.point.index)]


def recovery(change: SeriesChange) -> int | None:
    """The place of the first night after a change if the series is back at its old level; else None."""
    series, first = change.series, change.after[-1] + 1
    since = range(first, change.segment.stop)[:RECOVERY_NIGHTS]
    # A rest that is worth telling and no noise is none, however small a part of a large change it is.
    noise = WIDTH * noise_of(series.levels(change.before[-NOISE_NIGHTS:]))
    near = max(series.scale.room(series.min_effect), noise)
    return first if since and _left(change, since) <= min(RECOVERED * abs(change.shift), near) else None


def _left(change: SeriesChange, places: Sequence[int]) -> float:
    """What the nights at these places keep of a change, in its direction."""
    series = change.series
    gap = np.median(series.levels(places)) - np.median(series.levels(change.before[-WEEK:]))
    return math.copysign(1.0, change.shift) * float(gap)


def status(change: SeriesChange, until: int) -> AlertStatus:
    """What the last night shows of a change. ``until``: the last night of all series."""
    series = change.series
    if recovery(change) is not None:
        return "recovered"
    if series.nights[-1] < until:
        return "not measured since"
    is_asked_otherwise = (h.kind == "workload" and h.index > change.point.index for h in series.hints)
    if change.segment.stop < len(series.nights) or any(is_asked_otherwise):
        return "other requests since"
    newest = range(change.after[-1] + 1, len(series.nights))[-RECOVERY_NIGHTS:]
    keeps_most = newest and _left(change, newest) > (1 - RECOVERED) * abs(change.shift)
    is_there = not newest or (keeps_most and not change.is_over)
    return "still there" if is_there else "at another level since"


def beside_worse(alert: Alert, among: Iterable[Alert]) -> Alert | None:
    """The largest present regression of the same event and cell as an improvement; None without one."""
    beside = (other for other in among if (other.event, other.cell) == (alert.event, alert.cell))
    worse = (other for other in beside if other.worse and other.part == "typical")
    present = (other for other in worse if other.state != "closed" and not other.recovered)
    return None if alert.worse else max(present, key=lambda other: other.size, default=None)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Alerts of one cause that may have begun on one night; ``alert``, of a ``cell``, represents them.

    ``needs_action``: how many of its ``alerts`` are regressions that the last night still shows. ``news``:
    how many were not reported before.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    event: str
    alert: str
    cell: str
    metric: str
    effect: Real
    worse: bool
    needs_action: int
    news: int
    recovered: int
    alerts: int
    cells: int
    measured: MeasuredOutcome | None = None

    @classmethod
    def of(cls, alerts: Sequence[Alert]) -> Event:
        """The event of alerts that share it."""
        leading = leading_alert(alerts)
        return cls(
            event=leading.event,
            alert=leading.id,
            cell=leading.cell,
            metric=leading.metric,
            effect=leading.effect,
            worse=leading.worse,
            needs_action=sum(alert.needs_action for alert in alerts),
            news=sum(alert.is_news for alert in alerts),
            recovered=sum(alert.recovered for alert in alerts),
            alerts=len(alerts),
            cells=len({alert.cell for alert in alerts}),
            measured=next((alert.measured for alert in alerts if alert.measured), None),
        )


def find_alerts(alerts: Iterable[Alert], name: str) -> tuple[Alert, ...]:
    """All alerts of an event, or the one of a name or the beginning of one; empty where there is none.

    Raises:
        UsageError: several begin with it.
    """
    among = tuple(alerts)
    of_event = tuple(alert for alert in among if alert.event == name)
    begun = tuple(alert for alert in among if name and alert.id.startswith(name))
    matches = of_event or tuple(alert for alert in begun if alert.id == name) or begun
    if len(matches) > 1 and not of_event:
        some = ", ".join(alert.id for alert in matches[:5])
        events = ", ".join(dict.fromkeys(alert.event for alert in matches))
        raise UsageError(
            f"{len(matches)} alerts begin with {name!r}: {some}",
            next_step=f"a longer name, or an event: {events}",
        )
    return matches


def leading_alert(alerts: Iterable[Alert]) -> Alert:
    """The one of these that represents them."""
    return max(alerts, key=lambda alert: (*weight(alert), alert.id))


def weight(alert: Alert) -> tuple[bool, bool, bool, bool, int, float]:
    """Order of alerts that stand for others: open, to act on, no grouping, worse, of a headline, large."""
    rank = HEADLINES.index(alert.metric) if alert.metric in HEADLINES else len(HEADLINES)
    is_open, is_worse = alert.state == "open", alert.worse
    return is_open, alert.needs_action, not alert.grouping, is_worse, -rank, alert.size


def next_command(alerts: Sequence[Alert]) -> str:
    """The command for the worst regression that lasts, else for the newest; empty without one."""
    lasting = [alert for alert in alerts if alert.needs_action]
    if not lasting:
        regressions = [alert for alert in alerts if alert.worse and alert.cause == "product"]
        open_ones = [alert for alert in regressions if alert.state == "open" and not alert.recovered]
        newest = max((alert.event for alert in open_ones), default="")
        lasting = [alert for alert in open_ones if alert.event == newest]
    if not lasting:
        return ""
    worst = max(lasting, key=lambda alert: (alert.cause == "product", *weight(alert), alert.id))
    return f"perfbisect track suspects {worst.id} --repo PATH"


def group_by_event(alerts: Sequence[Alert]) -> list[list[Alert]]:
    """Alerts by event: those to act on first, the product's before others and mere groupings last; then the
    largest to act on, else the newest."""
    groups: dict[str, list[Alert]] = {}
    for alert in sorted(alerts, key=lambda alert: alert.event, reverse=True):
        groups.setdefault(alert.event, []).append(alert)

    def order(own: Sequence[Alert]) -> tuple[bool, bool, bool, float, int]:
        largest = max((alert.size for alert in own if alert.needs_action), default=0.0)
        grouping = all(alert.grouping for alert in own)
        return largest == 0.0, grouping, own[0].cause != "product", -largest, -int(own[0].event[:8])

    return sorted(groups.values(), key=order)


def found_alerts(
    changes: Sequence[SeriesChange], causes: Sequence[Cause], *, until: int = 0
) -> tuple[Alert, ...]:
    """The alert of each change as the series alone show it, without a name, in their order.

    ``until``: the last night of all series.
    """
    alerts = []
    for change, cause, event in zip(changes, causes, _events(changes, causes), strict=True):
        points, point = change.series.points, change.point
        # The last build before the set is included: a window of commits begins there.
        around = (max(0, point.places[0] - 1), *point.places)
        now = status(change, until)
        evidence = list(cause.evidence)
        # What to know of a series, whatever the cause.
        if change.supported_by:
            evidence.append(Evidence("supported by others", {"servers": list(change.supported_by)}))
        if (nights := len(change.series.values)) < _SHORT_SERIES:
            evidence.append(Evidence("short series", {"nights": nights}))
        if lacking := change.series.lacking:
            values = {"metric": change.series.metric, "points": lacking}
            evidence.append(Evidence("points without it", values))
        alerts.append(
            Alert(
                event=event,
                cell=change.series.cell,
                metric=change.series.metric,
                night=change.first,
                first=points[point.index].began,
                last=points[change.after[0] if point.shape == "drift" else change.after[-1]].began,
                begun=begun(change),
                shape=point.shape,
                cause=cause.word,
                effect=point.effect,
                interval=(point.low, point.high),
                worse=point.effect * change.series.sign > 0,
                places=tuple(
                    AlertPlace(build=points[i].build.name, time=points[i].began, p=SET / len(point.places))
                    for i in point.places
                ),
                builds=tuple(dict.fromkeys(points[i].build.name for i in around)),
                p=point.p,
                evidence=tuple(evidence),
                grouping=cause.is_grouping,
                nights=len(change.after),
                now=now,
                recovered=now == "recovered",
            )
        )
    return tuple(alerts)


def match_alerts(found: Iterable[Alert], known: Iterable[Alert] = ()) -> tuple[Alert, ...]:
    """The alerts in their order with their names and states; each known alert is recognised once."""
    unmatched = list(known)
    names = {alert.id for alert in unmatched}
    alerts = []
    for alert in found:
        series, (low, high) = (alert.cell, alert.metric, alert.worse), alert.begun
        overlapping = (
            other
            for other in unmatched
            if (other.cell, other.metric, other.worse) == series
            and other.begun[0] < high
            and low < other.begun[1]
        )
        same = min(overlapping, key=lambda other: abs(other.begun[1] - high), default=None)
        if same is None:
            # Several series change on one night: cell, metric and direction tell their alerts apart.
            text = "\0".join((alert.cell, alert.metric, "1" if alert.worse else "-1"))
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
            lengths = (f"{_compact(alert.night)}-{digest[:length]}" for length in range(4, 65))
            name = next(name for name in lengths if name not in names)
            names.add(name)
            alerts.append(replace(alert, id=name))
        else:
            unmatched.remove(same)
            alerts.append(
                replace(
                    alert,
                    id=same.id,
                    state=same.state,
                    why=same.why,
                    by_rule=same.by_rule,
                    new=False,
                    was=same.cause if same.cause != alert.cause else "",
                    came_back=alert.recovered and not same.recovered,
                )
            )
    return tuple(alerts)


def _events(changes: Sequence[SeriesChange], causes: Sequence[Cause]) -> tuple[str, ...]:
    """The event of each change: its cause, and a night on which most changes of that cause may have begun.

    The night that explains most changes is taken first, with all that may have begun on it.
    """
    nights = [change.nights or {change.first} for change in changes]
    words = [cause.word for cause in causes]
    events: dict[int, str] = {}
    while len(events) < len(changes):
        left = [i for i in range(len(changes)) if i not in events]
        votes: Counter[tuple[int, str]] = Counter()
        for i in left:
            for night in nights[i]:
                votes[night, words[i]] += 2 if night == changes[i].first else 1
        # The earliest night of equal votes, so that a name does not depend on the order of changes.
        (night, word), _ = max(votes.items(), key=lambda vote: (vote[1], -vote[0][0], vote[0][1]))
        name = f"{_compact(night)}-{word}"
        events |= {i: name for i in left if words[i] == word and night in nights[i]}
    return tuple(events[i] for i in range(len(changes)))


def _compact(night: int) -> str:
    """Days since 1970-01-01 -> ``20260412``."""
    return night_of(night).replace("-", "")
