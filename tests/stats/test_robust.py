"""Location, the Student-t, sums of exponentials, quantiles and integration nodes against known answers."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate
from scipy import stats as scipy_stats

from perfbisect.stats.robust import (
    adaptive_grid,
    grid_cells,
    log_heavy_tailed,
    log_student_t,
    log_sum_exp,
    quantiles,
    robust_location,
    run_scale,
)


def test_log_t_is_the_student_t_up_to_its_constant():
    z = np.linspace(-30, 30, 41)
    constant = scipy_stats.t(4).logpdf(0.0)
    assert log_student_t(z) == pytest.approx(scipy_stats.t(4).logpdf(z) - constant)


def test_the_tail_is_a_mixture_of_a_gaussian_and_a_wide_student_t():
    z = np.linspace(-40, 40, 81)
    density = 0.9 * scipy_stats.norm.pdf(z) + 0.1 * scipy_stats.t(3, scale=3).pdf(z)
    assert log_heavy_tailed(z) == pytest.approx(np.log(density / scipy_stats.norm.pdf(0.0)))


def test_a_centre_with_a_scale_is_the_mean_but_for_runs_far_out():
    near = np.array([0.0, 0.01, 0.03, -0.01])
    assert robust_location(near, 0.02) == pytest.approx(near.mean())
    far = np.array([0.0, 0.01, 0.02, 0.5])
    assert robust_location(far, 0.01) == pytest.approx(0.01, abs=0.002)
    assert robust_location(-far, 0.01) == pytest.approx(-robust_location(far, 0.01))
    assert robust_location(100 * far, 1.0) == pytest.approx(100 * robust_location(far, 0.01))


def test_the_scale_of_runs_is_that_of_their_differences():
    rng = np.random.default_rng(5)
    runs = [rng.normal(k, 0.03, 3) for k in range(400)]
    assert run_scale(runs) == pytest.approx(0.03, rel=0.06)
    assert run_scale([np.array([1.0])]) == 0.0


def test_log_sum_does_not_overflow_nor_mind_zeros():
    assert log_sum_exp(np.array([1000.0, 1000.0])) == pytest.approx(1000 + math.log(2))
    assert log_sum_exp(np.array([-np.inf, -np.inf])) == -np.inf
    both = log_sum_exp(np.array([[0.0, -np.inf], [-2000.0, -2000.0]]), axis=1)
    assert both == pytest.approx([0.0, -2000 + math.log(2)])


def test_quantiles_of_a_normal():
    x = np.linspace(-6, 6, 2001)
    got = quantiles(x, np.exp(-0.5 * x * x), (0.025, 0.5, 0.975))
    assert got == pytest.approx((-1.96, 0.0, 1.96), abs=5e-3)


@example([1.0], 0.09999999999999999, 0.25)
@example([0.0], 0.09999999999999999, 0.25)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=30), st.floats(1e-4, 0.1), st.floats(0.05, 2))
def test_nodes_ascend_and_reach_beyond_the_points(points, fine, reach):
    nodes = adaptive_grid(np.array(points), fine, reach, most=120)
    assert len(nodes) <= 120
    assert np.all(np.diff(nodes) > 0)
    assert nodes[0] <= min(points) - reach + 1e-9
    assert nodes[-1] > max(points)
    low, high = grid_cells(nodes)
    assert np.all(high[:-1] == pytest.approx(low[1:]))
    assert np.all((low < nodes) & (nodes < high))


@pytest.mark.parametrize("points", [[0.0], [0.0, 0.001, 0.9], [0.0, 0.3, 0.302, 0.305, 2.3]])
def test_nodes_integrate_a_product_of_narrow_densities(points):
    scale = 0.01

    def density(x):
        return math.exp(-sum(2.5 * math.log1p(((x - p) / scale) ** 2 / 4) for p in points))

    nodes = adaptive_grid(np.array(points), 0.3 * scale, 8 * scale)
    low, high = grid_cells(nodes)
    got = float(sum(density(x) * w for x, w in zip(nodes, high - low, strict=True)))
    edges = sorted({low[0], high[-1], *points, *(p + d for p in points for d in (-5 * scale, 5 * scale))})
    exact = sum(integrate.quad(density, a, b, limit=200)[0] for a, b in pairwise(edges))
    assert got == pytest.approx(exact, rel=0.02)
