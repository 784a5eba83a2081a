"""The rules of two other nightlies beside perfbisect's detector, on the same series.

    python -m scripts.nightly_rules --series 100 --seed 20263 --data ../shared/data

``vLLM nightly``: the newest night is worse than the mean of the seven nights before by at least two
(population) standard deviations and 1 %. ``PyTorch HUD``: the two newest of the last three days are worse
than 1.2 times the median of the three days before. Both do what their repositories do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median_low, pstdev

import numpy as np

from scripts.detection import rows, steps_of, unplanted
from scripts.simulation import SHARED, parser, print_head, print_row

FIRST, NIGHTS, CHANGE = 12, 60, 35
"""Nights of the first look and of the last: 49 mornings; the first night of a planted step."""

NOISE = 0.02
NEAR = 2
"""Nights by which the place that perfbisect reports may be off; the rules report none."""

Alarm = Callable[[Sequence[float], int], bool]
"""Values up to this morning and the first night of interest -> whether worse is reported since then."""


def vllm_nightly(values: Sequence[float], since: int) -> bool:
    *before, newest = values[-8:]
    mean = fmean(before)
    return newest - mean >= max(2 * pstdev(before), 0.01 * mean) and len(values) > since


def pytorch_hud(values: Sequence[float], since: int) -> bool:
    base = median_low(values[-6:-3])
    return all(value > 1.2 * base for value in values[-2:]) and len(values) > since


def perfbisect(values: Sequence[float], since: int) -> bool:
    return any(point.effect > 0 and point.index >= since - NEAR for point in steps_of(values))


RULES: Mapping[str, Alarm] = {
    "vLLM nightly": vllm_nightly,
    "PyTorch HUD": pytorch_hud,
    "perfbisect": perfbisect,
}


def alarms_ever(alarm: Alarm, values: Sequence[float]) -> bool:
    """Whether a series alarms on any of its mornings."""
    return any(alarm(values[:n], 0) for n in range(FIRST, len(values) + 1))


def nights_until(alarm: Alarm, values: Sequence[float], step: float) -> int | None:
    """Nights until a step from night :data:`CHANGE` on is reported; None: not within 25."""
    changed = np.array(values)
    changed[CHANGE:] *= 1 + step
    looks = range(CHANGE + 1, NIGHTS + 1)
    return next((n - CHANGE for n in looks if alarm(changed[:n].tolist(), CHANGE)), None)


def row(alarm: Alarm, series: Sequence[Sequence[float]]) -> list[str]:
    """Share of series that ever alarm; of a planted 5 % and 10 % the median nights and the share missed."""
    ever = sum(alarms_ever(alarm, values) for values in series)
    cells = [f"{ever} of {len(series)} = {100 * ever / len(series):.0f} %"]
    for step in (0.05, 0.10):
        nights = [nights_until(alarm, values, step) for values in series]
        seen = [n for n in nights if n is not None]
        cells.append(f"{np.median(seen):.0f}" if seen else "-")
        cells.append(f"{100 * (1 - len(seen) / len(nights)):.0f} %")
    return cells


def simulated(count: int, seed: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [(100 * np.exp(NOISE * rng.normal(size=NIGHTS))).tolist() for _ in range(count)]


def measured(data: Path, count: int) -> list[list[float]]:
    """Windows of measured noise, as they were measured, before anything was planted."""
    windows = [unplanted(labelled)[:NIGHTS] for labelled in rows(data, "contiguous")]
    return [window for window in windows if len(window) == NIGHTS][:count]


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    made = parser(__doc__)
    made.add_argument("--series", type=int, default=100, help="of each kind")
    made.add_argument("--seed", type=int, default=20263)
    made.add_argument("--data", type=Path, default=SHARED / "data")
    options = made.parse_args(argv)
    kinds = {
        f"simulated, noise {NOISE:.0%}": simulated(options.series, options.seed),
        "measured": measured(options.data, options.series),
    }
    print_head(
        *("series", "rule", "quiet, ever alarm in 49 nights"),
        *("5 %: nights", "missed", "10 %: nights", "missed"),
    )
    for kind, series in kinds.items():
        for name, alarm in RULES.items():
            print_row([kind, name, *row(alarm, series)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
