"""The search of hunks: known answers, and what it never does."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.bisect.decision.model import Comparison, Measured, Plan
from perfbisect.explain.hunk_search import (
    HunkEvent,
    HunkOutcome,
    HunkReason,
    NextNode,
    Node,
    NodeLaunch,
    NodeUnusable,
    everything,
    forecast_launches,
    next_launch,
    node_results,
    out_of_budget,
    share_of,
)
from scripts.hunk_worlds import WORLDS, HunkWorld, play

STEP = math.log(1.2)


def plan_of(groups: int, sign: int = 1) -> Plan:
    return Plan(groups, sign=sign, min_effect=0.03, budget=math.inf, max_runs=2)


class Levels:
    """A culprit with carriers: what a node removes, with a little noise of a fixed seed."""

    def __init__(
        self, carriers: dict[int, float], *, sd: float = 0.004, unusable: frozenset[Node] = frozenset()
    ):
        self.carriers, self.sd, self.unusable = carriers, sd, unusable
        self.rng = np.random.default_rng(5)

    def removed(self, node: Node) -> float:
        return STEP * sum(share for group, share in self.carriers.items() if group in node)

    def event(self, action: NextNode, plan: Plan) -> HunkEvent:
        if action.node in self.unusable:
            return NodeUnusable(action.node, "it does not serve")
        level = plan.sign * (STEP - self.removed(action.node)) + self.rng.normal(0, self.sd)
        values = 100 * np.exp(level + self.rng.normal(0, self.sd / 2, action.runs))
        made = Measured(0, action.purpose, tuple(map(float, values)), launch=1.0, run=0.3, trial=action.trial)
        return NodeLaunch(action.node, made)

    def search(self, plan: Plan, most: int = 200) -> tuple[HunkOutcome, list[HunkEvent]]:
        events: list[HunkEvent] = []
        while len(events) < most:
            action = next_launch(plan, events)
            if isinstance(action, HunkOutcome):
                return action, events
            events.append(self.event(action, plan))
        raise AssertionError("it does not end")


class Either(Levels):
    """The step is there while one of the carriers is."""

    def removed(self, node: Node) -> float:
        return STEP if set(self.carriers) <= set(node) else 0.0


def proof_of(events: list[HunkEvent]) -> list[Node]:
    """The nodes that were launched to prove a suspect, in that order."""
    made = [event for event in events if isinstance(event, NodeLaunch)]
    return [event.node for event in made if event.launch.purpose == "revert"]


@pytest.mark.parametrize("groups", [1, 2, 3, 8, 13, 40])
def test_the_one_carrier_is_named(groups: int) -> None:
    plan = plan_of(groups)
    for carrier in {0, groups // 2, groups - 1}:
        outcome, events = Levels({carrier: 1.0}).search(plan)
        assert outcome == HunkOutcome("found", "", (carrier,))
        result = node_results(plan, events)[(carrier,)]
        assert result.effect.low <= 1 / 1.2 - 1 <= result.effect.high < 0
        assert result.share.low <= 1 <= result.share.high
        assert len(events) <= 2 + math.ceil(math.log2(groups)) + 8, "a bisection and a proof"


@pytest.mark.parametrize("sign", [1, -1])
def test_metrics_of_both_directions(sign: int) -> None:
    plan = plan_of(6, sign=sign)
    outcome, events = Levels({4: 1.0}).search(plan)
    assert outcome == HunkOutcome("found", "", (4,))
    effect = node_results(plan, events)[(4,)].effect.effect
    assert (effect < 0) == (sign == 1)


def test_a_suspect_is_launched_between_the_culprit_and_the_culprit_without_all() -> None:
    plan = plan_of(5)
    _, events = Levels({2: 1.0}).search(plan)
    assert proof_of(events) == [(), (2,), everything(plan), everything(plan), (2,), ()]


def test_a_carrier_with_most_of_the_step_is_named_with_its_share() -> None:
    plan = plan_of(8)
    outcome, events = Levels({1: 0.8, 6: 0.2}).search(plan)
    assert outcome == HunkOutcome("found", "", (1,))
    share = node_results(plan, events)[(1,)].share
    assert share.low < 0.8 < share.high < 1


@pytest.mark.parametrize("carriers", [{1: 0.4, 3: 0.3, 6: 0.3}, {0: 0.35, 1: 0.35, 7: 0.3}])
def test_several_carriers_are_told_as_such(carriers: dict[int, float]) -> None:
    outcome, _ = Levels(carriers).search(plan_of(8))
    assert (outcome.verdict, outcome.reason) == ("no single group", "shared")
    assert set(outcome.node) & set(carriers)


@pytest.mark.parametrize("carriers", [(0, 7), (2, 3), (0, 1)])
def test_what_only_goes_together_is_an_interaction(carriers: tuple[int, int]) -> None:
    outcome, _ = Either(dict.fromkeys(carriers, 1.0)).search(plan_of(8))
    assert outcome == HunkOutcome("no single group", "interaction", (min(carriers),))


def test_no_step_is_too_small() -> None:
    outcome, events = Levels({}).search(plan_of(8))
    assert outcome == HunkOutcome("too small", "effect")
    assert {event.node for event in events} == {(), tuple(range(8))}


def test_much_noise_is_too_small_for_a_name() -> None:
    outcome, _ = Levels({3: 1.0}, sd=0.6).search(plan_of(8))
    assert outcome.verdict == "too small"


def test_a_position_that_does_not_run_is_passed_over() -> None:
    plan = plan_of(4)
    for carrier in (0, 3):
        outcome, _ = Levels({carrier: 1.0}, unusable=frozenset({(2, 3)})).search(plan)
        assert outcome == HunkOutcome("found", "", (carrier,))


def test_groups_that_do_not_run_apart_are_named_together() -> None:
    plan = plan_of(8)
    outcome, events = Levels({3: 1.0}, unusable=frozenset({(2,), (3,)})).search(plan)
    assert outcome == HunkOutcome("found", "", (3, 4)), "with a neighbour"
    assert proof_of(events).count((3, 4)) >= 2
    broken = frozenset({(3, 4, 5, 6, 7)})
    outcome, events = Levels({3: 1.0}, unusable=broken).search(plan)
    assert outcome == HunkOutcome("found", "", (3,))
    assert list(dict.fromkeys(proof_of(events))) == [(), (2, 3), everything(plan), (2,), (3,)]
    outcome, _ = Levels({3: 1.0}, unusable=broken | {(2,), (3,)}).search(plan)
    assert outcome == HunkOutcome("found", "", (2, 3))
    outcome, _ = Levels({}, unusable=frozenset({tuple(range(8))})).search(plan)
    assert outcome == HunkOutcome("no single group", "inseparable")
    apart = frozenset({(0,), (1,), (2,), (0, 1), (1, 2)})
    outcome, _ = Levels({1: 1.0}, unusable=apart).search(plan_of(3))
    assert outcome == HunkOutcome("no single group", "inseparable")


def test_a_budget_that_ends_leaves_the_suspects() -> None:
    plan = plan_of(8)
    _, events = Levels({2: 1.0}).search(plan)
    assert out_of_budget(plan, []) == HunkOutcome("too small", "budget")
    assert out_of_budget(plan, events).node == (2,)


def test_a_result_takes_both_ends() -> None:
    plan = plan_of(2)
    _, events = Levels({0: 1.0}).search(plan)
    assert node_results(plan, events[:1]) == {}
    assert set(node_results(plan, events[:2])) == {(0, 1)}


def test_the_share_is_that_of_the_books() -> None:
    """Symmetric intervals of independent estimates: Fieller's interval of the ratio."""

    def removed(value: float, half: float) -> Comparison:
        effects = (math.expm1(-x) for x in (value, value + half, value - half))
        return Comparison(0, 1, *effects, launches=3)

    share = share_of(removed(0.08, 0.02), removed(0.10, 0.02))
    a, b, c = 0.10**2 - 0.02**2, 0.08 * 0.10, 0.08**2 - 0.02**2
    low, high = ((b + sign * math.sqrt(b**2 - a * c)) / a for sign in (-1, 1))
    assert share.value == pytest.approx(0.8)
    assert (share.low, share.high) == pytest.approx((low, high))
    assert share_of(removed(0.08, 0.02), removed(0.10, 0.11)).low == -math.inf


def test_a_forecast_grows_with_groups_and_ends_with_the_step() -> None:
    few, many = (forecast_launches(groups, 0.1, 0.025) for groups in (2, 40))
    assert few is not None and many is not None and few < many
    assert forecast_launches(8, 0.01, 0.025) is None
    assert forecast_launches(1, 0.1, 0.025) is not None


@pytest.mark.processes
@settings(max_examples=20, deadline=None)
@given(
    groups=st.integers(1, 12),
    shares=st.dictionaries(st.integers(0, 11), st.sampled_from([0.2, 0.5, 0.8, 1.0, -0.3]), max_size=3),
    unusable=st.sets(st.sampled_from([(0,), (1,), (0, 1), (2, 3), (0, 1, 2)])),
    sd=st.sampled_from([0.001, 0.02, 0.1]),
)
def test_every_world_ends_with_a_known_verdict(
    groups: int, shares: dict[int, float], unusable: set[Node], sd: float
) -> None:
    plan = plan_of(groups)
    world = Levels(shares, sd=sd, unusable=frozenset(unusable))
    outcome, events = world.search(plan)
    assert outcome.reason in get_args(HunkReason)
    assert (outcome.verdict == "found") == (outcome.reason == "")
    assert set(outcome.node) <= set(everything(plan))
    if outcome.verdict == "found":
        assert outcome.node in node_results(plan, events)
    for upto in range(0, len(events), 7):
        assert isinstance(next_launch(plan, events[:upto]), NextNode)


@pytest.mark.parametrize("name", ["one carrier of 8", "interaction of two of 8", "no step, 8"])
def test_simulated_worlds_name_no_wrong_group(name: str) -> None:
    sessions = [play(WORLDS[name], seed) for seed in range(2)]
    assert [session.wrong for session in sessions] == [False, False]
    assert sum(session.right for session in sessions) >= 1


def test_a_world_is_played_the_same_each_time() -> None:
    world = HunkWorld(groups=3)
    assert play(world, 3) == play(world, 3)
