"""Drifts and transients."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from perfbisect.series.detection.model import LONGEST, RAMP, fit_ramp, transients


def noise(n: int, seed: int, scale: float = 0.01) -> np.ndarray:
    return scale * np.random.default_rng([n, seed]).normal(size=n)


def test_a_ramp_is_found_with_its_ends() -> None:
    path = np.interp(np.arange(60), [20, 40], [0.0, 0.1])
    found = fit_ramp(noise(60, 1) + path, (30,))
    assert found is not None
    assert abs(found.begin - 21) <= 3 and abs(found.end - 40) <= 3
    assert found.step == pytest.approx(0.1, abs=3 * found.error)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_no_ramp(seed: int) -> None:
    assert fit_ramp(noise(60, seed) + 0.05 * (np.arange(60) >= 30), (30,)) is None
    two = noise(90, seed) + 0.1 * (np.arange(90) >= 30) + 0.1 * (np.arange(90) >= 60)
    assert fit_ramp(two, (30, 60)) is None
    assert fit_ramp(np.linspace(0, 1, RAMP + 3), (4,)) is None, "too few nights"


def test_a_staircase_of_one_ramp_is_the_ramp() -> None:
    path = np.interp(np.arange(90), [10, 80], [0.0, 0.3])
    found = fit_ramp(noise(90, 3) + path, (28, 45, 63))
    assert found is not None
    assert found.end - found.begin > 40


def test_the_p_of_one_night_is_the_tail_of_a_student_t() -> None:
    values = np.insert(np.tile([-0.01, 0.0, 0.01], 33), 60, 0.5)
    (found,) = transients(values, ())
    scale = 1.4826 * 0.01 * 1.06
    assert (found.begin, found.end) == (60, 61)
    assert found.p == pytest.approx(100 * 2 * stats.t.sf(0.5 / scale / 1.134, 3), rel=1e-6)
    assert found.step == pytest.approx(0.5)


def test_where_wild_nights_are_usual_one_more_is_no_news() -> None:
    alone, usual = noise(100, 4), noise(100, 4)
    alone[60] += 0.5
    usual[[5, 20, 33, 60, 71, 90]] += 0.5
    assert transients(alone, ())[0].p < 0.01
    assert min(found.p for found in transients(usual, ())) == 1.0


def test_a_longer_run_is_a_level_and_no_transient() -> None:
    values = noise(60, 5)
    values[20 : 20 + LONGEST] += 0.3
    assert [(t.begin, t.end) for t in transients(values, ())] == [(20, 20 + LONGEST)]
    values[20 + LONGEST] += 0.3
    assert transients(values, ()) == ()


def test_a_run_ends_where_the_level_changes() -> None:
    values = noise(60, 6) + 1.0 * (np.arange(60) >= 30)
    values[28:30] += 0.5
    assert [(t.begin, t.end) for t in transients(values, (30,))] == [(28, 30)]
