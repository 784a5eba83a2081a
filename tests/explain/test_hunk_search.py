"""The search of hunks: known answers, and what it never does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.explain.hunk_search import (
    HunkEvent,
    HunkOutcome,
    HunkReason,
    HunkSearchPlan,
    NextNode,
    Node,
    NodeLaunch,
    NodeUnusable,
    Removed,
    asked_nodes,
    forecast_launches,
    halves,
    next_launch,
    node_result,
    out_of_budget,
    share_of,
)
from perfbisect.stats.ab_test import BLOCK_SIZE, AbLaunch
from scripts.hunk_worlds import WORLDS, HunkWorld, play

STEP = math.log(1.2)


class Levels:
    """A culprit with carriers: what a node removes, with a little noise of a fixed seed."""

    def __init__(
        self, carriers: dict[int, float], *, sd: float = 0.004, unusable: frozenset[Node] = frozenset()
    ):
        self.carriers, self.sd, self.unusable = carriers, sd, unusable
        self.rng = np.random.default_rng(5)

    def removed(self, node: Node) -> float:
        return STEP * sum(share for group, share in self.carriers.items() if group in node)

    def event(self, action: NextNode, plan: HunkSearchPlan) -> HunkEvent:
        if action.node in self.unusable:
            return NodeUnusable(action.node, "it does not serve")
        turn = plan.sign * (1 if plan.slower else -1)
        level = turn * (STEP - (self.removed(action.node) if action.side == "b" else 0.0))
        value = 100 * math.exp(level + self.rng.normal(0, self.sd))
        return NodeLaunch(action.node, AbLaunch(action.side, (value, value)))

    def search(self, plan: HunkSearchPlan, most: int = 400) -> tuple[HunkOutcome, list[HunkEvent]]:
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


@pytest.mark.parametrize("groups", [1, 2, 3, 8, 13, 40])
def test_the_one_carrier_is_named(groups: int) -> None:
    for carrier in {0, groups // 2, groups - 1}:
        outcome, events = Levels({carrier: 1.0}).search(HunkSearchPlan(groups))
        assert outcome == HunkOutcome("found", "", (carrier,))
        result = node_result(HunkSearchPlan(groups), events, (carrier,))
        assert result is not None
        assert result.low <= 1 / 1.2 - 1 <= result.high < 0
        assert result.share.low <= 1 <= result.share.high


@pytest.mark.parametrize("slower", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_metrics_of_both_directions_and_improvements(sign: int, slower: bool) -> None:
    plan = HunkSearchPlan(6, sign=sign, slower=slower)
    outcome, events = Levels({4: 1.0}).search(plan)
    assert outcome == HunkOutcome("found", "", (4,))
    result = node_result(plan, events, (4,))
    assert result is not None
    assert (result.effect < 0) == (sign == 1 if slower else sign == -1)


def test_neighbours_are_halved_and_the_other_half_is_taken_for_granted() -> None:
    assert halves((0, 1, 2, 3, 4)) == ((0, 1, 2), (3, 4))
    _, events = Levels({3: 1.0}).search(HunkSearchPlan(4))
    assert asked_nodes(events) == ((0, 1, 2, 3), (0, 1), (2,), (3,))


def test_every_node_is_measured_side_by_side_in_blocks() -> None:
    _, events = Levels({2: 1.0}).search(HunkSearchPlan(5))
    for node in asked_nodes(events):
        sides = [x.launch.side for x in events if isinstance(x, NodeLaunch) and x.node == node]
        assert len(sides) % BLOCK_SIZE == 0
        for start in range(0, len(sides), BLOCK_SIZE):
            assert sides[start : start + BLOCK_SIZE] in (["a", "b", "b", "a"], ["b", "a", "a", "b"])


def test_a_carrier_with_most_of_the_step_is_named_with_its_share() -> None:
    plan = HunkSearchPlan(8)
    outcome, events = Levels({1: 0.8, 6: 0.2}).search(plan)
    assert outcome == HunkOutcome("found", "", (1,))
    result = node_result(plan, events, (1,))
    assert result is not None
    assert result.share.low < 0.8 < result.share.high < 1


def test_two_carriers_are_told_as_such() -> None:
    outcome, _ = Levels({1: 0.5, 6: 0.5}).search(HunkSearchPlan(8))
    assert (outcome.verdict, outcome.reason) == ("no single group", "shared")
    assert outcome.parts == ((1,), (6,))


def test_carriers_of_one_half_are_told_too() -> None:
    outcome, _ = Levels({0: 0.5, 1: 0.5}).search(HunkSearchPlan(8))
    assert (outcome.verdict, outcome.reason, outcome.parts) == ("no single group", "shared", ((0,), (1,)))


def test_parts_below_the_smallest_effect_are_not_divided() -> None:
    plan = HunkSearchPlan(8, min_effect=0.15)
    outcome, _ = Levels({1: 0.5, 6: 0.5}).search(plan)
    assert (outcome.reason, outcome.parts) == ("shared", ((0, 1, 2, 3), (4, 5, 6, 7)))


@pytest.mark.parametrize("carriers", [(0, 7), (2, 3), (0, 1)])
def test_what_only_goes_together_is_an_interaction(carriers: tuple[int, int]) -> None:
    outcome, _ = Either(dict.fromkeys(carriers, 1.0)).search(HunkSearchPlan(8))
    assert (outcome.verdict, outcome.reason) == ("no single group", "interaction")
    assert set(carriers) <= set(outcome.node)


def test_no_step_is_too_small() -> None:
    outcome, events = Levels({}).search(HunkSearchPlan(8))
    assert outcome == HunkOutcome("too small", "effect")
    assert asked_nodes(events) == (tuple(range(8)),)


def test_much_noise_is_too_small_for_a_name() -> None:
    outcome, _ = Levels({3: 1.0}, sd=0.5).search(HunkSearchPlan(8))
    assert outcome.verdict == "too small"


def test_what_does_not_run_by_itself_is_asked_by_its_other_half() -> None:
    plan = HunkSearchPlan(4)
    outcome, _ = Levels({3: 1.0}, unusable=frozenset({(0, 1)})).search(plan)
    assert outcome == HunkOutcome("found", "", (3,))
    outcome, _ = Levels({0: 1.0}, unusable=frozenset({(0, 1)})).search(plan)
    assert outcome == HunkOutcome("found", "", (0,))


def test_groups_that_do_not_run_apart_are_named_together() -> None:
    plan = HunkSearchPlan(8)
    outcome, _ = Levels({3: 1.0}, unusable=frozenset({(2,), (3,)})).search(plan)
    assert outcome == HunkOutcome("found", "", (2, 3))
    outcome, _ = Levels({3: 1.0}, unusable=frozenset({(0, 1, 2, 3), (4, 5, 6, 7)})).search(plan)
    assert (outcome.verdict, outcome.reason) == ("no single group", "inseparable")
    outcome, _ = Levels({}, unusable=frozenset({tuple(range(8))})).search(plan)
    assert (outcome.verdict, outcome.reason) == ("no single group", "inseparable")


def test_a_budget_that_ends_leaves_the_smallest_node_that_carried() -> None:
    plan = HunkSearchPlan(8)
    _, events = Levels({2: 1.0}).search(plan)
    assert out_of_budget(plan, []) == HunkOutcome("too small", "budget")
    asked = asked_nodes(events)
    upto = max(i for i, event in enumerate(events) if event.node == asked[1])
    assert out_of_budget(plan, events[: upto + 1]).node == (0, 1, 2, 3)


def test_a_result_takes_a_block() -> None:
    plan = HunkSearchPlan(2)
    _, events = Levels({0: 1.0}).search(plan)
    assert node_result(plan, events[:3], (0, 1)) is None
    assert node_result(plan, [], (0, 1)) is None


def test_the_share_is_that_of_the_books() -> None:
    """Symmetric intervals of independent estimates: Fieller's interval of the ratio."""
    part, whole = Removed(0.08, 0.06, 0.10, 3), Removed(0.10, 0.08, 0.12, 3)
    share = share_of(part, whole)
    a, b, c = 0.10**2 - 0.02**2, 0.08 * 0.10, 0.08**2 - 0.02**2
    low, high = ((b + sign * math.sqrt(b**2 - a * c)) / a for sign in (-1, 1))
    assert share.value == pytest.approx(0.8)
    assert (share.low, share.high) == pytest.approx((low, high))
    assert share_of(part, replace(whole, low=-0.01)).low == -math.inf


def test_a_forecast_grows_with_groups_and_ends_with_the_step() -> None:
    few, many = (forecast_launches(HunkSearchPlan(groups), 0.1, 0.025) for groups in (2, 40))
    assert few is not None and many is not None and few < many
    assert forecast_launches(HunkSearchPlan(8), 0.01, 0.025) is None
    assert forecast_launches(HunkSearchPlan(1), 0.1, 0.025) is not None


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
    plan = HunkSearchPlan(groups)
    world = Levels(shares, sd=sd, unusable=frozenset(unusable))
    outcome, events = world.search(plan)
    assert outcome.reason in get_args(HunkReason)
    assert (outcome.verdict == "found") == (outcome.reason == "")
    assert set(outcome.node) <= set(plan.everything)
    if outcome.verdict == "found":
        result = node_result(plan, events, outcome.node)
        assert result is not None
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
