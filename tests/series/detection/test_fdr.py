"""Many series: false discoveries, the census, and what several say together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from perfbisect.series.detection.fdr import detect_all, find_joint_changes, threshold
from perfbisect.series.detection.model import JudgedSeries, SeriesRefusal, SeriesValues


def series(key: str, seed: int, at: int = 0, step: float = 0.0, n: int = 50, **given: object) -> SeriesValues:
    logs = 0.02 * np.random.default_rng(seed).normal(size=n) + step * (np.arange(n) >= at) * (at > 0)
    values = tuple(float(v) for v in 10 * np.exp(logs))
    return SeriesValues(key, values, tuple(range(100, 100 + n)), **given)  # type: ignore[arg-type]


BENJAMINI_HOCHBERG = (
    *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459),
    *(0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.000),
)
"""The fifteen comparisons of their paper, of which four are rejected at 0.05."""


@pytest.mark.parametrize("p", [BENJAMINI_HOCHBERG, (0.9, 0.01, 0.01, 0.5), (0.7,)])
@pytest.mark.parametrize("fdr", [0.01, 0.05, 0.2, 0.6])
def test_as_many_are_rejected_as_by_scipy(p: tuple[float, ...], fdr: float) -> None:
    rejected = sum(false_discovery_control(p) <= fdr)
    assert threshold(p, fdr) == pytest.approx(fdr * rejected / len(p))
    assert sum(value <= threshold(p, fdr) for value in p) == rejected


def test_the_threshold_is_that_of_the_paper() -> None:
    """Between their fourth value and the fifth: what the rank of the last rejected one allows."""
    assert threshold(BENJAMINI_HOCHBERG, 0.05) == pytest.approx(4 / 15 * 0.05)
    assert threshold(BENJAMINI_HOCHBERG[::-1], 0.05) == threshold(BENJAMINI_HOCHBERG, 0.05)
    assert sum(p <= threshold(BENJAMINI_HOCHBERG, 0.05) for p in BENJAMINI_HOCHBERG) == 4
    assert threshold((0.2, 0.9), 0.05) == threshold((), 0.05) == 0.0


def test_alerts_lists_and_the_census() -> None:
    quiet = [series(f"quiet {k}", k) for k in range(30)]
    large = series("large", 50, 25, 0.15, min_effect=0.03)
    small = series("small", 51, 25, 0.05, min_effect=0.10)
    short = SeriesValues("short", (1.0, 2.0), (1, 2))
    zero = SeriesValues("zero", (0.0,) * 20, tuple(range(20)))
    got = detect_all([*quiet, large, small, short, zero], 0.05)
    assert {b.key for b in got.alerts} == {"large"}
    assert [point.is_relevant for point in got.points["small"]] == [False]
    assert got.coverage.judged == 32
    judged, refused = got.coverage.series[:32], got.coverage.series[32:]
    assert [(entry.series, entry.nights, entry.why) for entry in refused] == [
        ("short", 2, SeriesRefusal("few nights", 2)),
        ("zero", 20, SeriesRefusal("not positive")),
    ]
    by_key = {entry.series: entry for entry in judged}
    assert (by_key["large"].p or 1) < 1e-4 <= (by_key["quiet 0"].p or 0)
    assert (by_key["large"].nights, by_key["large"].changes) == (50, 1)
    rejected = [entry for entry in judged if (entry.p or 0) <= got.coverage.cut["level"]]
    assert {"large", "small"} <= {entry.series for entry in rejected}
    assert got.coverage.cut["level"] == pytest.approx(len(rejected) / 32 * 0.05)
    assert 0.01 < (by_key["quiet 0"].smallest or 0) < 0.10


def test_wild_nights_do_not_raise_the_cut_for_steps() -> None:
    """Of 40 series half have a wild night; what is significant of the steps stays as it is without them."""
    some = [series(f"cell {k}", 600 + k, 25, 0.03 if k < 8 else 0.0) for k in range(40)]
    wild = [
        replace(item, values=(*item.values[:40], 2 * item.values[40], *item.values[41:])) if k >= 20 else item
        for k, item in enumerate(some)
    ]
    quiet, loud = detect_all(some), detect_all(wild)
    assert len({point.key for point in loud.alerts if point.test == "transient"}) == 20
    assert loud.coverage.cut["level"] == pytest.approx(quiet.coverage.cut["level"])
    assert loud.coverage.cut["transient"] >= 0.05 * 20 / 40
    steps = [{p.key for p in found.alerts if p.test == "level"} for found in (quiet, loud)]
    assert steps[0] == steps[1] != set()


def test_small_steps_that_none_is_sure_of_are_one_event_together() -> None:
    many = [series(f"cell {k}", 300 + k, 30, 0.022, group=f"server {k}") for k in range(12)]
    got = detect_all(many)
    (event,) = got.events
    assert event.after < 130 <= event.by + 1
    assert event.by - event.after <= 3
    assert event.p < 1e-4
    assert len(event.series) > len({b.key for b in got.alerts})
    assert len(event.servers) >= 4


def judged(n: int, **evidence: float) -> JudgedSeries:
    logs = np.zeros(n)
    for at, value in evidence.items():
        logs[int(at[1:])] = value
    return JudgedSeries((), {"level": 1.0, "transient": 1.0}, 0.1, logs)


def test_series_of_one_server_are_one_vote() -> None:
    apart = [series(f"cell {k}", k, group=f"server {k}") for k in range(6)]
    together = [series(f"cell {k}", k, group="server") for k in range(6)]
    strong = [judged(50, k20=3.0) for _ in range(6)]
    (event,) = find_joint_changes(apart, strong)
    evidence = np.mean([(1 - share + share * math.exp(3.0)) ** 6 for share in (0.5, 0.15, 0.05)])
    rest = 10 / 49
    assert event.p == pytest.approx(1 / (evidence / 49 + rest), rel=1e-9)
    assert (event.after, event.by) == (119, 120)
    assert len(event.servers) == 6
    assert find_joint_changes(together, strong) == ()


def test_quiet_servers_do_not_outvote_those_that_changed() -> None:
    given = [series(f"cell {k}", k, group=f"server {k}") for k in range(60)]
    (event,) = find_joint_changes(given, [judged(50, k20=14.0)] * 2 + [judged(50, k20=-3.0)] * 58)
    assert (event.after, event.by, len(event.against)) == (119, 120, 58)
    assert event.servers == ("server 0", "server 1")


def test_a_group_that_stayed_is_against_it() -> None:
    given = [series(f"cell {k}", k, group=f"server {k}") for k in range(8)]
    seen = [judged(50, k20=4.0)] * 6 + [judged(50, k20=-4.0), judged(50)]
    (event,) = find_joint_changes(given, seen)
    assert event.against == ("server 6",)
    assert event.servers == tuple(f"server {k}" for k in range(6))
    assert event.series == tuple(f"cell {k}" for k in range(6))


def test_a_missing_night_is_part_of_the_change_before_the_next() -> None:
    whole = [series(f"cell {k}", k, group=f"server {k}") for k in range(5)]
    kept = [k for k in range(50) if k != 20]
    gapped = SeriesValues(
        "gap", tuple(whole[0].values[k] for k in kept), tuple(100 + k for k in kept), group="gap"
    )
    seen = [judged(50, k20=4.0) for _ in whole]
    (event,) = find_joint_changes([*whole, gapped], [*seen, judged(49, k20=4.0)])
    assert "gap" in event.servers
    assert (event.after, event.by) == (119, 120)
