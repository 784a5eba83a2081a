"""``track fixed``: whether an alert is over, what is left of it, and since which commits."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from perfbisect.changes.git import Repository
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from perfbisect.jobs.documents import Document
from perfbisect.model.metric import parse_metric
from perfbisect.series.alerts import RECOVERED, RECOVERY_NIGHTS, Alert, AlertPlace, Real
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.detection.machines import machine_offsets
from perfbisect.series.detection.model import WEEK, WIDTH, SeriesLevel, levels
from perfbisect.series.findings import NOISE_NIGHTS, SeriesChange, noise_of
from perfbisect.series.points import Night
from perfbisect.series.store import SeriesStore
from perfbisect.series.suspects.job import cell_of_ours, onset_ends
from perfbisect.series.suspects.window import MainLine, commit_window
from perfbisect.stats.two_sample import Scale

_BAD_NIGHTS = 2  # nights of a transient that a median of a week ignores

FixedVerdict = Literal["over", "partly", "not over", "too few nights", "inconclusive"]
"""``partly``: neither the level before the alert nor the alert's own. Not decided: ``too few nights``, and
``inconclusive`` of the comparison that was made."""


class TrackFixedDocument(Document):
    """JSON of ``track fixed``.

    ``levels``: before the alert, at it, and the newest that can be compared with these; ``first`` and
    ``last`` of each are places in ``nights``. ``left``: the newest level against the one before the alert, a
    share or a difference of shares, with its ``interval``; ``of_change``: the part of the change that this
    is. ``went``: the builds after which and by which the newest level began, where it is another than the
    alert's; ``commits``: theirs, where they
    are known. ``compared_until``: later nights measure something else. ``before``: the commit before the
    alert, where it is known.

    ``job``: of the comparison of ``compared`` (the commit before the alert and the newest), whose are then
    verdict, ``left``, ``interval`` and ``of_change``; ``by_nights``: what the nights alone said.
    """

    schema_: Literal["perfbisect.track-fixed/2"] = Field(default="perfbisect.track-fixed/2", alias="schema")
    alert: Alert
    verdict: FixedVerdict
    nights: tuple[Night, ...]
    levels: tuple[SeriesLevel, ...]
    left: Real | None = None
    interval: tuple[Real, Real] | None = None
    of_change: Real | None = None
    went: tuple[AlertPlace, AlertPlace] | None = None
    commits: tuple[str, str] | None = None
    compared_until: Night | None = None
    before: str = ""
    job: str = ""
    compared: tuple[str, str] | None = None
    by_nights: FixedVerdict | None = None
    next: str = ""

    @property
    def exit_code(self) -> int:
        if self.verdict in ("too few nights", "inconclusive"):
            return EXIT_INCONCLUSIVE
        return EXIT_OK if self.verdict == "over" else EXIT_REGRESSION

    @property
    def is_open(self) -> bool:
        """Whether a comparison of the commit before the alert with the newest says more."""
        return self.verdict in ("partly", "too few nights", "inconclusive")

    @staticmethod
    def _judge(low: float, high: float, whole: float, worth_telling: float) -> FixedVerdict | None:
        """The verdict on a rest, in the direction of the alert; None: it may be of several."""
        # A rest that surely is worth telling is no noise, however small a part of a large change it is.
        if high <= RECOVERED * whole and low <= worth_telling:
            return "over"
        if high >= whole and low > RECOVERED * whole:
            return "not over"
        return "partly" if low > 0 and high < whole else None

    def measured_by(
        self,
        effect: tuple[float, float, float] | None,
        *,
        smallest_effect: float,
        job: str,
        compared: tuple[str, str],
        following: str,
    ) -> TrackFixedDocument:
        """The answer of a comparison of the commit before the alert with the newest.

        ``effect``: with the ends of its interval; None: there is none. ``following``: the command that makes
        more of its launches.
        """
        scale = Scale.of(parse_metric(self.alert.metric).metric)
        whole = scale.difference(self.alert.effect)
        found: dict[str, object] = {
            "job": job,
            "compared": compared,
            "by_nights": self.verdict,
            "verdict": "inconclusive",
            "next": following,
            **dict.fromkeys(("left", "interval", "of_change")),
        }
        if effect is not None and whole:
            sign = math.copysign(1.0, whole)
            left, *interval = effect
            low, high = sorted(sign * scale.difference(end) for end in interval)
            verdict = self._judge(low, high, abs(whole), scale.room(smallest_effect))
            of_change = sign * scale.difference(left) / abs(whole)
            found |= {"left": left, "interval": tuple(interval), "of_change": of_change}
            if verdict is not None:
                after = ("close", "--reason", "TEXT") if verdict == "over" else ("suspects", "--repo", "PATH")
                words = ["perfbisect", "track", after[0], self.alert.id, *after[1:]]
                found |= {"verdict": verdict, "next": shlex.join(words)}
        return self.model_copy(update=found)

    @classmethod
    def of(cls, alert: Alert, change: SeriesChange, later: Sequence[SeriesChange]) -> TrackFixedDocument:
        """What the series of an alert shows of it now; ``later``: all changes of that series."""
        series, scale = change.series, change.series.scale
        segment = change.segment
        end, left_at = segment.stop, change.after[-1] + 1
        others = [item for item in later if change.point.index < item.point.index < end]
        # Where the newest level may have begun: by nights, the last without it and the first with it.
        began = {left_at: (left_at - 1, left_at)} if left_at < end else {}
        for item in others:
            places, after = item.point.places, item.after[-1] + 1
            # A bad night or two move no median; after more the level is that of the nights that follow.
            if item.is_over and len(item.after) > _BAD_NIGHTS and after < end:
                began[after] = (after - 1, after)
            elif item.point.shape != "transient" or (not item.is_over and item.shift * change.shift < 0):
                began[item.point.index] = (max(0, places[0] - 1), max(places[-1], item.point.index))
        start = max(began, default=change.after[0])
        left_at = start if change.after[0] < start < left_at else left_at
        before = range(change.before[0], change.before[-1] + 1)[-NOISE_NIGHTS:]
        groups = [before, range(change.after[0], left_at)[:NOISE_NIGHTS], range(start, end)[-WEEK:]]
        document = cls(
            alert=alert,
            verdict="too few nights",
            nights=series.nights,
            levels=tuple(
                replace(
                    levels(series.values[group[0] : group[-1] + 1], ())[0], first=group[0], last=group[-1]
                )
                for group in groups
            ),
            compared_until=series.nights[end - 1] if end < len(series.nights) else None,
        )
        if began:
            points = [series.points[place] for place in began[start]]
            shows, without = (AlertPlace(build=point.build.name, time=point.began) for point in points)
            document = document.model_copy(update={"went": (shows, without)})
        if min(len(groups[0]), len(groups[2])) < RECOVERY_NIGHTS:
            return document
        signed = series.levels(range(end))
        # As detection does: what a host alone makes is no level.
        signed[segment] -= machine_offsets(signed[segment], series.machines[segment])
        values = [signed[group] for group in groups]
        old, alerted, new = (float(np.median(group)) for group in values)
        noise = noise_of(np.concatenate([group - np.median(group) for group in values]))
        # 1.6: the variance of a median over that of a mean is pi / 2 for Gaussian nights.
        # The width of a drift's interval, for the noise is estimated.
        error = WIDTH * noise * math.sqrt(1.6 / len(values[0]) + 1.6 / len(values[2]))
        whole, gap, sign = abs(alerted - old), new - old, math.copysign(1.0, alerted - old)
        if not whole:
            return document
        low, high = sign * gap - error, sign * gap + error
        verdict = cls._judge(low, high, whole, scale.room(series.min_effect)) or "too few nights"
        # Nights after the last compared one may be at any level.
        if document.compared_until is not None and verdict != "over":
            verdict = "too few nights"
        ends_of_effect = sorted(scale.effect(gap + side) for side in (-error, error))
        return document.model_copy(
            update={
                "verdict": verdict,
                "left": scale.effect(gap),
                "interval": tuple(ends_of_effect),
                "of_change": sign * gap / whole,
            }
        )


def track_fixed(
    store: SeriesStore, analysis: SeriesAnalysis, alert: Alert, repository: Repository | None
) -> TrackFixedDocument:
    """Whether an alert is over; ``repository``: places the builds that do not report their commit.

    :raises RevisionError: the repository lacks a build's commit.
    """
    change = analysis.findings[alert.id]
    changes = [item for family in analysis.families for item in (*family.alerts, *family.suppressed)]
    own = [item for item in changes if item.series.key == change.series.key]
    document = TrackFixedDocument.of(alert, change, own)
    line = None if repository is None else MainLine.of(repository)
    points = () if repository is None else store.points()
    if document.went is not None:
        builds = {point.began: point.build for point in change.series.points}
        before, after = (builds[place.time] for place in document.went)
        commits = (before.commit, after.commit) if before.commit and after.commit else None
        if commits is None and line is not None:
            window = commit_window(line, points, before, after)
            commits = line.commits[window.before.earliest].id, line.commits[window.after.latest].id
        document = document.model_copy(update={"commits": commits})
    ends = onset_ends(change, line, points) if document.is_open else None
    document = document.model_copy(update={"before": ends[0] if ends else ""})
    place = [] if repository is None else ["--repo", str(repository.path)]
    if document.verdict == "over":
        words = ["perfbisect", "track", "close", alert.id, "--reason", "TEXT"]
    elif document.verdict == "not over":
        words = ["perfbisect", "track", "suspects", alert.id, *(place or ["--repo", "PATH"])]
    else:
        words = ["perfbisect", "compare", cell_of_ours(change) or "CELL"]
        words += ["--a", document.before or "BEFORE", "--b", "HEAD"]
        words += ["--metric", alert.metric, *place]
    return document.model_copy(update={"next": shlex.join(words)})
