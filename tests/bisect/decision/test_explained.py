"""What else than a step may explain launches: builds with offsets, a slope, a step that slows only some."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from perfbisect.bisect.decision.beliefs import prior_weights, step_prior
from perfbisect.bisect.decision.decide import beliefs, next_action
from perfbisect.bisect.decision.model import (
    BUILD_SD,
    Measured,
    NextLaunch,
    NoisePrior,
    Plan,
    SearchOutcome,
)
from perfbisect.bisect.decision.noise import LaunchEstimate
from perfbisect.bisect.decision.outcome import SHOWN
from perfbisect.bisect.decision.posterior import SLOPE, Alternatives, compute_posterior
from perfbisect.bisect.decision.state import SearchState
from tests.bisect.worlds import Bench


def events_of(levels, launches=3, sigma=0.004, seed=1, n=16):
    """So many launches at each position's level (position -> log)."""
    rng = np.random.default_rng(seed)
    return tuple(
        Measured(
            index, "search" if 0 < index < n else "end", tuple(100 * np.exp(level + rng.normal(0, sigma, 2)))
        )
        for index, level in sorted(levels.items())
        for _ in range(launches)
    )


def search_state(levels, binaries=(), builds=(), launches=3):
    plan = Plan(n=16, binaries=binaries, noise=NoisePrior(builds=builds))
    return SearchState.from_events(plan, events_of(levels, launches))


def explained(levels, **more):
    """The posterior of :func:`search_state` with everything that may explain its launches."""
    return search_state(levels, **more).explained


def test_a_clear_step_holds():
    seen = explained({0: 0, 6: 0, 7: 0, 8: 0.10, 9: 0.10, 16: 0.10})
    assert seen.inside(7, 8) > 0.98
    assert seen.slope < 0.01


def test_builds_that_differ_everywhere_take_the_name():
    """Levels of builds 1 to 2 % apart on both sides of a "step" of 2.5 %: it is one of them."""
    scattered = {0: 0, 4: 0.012, 6: -0.012, 7: 0.002, 8: 0.027, 9: 0.004, 12: 0.021, 16: 0.026}
    alike = {k: 0.025 * (k >= 8) for k in scattered}
    assert explained(scattered).inside(7, 8) < 0.7
    assert explained(scattered).build_sd > 0.007
    assert explained(alike).inside(7, 8) > 0.9


EACH = tuple(map(str, range(17)))


def test_compiled_files_of_its_own_make_an_offset_of_each_build_likelier():
    levels = {0: 0, 6: 0, 7: 0, 8: 0.03, 9: 0.03, 16: 0.03}
    shared, own = explained(levels), explained(levels, binaries=EACH)
    assert own.inside(7, 8) < shared.inside(7, 8)
    assert own.build_sd > shared.build_sd


def test_commits_of_one_binary_are_no_other_build_of_it():
    """Three commits a side that agree tell more of a step where each was compiled for itself."""
    levels = {0: 0, 5: 0, 6: 0, 7: 0, 8: 0.03, 9: 0.03, 10: 0.03, 16: 0.03}
    alike = (*EACH[:5], "x", "x", "x", "y", "y", "y", *EACH[11:])
    own, one = (search_state(levels, binaries=binaries) for binaries in (EACH, alike))
    assert own.whole.gaps == pytest.approx(one.whole.gaps)
    assert one.explained.inside(7, 8) < own.explained.inside(7, 8)


def test_positions_that_ran_equal_compiled_files_are_of_one_binary():
    levels = {0: 0, 5: 0, 6: 0, 7: 0, 8: 0.03, 9: 0.03, 10: 0.03, 16: 0.03}
    alike = (*EACH[:5], "x", "x", "x", "y", "y", "y", *EACH[11:])

    def ran(planned, digests):
        events = tuple(replace(x, binary=digests[x.index]) for x in events_of(levels))
        return SearchState.from_events(Plan(n=16, binaries=planned), events).explained.gaps

    known = search_state(levels, binaries=alike).explained.gaps
    assert ran(EACH, alike) == pytest.approx(known)
    assert ran(EACH, (*alike[:10], "", *alike[11:])) != pytest.approx(known)
    assert ran(alike, EACH) == pytest.approx(known), "the plan knew that they are one"


def test_a_step_within_one_binary_is_no_offset_of_it():
    levels = {0: 0, 5: 0, 7: 0, 8: 0.03, 10: 0.03, 16: 0.03}
    inside = (*EACH[:5], *("x",) * 6, *EACH[11:])
    own, one = (explained(levels, binaries=binaries, launches=6) for binaries in (EACH, inside))
    assert one.inside(7, 8) > own.inside(7, 8)
    assert one.inside(7, 8) > 0.99


def by_plain_sums(data, names, builds, sigma, tau, drift=0.0, min_effect=0.02):
    """P(culprit in each gap), of a slope and of no change, for a Gaussian noise that is known.

    ``drift``: standard deviation of an Ornstein-Uhlenbeck path of 120 minutes. Each hypothesis's likelihood
    is the density of all values at once; the level has a variance of 100.
    """
    index, y = np.array([x.index for x in data]), np.array([x.center for x in data])
    at = np.unique(index)
    block = np.array(names)[index]
    noise = np.diag([tau**2 + sigma**2 / x.runs for x in data])
    apart = np.abs(np.subtract.outer([x.at for x in data], [x.at for x in data]))
    noise = noise + drift**2 * np.exp(-apart / 120)
    edges = np.geomspace(math.log1p(min_effect), math.log(12.0), 400)
    sizes, prior = np.sqrt(edges[1:] * edges[:-1]), np.diff(step_prior(edges, min_effect))
    moves = [*(1.0 * (index >= i) for i in at[1:]), (index - at[0]) / (at[-1] - at[0])]
    shares = [*(np.diff(at) / (at[-1] - at[0]) * (1 - SLOPE)), SLOPE]
    totals = np.zeros(len(moves) + 1)
    for sd, weight in zip(BUILD_SD, builds, strict=True):
        cov = noise + sd**2 * (block[:, None] == block[None]) + 100.0
        density = scipy_stats.multivariate_normal(np.zeros(len(y)), cov)
        for k, (move, share) in enumerate(zip(moves, shares, strict=True)):
            each = density.pdf(y[None] - sizes[:, None] * move[None])
            totals[k] += weight * 0.75 * share * float(each @ prior)
        totals[-1] += weight * 0.25 * float(density.pdf(y))
    return totals / totals.sum()


@pytest.mark.parametrize("shared", [False, True], ids=["each compiled", "some share a binary"])
def test_it_agrees_with_plain_sums(shared):
    """Values within a standard deviation or so: far ones would need the far tail."""
    names = ("a", "a", "b", "b", "b", "b", "c", "c", "d") if shared else tuple("abcdefghi")
    centers = [(0, 0.0), (0, 0.006), (2, 0.008), (3, -0.004), (4, 0.02), (5, 0.014), (7, 0.025), (8, 0.03)]
    data = tuple(LaunchEstimate(i, "search", y, 2, (-0.01, 0.01)) for i, y in centers)
    one = NoisePrior(0.02, 0.008, 1e-3, 1e-3)
    builds = (0.4, 0.0, 0.3, 0.0, 0.3, 0.0)
    weights = prior_weights(8, None)
    told = compute_posterior(data, weights, 0.02, prior=one, others=Alternatives(names, builds))
    expected = by_plain_sums(data, names, builds, told.sigma, told.tau)
    assert [*told.gaps, told.slope, told.none] == pytest.approx(expected, abs=0.02)
    assert 0.05 < told.none < 0.9 and max(told.gaps) > 0.05, "a case that says something"


@pytest.mark.parametrize("sd", [0.016, 0.032])
def test_it_agrees_with_plain_sums_where_the_machine_drifts(sd):
    """Launches 20 minutes apart, so that each has a knot of the path."""
    centers = [(0, 0.0), (8, 0.028), (0, 0.008), (4, 0.024), (2, 0.012), (3, 0.020), (8, 0.045)]
    data = tuple(
        LaunchEstimate(i, "search", y, 2, (-0.01, 0.01), at=20.0 * k) for k, (i, y) in enumerate(centers)
    )
    one, builds = NoisePrior(0.02, 0.008, 1e-3, 1e-3), (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    others = Alternatives(builds=builds, drift=sd)
    told = compute_posterior(data, prior_weights(8, None), 0.02, prior=one, others=others)
    names = tuple("abcdefghi")
    expected = by_plain_sums(data, names, builds, told.sigma, told.tau, sd)
    assert [*told.gaps, told.slope, told.none] == pytest.approx(expected, abs=0.02)
    still = by_plain_sums(data, names, builds, told.sigma, told.tau)
    assert abs(still - expected).max() > 0.05, "a drift that matters"


def test_more_builds_that_agree_raise_the_probability():
    few = {0: 0, 7: 0, 8: 0.03, 16: 0.03}
    more = few | {5: 0, 6: 0, 9: 0.03, 10: 0.03}
    assert explained(few).inside(7, 8) < explained(more).inside(7, 8)


def test_a_slope_is_one_only_where_every_position_lies_on_it():
    def ends_as_gradual(levels):
        outcome = next_action(Plan(n=16), events_of(levels))
        return isinstance(outcome, SearchOutcome) and outcome.verdict == "gradual"

    assert ends_as_gradual({k: 0.10 * k / 16 for k in (0, 2, 4, 6, 8, 10, 12, 14, 16)})
    two_steps = {k: 0.3 * (k >= 4) + 0.3 * (k >= 12) for k in (0, 2, 3, 4, 8, 11, 12, 14, 16)}
    assert not ends_as_gradual(two_steps)
    assert not ends_as_gradual({0: 0, 6: 0, 7: 0, 8: 0.10, 9: 0.10, 16: 0.10})


@pytest.mark.parametrize("seed", range(3))
def test_two_steps_on_a_line_are_no_slope(seed):
    """A third of the way up after a third of the way: few positions lie as well on a line."""
    world = Bench(Plan(n=48), {16: 0.1, 32: 0.1}, 0.02, 0.015, seed)
    outcome = world.play()
    assert outcome.verdict == "found" and outcome.culprits in ((16,), (32,))


def intermittent(fast, slow, size=0.2, n=16):
    """Launches (position, count of fast, count of slow) as events of a search."""
    rng = np.random.default_rng(3)
    events = []
    for index in sorted({*fast, *slow}):
        levels = [0.0] * fast.get(index, 0) + [size] * slow.get(index, 0)
        events += [Measured(index, "search", (100 * math.exp(x + rng.normal(0, 0.01)),)) for x in levels]
    return SearchState.from_events(Plan(n=n), tuple(events)).explained


def test_fast_launches_say_little_where_slow_ones_are_a_share():
    """Half of the launches at the end and the suspect are slow: two fast ones at its parent are chance."""
    fast, slow = {0: 4, 7: 2, 8: 1, 16: 1}, {8: 2, 16: 2}
    seen = intermittent(fast, slow)
    assert seen.inside(7, 8) < 0.9
    assert seen.slow_share == pytest.approx(0.6, abs=0.15)
    assert sum(p > 0.5 for p, x in zip(seen.slow, seen.data, strict=True) if x.index >= 8) == 4
    assert intermittent(fast | {7: 10}, slow).inside(7, 8) > seen.inside(7, 8)
    assert intermittent({0: 4, 7: 4}, {8: 4, 16: 6}).inside(7, 8) > 0.98


def test_many_launches_of_both_kinds_are_no_number_that_is_too_large():
    seen = intermittent({0: 80, 8: 60, 16: 60}, {8: 60, 16: 80}, size=1.0)
    assert seen.inside(0, 8) > 0.9
    assert seen.slow_share == pytest.approx(0.6, abs=0.1)


class Intermittent(Bench):
    """From position 20 on every second launch, by chance, is 20 % slower."""

    def answer(self, action: NextLaunch, slot=""):
        event = super().answer(action, slot)
        slow = 1.2 if action.index >= 20 and self.rng.random() < 0.5 else 1.0
        return replace(event, values=tuple(v * slow for v in event.values))


def test_a_step_that_slows_half_of_the_launches_is_said_to():
    outcome = Intermittent(Plan(n=40, budget=400.0), {}, 0.005, 0.005, 101).play()
    assert (outcome.verdict, outcome.culprits) == ("found", (20,))
    (note,) = [note for note in outcome.notes if note.kind == "intermittent"]
    slow, made = note.slow
    assert 0.2 * made < slow < 0.8 * made


def test_a_slope_ends_as_gradual_and_names_none():
    world = Bench(Plan(n=40), dict.fromkeys(range(1, 41), 0.15 / 40), 0.005, 0.004, 7)
    outcome = world.play()
    assert (outcome.verdict, outcome.culprits) == ("gradual", ())
    assert outcome.whole is not None and outcome.whole.effect == pytest.approx(math.expm1(0.15), abs=0.03)
    assert sum(event.minutes for event in world.events) < 300


def test_builds_that_differ_are_named_less_often_than_before():
    """No step, every build has an offset of sd 1 %: no name in these histories."""
    words = []
    for seed in range(12):
        rng = np.random.default_rng(500 + seed)
        offsets = rng.normal(0, 0.01, 41)
        steps = {0: offsets[0]} | {k: float(offsets[k] - offsets[k - 1]) for k in range(1, 41)}
        words.append(Bench(Plan(n=40), steps, 0.02, 0.015, 900 + seed).play().verdict)
    assert words.count("found") == 0


def two_modes(seed: int, binaries: tuple[str, ...]):
    """A step of 5 % at position 20, and every second build, by chance, 3 % slower."""
    slower = 0.03 * (np.random.default_rng(500 + seed).random(41) < 0.5)
    steps = {0: float(slower[0])} | {k: float(slower[k] - slower[k - 1]) for k in range(1, 41)}
    steps[20] += 0.05
    return Bench(Plan(n=40, binaries=binaries), steps, 0.02, 0.015, 900 + seed)


@pytest.mark.processes
def test_where_each_change_is_compiled_a_name_must_stand_out_from_what_builds_differ_by():
    """An unlucky history: the build before the step is 3 % slower, as many others are."""
    outcome = two_modes(24, COMPILED).play()
    assert (outcome.verdict, outcome.culprits) == ("narrowed", (19, 20))
    assert [note.kind for note in outcome.notes] == ["builds differ"]
    assert outcome.confirmed is not None, "the A/B is told"


COMPILED = tuple(map(str, range(41)))


def unnamed(seeds, sd):
    """Histories in which a step of 5 % is confirmed and not named; builds of each change have an offset."""
    for seed in seeds:
        offsets = np.random.default_rng(500 + seed).normal(0, sd, 41)
        steps = {0: float(offsets[0])} | {k: float(offsets[k] - offsets[k - 1]) for k in range(1, 41)}
        steps[20] += 0.05
        world = Bench(Plan(n=40, binaries=COMPILED), steps, 0.02, 0.015, 900 + seed)
        outcome = world.play()
        if outcome.verdict == "narrowed":
            yield world, outcome


@pytest.mark.processes
def test_a_confirmed_step_without_a_name_ends_as_the_smallest_set_that_holds_it():
    seen = 0
    for world, outcome in unnamed(range(6), sd=0.015):
        seen += 1
        p = outcome.beliefs.p
        assert 20 in outcome.culprits
        assert len(outcome.culprits) <= 5
        assert outcome.probability == pytest.approx(min(0.99, sum(p[i] for i in outcome.culprits)))
        assert outcome.probability >= 0.95 * sum(p) - 1e-9 or outcome.probability == 0.99
        assert outcome.probability > 0.8
        rest = max((v for i, v in enumerate(p) if i not in outcome.culprits), default=0.0)
        assert min(p[i] for i in outcome.culprits) >= rest, "the smallest such set"
        assert outcome.confirmed is not None
        assert max(p) < 0.98, "the bars are of the model that decided, not of the search's 0.99"
        assert beliefs(world.plan, world.events).p == p, "the live view shows the same"
    assert seen >= 1


def test_where_nothing_may_have_changed_there_is_no_set():
    """Two modes of builds and no step: what passes the A/B leaves open whether a change made it."""
    for seed in range(4):
        rng = np.random.default_rng(500 + seed)
        offsets = 0.03 * (rng.random(41) < 0.2)
        steps = {0: float(offsets[0])} | {k: float(offsets[k] - offsets[k - 1]) for k in range(1, 41)}
        outcome = Bench(Plan(n=40, binaries=COMPILED), steps, 0.02, 0.015, 900 + seed).play()
        assert outcome.verdict not in ("found", "narrowed")


def test_a_name_is_told_with_the_probability_that_decided():
    """Shared files, and builds that differ nevertheless."""
    told = []
    for seed in range(5):
        offsets = np.random.default_rng(700 + seed).normal(0, 0.012, 41)
        steps = {0: float(offsets[0])} | {k: float(offsets[k] - offsets[k - 1]) for k in range(1, 41)}
        steps[20] += 0.05
        world = Bench(Plan(n=40), steps, 0.02, 0.015, 900 + seed)
        outcome = world.play()
        if outcome.verdict == "found":
            state = SearchState.from_events(world.plan, tuple(world.events))
            parent, culprit = outcome.confirmed.parent, outcome.confirmed.culprit
            assert outcome.probability == min(0.99, state.explained.inside(parent, culprit))
            told.append(outcome.probability)
            assert outcome.beliefs.p[culprit] >= outcome.probability
    assert told and min(told) >= 0.97


def test_that_builds_differ_is_said_only_where_the_launches_show_it():
    def posterior(sd, seed):
        rng = np.random.default_rng(seed)
        offsets = rng.normal(0, sd, 41)
        events = [
            Measured(
                i, "search", tuple(100 * np.exp(offsets[i] + 0.05 * (i >= 20) + rng.normal(0, 0.004, 2)))
            )
            for i in (*range(0, 41, 2),) * 3
        ]
        return SearchState.from_events(Plan(n=40, binaries=COMPILED), tuple(events)).explained

    alike = [posterior(0.0, seed) for seed in range(6)]
    unlike = [posterior(0.01, seed) for seed in range(6)]
    assert all(x.build_ratio < SHOWN for x in alike)
    assert all(x.build_ratio > SHOWN and x.build_sd == pytest.approx(0.01, abs=0.005) for x in unlike)


def test_other_builds_are_measured_after_the_a_b_only_where_builds_could_pass_for_the_step():
    def elsewhere(step, seed):
        world = Bench(Plan(n=40, binaries=COMPILED), {17: step}, 0.01, 0.01, seed)
        assert world.play().culprits == (17,)
        last = max(k for k, action in enumerate(world.actions) if action.purpose == "confirm")
        return [action.index for action in world.actions[last:] if action.index not in (16, 17)]

    assert not elsewhere(0.3, 3)
    assert any(elsewhere(0.03, seed) for seed in range(4))


def test_the_decision_is_a_fold():
    world = Bench(Plan(n=40), {17: 0.04}, 0.01, 0.01, 1)
    world.play()
    for count in range(4, len(world.events)):
        action = next_action(world.plan, world.events[:count])
        assert isinstance(action, SearchOutcome) or action == world.actions[count]


def test_what_earlier_jobs_showed_of_builds_stands_in_for_the_usual_prior():
    levels = {0: 0, 6: 0, 7: 0, 8: 0.03, 9: 0.03, 16: 0.03}
    alike = explained(levels, builds=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    unlike = explained(levels, builds=(0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    assert alike.build_sd == 0.0
    assert unlike.build_sd == pytest.approx(0.03)
    assert unlike.inside(7, 8) < explained(levels).inside(7, 8) < alike.inside(7, 8)
    with pytest.raises(ValueError, match="weights >= 0"):
        SearchState.from_events(Plan(n=16, noise=NoisePrior(builds=(1.0, 0.0))), ())
