"""Which group of hunks carries a step: group testing with a sequential A/B at each question; pure.

A node is a set of groups. Its A/B has the culprit as side A and the culprit with the node taken back as side
B, in blocks of four side by side. What is removed by a node is compared with what all groups remove together:
a node carries the step where the interval of its share lies above one half. The search halves a node that
carries the step. Where one half does not carry it, the other is taken to carry it without a question of its
own; so the group that remains is always asked itself, at a stricter error, before it is named. Where it does
not carry the step, both halves are asked from the last node that was seen to.

The interval of a share is by the method of variance estimates recovery (Donner, Zou, *Statistical Methods in
Medical Research* 21, 2012) from the repeated confidence intervals of both effects. docs/method/hunks.md has
the figures.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from perfbisect.stats import ab_test
from perfbisect.stats.sequential import stopping_boundaries
from perfbisect.stats.two_sample import Scale

Node = tuple[int, ...]
"""Groups that are taken back together, in ascending order."""

HunkVerdict = Literal["found", "no single group", "too small"]
HunkReason = Literal["", "shared", "interaction", "inseparable", "effect", "noise", "budget"]

SCREENING, SCREENING_BLOCKS = 0.2, 6
"""1 - coverage of the interval by which the search goes on, and the most blocks of such a question."""

NAMING, NAMING_BLOCKS = 0.04, 12
"""1 - coverage of the interval by which a group is named, and the most blocks for it."""

LEAST_NAMING_BLOCKS = 2
"""One contaminated launch must not name a group."""

CARRIES = 0.5
"""The share of the step above which a node carries it."""

_PRECISION = 0.45
"""Half width of the interval of the whole step, as a share of it, that questions about shares need."""


@dataclass(frozen=True)
class HunkSearchPlan:
    """``groups``: how many; ``sign``: +1 if larger values of the metric are worse.

    ``slower``: the culprit is worse than its parent; else the hunks of an improvement are looked for.
    """

    groups: int
    sign: int = 1
    absolute: bool = False
    min_effect: float = 0.03
    slower: bool = True
    seed: int = 0

    @property
    def scale(self) -> Scale:
        return Scale(self.sign, self.absolute)

    @property
    def everything(self) -> Node:
        return tuple(range(self.groups))

    def test(self, naming: bool) -> ab_test.AbTest:
        """The A/B of a node."""
        return ab_test.AbTest(
            sign=self.sign,
            min_effect=self.min_effect,
            blocks=NAMING_BLOCKS if naming else SCREENING_BLOCKS,
            seed=self.seed,
            absolute=self.absolute,
            missed=NAMING if naming else SCREENING,
        )


@dataclass(frozen=True)
class NodeLaunch:
    """A launch of a node's A/B that was measured."""

    node: Node
    launch: ab_test.AbLaunch


@dataclass(frozen=True)
class NodeUnusable:
    """A node cannot be built or served; its launches do not count."""

    node: Node
    reason: str


HunkEvent = NodeLaunch | NodeUnusable


@dataclass(frozen=True)
class Removed:
    """What a node removes of the step, with its interval, on the scale of levels; ``blocks`` of four."""

    value: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True)
class Share:
    """What a node removes as a share of what another removes, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class NodeResult:
    """A node with its effect (culprit + revert / culprit - 1, of shares the difference) and its share."""

    node: Node
    effect: float
    low: float
    high: float
    share: Share
    launches: int


@dataclass(frozen=True)
class HunkOutcome:
    """How the search ended. ``node``: the smallest set of groups that was seen to carry the step.

    ``parts``: where several carry it, what each does.
    """

    verdict: HunkVerdict
    reason: HunkReason = ""
    node: Node = ()
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class NextNode:
    """The next launch: of a side of a node. ``why``: what is asked of the node."""

    node: Node
    side: ab_test.Side
    count: int
    """Launches of the node so far."""
    why: Literal["whole", "half", "name"]


@dataclass(frozen=True)
class _Question:
    node: Node
    of: Node
    """Of whose step it is a share."""
    why: Literal["whole", "half", "name"]


@dataclass(frozen=True)
class _Answer:
    removed: Removed
    share: Share

    @property
    def carries(self) -> bool | None:
        """Whether the node carries the step; None where that is open."""
        return True if self.share.low > CARRIES else False if self.share.high < CARRIES else None


_Search = Generator[_Question, _Answer | None, HunkOutcome]


def next_launch(plan: HunkSearchPlan, events: Sequence[HunkEvent]) -> NextNode | HunkOutcome:
    """What the search does after these events: a launch, or its end."""
    data, unusable = _by_node(events)
    search = _search(plan)
    question = next(search)
    while True:
        answer = None
        if question.node not in unusable:
            node, answer = _next_node(plan, question, data)
            if node is not None:
                launched = data.get(node, ())
                side = ab_test.side_of_launch(plan.test(False), len(launched))
                why = question.why if node == question.node else "whole"
                return NextNode(node, side, len(launched), why)
        try:
            question = search.send(answer)
        except StopIteration as stop:
            outcome: HunkOutcome = stop.value
            return outcome


def out_of_budget(plan: HunkSearchPlan, events: Sequence[HunkEvent]) -> HunkOutcome:
    """The end of a search that can make no more launches: the smallest node that was seen to carry it."""
    data, _ = _by_node(events)
    carrying = [
        node
        for node in data
        if (answer := _answer(plan, _Question(node, plan.everything, "half"), data)) and answer.carries
    ]
    return HunkOutcome("too small", "budget", min(carrying, key=lambda node: (len(node), node), default=()))


def node_result(plan: HunkSearchPlan, events: Sequence[HunkEvent], node: Node) -> NodeResult | None:
    """What is known of a node, with 95 % intervals that hold at every look; None before a block."""
    data, _ = _by_node(events)
    shown = replace(plan.test(True), missed=ab_test.MISSED)
    own, whole = (_removed(plan, shown, data.get(of, ())) for of in (node, plan.everything))
    if own is None:
        return None
    turn = 1 if plan.slower else -1
    ends = sorted(plan.scale.effect(-turn * value) for value in (own.low, own.high))
    share = share_of(own, whole) if whole is not None else Share(math.nan, -math.inf, math.inf)
    share = Share(1.0, 1.0, 1.0) if node == plan.everything and own.low > 0 else share
    effect = plan.scale.effect(-turn * own.value)
    return NodeResult(node, effect, ends[0], ends[1], share, len(data[node]))


def asked_nodes(events: Iterable[HunkEvent]) -> tuple[Node, ...]:
    """The nodes that were asked, in that order."""
    return tuple(dict.fromkeys(event.node for event in events))


def share_of(part: Removed, whole: Removed) -> Share:
    """The ratio of two removed steps; without bounds where the whole may be zero."""
    low2, high2, theta2 = whole.low, whole.high, whole.value
    if low2 <= 0 or high2 >= 2 * theta2:
        return Share(part.value / theta2 if theta2 else math.nan, -math.inf, math.inf)
    theta1, low1, high1 = part.value, part.low, part.high
    both = theta1 * theta2

    def root(end1: float, end2: float) -> float:
        return math.sqrt(max(0.0, both**2 - end1 * end2 * (2 * theta1 - end1) * (2 * theta2 - end2)))

    low = (both - root(low1, high2)) / (high2 * (2 * theta2 - high2))
    high = (both + root(high1, low2)) / (low2 * (2 * theta2 - low2))
    return Share(theta1 / theta2, low, high)


def halves(node: Node) -> tuple[Node, Node]:
    """The first and the second half: neighbours in files stay together."""
    middle = (len(node) + 1) // 2
    return node[:middle], node[middle:]


def forecast_launches(plan: HunkSearchPlan, step: float, noise: float) -> int | None:
    """Launches of a search with one carrier, as likely as not enough; None if the step is too small.

    ``step``: of the culprit, ``noise``: standard deviation of a launch, both on the scale of levels.
    """
    asked = math.ceil(math.log2(plan.groups)) if plan.groups > 1 else 0
    half = _blocks_to_tell(plan.test(False), step, noise)
    name = _blocks_to_tell(plan.test(True), step, noise)
    if half is None or name is None:
        return None
    whole = max(LEAST_NAMING_BLOCKS, half)
    total = whole + asked * half + max(0, max(name, LEAST_NAMING_BLOCKS) - half // 2)
    return ab_test.BLOCK_SIZE * total


def _blocks_to_tell(test: ab_test.AbTest, step: float, noise: float) -> int | None:
    for block, wide in enumerate(stopping_boundaries(test.blocks, test.missed), 1):
        # A quarter more variance, since the whole step is an estimate too.
        if wide * noise * math.sqrt(1.25 / block) < CARRIES * step:
            return block
    return None


def _search(plan: HunkSearchPlan) -> _Search:
    """The search as one course; what it yields are its questions."""
    everything = plan.everything
    whole = yield _Question(everything, everything, "whole")
    if whole is None:
        return HunkOutcome("no single group", "inseparable")
    if whole.removed.high < plan.scale.room(plan.min_effect):
        return HunkOutcome("too small", "effect")
    if not _is_precise(whole.removed):
        return HunkOutcome("too small", "noise")
    candidate, carrying = yield from _narrow(everything, everything)
    if candidate is not None and (candidate != everything or len(everything) == 1):
        named = yield _Question(candidate, everything, "name")
        if named is not None and named.carries:
            return HunkOutcome("found", "", candidate)
    return (yield from _ask_both_halves(plan, carrying))


def _narrow(node: Node, of: Node) -> Generator[_Question, _Answer | None, tuple[Node | None, Node]]:
    """The smallest node that may carry the step, and the smallest one that was seen to.

    The first is None where a half neither carries the step nor does not.
    """
    carrying = node
    while len(node) > 1:
        first, second = halves(node)
        for half, other in ((first, second), (second, first)):
            answer = yield _Question(half, of, "half")
            if answer is None:
                continue  # it does not run: the other half tells as much
            if answer.carries:
                node = carrying = half
            elif answer.carries is False:
                node = other
            else:
                return None, carrying
            break
        else:
            return node, carrying
    return node, carrying


def _ask_both_halves(plan: HunkSearchPlan, node: Node) -> _Search:
    """From a node that carries the step: to the half that does, or to why neither does by itself."""
    everything = plan.everything
    while len(node) > 1:
        answers = []
        for half in halves(node):
            answers.append((yield _Question(half, everything, "half")))
        first, second = answers
        likely = _likely_half(first, second)
        if likely is not None:
            node = halves(node)[likely]
            continue
        if first is None or second is None:
            break
        return (yield from _divided(plan, node, first, second))
    if node == everything and len(node) > 1:
        return HunkOutcome("no single group", "inseparable", node)
    named = yield _Question(node, everything, "name")
    if named is not None and named.carries:
        return HunkOutcome("found", "", node)
    return HunkOutcome("too small", "noise", node)


def _likely_half(first: _Answer | None, second: _Answer | None) -> int | None:
    """The half that carries the step, or that may where the other does not; it is not named unasked."""
    if first is None or second is None:
        return next((i for i, answer in enumerate((first, second)) if answer and answer.carries), None)
    if first.carries or (first.carries is None and second.carries is False):
        return 0
    return 1 if second.carries or (second.carries is None and first.carries is False) else None


def _divided(plan: HunkSearchPlan, node: Node, first: _Answer, second: _Answer) -> _Search:
    """Neither half carries the step: both have a part of it, or it takes both, or that is not to be told."""
    both = first.removed, second.removed
    if all(removed.low > 0 for removed in both):
        parts: list[Node] = []
        for half, removed in zip(halves(node), both, strict=True):
            parts.append((yield from _part(plan, half, removed)))
        return HunkOutcome("no single group", "shared", node, tuple(parts))
    whole = yield _Question(node, plan.everything, "half")
    neither = first.carries is False and second.carries is False
    if neither and whole is not None and _is_more(whole.removed, both):
        return HunkOutcome("no single group", "interaction", node)
    return HunkOutcome("too small", "noise", node)


def _part(plan: HunkSearchPlan, node: Node, removed: Removed) -> Generator[_Question, _Answer | None, Node]:
    """The smallest node that carries the part of a half, as far as the smallest relevant effect allows."""
    if len(node) == 1 or removed.value < plan.scale.room(plan.min_effect) or not _is_precise(removed):
        return node
    candidate, carrying = yield from _narrow(node, node)
    if candidate is None or candidate == carrying:
        return carrying
    named = yield _Question(candidate, node, "name")
    return candidate if named is not None and named.carries else carrying


def _is_more(whole: Removed, parts: Sequence[Removed]) -> bool:
    """Whether the whole removes more than its parts together."""
    rest = whole.value - sum(part.value for part in parts)
    spread = math.hypot(whole.value - whole.low, *(part.high - part.value for part in parts))
    return rest > spread


def _is_precise(whole: Removed) -> bool:
    return (
        whole.low > 0
        and whole.high - whole.low <= 2 * _PRECISION * whole.value
        and whole.high < 2 * whole.value
    )


def _next_node(
    plan: HunkSearchPlan, question: _Question, data: Mapping[Node, tuple[ab_test.AbLaunch, ...]]
) -> tuple[Node | None, _Answer | None]:
    """The node whose launch comes next for a question; none once it is answered, then with the answer.

    Where the step that a share is of is less well known than the share allows, it gets the next block.
    """
    for node in (question.of, question.node):
        if len(data.get(node, ())) % ab_test.BLOCK_SIZE:
            return node, None
    answer = _answer(plan, question, data)
    if answer is None:
        return question.node, None
    if _is_settled(plan, question, answer):
        return None, answer
    most = SCREENING_BLOCKS if question.why == "half" else NAMING_BLOCKS
    own, whole = answer.removed, _removed(plan, plan.test(question.why == "name"), data[question.of])
    is_vague = whole is not None and own.high - own.low < CARRIES * (whole.high - whole.low)
    if question.node != question.of and is_vague and whole is not None and whole.blocks < NAMING_BLOCKS:
        return question.of, None
    return (question.node, None) if own.blocks < most else (None, answer)


def _is_settled(plan: HunkSearchPlan, question: _Question, answer: _Answer) -> bool:
    blocks, naming = answer.removed.blocks, question.why == "name"
    if naming and blocks < LEAST_NAMING_BLOCKS:
        return False
    if question.why == "whole":
        removed, least = answer.removed, plan.scale.room(plan.min_effect)
        return blocks >= LEAST_NAMING_BLOCKS and (_is_precise(removed) or removed.high < least)
    if question.node == question.of:
        return blocks >= LEAST_NAMING_BLOCKS and (not naming or answer.removed.low > 0)
    return answer.carries is not None


def _answer(
    plan: HunkSearchPlan, question: _Question, data: Mapping[Node, tuple[ab_test.AbLaunch, ...]]
) -> _Answer | None:
    """What the launches say; None before the first block."""
    test = plan.test(question.why == "name")
    removed = _removed(plan, test, data.get(question.node, ()))
    if removed is None:
        return None
    if question.node == question.of:
        is_there = removed.low > 0
        return _Answer(removed, Share(1.0, 1.0, 1.0) if is_there else Share(math.nan, -math.inf, math.inf))
    whole = _removed(plan, test, data.get(question.of, ()))
    assert whole is not None, "a node is asked after the one that it is a share of"
    return _Answer(removed, share_of(removed, whole))


def _removed(
    plan: HunkSearchPlan, test: ab_test.AbTest, launched: tuple[ab_test.AbLaunch, ...]
) -> Removed | None:
    """What a node removes by the complete blocks of its launches; None before the first."""
    verdict = _judged(test, launched[: len(launched) - len(launched) % ab_test.BLOCK_SIZE])
    if math.isnan(verdict.effect):
        return None
    turn = 1 if plan.slower else -1
    value, *ends = (-turn * _difference(plan, end) for end in (verdict.effect, verdict.low, verdict.high))
    return Removed(value, min(ends), max(ends), len(launched) // ab_test.BLOCK_SIZE)


def _difference(plan: HunkSearchPlan, effect: float) -> float:
    """The difference of levels of an effect."""
    return plan.sign * (effect if plan.absolute else math.log1p(max(effect, -1 + 1e-9)))


@lru_cache(maxsize=4096)
def _judged(test: ab_test.AbTest, launched: tuple[ab_test.AbLaunch, ...]) -> ab_test.AbVerdict:
    return ab_test.judge_blocks(test, launched)


def _by_node(
    events: Iterable[HunkEvent],
) -> tuple[dict[Node, tuple[ab_test.AbLaunch, ...]], frozenset[Node]]:
    data: dict[Node, list[ab_test.AbLaunch]] = {}
    unusable: set[Node] = set()
    for event in events:
        if isinstance(event, NodeUnusable):
            unusable.add(event.node)
        else:
            data.setdefault(event.node, []).append(event.launch)
    return {node: tuple(launched) for node, launched in data.items()}, frozenset(unusable)
