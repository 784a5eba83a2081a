"""Bars are held by binomial bounds, with seeds of their own."""

from __future__ import annotations

import importlib
import types
from functools import partial
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scripts import bars
from scripts.bars import AREAS, Bar, Experiment, bounds, check, seeds

ONE = Bar("called different", "at most", 0.01)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_bound_is_where_what_was_counted_becomes_improbable(counted: tuple[int, int]) -> None:
    events, trials = counted
    low, high = bounds(events, trials)
    assert 0 <= low <= events / trials <= high <= 1
    if events:
        assert stats.binom.sf(events - 1, trials, low) == pytest.approx(0.05, rel=1e-6)
    if events < trials:
        assert stats.binom.cdf(events, trials, high) == pytest.approx(0.05, rel=1e-6)


def test_without_a_trial_nothing_is_excluded() -> None:
    assert bounds(0, 0) == (0.0, 1.0)
    assert not ONE.is_missed(0, 0)


@pytest.mark.parametrize(("events", "missed"), [(4, False), (7, False), (8, False), (9, True), (12, True)])
def test_several_times_the_claimed_error_is_excluded(events: int, missed: bool) -> None:
    assert ONE.is_missed(events, 400) == missed == (stats.binom.sf(events - 1, 400, 0.01) < 0.05)
    assert Bar("same", "at least", 0.99).is_missed(400 - events, 400) == missed


def test_seeds_differ_by_seed_name_and_sample() -> None:
    samples = [seeds(*which, 50) for which in ((7, "gauss", 0), (7, "gauss", 1), (7, "t3", 0), (8, "t3", 0))]
    assert len({word for sample in samples for word in sample}) > 195
    assert seeds(7, "gauss", 0, 50) == samples[0]


def draw(rate: float, seed: int) -> tuple[bool, bool | None]:
    event = bool(np.random.default_rng(seed).random() < rate)
    return event, None if event else True


def test_what_is_excluded_is_drawn_once_more() -> None:
    def experiment(rate: float) -> Experiment:
        trial = partial(draw, rate)
        return Experiment(f"rate {rate}", 500, trial, (ONE, Bar("said", "at least", 0.5)))

    with ThreadPool(1) as pool:
        held, named, missed, _ = check([experiment(0.004), experiment(0.04)], 3, 1.0, pool)
        assert (held.trials, held.missed, named.trials) == (500, False, 500 - held.events)
        assert (missed.trials, missed.missed) == (1000, True)
        assert next(check([experiment(0.004)], 3, 0.1, pool)).trials == 50
        with pytest.raises(ValueError, match=r"rate 0.1: 2 answers to 1 bars"):
            list(check([Experiment("rate 0.1", 5, partial(draw, 0.1), (ONE,))], 3, 1.0, pool))


@pytest.mark.processes
@pytest.mark.parametrize(("rate", "code"), [(0.0, 0), (0.3, 1)])
def test_the_command_says_seed_counts_and_verdicts(
    rate: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = Experiment("world", 60, partial(draw, rate), (ONE, Bar("said", "at least", 0.5)))
    area = types.SimpleNamespace(EXPERIMENTS=(experiment,))
    monkeypatch.setattr(importlib, "import_module", lambda _: area)
    assert bars.main(["--seed", "5", "--only", "detection", "--procs", "1"]) == code
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "seed 5"
    row = next(line for line in printed if "called different" in line)
    assert row.startswith("| detection | world | called different: at most 1 % | ")
    assert row.endswith("| **missed** |" if code else "| 0 of 60 = 0.0 % | 0.0 to 4.9 % | holds |")
    assert printed[-1] == ("1 missed" if code else "every bar holds")


@pytest.mark.processes
@pytest.mark.parametrize("area", AREAS)
def test_every_area_has_experiments_that_answer_all_their_bars(area: str) -> None:
    for experiment in importlib.import_module(AREAS[area]).EXPERIMENTS:
        assert len(experiment.trial(1)) == len(experiment.bars), experiment.name
