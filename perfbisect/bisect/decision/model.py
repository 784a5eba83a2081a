"""Values of a bisection's search: its plan, events, next launch and outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from perfbisect.model.attempt import Costs, Purpose
from perfbisect.model.metric import Metric
from perfbisect.stats.two_sample import Scale

SearchVerdict = Literal["found", "narrowed", "not reproduced", "too small", "gradual", "out of budget"]


BUILD_SD: Final = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03)
"""Grid of the standard deviation of what a build has of its own (log scale)."""


@dataclass(frozen=True)
class NoisePrior:
    """What is taken for likely before any launch, by default or as earlier jobs have it.

    ``runs``, ``launches``: medians of the noise between the runs of a launch and between launches (log
    scale); ``runs_sd``, ``launches_sd``: log standard deviations around these. ``builds``: weights of
    :data:`BUILD_SD`; empty: by whether most changes have compiled files of their own. The defaults are those
    of docs/method/bisection.md: a quiet machine whose devices do the work.
    """

    runs: float = 0.02
    launches: float = 0.012
    runs_sd: float = 1.1
    launches_sd: float = 0.9
    builds: tuple[float, ...] = ()


USUAL_NOISE: Final = NoisePrior()


@dataclass(frozen=True)
class Plan:
    """Positions 0..n are the history's changes: 0 is good, n is bad; candidates are 1..n.

    ``sign`` is +1 where a larger value is worse; ``min_effect`` the smallest relevant relative step;
    ``prior`` weights over positions 0..n (position 0 is ignored); ``skips`` positions known to be untestable;
    ``cached`` positions already built; ``budget`` minutes of measuring in all; ``all_steps``: find every step
    of the range, not only one. ``binaries``: of each position, equal where the compiled files are known to be
    before any is built; empty: all positions share them. ``noise``: what is taken for likely of noise and
    builds before any launch. ``absolute``: values are shares, and effects and ``min_effect`` differences of
    them. ``exact``: launches of one position agree. ``channels``: further metrics of the launches, which the
    change may move, too.
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
    all_steps: bool = False
    binaries: tuple[str, ...] = ()
    noise: NoisePrior = USUAL_NOISE
    absolute: bool = False
    exact: bool = False
    channels: tuple[Metric, ...] = ()

    @property
    def scale(self) -> Scale:
        """On which levels and effects are."""
        return Scale(self.sign, self.absolute)

    @property
    def relative_effect(self) -> float:
        """The smallest relevant effect whose log is the smallest step of levels."""
        return math.expm1(self.scale.room(self.min_effect)) if self.absolute else self.min_effect

    @property
    def compiles_each(self) -> bool:
        """Whether most positions have compiled files of their own: each may be faster or slower by itself."""
        known = [name for name in self.binaries if name]
        return 2 * len(set(known)) > len(known)

    def binaries_of(self, ran: Mapping[int, str]) -> tuple[str, ...]:
        """:attr:`binaries`, where positions that ran equal files are of one; ``ran``: their digests."""
        names = self.binaries
        # What the plan has as one stays so: a compiler may write the folder of a build into its files.
        for digest in dict.fromkeys(filter(None, ran.values())) if names else ():
            one = {names[index] for index, own in ran.items() if own == digest}
            names = tuple(min(one) if name in one else name for name in names)
        return names


@dataclass(frozen=True)
class Trial:
    """An A/B of a search, its ``number``-th from 0: of a suspected culprit and its parent.

    ``runs``: of each of its launches.
    """

    number: int
    parent: int
    culprit: int
    runs: int


@dataclass(frozen=True)
class PositionLaunch:
    """A launch of a position, and what for."""

    index: int
    purpose: Purpose


@dataclass(frozen=True)
class Measured(PositionLaunch):
    """A launch with one raw positive value a run; ``build``, ``launch``, ``run``: the minutes these took.

    ``bring``: the minutes in which its environment was brought to a machine of a fleet. ``slot`` names the
    devices it ran on, ``machine`` the machine of a fleet that has them; ``at`` is the minute, from the first
    launch of all, at which its first run began; None: launches count as made one after the other. ``trial``:
    the A/B that it was made for. ``channels``: the values of each channel of the plan, none where the launch
    does not report it. ``binary``: digest of the compiled files that it ran, empty where it is not known.
    """

    values: tuple[float, ...]
    build: float = 0.0
    launch: float = 0.0
    run: float = 0.0
    slot: str = ""
    at: float | None = None
    machine: str = ""
    trial: Trial | None = None
    bring: float = 0.0
    channels: tuple[tuple[float, ...], ...] = ()
    binary: str = ""

    @property
    def minutes(self) -> float:
        return self.build + self.bring + self.launch + self.run


@dataclass(frozen=True)
class Skipped(PositionLaunch):
    """A change that cannot be built or served (after the runner's one retry): untestable, never bad."""

    minutes: float = 0.0
    slot: str = ""


@dataclass(frozen=True)
class Lost:
    """Minutes of an attempt that is no evidence (the machine failed, the process was killed)."""

    minutes: float = 0.0


Event = Measured | Skipped | Lost


@dataclass(frozen=True)
class Visit(PositionLaunch):
    """A launch of a position, with so many runs."""

    runs: int


@dataclass(frozen=True)
class Pending(Visit):
    """A launch under way on a slot, without an event yet."""

    slot: str = ""
    trial: Trial | None = None


@dataclass(frozen=True)
class Wait:
    """Nothing worth starting on this slot until a launch under way has ended."""

    why: str


ReasonKind = Literal[
    "end round",
    "end new to slot",
    "on one machine",
    "most informative",
    "pair",
    "another step",
    "another build",
    "slow at times",
    "halves",
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
class NextLaunch(Visit):
    """Launch this position afresh and make ``runs`` runs.

    ``mate``: the other one of a pair that begins; ``trial``: the A/B that it is made for.
    """

    why: Reason
    mate: int | None = None
    trial: Trial | None = None


@dataclass(frozen=True)
class Comparison:
    """Relative effect culprit / parent - 1 with its 95 % interval; ``launches``: of each side."""

    parent: int
    culprit: int
    effect: float
    low: float
    high: float
    launches: int


@dataclass(frozen=True)
class Beliefs:
    """The posterior: ``p[i]`` that position i is the culprit (p[0] = 0), ``none`` that nothing changed
    by the smallest effect or more.

    Once a step is confirmed these reckon with builds that differ, slopes and slow launches. ``sigma``,
    ``tau``: noise between runs and between launches (log scale), 0 before both ends were measured. ``step``:
    posterior mean of the relative step. ``leading``: the distinguishable set of positions with most
    probability; that is ``leading_p``, at most 0.99.
    """

    p: tuple[float, ...]
    none: float
    sigma: float
    tau: float
    step: float
    step_low: float
    step_high: float
    leading: tuple[int, ...]
    leading_p: float


@dataclass(frozen=True)
class NamedStep:
    """One of several steps; ``culprits`` cannot be distinguished."""

    culprits: tuple[int, ...]
    probability: float
    confirmed: Comparison


NoteKind = Literal[
    "more steps",
    "one build",
    "builds differ",
    "intermittent",
    "one machine",
    "ends differ on one machine",
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
    and of the range; of builds their standard deviation, None where the launches do not show it.
    ``spans``: the ends of several parts. ``slow``: launches that were slow, and those made,
    from the culprit on. ``machines``: the one where a step was seen, and one where it was not.
    """

    kind: NoteKind
    positions: tuple[int, ...] = ()
    effect: float | None = None
    whole: float | None = None
    probability: float = 0.0
    spans: tuple[tuple[int, int], ...] = ()
    slow: tuple[int, int] = (0, 0)
    machines: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchOutcome:
    """How a search ended.

    ``culprits``: positions that cannot be distinguished (one, if its neighbours are testable); of "narrowed"
    the smallest set that holds 95 % of what a step has; of "out of budget" those that lead; else empty.
    ``probability``: of the culprits, or of no change where it was not reproduced; at most 0.99.
    ``confirmed``: the A/B, of "narrowed" that of the suspect.
    ``share``: the culprit's part of the whole change (of logs).
    ``launches_needed``: for "too small", the launches a side that would settle it; 0 unknown. ``steps``: all
    named steps, in the history's order, if all were asked for.
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
