"""The cause of a change: product, instrument, workload, night or unknown, with the evidence for it.

The rules are tried in order: how it was measured, what was asked of it, then which other cells moved. A
covariate explains a change only where it moved at the same point and by enough. Nights run on fresh machines,
so that a slow machine is one night long and slows every cell it ran, those of low concurrency too. A machine
of a fleet measures its cells every night: a change that only it shows is none of the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from perfbisect.model.commit_details import (
    CauseWord,
    Evidence,
    MeasuredCell,
    distinguishing_traits,
    server_votes,
)
from perfbisect.series.detection.likelihood import INNER
from perfbisect.series.detection.model import GAUSSIAN, WEEK, Shape
from perfbisect.series.findings import NOISE_NIGHTS, SeriesChange, SeriesIndex, noise_of, shift
from perfbisect.series.series import ENVIRONMENT, CellSeries

Covariates = Mapping[str, Any]
"""What is known beside a night's values: names of covariates of a :class:`perfbisect.series.points.Point`."""

INSTRUMENT = ("warmups", "client", "definition", "suite")
WORKLOAD = ("dataset", "server")
MACHINE = ("host", "hardware")
COUNTS = ("prompts", "completed", "input_tokens", "output_tokens", "audio_duration", "duration")

_GROWING = ("e2el", "latency", "ttft", "audio_ttfp", "image_generation", "video_generation")
"""Metrics that longer work makes larger, and never smaller."""

# Chosen on the nightlies of vLLM-Omni of spring 2026, whose causes are known (tests/test_april.py);
# docs/method/suspects.md has the rules. None is estimated: where a rule is not sure, the cause is unknown.
_COMPARED_NIGHTS = 3  # nights on each side whose covariates are compared
_MIN_COUNT_SHIFT = 0.02  # log of a move of a count that is evidence
_EXPLAINED = 1.5  # by how much a change may be larger, in logs, than the move of a count that explains it
_WARM_UP_SHARE = 0.5  # share of vanished slow requests' time by which the client must take longer before
_FEWEST_SERVERS = 2  # of a machine and of the others, from which on they tell a machine from a change
_ALL_SERVERS = 0.8  # share of server starts that moved together, from which on it is all of them
_LARGE = 0.25  # log of a size, and ...
_DEVIATIONS = 8.0  # ... standard deviations, from which on a single night may be a product's
_SAME_MOVE = 0.25  # share of a move that another series must show of it to have moved with it
_NIGHTS_BEFORE = 4  # nights before a step from which on its night is right (docs/method/detection.md)
_SAME_STREAM = {"itl": "tpot", "itl:mean": "tpot:mean"}  # metrics of one stream that count chunks, tokens


@dataclass(frozen=True)
class Cause:
    """What is behind a change, and the evidence for it, the deciding one first."""

    word: CauseWord
    evidence: tuple[Evidence, ...]

    def has(self, *kinds: str) -> bool:
        return any(evidence.kind in kinds for evidence in self.evidence)

    @property
    def is_grouping(self) -> bool:
        """Whether tokens are only grouped into chunks otherwise."""
        return self.has("same stream unchanged")


@dataclass(frozen=True)
class ChangeContext:
    """A change with what the rules compare.

    ``metric``: without its ``statistic``. ``shift``: on its scale (logs, or shares as they are), above 0
    worse; ``noise``: the standard deviation of nights. ``before``, ``after``: covariates of the nights on
    either side. ``median_shift``: of the median, where this is another statistic. ``cells``: all of the
    night. ``ended``: later nights do not show it. ``saved_s``: seconds that slow requests no longer take.
    ``machines``: the hosts before and after it, where no host of one level measured the other. ``machine``:
    of a fleet.
    """

    metric: str
    shift: float
    noise: float
    shape: Shape
    before: tuple[Covariates, ...]
    after: tuple[Covariates, ...]
    statistic: str = "median"
    median_shift: float | None = None
    cells: tuple[MeasuredCell, ...] = ()
    ended: bool = True
    saved_s: float | None = None
    machines: tuple[str, str] | None = None
    machine: str = ""


def changed_labels(
    before: Sequence[Covariates], after: Sequence[Covariates], names: Iterable[str]
) -> list[Evidence]:
    """Covariates with one value on the nights before and another on those after."""
    found = []
    for name in names:
        left = set(map(str, _known(before[-_COMPARED_NIGHTS:], name)))
        right = set(map(str, _known(after[:_COMPARED_NIGHTS], name)))
        # A label that changes within a side explains no change between them.
        if len(left) == len(right) == 1 and left != right:
            found.append(Evidence("label changed", {"name": name, "old": left.pop(), "new": right.pop()}))
    return found


def _known(nights: Sequence[Covariates], name: str) -> list[Any]:
    return [night[name] for night in nights if night.get(name) is not None]


@dataclass(frozen=True)
class CountMove:
    """A count that is another after the change; ``shift`` is the log of after / before."""

    name: str
    before: float
    after: float
    shift: float

    def evidence(self, kind: str, **values: object) -> Evidence:
        return Evidence(kind, {"name": self.name, "before": self.before, "after": self.after, **values})


def moved_counts(before: Sequence[Covariates], after: Sequence[Covariates]) -> list[CountMove]:
    """Counts whose median moved by more than they do from night to night, largest first."""
    moves = []
    for name in COUNTS:
        left, right = _logs(before, name), _logs(after, name)
        if not left or not right:
            continue
        old, new = median(left[-_COMPARED_NIGHTS:]), median(right[:_COMPARED_NIGHTS])
        # Differences between neighbours, which earlier steps do not widen.
        steps = [abs(b - a) for a, b in pairwise(left)]
        deviation = GAUSSIAN * median(steps) / math.sqrt(2) if steps else 0.0
        if abs(new - old) > max(_MIN_COUNT_SHIFT, 4 * deviation):
            moves.append(CountMove(name, math.exp(old), math.exp(new), new - old))
    return sorted(moves, key=lambda move: -abs(move.shift))


def _logs(nights: Sequence[Covariates], name: str) -> list[float]:
    return [math.log(value) for value in _known(nights, name) if value > 0]


def infer_cause(context: ChangeContext) -> Cause:
    """What is behind a change, by the rules alone."""
    moves = moved_counts(context.before, context.after)
    # First of all: a change of the instrument says nothing about the product.
    instrument = changed_labels(context.before, context.after, INSTRUMENT)
    # Input tokens that moved with the metric while the runs took as long are another count of one load.
    nights = (*context.before, *context.after)
    if len(_known(nights, "duration")) == len(nights) and all(move.name != "duration" for move in moves):
        instrument += [
            move.evidence("count redefined")
            for move in moves
            if move.name == "input_tokens"
            and abs(abs(move.shift) - abs(context.shift)) <= 0.2 * abs(move.shift)
        ]
    if instrument:
        return Cause("instrument", (*instrument, Evidence("definition changed")))
    if (cause := _tail(context)) is not None:
        return cause
    workload = changed_labels(context.before, context.after, WORKLOAD)
    # A duration is the result of slow requests, not their cause.
    counts = [move for move in moves if move.name != "duration"]
    for move in counts:
        # Longer work makes no request faster.
        is_opposite = context.metric in _GROWING and move.shift * context.shift < 0
        if not is_opposite and abs(context.shift) <= _EXPLAINED * abs(move.shift):
            workload.append(move.evidence("count explains"))
    if workload:
        return Cause("workload", tuple(workload))
    cause = _by_cells(context)
    moved = {"metric": context.metric, "shift": context.shift}
    unexplained = [move.evidence("count falls short", **moved) for move in counts]
    environment = changed_labels(context.before, context.after, ENVIRONMENT)
    return Cause(cause.word, (*cause.evidence, *unexplained, *environment, *_keys_differ(context)))


def _keys_differ(context: ChangeContext) -> list[Evidence]:
    changed = changed_labels(context.before, context.after, ("keys",))
    return [Evidence("keys differ")] if changed else []


def _tail(context: ChangeContext) -> Cause | None:
    """A mean or tail that moved without its median: a few requests, such as the first ones of a server."""
    typical = context.median_shift
    if context.statistic == "median" or typical is None:
        return None
    # A median that moved with it, or by a tenth by itself, is judged as a change of all requests.
    if abs(typical) > min(0.1, 0.25 * abs(context.shift)):
        return None
    shifts = {"shift": context.shift, "median_shift": typical}
    values = {"metric": context.metric, "statistic": context.statistic, **shifts}
    moved = Evidence("few requests moved", values)
    keys, is_one_night = _keys_differ(context), len(context.after) == 1
    before = _known(context.before[-_COMPARED_NIGHTS:], "outside")
    after = _known(context.after[:_COMPARED_NIGHTS], "outside")
    if before and after and context.saved_s:
        longer, doubled = min(after) - max(before), min(after) >= 2 * max(before)
        # The client sends the slow first requests before its run, which takes about their time: the tail
        # fell, the server did not get faster.
        if doubled and longer >= _WARM_UP_SHARE * context.saved_s:
            times = {"before": median(before), "after": median(after), "saved_s": context.saved_s}
            gone, added = Evidence("slow requests gone", values), Evidence("warm-up added", times)
            return Cause("instrument", (gone, added, *keys))
    if keys:
        return Cause("instrument", (moved, *keys))
    if is_one_night and not context.ended:
        return Cause("unknown", (moved, Evidence("one night so far")))
    if is_one_night or context.shape == "transient":
        return Cause("night", (moved, Evidence("one night")))
    return Cause("unknown", (moved, Evidence("warm-up or pause")))


def _by_cells(context: ChangeContext) -> Cause:
    """By which other servers moved, and for how long."""
    votes = server_votes(context.cells)
    hit = sum(vote.hit for vote in votes)
    nights = len(context.after)
    is_lasting = context.shape != "transient" and nights > 1
    machines = changed_labels(context.before, context.after, MACHINE[1:] if is_lasting else MACHINE)
    if is_lasting and context.machines:
        # Few nights on either side may be of two hosts that alternate.
        old, new = context.machines
        machines.append(Evidence("label changed", {"name": "host", "old": old, "new": new}))
    # A transient counts only if all servers moved: a slow machine slows all that it served.
    if machines and (hit == len(votes) or is_lasting):
        return Cause("night", (*machines, Evidence("machine changed")))
    own = [vote.hit for vote in votes if context.machine and vote.cells[0].machine == context.machine]
    others = [vote.hit for vote in votes if vote.cells[0].machine not in ("", context.machine)]
    if min(len(own), len(others)) >= _FEWEST_SERVERS and all(own) and not any(others):
        values = {"machine": context.machine, "count": len(own), "others": len(others)}
        return Cause("unknown", (Evidence("one machine only", values),))
    # Two servers that moved together may be chance.
    if len(votes) >= 3 and hit >= _ALL_SERVERS * len(votes):
        return _by_all_servers(context, hit, len(votes), is_lasting=is_lasting)
    # One slow machine slows what runs on it, whatever code that is: a trait speaks for the product.
    shared = []
    if traits := distinguishing_traits(votes):
        spared = [vote for vote in votes if not vote.hit]
        largest = math.expm1(max(abs(cell.shift) for vote in spared for cell in vote.cells))
        values = {"traits": sorted(traits), "spared": len(spared), "percent": largest * 100}
        shared.append(Evidence("shared trait", values))
    if is_lasting:
        return Cause("product", (Evidence("lasting", {"nights": nights}), *shared))
    deviations = abs(context.shift) / max(context.noise, 1e-9)
    size = {"metric": context.metric, "shift": context.shift, "deviations": deviations}
    is_large = abs(context.shift) > max(_LARGE, _DEVIATIONS * context.noise)
    if shared and hit > 1 and is_large:
        return Cause("product", (*shared, Evidence("size", size), Evidence("others spared")))
    doubt = Evidence("too few cells" if is_large else "within noise")
    return Cause("unknown", (Evidence("size of one night", size), *shared, doubt))


def _by_all_servers(context: ChangeContext, hit: int, total: int, *, is_lasting: bool) -> Cause:
    controls = [cell.hit for cell in context.cells if cell.control]
    values = {
        "count": hit, "total": total, "controls": len(controls), "controls_moved": sum(controls),
    }  # fmt: skip
    if is_lasting:
        stayed = Evidence("lasting", {"nights": len(context.after)})
        return Cause("product", (stayed, Evidence("all servers moved", values)))
    moved = Evidence("servers moved", values)
    # A slow machine slows cells of low concurrency too.
    if controls and sum(controls) < 0.5 * len(controls):
        return Cause("unknown", (moved, Evidence("controls spared")))
    if context.shape == "transient":
        return Cause("night", (moved, Evidence("one night, then back")))
    return Cause("unknown", (moved, Evidence("one night so far")))


def is_affected(cell: MeasuredCell, change: SeriesChange) -> bool:
    """Whether a cell moved as a change did, and by a size to compare."""
    return cell.hit and abs(cell.shift) >= _SAME_MOVE * min(abs(change.shift), math.log(2))


def infer_causes(changes: Sequence[SeriesChange], index: SeriesIndex) -> tuple[Cause, ...]:
    """The cause of each change, with the evidence for it."""
    causes = []
    for change in changes:
        cause = infer_cause(build_context(change, index))
        if cause.word == "product":
            cause = _confirm_product(change, cause)
        if cause.word in ("product", "unknown"):
            cause = _by_other_series(change, cause, index)
        causes.append(cause)
    products = [(c, cause) for c, cause in zip(changes, causes, strict=True) if cause.word == "product"]
    for place, (change, own) in enumerate(zip(changes, causes, strict=True)):
        if own.word != "unknown" or change.series.part != "typical":
            continue
        # The cause of one metric's change is that of the others of the same server start and night.
        key = change.nights, change.series.group
        for other, cause in products:
            if (other.nights, other.series.group) == key:
                values = {"metric": other.series.metric, "cell": other.series.cell}
                grouped = own.evidence[:1] if own.is_grouping else ()
                evidence = (*grouped, Evidence("same start moved", values), *cause.evidence)
                causes[place] = Cause("product", evidence)
                break
    return tuple(causes)


def build_context(change: SeriesChange, index: SeriesIndex) -> ChangeContext:
    """What the rules compare of a change."""
    series, (name, _, statistic) = change.series, change.series.metric.partition(":")
    own = shift(series, change)
    median_move = shift(index.get(series.cell, name), change) if statistic else None
    # What moved on its second night is not behind a transient, but for one that lasts like a level.
    shape = change.point.shape
    if shape == "transient" and len(change.after) >= INNER:
        shape = "step"
    # The nights around the change in which input tokens are counted alike.
    tokens = index.get(series.cell, "input_tokens")
    marks = () if tokens is None else tuple(tokens.nights[mark.index] for mark in tokens.boundaries)
    counted = range(
        max((night for night in marks if night <= change.first), default=0),
        min((night for night in marks if night > change.first), default=10**9),
    )
    return ChangeContext(
        metric=name,
        shift=change.shift,
        noise=own[1] if own else noise_of(series.levels(change.before)),
        shape=shape,
        before=_covariates(series, change.before, counted),
        after=_covariates(series, change.after[: 1 if shape == "transient" else NOISE_NIGHTS], counted),
        statistic="median" if series.part == "typical" else statistic,
        median_shift=median_move[0] if median_move else None,
        cells=index.measured_cells(change),
        ended=change.point.until is not None,
        saved_s=_saved_s(change) if statistic else None,
        machines=change.machines,
        machine=series.points[-1].machine,
    )


def _saved_s(change: SeriesChange) -> float | None:
    """Seconds by which a mean fell over all requests, or a percentile of one; None where it did not fall."""
    series = change.series
    unit = {"ms": 0.001, "s": 1.0}.get(series.row.unit)
    if unit is None or change.shift >= 0:
        return None
    old = median(series.values[i] for i in change.before[-_COMPARED_NIGHTS:])
    new = median(series.values[i] for i in change.after[:_COMPARED_NIGHTS])
    completed = series.covariates[change.after[0]].get("completed") or 1
    return unit * (old - new) * (float(completed) if series.part == "mean" else 1.0)


def _covariates(series: CellSeries, places: Sequence[int], counted: range) -> tuple[Covariates, ...]:
    """The covariates of nights, without those that are not comparable.

    These are input tokens outside the nights that count them alike, and durations of runs at a fixed rate.
    """
    nights = []
    for place in places[-NOISE_NIGHTS:]:
        covariates = dict(series.covariates[place])
        # A run at a fixed rate takes as long as its arrivals: its duration says nothing.
        if series.points[-1].workload.rate != math.inf:
            covariates.pop("duration", None)
        # Across a change of how tokens are counted their number moves without any other prompt.
        if series.nights[place] not in counted:
            covariates.pop("input_tokens", None)
        nights.append(covariates)
    return tuple(nights)


def _confirm_product(change: SeriesChange, cause: Cause) -> Cause:
    """A product's change needs a median and nights on both sides."""
    if change.series.part != "typical":
        return Cause("unknown", (Evidence("median unchanged"), *cause.evidence))
    nights, is_step = len(change.after), change.point.shape == "step"
    # Machines of two kinds that alternate keep one for some nights: five of one kind are rare.
    if is_step and nights < INNER and not cause.has("all servers moved", "shared trait"):
        others = (evidence for evidence in cause.evidence if evidence.kind != "lasting")
        return Cause("unknown", (Evidence("few nights", {"nights": nights}), *others))
    # After only two or three nights a step is dated a night off too often (docs/method/detection.md).
    if is_step and len(change.before) < _NIGHTS_BEFORE:
        few = Evidence("few nights before", {"nights": len(change.before)})
        return Cause("unknown", (few, *cause.evidence))
    # An earlier night at the new level shows two kinds of nights; after a week that is no longer likely.
    if is_step and nights <= WEEK:
        earlier, new = range(change.start, change.point.index), np.median(change.series.levels(change.after))
        apart = np.abs(change.series.levels(earlier) - new)
        alike = np.flatnonzero(apart < _SAME_MOVE * abs(change.shift))
        if len(alike):
            night = change.series.nights[earlier[int(alike[-1])]]
            return Cause("unknown", (Evidence("level seen before", {"night": night}), *cause.evidence))
    return cause


def _by_other_series(change: SeriesChange, cause: Cause, index: SeriesIndex) -> Cause:
    """The cause by what the other metric of the stream, other cells and other machines show."""
    series, direction = change.series, math.copysign(1.0, change.shift)
    # Where only one metric of a stream moved, tokens are grouped into chunks otherwise.
    same = index.get(series.cell, _SAME_STREAM.get(series.metric, ""))
    moved = shift(same, change)
    if same and moved and moved[0] * direction < _SAME_MOVE * abs(change.shift):
        unchanged = Evidence("same stream unchanged", {"metric": same.metric})
        cause = Cause("unknown", (unchanged, *cause.evidence))
    for _, cell, before, after in index.changed_prompts(series, change.nights):
        if abs(change.shift) <= _EXPLAINED * abs(math.log(after / before)):
            values = {"after": after, "before": before, "cell": cell}
            changed = Evidence("same requests changed", values)
            return Cause("workload", (changed, *cause.evidence))
    slower, spared = [], []
    for other in index.on_other_machines(series):
        measured = shift(other, change)
        if measured is None:
            continue
        size, noise = measured[0] * direction, measured[1]
        if size >= _SAME_MOVE * abs(change.shift):
            slower.append(other.points[-1].machine)
        # Only a machine whose nights would show such a change speaks against it.
        elif abs(change.shift) > 3 * noise:
            spared.append(other.points[-1].machine)
    # A change on several machines is not a machine's, whatever the others show.
    if slower:
        evidence = Evidence("other machines moved", {"machines": sorted(slower)})
        return Cause(cause.word, (*cause.evidence, evidence))
    if spared:
        machine = series.points[-1].machine
        evidence = Evidence("other machines spared", {"machine": machine, "machines": sorted(spared)})
        return Cause("night", (evidence, *cause.evidence))
    return cause
