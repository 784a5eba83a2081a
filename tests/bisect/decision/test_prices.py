"""Prices as observed, and what a visit costs."""

from __future__ import annotations

import numpy as np
import pytest

from perfbisect.bisect.decision.model import Lost, Measured, Plan, Skipped
from perfbisect.bisect.decision.state import observed_prices
from perfbisect.model.attempt import Costs

PLAN = Plan(n=8, costs=Costs(build=10, launch=5, run=2), cached=frozenset({3}))


def test_before_anything_is_seen_the_plan_prices():
    prices = observed_prices(PLAN, ())
    assert prices.visit(1, 2) == 10 + 5 + 4
    assert prices.visit(3, 1) == 7
    assert prices.spent == 0


def test_then_medians_of_what_was_seen():
    events = (
        Measured(0, "end", (1.0, 1.0), build=2.0, launch=1.0, run=3.0),
        Measured(8, "end", (1.0, 1.0), build=4.0, launch=2.0, run=1.0),
        Measured(8, "end", (1.0,), build=0.0, launch=9.0, run=1.0),
        Skipped(5, "search", minutes=6.5),
        Lost(minutes=30.0),
    )
    prices = observed_prices(PLAN, events)
    assert (prices.build, prices.launch, prices.run) == (3.0, 2.0, 1.0)
    assert prices.spent == 6 + 7 + 10 + 6.5 + 30
    assert prices.visit(1, 4) == 3 + 2 + 4
    assert prices.visit(5, 1) == prices.visit(8, 1) == prices.visit(3, 1) == 3.0


def test_free_things_do_not_divide_by_zero():
    prices = observed_prices(Plan(n=2, costs=Costs(0, 0, 0)), ())
    assert prices.visit(1, 1) > 0
    assert prices.best_runs(0.02, 0.01, 6) == 2


@pytest.mark.parametrize(("launch", "run"), [(3.0, 1.5), (20.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize(("sigma", "tau"), [(0.01, 0.015), (0.04, 0.01), (0.1, 0.021)])
def test_the_best_number_of_runs_is_the_cheapest_precision(launch, run, sigma, tau):
    prices = observed_prices(Plan(n=2, costs=Costs(4.0, launch, run)), ())
    r = np.arange(0.2, 80, 0.001)
    exact = r[np.argmin((launch + r * run) * (tau**2 + sigma**2 / r))]
    assert prices.best_runs(sigma, tau, 60) == max(1, round(exact))
    assert prices.best_runs(sigma, tau, 2) <= 2
