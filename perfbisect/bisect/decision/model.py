"""The words of a bisection as values: the question, what happened, what to do next, how it ended.

All of them are part of the interface of :mod:`perfbisect.bisect.decision.decide`; import them from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from perfbisect.model.attempt import Costs, Purpose

SearchVerdict = Literal["found", "not reproduced", "too small", "out of budget"]


@dataclass(frozen=True)
class Plan:
    """The question. Positions 0..n are the history's changes: 0 is good, n is bad; candidates are 1..n.

    ``sign`` is +1 where a larger value is worse; ``min_effect`` the smallest relative step worth telling;
    ``prior`` weights over positions 0..n (position 0 is ignored), ``skips`` positions known to be
    untestable, ``cached`` positions already built, ``budget`` minutes of measuring in all.
    """

    n: int
    sign: int = 1
    min_effect: float = 0.02
    costs: Costs = field(default_factory=Costs)
    prior: tuple[float, ...] | None = None
    skips: frozenset[int] = frozenset()
    cached: frozenset[int] = frozenset()
    budget: float = 900.0
    max_runs: int = 6
    seed: int = 0
    all_steps: bool = False
    """Go on after the first step is named, until every step of the range is: ``SearchOutcome.steps``."""


@dataclass(frozen=True)
class Measured:
    """A launch that gave values: one raw positive value a run, in run order; minutes it took.

    ``slot`` names the devices it ran on; ``at`` is the minute, from the first launch of all, at which its
    first run began: a drift of the machine is a matter of time.
    """

    index: int
    purpose: Purpose
    values: tuple[float, ...]
    build: float = 0.0
    launch: float = 0.0
    run: float = 0.0
    """Minutes of all runs together."""
    slot: str = ""
    at: float | None = None
    """None: not known; then launches count as made one after the other, as long as they took."""


@dataclass(frozen=True)
class Skipped:
    """A change that cannot be built or served (after the runner's one retry): untestable, never bad."""

    index: int
    purpose: Purpose
    minutes: float = 0.0
    slot: str = ""


@dataclass(frozen=True)
class Lost:
    """Minutes spent on an attempt that is no evidence (the machine failed, the process was killed)."""

    minutes: float = 0.0


Event = Measured | Skipped | Lost


@dataclass(frozen=True)
class Pending:
    """A launch under way on some slot: asked for, without an event yet."""

    index: int
    runs: int
    purpose: Purpose
    slot: str = ""


@dataclass(frozen=True)
class Wait:
    """Nothing worth starting on this slot until a launch under way has ended."""

    why: str


ReasonKind = Literal[
    "end round",
    "end new to slot",
    "most informative",
    "pair",
    "parent before pair",
    "another step",
]


@dataclass(frozen=True)
class Reason:
    """Why a position is launched; only the fields that its ``kind`` needs are set.

    ``none``: the probability of no change, None before it is known. ``span``: the ends of a part of the
    range.
    """

    kind: ReasonKind
    index: int = 0
    round: int = 0
    none: float | None = None
    bits: float = 0.0
    minutes: float = 0.0
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class NextLaunch:
    """LaunchEstimate this position afresh and make ``runs`` runs."""

    index: int
    runs: int
    purpose: Purpose
    why: Reason


@dataclass(frozen=True)
class Comparison:
    """The confirming A/B of parent and culprit: relative effect (B/A - 1) with its 95 % interval; launches a
    side."""

    parent: int
    culprit: int
    effect: float
    low: float
    high: float
    launches: int


@dataclass(frozen=True)
class Beliefs:
    """The posterior: ``p[i]`` that position i is the culprit (p[0] = 0), ``none`` that nothing changed, and
    the levels."""

    p: tuple[float, ...]
    none: float
    sigma: float
    tau: float
    """Noise between runs and between launches (log scale); 0 before both ends were measured."""
    step: float
    """Posterior mean of the step, relative (0.10: ten per cent worse)."""
    step_low: float
    step_high: float
    leading: tuple[int, ...]
    """The distinguishable set of positions that holds most probability."""
    leading_p: float
    """Its probability, at most 0.99."""


@dataclass(frozen=True)
class NamedStep:
    """One of several steps, as :class:`SearchOutcome` tells its one: ``culprits`` cannot be told apart."""

    culprits: tuple[int, ...]
    probability: float
    confirmed: Comparison


NoteKind = Literal[
    "more steps",
    "one build",
    "unstable ends",
    "ends swapped",
    "not confirmed",
    "part not measurable",
    "part on unlike slots",
    "part below noise",
    "part not confirmed",
    "part improves",
    "parts unsettled",
]


@dataclass(frozen=True)
class Note:
    """What else a reader must know of an outcome; only the fields that its ``kind`` needs are set.

    ``positions``: those concerned, of a part its two ends. ``effect``, ``whole``: relative changes, of a step
    and of the range; None where they are not part of it. ``spans``: the ends of several parts.
    """

    kind: NoteKind
    positions: tuple[int, ...] = ()
    effect: float | None = None
    whole: float | None = None
    probability: float = 0.0
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SearchOutcome:
    """How a bisection ended.

    ``culprits``: positions that cannot be told apart (one, where its neighbours are testable); empty unless
    found or leading when the budget ended. ``probability``: of the culprits, or of no change where it was not
    reproduced; never above 0.99. ``share``: the culprit's part of the whole change (of logs). ``notes``:
    what else a reader must know (more than one step, an end that flaps). ``launches_needed``: for
    "too small", the launches a side that would settle it; 0 unknown.
    """

    verdict: SearchVerdict
    culprits: tuple[int, ...]
    probability: float
    beliefs: Beliefs | None
    confirmed: Comparison | None = None
    whole: Comparison | None = None
    share: float | None = None
    notes: tuple[Note, ...] = ()
    launches_needed: int = 0
    steps: tuple[NamedStep, ...] = ()
    """Where every step was asked for (``Plan.all_steps``): those that were named, in the history's order."""


@dataclass(frozen=True)
class SearchEnd:
    outcome: SearchOutcome
