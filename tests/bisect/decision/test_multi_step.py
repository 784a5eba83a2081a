"""Every step of a range: the parts beside a named step are ranges of their own, their launches reused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfbisect.bisect.decision.decide import beliefs, next_action
from perfbisect.bisect.decision.model import (
    NextLaunch,
    Note,
    Pending,
    Plan,
    SearchOutcome,
    Skipped,
    Wait,
)
from perfbisect.bisect.decision.state import SearchState
from tests.bisect.worlds import Bench
from tests.long import mostly_long

STEP = math.log1p(0.15)


def bench(steps, n=48, sigma=0.01, tau=0.008, seed=1, skip=frozenset(), **plan):
    return Bench(Plan(n=n, all_steps=True, **plan), steps, sigma, tau, seed, skip)


@pytest.mark.parametrize(
    "steps",
    mostly_long(
        [
            {11: STEP, 30: STEP},
            {20: STEP, 22: STEP},
            {1: STEP, 48: 2 * STEP},
            {7: STEP, 8: STEP},
            {5: STEP, 24: STEP, 40: STEP},
        ],
        short=[{11: STEP, 30: STEP}, {7: STEP, 8: STEP}],
    ),
)
def test_every_step_is_found_with_an_a_b_of_its_own(steps):
    world = bench(steps)
    end = world.play()
    assert end.verdict == "found"
    assert [step.culprits for step in end.steps] == [(at,) for at in sorted(steps)]
    trials = [event for event in world.events if event.purpose == "confirm"]
    for step in end.steps:
        at = step.culprits[0]
        assert (step.confirmed.parent, step.confirmed.culprit) == (at - 1, at)
        made = [event for event in trials if event.index == at]
        assert step.confirmed.launches <= len(made)
        assert step.confirmed.effect == pytest.approx(math.expm1(steps[at]), abs=0.06)
        assert step.probability == 0.99
    largest = max(end.steps, key=lambda step: step.confirmed.effect)
    assert (end.culprits, end.confirmed) == (largest.culprits, largest.confirmed)
    assert end.whole.effect == pytest.approx(math.expm1(sum(steps.values())), abs=0.06)


def test_one_step_is_told_as_one_and_costs_little_more():
    world = bench({20: STEP})
    end = world.play()
    assert [step.culprits for step in end.steps] == [(20,)]
    assert end.culprits == (20,)
    alone = Bench(replace(world.plan, all_steps=False), world.steps, world.sigma, world.tau, 1)
    alone.play()
    assert [a.index for a in world.actions[: len(alone.actions)]] == [a.index for a in alone.actions]
    assert len(world.actions) - len(alone.actions) <= 20
    assert {a.index for a in world.actions[len(alone.actions) :]} <= {0, 19, 20, 48}


def test_without_a_first_step_there_is_nothing_to_go_on_from():
    end = bench({}, sigma=0.003, tau=0.003).play()
    assert (end.verdict, end.steps) == ("not reproduced", ())


def test_a_half_fix_is_told():
    for seed in range(2):
        end = bench({15: STEP, 30: -STEP / 2}, seed=seed).play()
        assert [step.culprits for step in end.steps] == [(15,)]
        (better,) = [note for note in end.notes if note.kind == "part improves"]
        assert better.positions == (15, 48) and better.effect is not None and better.effect < 0


def test_a_metric_of_which_more_is_better():
    end = bench({15: STEP, 30: STEP}, sign=-1).play()
    assert [step.culprits for step in end.steps] == [(15,), (30,)]
    assert all(step.confirmed.effect < -0.05 for step in end.steps)


def test_skips_make_sets():
    end = bench({11: STEP, 30: STEP}, skip=frozenset({10, 11, 30})).play()
    assert [step.culprits for step in end.steps] == [(10, 11, 12), (30, 31)]


def test_the_budget_ends_it_with_what_was_named():
    world = bench({11: STEP, 30: STEP})
    world.play()
    first = next(k for k, action in enumerate(world.actions) if action.why.kind == "another step")
    spent = sum(e.minutes for e in world.events[:first])
    short = replace(world.plan, budget=spent + 1)
    outcome = next_action(short, world.events[:first])
    assert outcome.verdict == "found"
    assert len(outcome.steps) == 1
    assert outcome.notes[0].kind == "parts unsettled" and outcome.notes[0].spans
    assert next_action(replace(short, budget=20.0), world.events[:2]).verdict == "out of budget"


@pytest.mark.processes
@pytest.mark.parametrize("speed", [0.0, 0.5])
def test_several_slots_work_on_several_parts(speed):
    world = replace(bench({11: STEP, 30: STEP}), speed={"a": 0.0, "b": speed})
    end = world.play()
    assert [step.culprits for step in end.steps] == [(11,), (30,)]
    for step in end.steps:
        at = step.culprits[0]
        made = [e for e in world.events if e.trial and e.trial.culprit == at]
        assert {e.index for e in made} == {at - 1, at}
        for slot in {e.slot for e in made}:
            indices = [e.index for e in made if e.slot == slot]
            assert indices.count(at) == indices.count(at - 1), "a pair is made on one slot"


def named_once():
    """Two steps, played until the first is named and a part is asked about."""
    world = bench({11: STEP, 30: STEP}, seed=2)
    world.play()
    cut = next(k for k, action in enumerate(world.actions) if action.why.kind == "another step")
    return world, world.events[:cut], world.actions[cut]


def test_launches_under_way_count_for_the_rounds_of_a_part():
    world, events, _ = named_once()
    slots = [replace(event, slot="a") for event in events]
    slots += [replace(event, slot="b") for event in slots[:2]]
    first = next_action(world.plan, slots, (), "a")
    assert first.why.kind == "another step"
    other = next_action(world.plan, slots, [Pending(first.index, "search", 2, "a")], "b")
    assert isinstance(other, NextLaunch)


@pytest.mark.processes
def test_an_end_of_a_part_that_can_no_longer_be_served_closes_it():
    world, events, asked = named_once()
    end = asked.index
    culprit = next(e.index for e in events if e.purpose == "confirm")
    gone = Skipped(culprit if end in (0, 48) else end, "search", 3.0)
    world.untestable = frozenset({gone.index})
    world.events = [*events, gone]
    outcome = world.play()
    assert outcome.verdict == "found"
    (note,) = [note for note in outcome.notes if note.kind == "part not measurable"]
    assert gone.index in note.positions


@pytest.mark.processes
def test_a_part_whose_noise_hides_everything_is_given_up():
    """After the rounds that settle nothing a part is told as unsettled; the slots wait for the last ones."""
    world = bench({6: 1.0}, n=6)
    wild = {0: (0.92, 1.04, 0.97), 5: (1.09, 0.95, 1.02)}
    events, count = world.events, {0: 0, 5: 0}
    while not isinstance(action := next_action(world.plan, events), SearchOutcome):
        event = world.answer(action)
        if action.index in wild:
            factor = wild[action.index][count[action.index] % 3]
            count[action.index] += action.purpose == "search"
            event = replace(event, values=(100 * factor,) * action.runs)
        if action.why.span == (0, 5):
            last, asked = list(events), action
        events.append(event)
    assert [step.culprits for step in action.steps] == [(6,)]
    assert Note("part below noise", positions=(0, 5)) in action.notes
    pending = [Pending(asked.index, "search", asked.runs, "b")]
    waiting = next_action(world.plan, last, pending)
    assert isinstance(waiting, Wait)
    assert "positions 0 and 5" in waiting.why


@pytest.mark.processes
def test_a_part_whose_a_b_fails_twice_is_given_up():
    """The search sees a step at 3; the launches of its A/B see none."""
    world = bench({6: 1.0, 3: 0.2}, n=6)
    events = []
    while not isinstance(action := next_action(world.plan, events), SearchOutcome):
        event = world.answer(action)
        if action.purpose == "confirm" and action.index <= 5:
            event = replace(event, values=(100.0,) * action.runs)
        events.append(event)
    assert [step.culprits for step in action.steps] == [(6,)]
    assert Note("part not confirmed", positions=(0, 5)) in action.notes
    first = next(k for k, e in enumerate(events) if e.purpose == "confirm" and e.index == 3)
    begun = [Pending(3, "confirm", 1, "b", events[first].trial)]
    beside = next_action(world.plan, events[:first], begun)
    assert (beside.index, beside.mate, beside.trial) == (2, 3, events[first].trial)


def test_one_step_of_all_has_the_beliefs_of_the_explanation_that_decides():
    """Few builds around the step: with offsets of builds it is less sure than by the search alone."""
    world = bench({4: 0.06}, n=8, sigma=0.02, tau=0.015, seed=3)
    end = world.play()
    assert (end.verdict, len(end.steps)) == ("found", 1)
    state = SearchState.from_events(world.plan, tuple(world.events))
    assert max(state.whole.p) > max(end.beliefs.p)
    assert end.beliefs == beliefs(world.plan, world.events), "the live view shows the same"
    assert max(end.beliefs.p) == pytest.approx(end.probability, abs=0.03)
