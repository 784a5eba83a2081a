"""Which group of hunks carries a step: a bisection of the commit, and a proof; pure.

The groups are put in order. A position is the culprit with the groups from a place on taken back: position 0
is the culprit without all of them, the last one the culprit itself. So each position brings one group, and
:mod:`perfbisect.bisect.decision` searches that history. What it suspects is taken back alone and launched
between the culprit and position 0: it is named if it removes more than half of the step. Where it removes
less, the others have a part, or bring the step as well. docs/method/hunks.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from perfbisect.bisect.decision import confirm, decide
from perfbisect.bisect.decision.model import (
    Comparison,
    Measured,
    Plan,
    SearchOutcome,
    Skipped,
    Trial,
    Wait,
)
from perfbisect.bisect.decision.noise import LaunchEstimate, launches
from perfbisect.bisect.decision.state import SearchState
from perfbisect.model.attempt import Purpose

Node = tuple[int, ...]
"""Groups that are taken back together, in ascending order; none: the culprit itself."""

HunkVerdict = Literal["found", "no single group", "too small"]
HunkReason = Literal["", "shared", "interaction", "inseparable", "effect", "noise", "budget"]

_EXCESS = np.array([0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
"""How far the share of a suspect lies from one half, in halves ..."""

_EXCESS_WEIGHT = np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.5])
"""... and the prior of that: a group most often carries all of the step, or nothing."""

_CONTRAST = math.sqrt(4 / 3)
"""Gives the mean of two launches less a third the variance of one launch less another."""


def everything(plan: Plan) -> Node:
    """All groups: the plan's positions are places among them."""
    return tuple(range(plan.n))


@dataclass(frozen=True)
class NodeLaunch:
    """A launch of a node that was measured; its index is not used. Purpose ``revert``: of a proof."""

    node: Node
    launch: Measured


@dataclass(frozen=True)
class NodeUnusable:
    """A node cannot be built or served; its launches do not count."""

    node: Node
    reason: str


HunkEvent = NodeLaunch | NodeUnusable


@dataclass(frozen=True)
class NextNode:
    """The next launch. ``trial``: the A/B or the proof that it is made for."""

    node: Node
    runs: int
    purpose: Purpose
    trial: Trial | None = None


@dataclass(frozen=True)
class HunkOutcome:
    """How the search ended. ``node``: the groups that are named, or were suspected last."""

    verdict: HunkVerdict
    reason: HunkReason = ""
    node: Node = ()


@dataclass(frozen=True)
class Share:
    """What a node removes as a share of what all groups remove, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class NodeResult:
    """What taking a node back does: culprit without it / culprit - 1, and its share of the step."""

    node: Node
    effect: Comparison
    share: Share
    launches: int


def next_launch(plan: Plan, events: Sequence[HunkEvent]) -> NextNode | HunkOutcome:
    """What the search does after these events: a launch, or its end.

    Raises:
        ValueError: a value is not positive.
    """
    return _Search(plan, tuple(events)).next()


def out_of_budget(plan: Plan, events: Sequence[HunkEvent]) -> HunkOutcome:
    """The end of a search that can make no more launches: the groups that are suspected."""
    return HunkOutcome("too small", "budget", _Search(plan, tuple(events)).suspected())


def node_results(plan: Plan, events: Sequence[HunkEvent]) -> dict[Node, NodeResult]:
    """What is known of each node that was launched, once culprit and position 0 were.

    Raises:
        ValueError: a value is not positive.
    """
    return _Search(plan, tuple(events)).results


def share_of(part: Comparison, whole: Comparison) -> Share:
    """The ratio of two effects (of logs); without bounds where the whole may be none.

    By the method of variance estimates recovery (Donner, Zou, *Statistical Methods in Medical Research* 21,
    2012).
    """
    turn = -1 if whole.effect < 0 else 1
    (low1, theta1, high1), (low2, theta2, high2) = (
        sorted(turn * math.log1p(value) for value in (x.low, x.effect, x.high)) for x in (part, whole)
    )
    if low2 <= 0 or high2 >= 2 * theta2:
        return Share(theta1 / theta2 if theta2 else math.nan, -math.inf, math.inf)
    both = theta1 * theta2

    def root(end1: float, end2: float) -> float:
        return math.sqrt(max(0.0, both**2 - end1 * end2 * (2 * theta1 - end1) * (2 * theta2 - end2)))

    low = (both - root(low1, high2)) / (high2 * (2 * theta2 - high2))
    high = (both + root(high1, low2)) / (low2 * (2 * theta2 - low2))
    return Share(theta1 / theta2, low, high)


def halves(node: Node) -> tuple[Node, ...]:
    """The first and the second half of a node; none of one group."""
    middle = (len(node) + 1) // 2
    return (node[:middle], node[middle:]) if len(node) > 1 else ()


def forecast_launches(groups: int, step: float, noise: float) -> int | None:
    """Launches of a search with one carrier, as likely as not enough; None if the step is too small.

    ``step``: of the culprit, ``noise``: standard deviation of a launch, both as logs.
    """
    # Three launches tell a share of one from one half: half of the step, at 1.5 variances of a launch.
    triples = max(confirm.LEAST_PAIRS, math.ceil(3 * confirm.DECIDED * (2 * noise / step) ** 2))
    if triples > confirm.PAIRS:
        return None
    each = max(1, math.ceil(2 * confirm.DECIDED * (noise / step) ** 2))
    return each * (2 + math.ceil(math.log2(groups))) + (3 * triples if groups > 1 else 4)


@dataclass(frozen=True)
class _Search:
    plan: Plan
    events: tuple[HunkEvent, ...]

    @cached_property
    def everything(self) -> Node:
        return everything(self.plan)

    @cached_property
    def made(self) -> tuple[tuple[Node, Measured, LaunchEstimate], ...]:
        """Every launch, with its node and its level."""
        made = [event for event in self.events if isinstance(event, NodeLaunch)]
        nodes = list(dict.fromkeys(event.node for event in made))
        measured = tuple(replace(event.launch, index=nodes.index(event.node)) for event in made)
        levels = launches(measured, self.plan.scale)
        return tuple(zip((event.node for event in made), measured, levels, strict=True))

    @cached_property
    def unusable(self) -> frozenset[Node]:
        return frozenset(event.node for event in self.events if isinstance(event, NodeUnusable))

    @cached_property
    def on_path(self) -> tuple[Measured | Skipped, ...]:
        """The launches at positions of the bisection; those of proofs count as of its search."""
        positions = {self.everything[place:]: place for place in range(self.plan.n + 1)}
        found: list[Measured | Skipped] = []
        for event in self.events:
            # Most nodes of proofs are not positions of the bisection.
            if event.node not in positions:
                continue
            index = positions[event.node]
            if isinstance(event, NodeUnusable):
                found.append(Skipped(index, "search"))
            elif event.launch.purpose == "revert":
                found.append(replace(event.launch, index=index, purpose="search", trial=None))
            else:
                found.append(replace(event.launch, index=index))
        return tuple(found)

    @cached_property
    def look(self) -> confirm.EffectPrior | None:
        """Step and noise, once both ends were measured."""
        whole = SearchState.from_events(self.plan, self.on_path).whole
        return confirm.expected(whole) if whole is not None else None

    @cached_property
    def proofs(self) -> dict[Node, Trial]:
        """The nodes that were taken back alone, in their order."""
        trials = (launch.trial for _, launch, _ in self.made if launch.purpose == "revert")
        return {self.everything[x.parent : x.culprit]: x for x in trials if x is not None}

    @cached_property
    def results(self) -> dict[Node, NodeResult]:
        plan, look = self.plan, self.look
        if look is None:
            return {}
        levels: dict[Node, list[LaunchEstimate]] = {}
        for node, _, level in self.made:
            levels.setdefault(node, []).append(level)
        culprit = levels.pop(())
        effects = {node: confirm.compare(culprit, own, look, plan.scale) for node, own in levels.items()}
        whole = effects[self.everything]
        return {
            node: NodeResult(node, effect, share_of(effect, whole), len(levels[node]))
            for node, effect in effects.items()
        }

    def next(self) -> NextNode | HunkOutcome:
        plan = self.plan
        if self.everything in self.unusable:
            return HunkOutcome("no single group", "inseparable")
        answers = {node: self.carries(*self.arms(node).values()) for node in self.proofs}
        open_ = next(
            (x for x, carries in answers.items() if carries is None and x not in self.unusable), None
        )
        if open_ is not None:
            return self.prove(open_)
        carrying = min((node for node, carries in answers.items() if carries), key=len, default=None)
        if carrying is not None:
            part = next((x for x in halves(carrying) if x not in answers and x not in self.unusable), None)
            return HunkOutcome("found", "", carrying) if part is None else self.prove(part)
        for node in answers:
            if self.removes_a_part(node):
                if self.results[node].share.high < 1:
                    return HunkOutcome("no single group", "shared", node)
                return HunkOutcome("too small", "noise", node)
        action = decide.next_action(plan, self.on_path)
        assert not isinstance(action, Wait), "nothing is under way"
        if isinstance(action, SearchOutcome):
            return self.ended(action)
        if action.trial is not None and plan.n > 1:
            suspect = self.suspect(action.trial)
            if suspect == self.everything:
                return HunkOutcome("no single group", "inseparable")
            if suspect not in answers:
                return self.prove(suspect, action.runs)
        return NextNode(self.everything[action.index :], action.runs, action.purpose, action.trial)

    def suspected(self) -> Node:
        """The groups that are suspected; none where all are alike."""
        if self.look is None:
            return ()
        node = tuple(place - 1 for place in decide.beliefs(self.plan, self.on_path).leading)
        return node if node != self.everything else ()

    def suspect(self, trial: Trial) -> Node:
        """The groups of an A/B, with neighbours where these do not run without."""
        first, last = trial.parent, trial.culprit
        while (node := self.everything[first:last]) in self.unusable:
            later = last < self.plan.n and (first == 0 or (last - first) % 2 == 1)
            first, last = (first, last + 1) if later else (first - 1, last)
        return node

    def arms(self, node: Node) -> dict[Node, list[LaunchEstimate]]:
        """The launches of a node's proof: of the culprit, the node, and all groups taken back."""
        arms: dict[Node, list[LaunchEstimate]] = {(): [], node: [], self.everything: []}
        trial = self.proofs.get(node)
        for of, launch, level in self.made:
            if launch.purpose == "revert" and launch.trial == trial:
                arms[of].append(level)
        return arms

    def prove(self, node: Node, runs: int = 0) -> NextNode:
        """The next launch of a node's proof.

        The node's own is in the middle, where a steady drift does not reach it.
        """
        arms = self.arms(node)
        runs = runs or next(trial.runs for trial in self.proofs.values())
        trial = self.proofs.get(node) or Trial(len(self.proofs), node[0], node[-1] + 1, runs)
        done = min(map(len, arms.values()))
        order = tuple(arms)[:: 1 if done % 2 == 0 else -1]
        return NextNode(next(arm for arm in order if len(arms[arm]) == done), trial.runs, "revert", trial)

    def removes_a_part(self, node: Node) -> bool:
        """Whether a node that was taken back clearly removes something of the step."""
        if node not in self.results:
            return False
        effect = self.results[node].effect
        return effect.high < 0 if self.plan.sign > 0 else effect.low > 0

    def carries(
        self, culprit: list[LaunchEstimate], alone: list[LaunchEstimate], without: list[LaunchEstimate]
    ) -> bool | None:
        """Whether a suspect removes more than half of the step; None while that is open.

        Taken back, it lies below the middle between the culprit and position 0, or above it.
        """
        triples = list(zip(culprit, alone, without, strict=False))
        if len(triples) < confirm.LEAST_PAIRS or self.look is None:
            return None
        # A triple is launched in a row and is one block: the state of the machine is common to all three.
        left = [replace(own, block=str(k)) for k, (_, own, _) in enumerate(triples)]
        right = [
            replace(
                own, center=own.center + _CONTRAST * (0.5 * (a.center + b.center) - own.center), block=str(k)
            )
            for k, (a, own, b) in enumerate(triples)
        ]
        steps = np.outer(self.look.steps, 0.5 * _CONTRAST * _EXCESS).ravel()
        weight = np.outer(self.look.step_weight, _EXCESS_WEIGHT).ravel()
        more, less = (
            confirm.log_ratio(left, right, replace(self.look, steps=turn * steps, step_weight=weight))
            for turn in (1, -1)
        )
        if abs(more - less) > confirm.DECIDED:
            return more > less
        return False if len(triples) >= confirm.PAIRS else None

    def ended(self, outcome: SearchOutcome) -> HunkOutcome:
        """The end of the bisection: no suspect was seen to carry the step by itself."""
        if outcome.verdict == "found":
            node = tuple(place - 1 for place in outcome.culprits)
            if self.plan.n == 1:
                return HunkOutcome("found", "", node)
            return HunkOutcome("no single group", "interaction", node)
        if outcome.verdict == "gradual":
            return HunkOutcome("no single group", "shared")
        return HunkOutcome("too small", "effect" if outcome.verdict == "not reproduced" else "noise")
