"""Whether an alert is over: known answers of recovered, half recovered and slow series."""

from __future__ import annotations

import math

import pytest

from perfbisect.series.alerts import found_alerts
from perfbisect.series.causes import Cause
from perfbisect.series.findings import select_alerts
from perfbisect.series.fixed import TrackFixedDocument
from tests.series.made_series import cell, noise, step
from tests.series.test_findings import QUIET


def judged(values: list[float], **more: object) -> TrackFixedDocument:
    """Of the first alert of these nights."""
    (series,) = cell({"e2el:median": values}, **more)  # type: ignore[arg-type]
    family = select_alerts([series, *QUIET], 0.05)
    own = [item for item in (*family.alerts, *family.suppressed) if item.series.key == series.key]
    (alert, *_) = found_alerts(family.alerts[:1], [Cause("product", ())])
    return TrackFixedDocument.of(alert, family.alerts[0], own)


@pytest.mark.parametrize("factor", [1.3, 0.7])
@pytest.mark.parametrize(
    ("back", "verdict", "share", "code"),
    [(1.0, "over", 0.0, 0), (0.5, "partly", 0.5, 3), (0.0, "not over", 1.0, 3)],
)
def test_what_is_left_of_a_step(factor: float, back: float, verdict: str, share: float, code: int) -> None:
    nights = step(noise(1, 50), 20, factor)
    fixed = judged(step(nights, 35, factor**-back))
    assert (fixed.verdict, fixed.exit_code) == (verdict, code)
    assert fixed.of_change == pytest.approx(share, abs=0.1)
    left = factor ** (1 - back) - 1
    assert fixed.left == pytest.approx(left, abs=0.02)
    assert fixed.interval is not None and fixed.interval[0] < left < fixed.interval[1]
    builds = None if fixed.went is None else (fixed.went[0].build, fixed.went[1].build)
    assert builds == (None if not back else ("134", "135"))


@pytest.mark.parametrize("factor", [1.3, 0.7])
@pytest.mark.parametrize(
    ("low", "high", "verdict", "code", "next_word"),
    [
        (-0.02, 0.02, "over", 0, "close"),
        (0.4, 0.6, "partly", 3, "suspects"),
        (0.8, 1.1, "not over", 3, "suspects"),
        (-0.2, 1.2, "inconclusive", 4, "compare"),
        (None, None, "inconclusive", 4, "compare"),
    ],
)
def test_what_a_comparison_leaves_of_an_alert(
    factor: float, low: float | None, high: float | None, verdict: str, code: int, next_word: str
) -> None:
    """``low``, ``high``: of the interval, as parts of the alert's change on the scale of logarithms."""
    fixed = judged(step(noise(1, 36), 20, factor, 35))
    assert fixed.verdict == "too few nights"
    size = math.log1p(fixed.alert.effect)
    ends = None if low is None or high is None else sorted(math.expm1(part * size) for part in (low, high))
    measured = fixed.measured_by(
        None if ends is None else (sum(ends) / 2, *ends),
        smallest_effect=0.03,
        job="j",
        compared=("before", "head"),
        following="perfbisect compare",
    )
    assert (measured.verdict, measured.exit_code, measured.by_nights) == (verdict, code, "too few nights")
    assert next_word in measured.next and measured.compared == ("before", "head")
    assert measured.interval == (None if ends is None else tuple(ends))


@pytest.mark.parametrize(
    ("nights", "verdict"), [(36, "too few nights"), (37, "too few nights"), (38, "over")]
)
def test_three_nights_tell(nights: int, verdict: str) -> None:
    fixed = judged(step(noise(1, nights), 20, 1.3, 35))
    assert fixed.verdict == verdict
    assert [(level.first, level.last) for level in fixed.levels] == [(0, 19), (20, 34), (35, nights - 1)]


def test_a_bad_night_moves_no_verdict() -> None:
    slow = step(noise(1, 45), 20, 1.3)
    for at in (30, 41):
        assert judged(step(slow, at, 1.5, at + 1)).verdict == "not over"
    over = step(noise(1, 45), 20, 1.3, 30)
    for at in (41, 44):
        assert judged(step(over, at, 1.5, at + 1)).verdict == "over"


def test_nights_of_other_requests_tell_nothing() -> None:
    nights, digests = step(noise(1, 45), 20, 1.3), ["a"] * 35 + ["b"] * 10
    fixed = judged(nights, covariates=[{"server": digest} for digest in digests])
    assert fixed.verdict == "too few nights" and fixed.levels[-1].last == 34
    assert fixed.compared_until == fixed.nights[34]


def test_of_nothing_but_noise_the_old_level_is_rarely_denied() -> None:
    """Recovered for a week at a noise of one per cent: all of 60 series are over or not decided."""
    verdicts = [judged(step(noise(seed, 45), 20, 1.1, 35)).verdict for seed in range(60)]
    assert verdicts.count("over") >= 55 and "not over" not in verdicts
