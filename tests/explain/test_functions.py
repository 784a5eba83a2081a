"""Differences of functions between two sides of profile launches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from perfbisect.explain.functions import (
    FunctionGrowth,
    LaunchReading,
    ProfileWindow,
    SampledLaunch,
    compare_functions,
    compare_times,
    launch_noise,
)
from perfbisect.explain.stacks import StackFrame, StackSample
from tests.long import mostly_long

CORE = "VLLM::EngineCore"
RATE, SECONDS, STEPS = 200, 10.0, 500.0
ROOT = StackFrame("EngineCoreProc.step", "vllm/v1/engine/core.py", 40)
POLL = StackFrame("Poller.poll", "zmq/sugar/poll.py", 9)


def frame(name: str) -> StackFrame:
    return StackFrame(name, "vllm/v1/a.py", 10)


def launch(times: Mapping[str, float], scale: float = 1.0, windows: int = 2) -> SampledLaunch:
    """A launch in which functions take so many ms a step; the rest of 20 ms a step is waiting.

    A name may hold callers: ``outer>inner``.
    """
    per_ms = RATE * SECONDS / (SECONDS * 1000.0) * STEPS
    counts = {name: round(ms * scale * per_ms) for name, ms in times.items()}
    idle = round(RATE * SECONDS) - sum(counts.values())
    assert idle >= 0
    samples = (
        StackSample(CORE, "MainThread", (ROOT, POLL), idle),
        *(
            StackSample(CORE, "MainThread", (ROOT, *map(frame, name.split(">"))), count)
            for name, count in counts.items()
            if count
        ),
    )
    return tuple(ProfileWindow(samples, SECONDS, STEPS) for _ in range(windows))


def by_name(rows: tuple[FunctionGrowth, ...]) -> dict[str, FunctionGrowth]:
    return {row.function: row for row in rows}


def test_a_function_that_grew_is_named_with_its_interval() -> None:
    a = [launch({"schedule": 2.0, "update": 1.0}, scale) for scale in (1.0, 1.04)]
    b = [launch({"schedule": 6.0, "update": 1.0}, scale) for scale in (0.99, 1.02)]
    result = compare_functions(a, b)
    (grown,) = result.grown
    assert grown.key == ("vllm/v1/a.py", "schedule")
    assert grown.growth == pytest.approx(4.0, abs=0.15)
    assert 2.0 < grown.low < 4.0 < grown.high < 6.0
    assert (grown.new, grown.moved_from, grown.processes) == (False, (), ("EngineCore",))
    assert result.total.difference == pytest.approx(4.0, abs=0.15)
    assert result.launches == (2, 2)
    # Waiting is no function that works.
    assert "Poller.poll" not in by_name(result.functions)


def test_what_has_no_counterpart_is_new() -> None:
    a = [launch({"schedule": 2.0})] * 2
    b = [launch({"schedule": 2.0, "check_blocks": 3.0})] * 2
    (grown,) = compare_functions(a, b).grown
    assert (grown.function, grown.new) == ("check_blocks", True)


def test_work_that_moved_below_one_caller_is_told_as_moved() -> None:
    a = [launch({"loop>old": 5.0, "loop": 1.0})] * 2
    b = [launch({"loop>new": 5.1, "loop": 1.0})] * 2
    result = compare_functions(a, b)
    new = by_name(result.functions)["new"]
    assert new.moved_from == ("vllm/v1/a.py old",)
    assert new.growth == pytest.approx(0.1, abs=0.05)
    assert new.difference == pytest.approx(5.1, abs=0.05)


def test_only_what_moved_is_taken_off() -> None:
    a = [launch({"loop>old": 4.0, "loop": 1.0})] * 2
    b = [launch({"loop>new": 10.0, "loop": 1.0})] * 2
    (grown,) = compare_functions(a, b).grown
    assert (grown.function, grown.moved_from) == ("new", ("vllm/v1/a.py old",))
    assert grown.growth == pytest.approx(6.0, abs=0.1)


def test_what_shrank_below_another_caller_did_not_move() -> None:
    a = [launch({"x>y>z>read>old": 5.0, "p>q>r>write>new": 1.0})] * 2
    b = [launch({"x>y>z>read>old": 0.5, "p>q>r>write>new": 6.0})] * 2
    (grown,) = compare_functions(a, b).grown
    assert (grown.moved_from, grown.growth) == ((), pytest.approx(5.0, abs=0.1))


def test_one_launch_a_side_shows_only_large_growth() -> None:
    a = [launch({"schedule": 6.0})]
    assert compare_functions(a, [launch({"schedule": 7.2})]).grown == ()
    assert len(compare_functions(a, [launch({"schedule": 15.0})]).grown) == 1


def test_launches_that_disagree_widen_the_interval() -> None:
    b = [launch({"schedule": 6.0})] * 2
    alike = compare_functions([launch({"schedule": 4.0})] * 2, b).functions[0]
    apart = compare_functions([launch({"schedule": 2.5}), launch({"schedule": 5.5})], b).functions[0]
    assert apart.before == pytest.approx(alike.before, abs=0.01)
    assert apart.high - apart.low > 1.5 * (alike.high - alike.low)


def test_growth_below_the_relevant_share_is_none() -> None:
    a = [launch({"forward": 15.0, "small": 0.02}, windows=40)] * 2
    b = [launch({"forward": 15.0, "small": 0.14}, windows=40)] * 2
    result = compare_functions(a, b)
    assert by_name(result.functions)["small"].significant
    assert result.grown == ()


def test_a_window_without_steps_is_refused() -> None:
    empty = (ProfileWindow((), 1.0, 5.0),)
    still = (ProfileWindow(launch({"schedule": 1.0})[0].samples, 1.0, 0.0),)
    for bad in (empty, still, ()):
        with pytest.raises(ValueError, match="no samples or no steps"):
            compare_functions([bad], [launch({"schedule": 1.0})])
    with pytest.raises(ValueError, match="needs a profile launch"):
        compare_functions([], [launch({"schedule": 1.0})])


@given(st.floats(0.05, 0.4), st.integers(2, 6))
def test_noise_between_launches_is_seen(noise: float, functions: int) -> None:
    side = [
        {str(i): LaunchReading(1.0 + sign * noise, 1e-6, 500.0) for i in range(functions)}
        for sign in (-1.0, 1.0)
    ]
    found = launch_noise((side, side))
    assert found > launch_noise(([side[0]] * 2, [side[0]] * 2))
    assert found >= 0.1 if noise >= 0.1 else found > 0.02


def simulated(
    rng: np.random.Generator, functions: int, noise: float, grown: float = 0.0
) -> list[dict[str, LaunchReading]]:
    """Two launches: each has a pace of its own, and so has each function in it; counts are Poisson."""
    levels = 5.0 * 0.8 ** np.arange(functions)
    levels[0] += grown
    launches = []
    for _ in range(2):
        pace = np.exp(rng.normal(0, noise) + rng.normal(0, noise, functions))
        counts = rng.poisson(levels * pace * 100.0)
        launches.append(
            {str(i): LaunchReading(n / 100.0, max(n, 1) / 1e4, float(n)) for i, n in enumerate(counts)}
        )
    return launches


def claims(seed: int, noise: float, grown: float) -> set[str]:
    rng = np.random.default_rng([seed, 5])
    a, b = simulated(rng, 25, noise), simulated(rng, 25, noise, grown)
    rows = compare_times(a, b)
    rates = false_discovery_control([p for _, p in rows.values()])
    return {key for key, q in zip(rows, rates, strict=True) if q <= 0.05}


@pytest.mark.parametrize("noise", mostly_long([0.02, 0.06, 0.12], short=[0.06]))
def test_sides_that_differ_in_nothing_show_nothing(noise: float) -> None:
    wrong = [seed for seed in range(150) if claims(seed, noise, 0.0)]
    assert len(wrong) <= 12


def test_a_growth_of_the_size_of_interest_is_found() -> None:
    found = [claims(seed, 0.06, 4.0) for seed in range(60)]
    assert sum("0" in rows for rows in found) >= 45
    assert sum(len(rows - {"0"}) for rows in found) <= 12
