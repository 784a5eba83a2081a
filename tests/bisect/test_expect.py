"""What is told of the price before anything starts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfbisect.bisect.forecast import forecast
from perfbisect.jobs.estimates import Noise, learnt_costs, learnt_noise
from perfbisect.model.attempt import Attempt, Costs, Provenance, RunResult
from perfbisect.model.metric import parse_metric
from tests.fixtures.jobs import MakePlan
from tests.jobs.world import World, history

TPOT = parse_metric("tpot")


def attempt(change: str, *values: float) -> Attempt:
    runs = tuple(RunResult(i, i, {"tpot:median": v}) for i, v in enumerate(values))
    seconds = {"build": 600.0, "launch": 60.0, "warm": 30.0, "bench": 24.0}
    return Attempt("a", change, "run", Provenance("d", "m", "c"), runs, None, seconds)


def test_more_launches_resolve_smaller_steps_and_cost_more(plan_for: MakePlan) -> None:
    short, long = (plan_for(World(history(n).changes, slow=None)) for n in (4, 200))
    a, b = forecast(short, Noise()), forecast(long, Noise())
    assert a.launches_low < b.launches_low <= b.launches_high
    assert a.minutes_low < b.minutes_low < b.minutes_high
    steps = [step for _, step in a.resolves]
    assert steps == sorted(steps, reverse=True)


def test_the_step_that_is_resolved_is_the_textbook_one(plan_for: MakePlan) -> None:
    """Two groups of four, one value a launch: 80 % power at 5 % is 2.8 standard errors of the difference."""
    made = plan_for(World(history(4).changes, slow=None)).model_copy(update={"max_runs": 1})
    told = dict(forecast(made, Noise(0.03, 0.04)).resolves)
    assert told[4] == pytest.approx(math.exp(2.8 * 0.05 * math.sqrt(2 / 4)) - 1, rel=1e-9)


def test_prices_are_learnt_from_earlier_launches() -> None:
    assert learnt_costs([], Costs(1, 2, 3)) == Costs(1, 2, 3)
    failed = replace(attempt("a"), runs=())
    assert learnt_costs([attempt("a", 1.0, 1.0), failed], Costs(9, 9, 9)) == Costs(9, 1.5, 0.2)


def test_noise_is_learnt_from_enough_launches_of_one_change() -> None:
    assert learnt_noise([attempt("a", 1.0, 1.1)], TPOT) == Noise()
    assert learnt_noise([attempt(c, 1.0, 1.1) for c in "abcd"], TPOT) == Noise(), "no change twice"
    values = [(1.0, math.exp(0.02)), (math.exp(0.1), math.exp(0.12))]
    noise = learnt_noise([attempt(c, *pair) for c in "ab" for pair in values], TPOT)
    assert noise.runs == pytest.approx(0.02 / math.sqrt(2))
    assert noise.launches == pytest.approx(0.1 / math.sqrt(2))
    assert "from 4 earlier launches" in noise.source
    assert learnt_noise([attempt("a", 1.0)] * 9, parse_metric("ttft")) == Noise()
