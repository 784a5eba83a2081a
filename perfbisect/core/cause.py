"""The cause of a break: product, instrument, workload, night or unknown, with the evidence in words.

What is compared must be alike before it is blamed, so the order is: how it was measured, what was asked of
it, then who else moved. A covariate explains a break only where it moved at the same point and by enough:
tokens that change by a tenth do not make a factor of three. Nights run on fresh machines, so one slow machine
is one night long and slows every cell it ran, those of low concurrency too; a break of one night is a
product's nevertheless where its size and the cells it hit say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from perfbisect.core.cause_facts import Break, Cause, Neighbour
from perfbisect.core.cause_moves import NEAR, CountMove, counts_moved, key_changes, labels_moved

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


def cause_of(found: Break) -> Cause:
    """What is behind a break."""
    moves = counts_moved(found.before, found.after)
    for judged in (_instrument(found, moves), _tail(found), _workload(found, moves)):
        if judged is not None:
            return judged
    partly = _partly(found, moves)
    product = _cells(found)
    return Cause(product.word, (*product.evidence, *partly))


def _instrument(found: Break, moves: tuple[CountMove, ...]) -> Cause | None:
    told = [move.words for move in labels_moved(found.before, found.after, INSTRUMENT)]
    told += _counted_otherwise(found, moves)
    own = tuple(key for key in key_changes(found.before, found.after) if found.metric in key.name)
    told += [key.words for key in own]
    if not told:
        return None
    return Cause("instrument", (*told, "what is measured changed at this point: nothing is scored across it"))


def _counted_otherwise(found: Break, moves: tuple[CountMove, ...]) -> list[str]:
    """Input tokens that moved with the metric while the runs took as long: another count of one load."""
    moved = {move.name: move for move in moves}
    tokens = moved.get("input_tokens")
    timed = all("duration" in night.counts for night in (*found.before, *found.after))
    if tokens is None or not timed or "duration" in moved or abs(tokens.shift) < _RECOUNTED:
        return []
    if abs(abs(tokens.shift) - abs(found.shift)) > 0.2 * abs(tokens.shift):
        return []
    return [f"{tokens.words} and the runs took as long as before: what is counted changed, not the load"]


def _tail(found: Break) -> Cause | None:
    """A mean or tail that moved without its median: a few requests, such as the first ones of a server."""
    if found.statistic == "median" or found.median is None:
        return None
    if abs(found.median) > min(0.1, 0.25 * abs(found.shift)):
        return None
    moved = f"the {found.statistic} moved {_times(found.shift)} and the median {_times(found.median)}: "
    keys = key_changes(found.before, found.after)
    warm = _warmed(found)
    if warm:
        words = (
            moved + "slow requests that were in it before, such as the first of a cold server, are no longer"
        )
        return Cause("instrument", (words, warm, *(key.words for key in keys)))
    words = moved + "a few requests, such as those of a cold server, and not the most"
    if keys:
        return Cause("instrument", (words, *(key.words for key in keys)))
    if not found.over and len(found.after) == 1:
        return Cause("unknown", (words, "one night so far: the next tells a bad night from a change"))
    if len(found.after) == 1 or found.shape == "transient":
        return Cause("night", (words, "one night long"))
    return Cause("unknown", (words, "it may be how the server is warmed, or a pause that became dearer"))


def _warmed(found: Break) -> str:
    """That the client does something before the run since, which takes as long as the slow requests did: as
    if these were sent and not counted. Empty where nothing says so."""
    before = [night.outside for night in found.before[-NEAR:] if night.outside is not None]
    after = [night.outside for night in found.after[:NEAR] if night.outside is not None]
    if not before or not after or not found.saved:
        return ""
    longer = min(after) - max(before)
    if longer < _COVERS * found.saved or min(after) < 2 * max(before):
        return ""
    return (
        f"the client took {median(after):.0f} s before the run that it measures, and {median(before):.0f} s "
        f"until then; {found.saved:.0f} s of slow requests are gone: as if it sent them first and uncounted"
    )


def _workload(found: Break, moves: tuple[CountMove, ...]) -> Cause | None:
    told = [move.words for move in labels_moved(found.before, found.after, WORKLOAD)]
    told += [f"{move.words}, which is enough to explain it" for move in moves if _explains(move, found)]
    return Cause("workload", tuple(told)) if told else None


def _explains(move: CountMove, found: Break) -> bool:
    if move.name == "duration" or (found.metric in _GROWS and move.shift * found.shift < 0):
        return False
    return abs(found.shift) <= _ENOUGH * abs(move.shift)


def _partly(found: Break, moves: tuple[CountMove, ...]) -> tuple[str, ...]:
    """What moved besides and does not explain it."""
    told = [
        f"{move.words}, which does not explain {_times(found.shift)}"
        for move in moves
        if move.name != "duration"
    ]
    told += [key.words for key in key_changes(found.before, found.after)]
    return tuple(told)


@dataclass(frozen=True)
class _Start:
    moved: bool
    cells: tuple[Neighbour, ...]

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(*(cell.traits for cell in self.cells))


def _starts(found: Break) -> tuple[_Start, ...]:
    """One vote each: moved where any of its cells moved the way the break did."""
    groups: dict[str, list[Neighbour]] = {}
    for neighbour in found.neighbours:
        groups.setdefault(neighbour.start, []).append(neighbour)
    starts = []
    for group in groups.values():
        moved = tuple(n for n in group if n.moved and n.shift * found.shift > 0)
        starts.append(_Start(bool(moved), moved or tuple(group)))
    return tuple(starts)


def _cells(found: Break) -> Cause:
    """By who else moved, and for how long."""
    starts, nights = _starts(found), len(found.after)
    hit, spared = [s for s in starts if s.moved], [s for s in starts if not s.moved]
    hosts = tuple(move.words for move in labels_moved(found.before, found.after, PLACE))
    lasting = found.shape != "transient" and nights > 1
    stayed = f"it stayed for {nights} nights, each on a fresh machine"
    if hosts and (not spared or lasting):
        return Cause("night", (*hosts, "the machine changed at this point"))
    if len(starts) >= 3 and len(hit) >= _COMMON * len(starts):
        return _common(found, hit, spared, stayed if lasting else "")
    if lasting:
        return Cause("product", (stayed, *_difference(hit, spared)))
    return _one_night(found, hit, spared)


def _common(found: Break, hit: list[_Start], spared: list[_Start], stayed: str) -> Cause:
    """Nearly everything moved together."""
    words = f"{len(hit)} of {len(hit) + len(spared)} servers moved together"
    controls = [n for n in found.neighbours if n.control]
    moved = [n for n in controls if n.moved and n.shift * found.shift > 0]
    control = f"; of the controls (low concurrency, stage times) {len(moved)} of {len(controls)}"
    words += control if controls else ""
    if stayed:
        return Cause("product", (stayed, f"{words}: code that all run, or what it is built on"))
    if controls and len(moved) < 0.5 * len(controls):
        return Cause("unknown", (words, "a slow machine slows them too"))
    if found.shape == "transient":
        return Cause("night", (words, "one night long, then back"))
    return Cause("unknown", (words, "one night so far: the next tells a bad night from a change"))


def _one_night(found: Break, hit: list[_Start], spared: list[_Start]) -> Cause:
    """Some cells, one night: a product's only where size and cells both say so."""
    told = _difference(hit, spared)
    deviations = abs(found.shift) / max(found.noise, 1e-9)
    size = f"{_times(found.shift)}, {deviations:.0f} standard deviations of its nights"
    far = abs(found.shift) > max(_LARGE, _FAR * found.noise)
    if told and len(hit) > 1 and far:
        return Cause("product", (*told, size, "one slow machine would have slowed the others too"))
    why = (
        "too few cells moved to tell one slow machine from a change"
        if far
        else "no more than a bad night does"
    )
    return Cause("unknown", (f"one night long: {size}", *told, why))


def _difference(hit: list[_Start], spared: list[_Start]) -> tuple[str, ...]:
    """What those that moved run and no other does; empty where there is no such thing."""
    if not hit or not spared:
        return ()
    shared = frozenset.intersection(*(start.traits for start in hit))
    alone = shared - frozenset().union(*(start.traits for start in spared))
    if not alone:
        return ()
    worst = max(abs(n.shift) for start in spared for n in start.cells)
    return (
        f"every server that moved runs {' and '.join(sorted(alone))}, none of the {len(spared)} others does; "
        f"they moved by {math.expm1(worst) * 100:.0f} % at most",
    )


def _times(shift: float) -> str:
    """A log as people say it: a factor where it is large."""
    if abs(shift) <= math.log(1.5):
        return f"{math.expm1(shift) * 100:+.1f} %"
    factor = math.exp(shift)
    return f"{factor:,.0f} times" if factor >= 100 else f"{factor:.2g} times"
