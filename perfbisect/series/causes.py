"""The cause of a break: product, instrument, workload, night or unknown, with the evidence for it.

What is compared must be alike before it is blamed, so the order is: how it was measured, what was asked of
it, then who else moved. A covariate explains a break only where it moved at the same point and by enough:
tokens that change by a tenth do not make a factor of three. Nights run on fresh machines, so one slow machine
is one night long and slows every cell it ran, those of low concurrency too; a break of one night is a
product's nevertheless where its size and the cells it hit say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from perfbisect.model.commit_details import CauseWord
from perfbisect.series.detection.model import Shape

LABELS = ("warmups", "client", "definition", "suite", "dataset", "server", "host", "hardware", "keys")
"""Covariates that are equal or not."""

COUNTS = ("prompts", "completed", "input_tokens", "output_tokens", "audio_duration", "duration")
"""Covariates that have a size."""


@dataclass(frozen=True)
class NightCovariates:
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


def covariates_of(covariates: Mapping[str, Any]) -> NightCovariates:
    """The covariates of a reported point (:data:`perfbisect.series.points.COVARIATES`) that are read here."""
    known = {name: value for name, value in covariates.items() if value is not None}
    return NightCovariates(
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
class ChangeContext:
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
    before: tuple[NightCovariates, ...]
    after: tuple[NightCovariates, ...]
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


NEAR = 3
"""Nights on each side that are compared: what moved weeks before is no evidence."""
_LEAST = 0.02
"""Log of a move of a count that is worth telling."""
_MAD = 1.4826


@dataclass(frozen=True)
class CountMove:
    """A count that is another after the break; ``shift`` is the log of after / before."""

    name: str
    before: float
    after: float
    shift: float


def labels_moved(
    before: Sequence[NightCovariates], after: Sequence[NightCovariates], names: Iterable[str]
) -> tuple[Evidence, ...]:
    """Labels that had one value on the nights before and another on those after, where they are known."""
    found = []
    for name in names:
        left = {night.labels[name] for night in before[-NEAR:] if name in night.labels}
        right = {night.labels[name] for night in after[:NEAR] if name in night.labels}
        if len(left) == len(right) == 1 and left != right:
            (old,), (new,) = left, right
            found.append(Evidence("label changed", name=name, old=old, new=new))
    return tuple(found)


def counts_moved(
    before: Sequence[NightCovariates], after: Sequence[NightCovariates]
) -> tuple[CountMove, ...]:
    """Counts whose median moved beyond what they do from one night before the break to the next, largest
    first."""
    names = dict.fromkeys(name for night in (*before, *after) for name in night.counts)
    found = []
    for name in names:
        left, right = _logs(before, name), _logs(after, name)
        if not left or not right:
            continue
        old, new = median(left[-NEAR:]), median(right[:NEAR])
        if abs(new - old) > max(_LEAST, 4 * _spread(left)):
            found.append(CountMove(name, math.exp(old), math.exp(new), new - old))
    return tuple(sorted(found, key=lambda move: -abs(move.shift)))


def _logs(nights: Sequence[NightCovariates], name: str) -> list[float]:
    return [math.log(night.counts[name]) for night in nights if night.counts.get(name, 0) > 0]


def _spread(logs: Sequence[float]) -> float:
    """Standard deviation of a night, from the differences between neighbours: earlier steps do not widen
    it."""
    steps = [abs(b - a) for a, b in pairwise(logs)]
    return _MAD * median(steps) / math.sqrt(2) if steps else 0.0


def key_changes(before: Sequence[NightCovariates], after: Sequence[NightCovariates]) -> tuple[Evidence, ...]:
    """Numbers that the client reported on the nights of one side and on none of the other."""
    left = [night.keys for night in before[-NEAR:] if night.keys]
    right = [night.keys for night in after[:NEAR] if night.keys]
    if not left or not right:
        digests = labels_moved(before, after, ("keys",))
        return (Evidence("keys differ"),) if digests else ()
    gone = frozenset.intersection(*left) - frozenset().union(*right)
    new = frozenset.intersection(*right) - frozenset().union(*left)
    found = []
    if gone:
        found.append(Evidence("keys removed", names=tuple(sorted(gone))))
    if new:
        found.append(Evidence("keys added", names=tuple(sorted(new))))
    return tuple(found)


INSTRUMENT = ("warmups", "client", "definition", "suite")
WORKLOAD = ("dataset", "server")
PLACE = ("host", "hardware")

_GROWS = ("e2el", "latency", "ttft", "audio_ttfp", "image_generation", "video_generation")
"""Metrics that longer work makes larger, and never smaller."""
_ENOUGH = 1.5
"""By how much a break may be larger, in logs, than what explains it."""
_RECOUNTED = math.log(1.2)
"""Log of a move of a count from which on another way of counting is thought of."""
_COVERS = 0.5
"""How much longer the client has to take before its run, as a share of the time of the slow requests that
are gone, to have sent them there."""
_COMMON = 0.8
"""Share of server starts that moved together, from which on it is all of them."""
_LARGE = 0.25
"""Log of a size, and"""
_FAR = 8.0
"""standard deviations, from which on a single night may be a product's."""


def infer_cause(found: ChangeContext) -> Cause:
    """What is behind a break."""
    moves = counts_moved(found.before, found.after)
    for judged in (_instrument(found, moves), _tail(found), _workload(found, moves)):
        if judged is not None:
            return judged
    partly = _partly(found, moves)
    product = _cells(found)
    return Cause(product.word, (*product.evidence, *partly))


def _instrument(found: ChangeContext, moves: tuple[CountMove, ...]) -> Cause | None:
    evidence = list(labels_moved(found.before, found.after, INSTRUMENT))
    evidence += _counted_otherwise(found, moves)
    evidence += [
        change
        for change in key_changes(found.before, found.after)
        if any(found.metric in name for name in change.names)
    ]
    if not evidence:
        return None
    return Cause("instrument", (*evidence, Evidence("definition changed")))


def _counted_otherwise(found: ChangeContext, moves: tuple[CountMove, ...]) -> list[Evidence]:
    """Input tokens that moved with the metric while the runs took as long: another count of one load."""
    moved = {move.name: move for move in moves}
    tokens = moved.get("input_tokens")
    timed = all("duration" in night.counts for night in (*found.before, *found.after))
    if tokens is None or not timed or "duration" in moved or abs(tokens.shift) < _RECOUNTED:
        return []
    if abs(abs(tokens.shift) - abs(found.shift)) > 0.2 * abs(tokens.shift):
        return []
    return [_of_count("count redefined", tokens)]


def _of_count(kind: EvidenceKind, move: CountMove, shift: float = 0.0) -> Evidence:
    return Evidence(kind, name=move.name, before=move.before, after=move.after, shift=shift)


def _tail(found: ChangeContext) -> Cause | None:
    """A mean or tail that moved without its median: a few requests, such as the first ones of a server."""
    if found.statistic == "median" or found.median is None:
        return None
    if abs(found.median) > min(0.1, 0.25 * abs(found.shift)):
        return None
    moved = Evidence("few requests moved", name=found.statistic, shift=found.shift, median_shift=found.median)
    keys = key_changes(found.before, found.after)
    warm = _warmed(found)
    if warm is not None:
        return Cause("instrument", (replace(moved, kind="slow requests gone"), warm, *keys))
    if keys:
        return Cause("instrument", (moved, *keys))
    if not found.over and len(found.after) == 1:
        return Cause("unknown", (moved, Evidence("one night so far")))
    if len(found.after) == 1 or found.shape == "transient":
        return Cause("night", (moved, Evidence("one night")))
    return Cause("unknown", (moved, Evidence("warm-up or pause")))


def _warmed(found: ChangeContext) -> Evidence | None:
    """That the client does something before the run since, which takes as long as the slow requests did: as
    if these were sent and not counted. None where nothing says so."""
    before = [night.outside for night in found.before[-NEAR:] if night.outside is not None]
    after = [night.outside for night in found.after[:NEAR] if night.outside is not None]
    if not before or not after or not found.saved:
        return None
    longer = min(after) - max(before)
    if longer < _COVERS * found.saved or min(after) < 2 * max(before):
        return None
    return Evidence("warm-up added", before=median(before), after=median(after), saved_s=found.saved)


def _workload(found: ChangeContext, moves: tuple[CountMove, ...]) -> Cause | None:
    evidence = list(labels_moved(found.before, found.after, WORKLOAD))
    evidence += [_of_count("count explains", move) for move in moves if _explains(move, found)]
    return Cause("workload", tuple(evidence)) if evidence else None


def _explains(move: CountMove, found: ChangeContext) -> bool:
    if move.name == "duration" or (found.metric in _GROWS and move.shift * found.shift < 0):
        return False
    return abs(found.shift) <= _ENOUGH * abs(move.shift)


def _partly(found: ChangeContext, moves: tuple[CountMove, ...]) -> tuple[Evidence, ...]:
    """What moved besides and does not explain it."""
    counts = [_of_count("count falls short", move, found.shift) for move in moves if move.name != "duration"]
    return (*counts, *key_changes(found.before, found.after))


@dataclass(frozen=True)
class _Start:
    moved: bool
    cells: tuple[Neighbour, ...]

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(*(cell.traits for cell in self.cells))


def _starts(found: ChangeContext) -> tuple[_Start, ...]:
    """One vote each: moved where any of its cells moved the way the break did."""
    groups: dict[str, list[Neighbour]] = {}
    for neighbour in found.neighbours:
        groups.setdefault(neighbour.start, []).append(neighbour)
    starts = []
    for group in groups.values():
        moved = tuple(n for n in group if n.moved and n.shift * found.shift > 0)
        starts.append(_Start(bool(moved), moved or tuple(group)))
    return tuple(starts)


def _cells(found: ChangeContext) -> Cause:
    """By who else moved, and for how long."""
    starts, nights = _starts(found), len(found.after)
    hit, spared = [s for s in starts if s.moved], [s for s in starts if not s.moved]
    hosts = labels_moved(found.before, found.after, PLACE)
    lasting = found.shape != "transient" and nights > 1
    if hosts and (not spared or lasting):
        return Cause("night", (*hosts, Evidence("machine changed")))
    if len(starts) >= 3 and len(hit) >= _COMMON * len(starts):
        return _common(found, hit, spared, lasting=lasting)
    if lasting:
        return Cause("product", (Evidence("lasting", nights=nights), *_difference(hit, spared)))
    return _one_night(found, hit, spared)


def _common(found: ChangeContext, hit: list[_Start], spared: list[_Start], *, lasting: bool) -> Cause:
    """Nearly everything moved together."""
    controls = [n for n in found.neighbours if n.control]
    moved = [n for n in controls if n.moved and n.shift * found.shift > 0]
    together = Evidence(
        "servers moved",
        count=len(hit),
        total=len(hit) + len(spared),
        moved_controls=len(moved),
        controls=len(controls),
    )
    if lasting:
        stayed = Evidence("lasting", nights=len(found.after))
        return Cause("product", (stayed, replace(together, kind="all servers moved")))
    if controls and len(moved) < 0.5 * len(controls):
        return Cause("unknown", (together, Evidence("controls spared")))
    if found.shape == "transient":
        return Cause("night", (together, Evidence("one night, then back")))
    return Cause("unknown", (together, Evidence("one night so far")))


def _one_night(found: ChangeContext, hit: list[_Start], spared: list[_Start]) -> Cause:
    """Some cells, one night: a product's only where size and cells both say so."""
    shared = _difference(hit, spared)
    size = Evidence("size", shift=found.shift, deviations=abs(found.shift) / max(found.noise, 1e-9))
    far = abs(found.shift) > max(_LARGE, _FAR * found.noise)
    if shared and len(hit) > 1 and far:
        return Cause("product", (*shared, size, Evidence("others spared")))
    doubt = Evidence("too few cells" if far else "within noise")
    return Cause("unknown", (replace(size, kind="size of one night"), *shared, doubt))


def _difference(hit: list[_Start], spared: list[_Start]) -> tuple[Evidence, ...]:
    """What those that moved run and no other does; empty where there is no such thing."""
    if not hit or not spared:
        return ()
    shared = frozenset.intersection(*(start.traits for start in hit))
    alone = shared - frozenset().union(*(start.traits for start in spared))
    if not alone:
        return ()
    worst = max(abs(n.shift) for start in spared for n in start.cells)
    return (Evidence("shared trait", names=tuple(sorted(alone)), count=len(spared), shift=worst),)
