"""Score perfbisect's detector of changes with the shared scorer, and count what the scorer does not.

    python -m scripts.detection --data ../shared/data --scorer ../shared/tools/score_detector.py

``detect_indices`` and ``change_sets`` are the interface that the scorer documents: thin adapters over
``perfbisect.series.detection.model``.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from perfbisect.series.detection.fdr import FDR, detect_all
from perfbisect.series.detection.likelihood import scale_of
from perfbisect.series.detection.machines import replaced_machines
from perfbisect.series.detection.model import ALPHA, ChangePoint, SeriesValues, detect
from scripts.informed import informed
from scripts.simulation import SHARED, load_module, parser, print_head, print_row

__all__ = ["change_sets", "detect_indices", "main"]

SMALLEST = 0.015
"""Smallest effect that the adapters tell: the scorer's smallest steps are 2 %."""

SETS = ("shuffled", "contiguous")
"""Measured noise in permuted order, and as it was measured."""

FAINT = 4.0
"""Standard errors of a step below which no detector with few false alarms can be asked for it."""

NEAR = 8
"""Nights within which a change that is told is about a change that was planted."""


def series_of(values: Sequence[float], key: str = "series") -> SeriesValues:
    """A series of nights without a gap."""
    nights = tuple(range(len(values)))
    return SeriesValues(key, tuple(float(v) for v in values), nights, min_effect=SMALLEST)


def steps_of(values: Sequence[float], rate: float = ALPHA) -> list[ChangePoint]:
    """The relevant steps of a series at a rate of false alarms."""
    series = series_of(values)
    if series.refusal:
        return []
    return [b for b in detect(series, rate) if b.shape == "step" and b.is_relevant]


def detect_indices(values: Sequence[float]) -> list[int]:
    """Index of the first point of each new level."""
    return [b.index for b in steps_of(values)]


def change_sets(values: Sequence[float]) -> list[list[int]]:
    """The 95 % set of places of each change of :func:`detect_indices`, in the same order."""
    return [list(b.places) for b in steps_of(values)]


def rows(data: Path, name: str) -> list[dict[str, Any]]:
    """The labelled series of one set. :raises SystemExit: they are not there."""
    path = data / "series" / "injected" / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"no series at {path}: name the folder that holds series/ with --data")
    found: list[dict[str, Any]] = json.loads(path.read_text())["series"]
    return found


def unplanted(row: dict[str, Any]) -> list[float]:
    """A labelled series as it was before steps were planted in it."""
    values = np.array(row["values"], float)
    for place, size in zip(row["truth"], row["sizes"], strict=True):
        values[place:] /= 1 + size
    return [float(v) for v in values]


def errors(row: dict[str, Any], place: int) -> float:
    """How many standard errors of the two levels beside it a planted step stands out, where noise forgets."""
    bounds = [0, *row["truth"], len(row["values"])]
    at = bounds.index(place, 1)
    before, after = place - bounds[at - 1], bounds[at + 1] - place
    error = scale_of(np.log(unplanted(row))) * math.sqrt(1 / before + 1 / after)
    return abs(math.log1p(row["sizes"][at - 1])) / error


def labelled(scorer: ModuleType, data: Path, name: str) -> list[str]:
    """One line of the table: precision, recall, F1; the false ones that are told of the same window before
    steps were planted in it, and F1 where they are neither right nor false; the steps missed that stand less
    than :data:`FAINT` standard errors out; alarms where nothing was planted; how often the set of places and
    the interval of the size hold the truth, of the changes told near to a planted one."""
    tp = fp = fn = quiet = alarmed = own = faint = 0
    held: list[bool] = []
    sized: list[bool] = []
    widths: list[int] = []
    seconds = 0.0
    series = rows(data, name)
    for row in series:
        begun = time.process_time()
        told = steps_of(row["values"])
        seconds += time.process_time() - begun
        at = [b.index for b in told]
        hits, false, missed, _ = scorer.match(at, row["truth"], 2)
        tp, fp, fn = tp + hits, fp + false, fn + missed
        for place in row["truth"]:
            if scorer.match(at, [place], 2)[2]:
                faint += errors(row, place) < FAINT
        if false and row["truth"]:
            own += false - scorer.match(at, row["truth"], 2, detect_indices(unplanted(row)))[1]
        if not row["truth"]:
            quiet, alarmed = quiet + 1, alarmed + bool(told)
        planted = list(zip(row["truth"], row["sizes"], strict=True))
        for b in told:
            near = [(abs(place - b.index), place, size) for place, size in planted]
            if near and min(near)[0] <= NEAR:
                _, place, size = min(near)
                held.append(place in b.places)
                sized.append(b.low <= size <= b.high)
                widths.append(len(b.places))
    p, r, f1 = scorer.prf(tp, fp, fn)
    return [
        name,
        f"{p:.3f}",
        f"{r:.3f}",
        f"{f1:.3f}",
        f"{own} of {fp}",
        f"{scorer.prf(tp, fp - own, fn)[2]:.3f}",
        f"{faint} of {fn}",
        f"{alarmed} of {quiet} = {100 * alarmed / max(1, quiet):.1f} %",
        f"{100 * np.mean(held):.1f} % of {len(held)}",
        f"{np.median(widths):.0f}",
        f"{100 * np.mean(sized):.1f} %",
        f"{1000 * seconds / len(series):.1f}",
    ]


def discoveries(data: Path, name: str, fdr: float) -> list[str]:
    """One line: of the series alarmed at ``fdr`` over the whole set, those in which nothing was planted."""
    given = rows(data, name)
    told = detect_all([series_of(row["values"], str(k)) for k, row in enumerate(given)], fdr)
    keys = {b.key for b in told.alerts}
    false = sum(not given[int(key)]["truth"] for key in keys)
    changed = sum(bool(row["truth"]) for row in given)
    share = 100 * false / max(1, len(keys))
    return [
        name,
        f"{fdr:.2f}",
        f"{len(keys)}",
        f"{false} = {share:.1f} %",
        f"{len(keys) - false} of {changed}",
    ]


KINDS = ("gauss", "laplace", "t3", "ar0.3", "ar0.5", "ar0.7", "outliers", "unequal")
"""Kinds of noise of simulated series: ``ar0.5`` remembers half of the night before."""

LENGTHS = (15, 30, 60, 120, 300)

APART = 0.08
"""By how much the slower of two kinds of machines is slower."""

TICK = 2.0
"""What values of about 100 are rounded to, where they are."""

ONLINE = 0.05
"""Share of unchanged series that may ever be told while they grow from 12 to 60 nights."""

SEED = 20261
"""Of the simulated series: nothing was chosen with these in view."""


def noise(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """n nights without a change, of about 2 %, in logs."""
    if kind.startswith("ar"):
        memory = float(kind[2:])
        z = rng.normal(size=n + 50) * math.sqrt(1 - memory**2)
        out = np.zeros(n + 50)
        for k in range(1, n + 50):
            out[k] = memory * out[k - 1] + z[k]
        return 0.02 * out[50:]
    if kind == "laplace":
        return 0.02 * rng.laplace(size=n) / math.sqrt(2)
    if kind == "t3":
        return 0.02 * rng.standard_t(3, size=n) / math.sqrt(3)
    out = 0.02 * rng.normal(size=n)
    if kind == "outliers":
        far = rng.random(n) < 0.05
        out[far] += 0.2 * rng.choice([-1, 1], far.sum())
    if kind == "unequal":
        out[n // 2 :] *= 4
    return out


def told(kind: str, n: int, count: int) -> tuple[float, float]:
    """Share of unchanged series with a change reported at 1 %, and with one of a p of at most 5 %."""
    steps = five = 0
    for k in range(count):
        rng = np.random.default_rng([SEED, n, k, sum(map(ord, kind))])
        series = series_of(list(100 * np.exp(noise(kind, n, rng))))
        ps = [b.p for b in detect(series, 0.05) if b.shape != "transient"]
        steps, five = steps + any(p <= ALPHA for p in ps), five + bool(ps)
    return steps / count, five / count


def in_ticks(spread: float, n: int, step: float, rng: np.random.Generator) -> SeriesValues:
    """n nights of about 100 in ticks, with a step in their middle; ``spread``: noise before the rounding."""
    logs = spread * rng.normal(size=n)
    logs[n // 2 :] += math.log1p(step)
    return series_of(TICK * np.round(100 * np.exp(logs) / TICK))


def on_machines(
    stay: float, spread: float, known: bool, n: int, step: float, rng: np.random.Generator
) -> SeriesValues:
    """n nights on machines of two kinds, with a step in their middle. A night has the machine of the night
    before with the probability ``stay``, else one that is drawn."""
    kinds = (rng.random(n) < 0.5)[np.maximum.accumulate(np.arange(n) * (rng.random(n) >= stay))]
    logs = spread * rng.normal(size=n) + math.log1p(APART) * kinds
    logs[n // 2 :] += math.log1p(step)
    machines = tuple("slow" if kind else "fast" for kind in kinds) if known else ()
    return replace(series_of(100 * np.exp(logs)), machines=machines)


PLANTED = (0.0, 0.05, 0.1)
"""Steps in the middle of the series of a world."""


def of_commits(series: SeriesValues) -> list[ChangePoint]:
    """The changes of a series that are not of its machines."""
    points = detect(series, ALPHA)
    lasting = [0, *(point.index for point in points if point.shape != "transient"), len(series.values)]

    def is_machine(point: ChangePoint) -> bool:
        before, after = (i for i in lasting if i < point.index), (i for i in lasting if i > point.index)
        return (
            replaced_machines(series.machines, max(before, default=0), point.places, min(after)) is not None
        )

    return [point for point in points if not is_machine(point)]


EARLY = (2, 3, 4, 5, 6)
"""Nights before a step near the beginning of a series."""

AFTER = (5, 8, 12, 20, 30)
"""Nights after it."""


def early_step(before: int, noise: float, sizes: Sequence[float], seed: int) -> tuple[bool, bool, bool]:
    """Whether a step after few nights is reported, and if so, on its night and with it in its set of places.

    At the rate of a store's series; the length after the step and its size are drawn from :data:`AFTER` and
    ``sizes``.
    """
    rng = np.random.default_rng([SEED, before, seed])
    n = before + int(rng.choice(AFTER))
    logs = noise * rng.normal(size=n)
    logs[before:] += math.log1p(rng.choice(sizes) * rng.choice([-1, 1]))
    points = [point for point in detect(series_of(100 * np.exp(logs)), FDR) if point.shape != "transient"]
    exact = [point.index for point in points] == [before]
    return bool(points), exact, exact or any(before in point.places for point in points)


World = Callable[[float, np.random.Generator], SeriesValues]


def reported(world: World, seeds: Sequence[int]) -> list[float]:
    """Shares of the series of a world: unchanged with a step or drift reported, unchanged with a transient,
    and with each step of ``PLANTED`` but none found within two nights; machines' own changes left out."""
    counts = np.zeros((len(seeds), len(PLANTED) + 1))
    for row, seed in zip(counts, seeds, strict=True):
        for column, step in enumerate(PLANTED, 1):
            series = world(step, np.random.default_rng([SEED, seed]))
            points = [point for point in of_commits(series) if point.is_relevant]
            if not step:
                row[:2] = [any((x.shape == "transient") == wild for x in points) for wild in (False, True)]
            else:
                middle = len(series.values) // 2
                row[column] = any(x.shape == "step" and abs(x.index - middle) <= 2 for x in points)
    return [float(share) for share in counts.mean(axis=0)]


def realised(kind: str, n: int, changed: float, fdr: float, repeats: int = 3) -> tuple[float, float]:
    """Of 400 series, of which a share changed by 2 to 20 %: the mean share of unchanged ones among those
    alarmed, and the share of the changed ones that is alarmed. A wild night is one, so that transients are
    not counted."""
    false, found = [], []
    for again in range(repeats):
        rng = np.random.default_rng([SEED, again, n, sum(map(ord, kind))])
        given, planted = [], set()
        for k in range(400):
            logs = noise(kind, n, rng)
            if rng.random() < changed:
                size = rng.choice([0.02, 0.03, 0.05, 0.1, 0.2]) * rng.choice([-1, 1])
                logs[rng.integers(6, n - 6) :] += math.log1p(size)
                planted.add(str(k))
            given.append(series_of(list(100 * np.exp(logs)), str(k)))
        keys = {b.key for b in detect_all(given, fdr).alerts if b.shape != "transient"}
        false.append(len(keys - planted) / max(1, len(keys)))
        found.append(len(keys & planted) / max(1, len(planted)))
    return float(np.mean(false)), float(np.mean(found))


def _print(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n")
    print_head(*head)
    for line in lines:
        print_row(line)


def _labelled(scorer: ModuleType, data: Path) -> None:
    head = ["set", "P", "R", "F1", "false ones that the window holds anyway", "F1 without them"]
    head += ["missed below four standard errors"]
    head += ["unchanged with an alarm", "set of places holds", "places, median"]
    head += ["interval of the size holds", "ms a series"]
    lines = [labelled(scorer, data, name) for name in SETS]
    _print("Planted steps in measured noise, within 2 nights", head, lines)


def _discoveries(_: ModuleType, data: Path) -> None:
    head = ["set", "rate asked", "series alarmed", "of them unchanged", "changed series found"]
    _print(
        "False discoveries", head, [discoveries(data, name, rate) for name in SETS for rate in (0.05, 0.1)]
    )


def _quiet(scorer: ModuleType, _: Path) -> None:
    got = scorer.s_null(detect_indices, 2)
    kinds = list(dict.fromkeys(key.split(",")[0] for key in got))
    lines = [[kind, *(f"{100 * got[f'{kind},{n}'][0]:.1f} %" for n in (30, 100, 300))] for kind in kinds]
    _print("Noise without a change: series with an alarm", ["noise", "30 nights", "100", "300"], lines)


def _worlds(_: ModuleType, __: Path) -> None:
    lines = []
    for kind in KINDS:
        shares = [told(kind, n, 300) for n in LENGTHS]
        lines.append([kind, *(f"{100 * one:.1f} / {100 * five:.1f} %" for one, five in shares)])
    head = ["noise", *(f"{n} nights" for n in LENGTHS)]
    _print("Further series without a change: reported at 1 % / p of at most 5 %", head, lines)
    lines = []
    for kind in ("gauss", "t3", "ar0.5", "outliers"):
        row = [realised(kind, n, changed, 0.05) for n in (30, 90) for changed in (0.1, 0.5)]
        lines.append([kind, *(f"{100 * false:.1f} %, {100 * found:.0f} %" for false, found in row)])
    head = ["noise", *(f"{n} nights, {share} changed" for n in (30, 90) for share in ("10 %", "50 %"))]
    _print("400 series at a rate of 5 %: false ones among those alarmed, changed ones found", head, lines)


_REPORTED = "unchanged: steps / transients reported; steps of 5 % / 10 % found"


def _shares(world: World, count: int) -> str:
    steps, transients, five, ten = (f"{100 * share:.0f}" for share in reported(world, range(count)))
    return f"{steps} / {transients}; {five} / {ten} %"


def _ticks(_: ModuleType, __: Path) -> None:
    lines = [
        [f"{spread:.1%}", *(_shares(partial(in_ticks, spread, n), 200) for n in LENGTHS[:3])]
        for spread in (0.003, 0.005, 0.01, 0.02)
    ]
    _print(f"Values in ticks of 2 %, {_REPORTED}", ["noise", *(f"{n} nights" for n in LENGTHS[:3])], lines)


def _machines(_: ModuleType, __: Path) -> None:
    columns = [(known, n) for known in (False, True) for n in (30, 60)]
    lines = []
    for stay in (0.0, 0.6, 0.8):
        for spread in (0.01, 0.02):
            shares = [_shares(partial(on_machines, stay, spread, *column), 200) for column in columns]
            lines.append([f"{stay:g}", f"{spread:.0%}", *shares])
    head = [
        "stays with",
        "noise",
        *(f"{'known' if known else 'not known'}, {n} nights" for known, n in columns),
    ]
    _print(f"Machines of two kinds, 8 % apart, {_REPORTED}", head, lines)


def _latency(scorer: ModuleType, _: Path) -> None:
    told = {"perfbisect": detect_indices, "given the noise": informed(ONLINE)}
    lines = []
    for count in (60, 300):
        for name, detect_growing in told.items():
            for size, row in scorer.latency(detect_growing, nser=count).items():
                nights = [f"{row[key]:.0f}" for key in ("median_points_after_change", "p90")]
                shares = [f"{100 * row[key]:.1f} %" for key in ("missed", "null_ever_alarmed")]
                lines.append([f"{count}", name, size, *nights, *shares])
    head = ["series", "detector", "step, noise 2.5 %", "nights until reported, median", "90 %", "missed"]
    _print("Night after night", [*head, "alarm ever, unchanged"], lines)


def _early(_: ModuleType, __: Path) -> None:
    worlds = [
        (noise, sizes) for noise in (0.005, 0.01) for sizes in ((5 * noise,), (8 * noise,), (0.1, 0.14, 0.18))
    ]
    lines = []
    for noise, sizes in worlds:
        row = []
        for before in EARLY:
            seen = [early_step(before, noise, sizes, seed) for seed in range(200)]
            told, right, held = (sum(column) for column in zip(*seen, strict=True))
            share = [f"{100 * count / max(1, told):.0f}" for count in (right, held)]
            row.append(f"{told / 2:.0f}: {share[0]} / {share[1]} %")
        lines.append([f"{noise:.1%}", "10 to 18 %" if len(sizes) > 1 else f"{sizes[0]:.1%}", *row])
    head = ["noise", "step", *(f"{before} nights before" for before in EARLY)]
    _print("Steps near the beginning: reported (%): of those on their night / held by the set", head, lines)


def _cost(scorer: ModuleType, _: Path) -> None:
    got = scorer.scale(detect_indices, [100, 1000, 10000], 120)
    lines = [[f"1 x {n}", *map(str, row or ("-", "-"))] for n, row in got.items()]
    for count, n in ((300, 365), (1000, 200)):
        rng = np.random.default_rng(n)
        level = np.where(np.arange(n) < n // 2, 100.0, 105.0)
        many = [list(level * np.exp(0.02 * rng.normal(size=n))) for _ in range(count)]
        begun = time.process_time()
        told = detect_all([series_of(values, str(k)) for k, values in enumerate(many)])
        lines.append([f"{count} x {n}", f"{time.process_time() - begun:.1f}", str(len(told.alerts))])
    _print("Cost", ["series x nights", "CPU s", "changes reported"], lines)


PARTS: dict[str, Callable[[ModuleType, Path], None]] = {
    "labelled": _labelled,
    "fdr": _discoveries,
    "null": _quiet,
    "worlds": _worlds,
    "ticks": _ticks,
    "machines": _machines,
    "latency": _latency,
    "early": _early,
    "cost": _cost,
}


def main(argv: list[str] | None = None) -> int:
    """Print the tables; returns the exit code."""
    made = parser(__doc__)
    made.add_argument("--data", type=Path, default=SHARED / "data", help="the folder that holds series/")
    made.add_argument("--scorer", type=Path, default=SHARED / "tools" / "score_detector.py")
    made.add_argument("--only", action="append", default=[], choices=list(PARTS))
    options = made.parse_args(argv)
    scorer = load_module(options.scorer, "scorer", "--scorer")
    for name in options.only or PARTS:
        PARTS[name](scorer, options.data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
