"""What is known of a break besides its metric: the input of the judgement of its cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perfbisect.core.suspect_facts import CauseWord

Shape = Literal["step", "drift", "transient"]

LABELS = ("warmups", "client", "definition", "suite", "dataset", "server", "host", "hardware", "keys")
"""Covariates that are equal or not."""

COUNTS = ("prompts", "completed", "input_tokens", "output_tokens", "audio_duration", "duration")
"""Covariates that have a size."""


@dataclass(frozen=True)
class Night:
    """The covariates of a cell on one night; what is not known is left out.

    ``labels``: how it was measured, of :data:`LABELS`; ``keys`` among them is a digest, where the names
    themselves are not known. ``counts``: what was asked and what came of it, of :data:`COUNTS`; per request
    or of the run, the same on all nights. ``keys``: the names of the numbers that the client reported.
    ``outside``: seconds that the client took besides the run that it measured, None where that is not known.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    outside: float | None = None


def night_of(covariates: Mapping[str, Any]) -> Night:
    """The covariates of a reported point (:data:`perfbisect.core.point.COVARIATES`) that are read here."""
    known = {name: value for name, value in covariates.items() if value is not None}
    return Night(
        labels={name: str(known[name]) for name in LABELS if name in known},
        counts={name: float(known[name]) for name in COUNTS if name in known},
        outside=known.get("outside"),
    )


@dataclass(frozen=True)
class Neighbour:
    """A cell that was measured on the same two sides, with how its own metric moved.

    ``shift``: log of after / before, above 0 worse; ``noise``: its standard deviation from night to night, of
    logs. ``start``: the server start that served it. ``control``: a cell that little but the machine moves,
    of low concurrency, or the time of a stage. ``traits``: what it runs (its family, knobs).
    """

    cell: str
    start: str
    shift: float
    noise: float
    control: bool = False
    traits: frozenset[str] = frozenset()

    @property
    def moved(self) -> bool:
        """Beyond what nights do to it."""
        return abs(self.shift) > 3 * self.noise


@dataclass(frozen=True)
class Break:
    """A break of a series.

    ``metric``: its name without statistic; ``statistic``: ``median``, ``mean``, ``p99``. ``shift``: log of
    after / before, above 0 worse. ``noise``: as of a neighbour. ``before``, ``after``: nights on either side,
    those nearest to the break last and first. ``median``: by how much the median of the same metric moved,
    where this is another statistic. ``neighbours``: all cells of the night, this one with them. ``over``:
    nights that came later do not show it. ``saved``: of a mean or a percentile that fell, the seconds that
    its slow requests no longer take; None where it is no time.
    """

    metric: str
    shift: float
    noise: float
    shape: Shape
    before: tuple[Night, ...]
    after: tuple[Night, ...]
    statistic: str = "median"
    median: float | None = None
    neighbours: tuple[Neighbour, ...] = ()
    over: bool = True
    saved: float | None = None


EvidenceKind = Literal[
    "label changed",
    "count explains",
    "count falls short",
    "count redefined",
    "keys added",
    "keys removed",
    "keys differ",
    "definition changed",
    "slow requests gone",
    "few requests moved",
    "warm-up added",
    "warm-up or pause",
    "machine changed",
    "lasting",
    "one night",
    "one night so far",
    "one night, then back",
    "few nights",
    "size of one night",
    "size",
    "within noise",
    "too few cells",
    "servers moved",
    "all servers moved",
    "shared trait",
    "others spared",
    "controls spared",
    "median unchanged",
    "same stream unchanged",
    "level seen before",
    "same requests changed",
    "same start moved",
]


@dataclass(frozen=True)
class Evidence:
    """One observation about a break: ``kind`` decides, the other fields are its values.

    Only the fields that a kind needs are set. ``name``: a covariate, metric or statistic; ``names``: keys of
    a result, or traits. ``old``, ``new``: labels; ``before``, ``after``: numbers. ``shift``,
    ``median_shift``: logs of after / before. ``nights``: how many; ``night``: days since 1970-01-01.
    ``count`` of ``total`` server starts, ``moved_controls`` of ``controls``. ``what``: the description of a
    hint of the series.
    """

    kind: EvidenceKind
    name: str = ""
    names: tuple[str, ...] = ()
    cell: str = ""
    what: str = ""
    old: str = ""
    new: str = ""
    before: float = 0.0
    after: float = 0.0
    shift: float = 0.0
    median_shift: float = 0.0
    deviations: float = 0.0
    saved_s: float = 0.0
    nights: int = 0
    night: int = 0
    count: int = 0
    total: int = 0
    moved_controls: int = 0
    controls: int = 0


@dataclass(frozen=True)
class Cause:
    """What is behind a break, and the evidence for it, the deciding one first."""

    word: CauseWord
    evidence: tuple[Evidence, ...]

    def has(self, *kinds: EvidenceKind) -> bool:
        """Whether any of the evidence is of one of these kinds."""
        return any(evidence.kind in kinds for evidence in self.evidence)
