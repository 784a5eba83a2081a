"""The bisection as a fold: its stages, its words, and what must not change its answer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import beliefs, next_action
from perfbisect.bisect.decision.endpoints import MAX_LAUNCHES_NEEDED, MAX_ROUNDS, MAX_ROUNDS_ALIKE
from perfbisect.bisect.decision.model import (
    Lost,
    Measured,
    NextLaunch,
    Note,
    Plan,
    Reason,
    SearchOutcome,
    Skipped,
)
from perfbisect.model.attempt import Costs
from tests.bisect.worlds import Bench


def bench(step=0.3, at=7, n=16, sigma=0.005, tau=0.005, seed=1, **plan):
    return Bench(Plan(n=n, **plan), {at: step} if step else {}, sigma, tau, seed)


def test_a_clear_step_is_found_and_confirmed_on_fresh_launches():
    world = bench()
    end = world.play()
    assert (end.verdict, end.culprits) == ("found", (7,))
    assert end.probability == end.beliefs.leading_p == 0.99
    assert sum(end.beliefs.p) + end.beliefs.none == pytest.approx(1)
    trial = [e for e in world.events if e.purpose == "confirm"]
    assert {e.index for e in trial} == {6, 7}
    assert len({len(e.values) for e in trial}) == 1
    assert (end.confirmed.parent, end.confirmed.culprit) == (6, 7)
    assert end.confirmed.launches == sum(e.index == 6 for e in trial)
    assert end.confirmed.low < math.expm1(0.3) < end.confirmed.high
    assert end.whole.low < math.expm1(0.3) < end.whole.high
    assert end.share == pytest.approx(1.0, abs=0.15)
    assert end.notes == ()


def test_the_ends_come_first_interleaved_with_the_same_runs():
    world = bench(step=0.03, sigma=0.03, tau=0.01, seed=3)
    world.play()
    ends = [a for a in world.actions if a.purpose == "end"]
    assert len(ends) >= 4
    assert [a.purpose for a in world.actions[: len(ends)]] == ["end"] * len(ends)
    assert [a.index for a in ends] == [(0, 16, 16, 0)[k % 4] for k in range(len(ends))]
    assert all(a.runs == b.runs for a, b in zip(ends[::2], ends[1::2], strict=True))


def test_no_change_is_not_reproduced():
    end = bench(step=0.0, sigma=0.002, tau=0.004).play()
    assert (end.verdict, end.culprits, end.confirmed) == ("not reproduced", (), None)
    assert end.probability > 0.9
    assert end.beliefs.none == pytest.approx(end.probability, abs=0.1)


@pytest.mark.parametrize("min_effect", [0.15, 0.2, 0.5, 0.9])
def test_no_change_is_not_reproduced_whatever_the_smallest_effect(min_effect):
    for seed in range(3):
        world = bench(step=0.0, n=8, sigma=0.02, tau=0.015, seed=seed, min_effect=min_effect)
        assert (world.play().verdict, len(world.events)) == ("not reproduced", 6)


def test_ends_that_may_differ_by_the_smallest_effect_are_too_small_and_not_called_equal():
    """Blunt launches show no step of twice the smallest effect, and cannot rule out one of that size."""
    ends = [bench(step=0.0, sigma=0.01, tau=0.02, seed=seed).play() for seed in range(6)]
    small = [end for end in ends if end.verdict == "too small"]
    assert small
    for end in ends:
        assert (end.whole.high < 0.02) == (end.verdict == "not reproduced")
    assert all(end.launches_needed > 0 for end in small)


def test_swapped_ends_are_told():
    end = bench(step=-0.3).play()
    assert end.verdict == "not reproduced"
    assert [note.kind for note in end.notes] == ["ends swapped"]
    assert end.whole.effect == pytest.approx(math.expm1(-0.3), abs=0.02)


def test_a_step_within_the_noise_is_too_small_and_says_what_it_takes():
    world = bench(step=0.06, sigma=0.05, tau=0.12, seed=4)
    end = world.play()
    assert (end.verdict, end.culprits) == ("too small", ())
    assert end.launches_needed > MAX_LAUNCHES_NEEDED
    assert [a.purpose for a in world.actions] == ["end"] * 2 * MAX_ROUNDS
    assert beliefs(world.plan, world.events).none > 0.15


def test_a_search_that_began_by_luck_is_given_up_where_the_rest_is_not_worth_it():
    world = bench(step=0.06, sigma=0.05, tau=0.12, seed=4, n=8, budget=1e5)
    lucky = [Measured(0, "end", (100.0,) * 2), Measured(8, "end", (160.0,) * 2)]
    world.events = list(lucky)
    assert next_action(world.plan, lucky).purpose == "search"
    end = world.play()
    assert (end.verdict, end.culprits) == ("too small", ())
    assert len(world.events) >= MAX_LAUNCHES_NEEDED
    assert end.launches_needed > MAX_LAUNCHES_NEEDED


def test_ends_that_nearly_differ_are_left_to_the_search():
    world = Bench(Plan(n=4), {2: 0.045}, 0.03, 0.03, 3)
    world.play()
    ends = [k for k, a in enumerate(world.actions) if a.purpose == "end"]
    assert ends == list(range(20))
    assert 0.1 < beliefs(world.plan, world.events[:20]).none < 0.4
    assert world.actions[20].purpose == "search"


def test_nothing_is_called_absent_that_the_data_do_not_speak_against():
    """Four rounds with no difference seen: blunt ones do not settle it, sharp ones do."""

    def ends(noise):
        shape = [1 + noise * k for k in (-1.0, -1.0, 1.0, 1.0, 0.6, 0.6, -0.6, -0.6)]
        return [Measured((0, 9, 9, 0)[k % 4], "end", (v, v * (1 + noise))) for k, v in enumerate(shape)]

    assert next_action(Plan(n=9), ends(0.005)).verdict == "not reproduced"
    blunt = next_action(Plan(n=9), ends(0.06))
    assert (blunt.purpose, blunt.index) == ("end", 0)


@pytest.mark.processes
def test_the_ends_go_on_until_no_relevant_change_is_left_or_their_rounds_are_made():
    """Nothing changed: a range is called too small only after every round of the ends, more where they are
    alike."""
    words = []
    for seed in range(16):
        world = Bench(Plan(n=32), {}, 0.02, 0.015, 314 + seed)
        end = world.play()
        words.append(end.verdict)
        if all(action.purpose == "end" for action in world.actions):
            assert end.whole.launches <= MAX_ROUNDS_ALIKE
            assert end.verdict == "not reproduced" or end.whole.launches >= MAX_ROUNDS
    assert words.count("not reproduced") >= 13


def test_the_budget_ends_it_with_the_leading_set():
    world = bench(n=200, at=150, budget=60.0)
    end = world.play()
    assert end.verdict == "out of budget"
    assert end.culprits == end.beliefs.leading
    assert end.confirmed is None
    assert sum(e.minutes for e in world.events) <= 60
    short = bench(budget=8.0).play()
    assert (short.verdict, short.whole, short.beliefs, short.culprits) == ("out of budget", None, None, ())


@pytest.mark.parametrize(
    ("known", "untestable", "culprits"),
    [
        ((), (6, 7, 8), (6, 7, 8, 9)),
        ((6, 7, 8), (6, 7, 8), (6, 7, 8, 9)),
        (range(1, 16), (), tuple(range(1, 17))),
    ],
)
def test_skips_leave_a_set(known, untestable, culprits):
    world = bench(skips=frozenset(known))
    world.untestable = frozenset(untestable)
    end = world.play()
    assert (end.verdict, end.culprits) == ("found", culprits)
    assert (end.confirmed.parent, end.confirmed.culprit) == (culprits[0] - 1, culprits[-1])
    assert end.probability == pytest.approx(end.beliefs.leading_p)
    assert end.probability == 0.99
    assert not {a.index for a in world.actions} & set(known)


def test_lost_minutes_are_spent_but_change_no_belief():
    world = bench(budget=100.0)
    world.play()
    events = world.events[:6]
    lost = [*events[:3], Lost(30.0), *events[3:], Lost(5.0)]
    assert next_action(world.plan, lost) == next_action(world.plan, events)
    assert beliefs(world.plan, lost) == beliefs(world.plan, events)
    assert next_action(world.plan, [*events, Lost(99.0)]).verdict == "out of budget"


def test_a_skip_in_the_middle_of_an_a_b_starts_over():
    world = bench(step=0.08, sigma=0.01, tau=0.01)
    world.play()
    first = next(k for k, a in enumerate(world.actions) if a.purpose == "confirm")
    for stop in (first, first + 1):
        skipped = world.actions[stop].index
        events = [*world.events[:stop], Skipped(skipped, "confirm", 3.0)]
        again = Bench(world.plan, world.steps, 0.01, 0.01, 9, frozenset({skipped}), events=events)
        end = again.play()
        assert end.verdict == "found"
        assert set(end.culprits) == ({6, 7} if skipped == 6 else {7, 8})


@pytest.mark.parametrize("index", [0, 16])
def test_an_end_that_cannot_be_measured_is_an_error(index):
    world = bench()
    world.play()
    for tries in (1, 2):
        assert isinstance(next_action(world.plan, [Skipped(index, "end", 4.0)] * tries), NextLaunch)
    with pytest.raises(ValueError, match="choose another range"):
        next_action(world.plan, [Skipped(index, "end", 4.0)] * 3)
    with pytest.raises(ValueError, match="choose another range"):
        next_action(world.plan, [*world.events[:4], *[Skipped(index, "search", 1.0)] * 3])
    with pytest.raises(ValueError, match="choose another range"):
        next_action(replace(world.plan, skips=frozenset({index})), [])


def test_an_end_that_flaps_is_told():
    world = bench()
    world.play()
    world.events.insert(3, Skipped(16, "end", 1.0))
    outcome = world.play()
    assert outcome.verdict == "found"
    assert outcome.notes == (Note("unstable ends", positions=(16,)),)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"n": 0}, "a good and a bad end"),
        ({"sign": 2}, "sign is"),
        ({"min_effect": 0.0}, "smallest effect"),
        ({"max_runs": 0}, "at least one run"),
        ({"costs": Costs(math.nan, 1, 1)}, "costs are minutes"),
        ({"prior": (1.0,)}, "a prior is"),
    ],
)
def test_a_plan_that_makes_no_sense(change, what):
    world = bench()
    events = [world.answer(NextLaunch(i, "end", 2, Reason("end round"))) for i in (0, 16)]
    with pytest.raises(ValueError, match=what):
        next_action(replace(world.plan, **change), events if "prior" in change else [])


@pytest.mark.parametrize(
    "events",
    [
        [Measured(17, "end", (1.0,))],
        [Skipped(-1, "end")],
        [Measured(3, "search", (1.0,))],
        [Measured(0, "end", (0.0,))],
    ],
)
def test_events_that_make_no_sense(events):
    with pytest.raises(ValueError):
        next_action(Plan(n=16), events)


def test_steps_of_every_size_and_both_directions():
    for step in (0.05, 0.5, math.log(9.0)):
        for sign in (1, -1):
            world = Bench(Plan(n=24, sign=sign), {17: step}, 0.005, 0.003, 4)
            end = world.play()
            assert (end.verdict, end.culprits) == ("found", (17,))
            ratio = math.expm1(sign * step)
            assert end.confirmed.low < ratio < end.confirmed.high
            worse = math.expm1(step) if sign > 0 else -math.expm1(-step)
            assert end.beliefs.step == pytest.approx(worse, rel=0.2)
            assert end.beliefs.step_low <= end.beliefs.step <= end.beliefs.step_high


def test_two_steps_are_noted():
    world = Bench(Plan(n=16), {4: 0.3, 12: 0.3}, 0.005, 0.005, 2)
    end = world.play()
    assert end.verdict == "found"
    assert end.culprits in {(4,), (12,)}
    (note,) = end.notes
    assert (note.kind, note.positions) == ("more steps", ())
    assert end.confirmed is not None and end.whole is not None
    assert (note.effect, note.whole) == (end.confirmed.effect, end.whole.effect)
    assert end.share == pytest.approx(0.5, abs=0.1)


def test_a_position_at_neither_level_is_noted():
    world = bench()
    world.play()
    between = [Measured(11, "search", (115.5, 115.6)), Measured(11, "search", (115.4, 115.5))]
    first = next(k for k, a in enumerate(world.actions) if a.purpose == "search")
    world.events[first:first] = between
    end = world.play()
    assert (end.verdict, end.culprits) == ("found", (7,))
    assert end.notes == (Note("more steps", positions=(11,)),)


def test_an_a_b_that_fails_is_no_verdict():
    """The search saw a step of 30 % at 7; the A/B's own launches show none, three times."""
    world = bench(budget=300.0)
    world.play()
    events = [e for e in world.events if e.purpose != "confirm"]
    failures = 0
    for _ in range(200):
        action = next_action(world.plan, events)
        if isinstance(action, SearchOutcome):
            break
        if action.purpose == "confirm":
            events.append(Measured(action.index, "confirm", (100.0,) * action.runs, 0, 3, 1.5))
            failures += 1
        else:
            events.append(world.answer(action))
    assert failures >= 2
    assert action.verdict != "found"
    assert action.confirmed is None


def test_the_prior_is_told_before_the_ends():
    told = beliefs(Plan(n=4, prior=(0, 1, 0, 0, 0)), [])
    assert told.none == 0.25
    assert sum(told.p) == pytest.approx(0.75)
    assert told.leading == (1,)
    assert told.leading_p == pytest.approx(0.75 * 0.925)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    step=st.sampled_from([0.0, 0.06, 0.4]),
    n=st.integers(1, 40),
    cut=st.floats(0, 1),
    factor=st.floats(0.1, 50),
)
def test_the_same_events_give_the_same_answer(seed, step, n, cut, factor):
    world = Bench(
        Plan(n=n, budget=300), {max(1, n // 3): step}, 0.02, 0.01, seed, frozenset({n // 2} - {0, n})
    )
    world.play()
    events = world.events[: int(cut * len(world.events))]
    action = next_action(world.plan, events)
    assert action == next_action(world.plan, tuple(events))
    if len(events) < len(world.actions):
        assert action == world.actions[len(events)]

    def changed(event, make):
        return (
            replace(event, values=tuple(make(v) for v in event.values))
            if isinstance(event, Measured)
            else event
        )

    units = next_action(world.plan, [changed(e, lambda v: factor * v) for e in events])
    mirrored = next_action(replace(world.plan, sign=-1), [changed(e, lambda v: 1 / v) for e in events])
    for other in (units, mirrored):
        assert isinstance(other, type(action))
        if isinstance(action, NextLaunch):
            assert (other.index, other.runs, other.purpose) == (action.index, action.runs, action.purpose)
        else:
            assert (other.verdict, other.culprits) == (
                action.verdict,
                action.culprits,
            )
            assert other.probability == pytest.approx(action.probability, abs=1e-6)
