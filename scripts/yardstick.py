"""Score perfbisect's bisection beside the reference strategy of the shared simulator.

    python -m scripts.yardstick --sim ../shared/tools/bisect_sim.py --seeds 100 --procs 2

``Strategy`` is the interface that the simulator documents: a thin adapter over
``perfbisect.bisect.decision.decide``.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from statistics import geometric_mean
from types import ModuleType
from typing import Any

import numpy as np

from perfbisect.bisect.decision.decide import beliefs, next_action
from perfbisect.bisect.decision.model import (
    Event,
    Measured,
    NextLaunch,
    Plan,
    SearchOutcome,
    Skipped,
)
from perfbisect.model.attempt import Costs
from scripts.comparison import Comparison
from scripts.detection import change_sets, detect_indices
from scripts.simulation import (
    SHARED,
    choose,
    load_module,
    parser,
    percent,
    print_head,
    print_row,
    process_pool,
)

__all__ = ["Comparison", "Strategy", "change_sets", "detect_indices", "main"]


_PLAIN = {"n": 64, "d": 0.10, "sigma": 0.02, "tau": 0.015}
_ROUGH = {"outlier_launch": 0.05, "outlier_run": 0.05, "drift": 0.02, "skip": 0.2, "heavy": True}

CELLS: dict[str, dict[str, Any]] = {
    "N32 d5 s1 t1.5": {"n": 32, "d": 0.05, "sigma": 0.01, "tau": 0.015},
    "N32 d5 s3 t1.5": {"n": 32, "d": 0.05, "sigma": 0.03, "tau": 0.015},
    "N32 d10 s3 t1.5": {"n": 32, "d": 0.10, "sigma": 0.03, "tau": 0.015},
    "N128 d5 s3 t1.5": {"n": 128, "d": 0.05, "sigma": 0.03, "tau": 0.015},
    "N128 d10 s10 t1.5": {"n": 128, "d": 0.10, "sigma": 0.10, "tau": 0.015},
    "N500 d10 s3 t1.5": {"n": 500, "d": 0.10, "sigma": 0.03, "tau": 0.015},
    "N64 d10 s2 t1.5, outliers, drift, skips, heavy tail": {**_PLAIN, **_ROUGH},
    "N64 no change s1 t1.5": {**_PLAIN, "d": 0.0, "sigma": 0.01},
}

MORE: dict[str, dict[str, Any]] = {
    "weak: half fix": {**_PLAIN, "d": 0.05, "sigma": 0.03, "multi": "fix"},
    "weak: everything": {**_PLAIN, "d": 0.05, **_ROUGH},
    "weak: drift": {**_PLAIN, "d": 0.03, "tau": 0.01, "drift": 0.02},
    "no drift": {**_PLAIN, "d": 0.03, "tau": 0.01},
    "two steps": {**_PLAIN, "multi": "two"},
    "undone bump": {**_PLAIN, "multi": "bump"},
    "N128 d20 s3 t1.5": {"n": 128, "d": 0.20, "sigma": 0.03, "tau": 0.015},
    "N64 d100 s1 t0.5": {"n": 64, "d": 1.0, "sigma": 0.01, "tau": 0.005},
    "N32 d40 s10 t10": {"n": 32, "d": 0.4, "sigma": 0.10, "tau": 0.10},
    "N64 no change s3 t1.5": {**_PLAIN, "d": 0.0, "sigma": 0.03},
    "N128 d10 s3 t1.5": {"n": 128, "d": 0.10, "sigma": 0.03, "tau": 0.015},
    "N64 d10 good prior": {**_PLAIN, "prior": "good"},
    "N64 d10 useless prior": {**_PLAIN, "prior": "bad"},
    "N64 d10 series": {**_PLAIN, "prior": "series"},
    "N64 d10, a build 20 minutes": {**_PLAIN, "costs": {"build": 20.0, "launch": 3.0, "run": 1.5}},
    "N64 d10, a launch 8 minutes": {**_PLAIN, "costs": {"build": 0.1, "launch": 8.0, "run": 1.5}},
    "N8 d5 s2 t1": {"n": 8, "d": 0.05, "sigma": 0.02, "tau": 0.01},
}

LEVELS = (0.5, 0.8, 0.95)
"""Probabilities of the sets of positions whose coverage before the A/B is counted."""


class Strategy:
    """``next() / update() / result()`` over the fold: one run at a time, a launch is told when its runs are
    complete."""

    def __init__(
        self,
        n: int,
        costs: dict[str, float] | None = None,
        prior: Any = None,
        seed: int = 0,
        budget: float = 900.0,
    ) -> None:
        del seed  # a decision draws nothing
        price = Costs(**costs) if costs else Costs()
        weights = None if prior is None else tuple(float(w) for w in prior)
        self.plan = Plan(n=n, costs=price, prior=weights, budget=budget)
        self.events: list[Event] = []
        self.slowest = 0.0
        self._values: list[float] = []
        self._cost = self._begun = 0.0
        self._action = self._decide()

    def _decide(self) -> NextLaunch | SearchOutcome:
        start = time.process_time()
        action = next_action(self.plan, self.events)
        self.slowest = max(self.slowest, time.process_time() - start)
        return action

    def next(self) -> tuple[int, bool] | None:
        if isinstance(self._action, SearchOutcome):
            return None
        return self._action.index, not self._values

    def update(self, index: int, value: float | str, info: dict[str, float] | None = None) -> None:
        action = self._action
        assert isinstance(action, NextLaunch) and action.index == index
        if not self._values:
            self._begun = self._cost
        new = not any(e.index == index for e in self.events if isinstance(e, Measured | Skipped))
        costs = self.plan.costs
        if info is not None:
            self._cost = float(info["cost"])
        elif isinstance(value, str):
            self._cost += new * costs.build + costs.launch / 2
        else:
            self._cost += costs.run + (0.0 if self._values else new * costs.build + costs.launch)
        if isinstance(value, str):
            self.events.append(Skipped(index, action.purpose, self._cost - self._begun))
        else:
            self._values.append(float(value))
            if len(self._values) < action.runs:
                return
            run = costs.run * len(self._values)
            build = costs.build if new else 0.0
            launch = max(0.0, self._cost - self._begun - run - build)
            self.events.append(
                Measured(index, action.purpose, tuple(self._values), build, launch, run, trial=action.trial)
            )
        self._values = []
        self._action = self._decide()

    @property
    def outcome(self) -> SearchOutcome | None:
        """How it ended; None before."""
        return self._action if isinstance(self._action, SearchOutcome) else None

    def result(self) -> tuple[int | None, float, dict[str, Any]]:
        if not isinstance(self._action, SearchOutcome):
            return None, 0.0, {"why": "unfinished"}
        end = self._action
        extra = {"why": end.verdict, "set": list(end.culprits)}
        if end.verdict != "found":
            return None, end.probability, extra
        return end.culprits[-1], end.probability, extra


def _held(strategy: Strategy, world: Any) -> dict[str, Any]:
    """Whether the sets before the first A/B held a true culprit, and the intervals of the step and of the
    whole change the truth; CPU seconds of the slowest decision."""
    out: dict[str, Any] = {"slowest": strategy.slowest}
    confirm = [k for k, e in enumerate(strategy.events) if getattr(e, "purpose", "") == "confirm"]
    if confirm and world.culprits:
        p = np.array(beliefs(strategy.plan, strategy.events[: confirm[0]]).p)
        order = np.argsort(-p, kind="stable")
        counts = np.searchsorted(np.cumsum(p[order]) / p.sum(), np.array(LEVELS) - 1e-9) + 1
        true = {int(i) for c in world.culprits for i in world.ident(c)}
        out["sets"] = [bool(true & {int(i) for i in order[:count]}) for count in counts]
    end = strategy.outcome
    if end is None:
        return out
    if end.verdict == "narrowed":
        true = {int(i) for c in world.culprits for i in world.ident(c)}
        out["narrowed"] = bool(true & set(end.culprits))
    for name, seen in (("step", end.confirmed), ("whole", end.whole)):
        if seen is not None:
            effect = math.expm1(world.level[seen.culprit] - world.level[seen.parent])
            out[name] = bool(seen.low <= effect <= seen.high)
    return out


def _session(job: tuple[str, str, dict[str, Any], int]) -> tuple[str, int, dict[str, Any]]:
    path, who, cell, seed = job
    sim = sys.modules.get(Path(path).stem) or _load(Path(path))
    made: list[Any] = []

    def factory(n: int, **given: Any) -> Any:
        made.append((Strategy if who == "perfbisect" else sim.BayesStep)(n, **given))
        return made[-1]

    row = sim.run_trial(sim.ObjectAdapter(factory, who), sim.Scenario(**cell), seed)
    if who == "perfbisect":
        row.update(_held(made[-1], sim.World(sim.Scenario(**cell), seed)))
        if row.get("narrowed") is False or (row["why"] == "gradual" and cell["d"]):
            row["verdict"] = "wrong"
    return who, seed, row


def _load(path: Path) -> ModuleType:
    return load_module(path, "simulator", "--sim")


def _known(rows: Path | None) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Sessions that an earlier call wrote, by cell, strategy and seed."""
    if rows is None or not rows.is_file():
        return {}
    told = [json.loads(line) for line in rows.read_text().splitlines()]
    return {(row["cell"], row["strategy"], row["seed"]): row for row in told}


def _table(sim: ModuleType, cell: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """A row of each strategy."""
    table = []
    limit = sim.floor(sim.Scenario(**cell))["minutes"]
    means = {who: sum(r["cost"] for r in got) / len(got) for who, got in rows.items()}
    for who, got in rows.items():
        right, wrong, none = (
            percent(row["verdict"] == verdict for row in got) for verdict in ("right", "wrong", "none")
        )
        ratio = means[who] / means["reference"] if "reference" in means else math.nan
        sets = zip(*(row["sets"] for row in got if "sets" in row), strict=True)
        table.append(
            [
                *(who, *((right, wrong, none) if cell["d"] else (none, wrong, "0"))),
                *(f"{means[who]:.0f}", f"{ratio:.2f}", f"{means[who] / limit:.1f}" if limit else "-"),
                " ".join(map(percent, sets)) or "-",
                *(percent(row[name] for row in got if name in row) for name in ("step", "whole")),
            ]
        )
    return table


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    made = parser(__doc__, seeds=100)
    made.add_argument("--sim", type=Path, default=SHARED / "tools" / "bisect_sim.py")
    made.add_argument("--cell", type=json.loads, help="a scenario as JSON, in place of the named ones")
    made.add_argument("--more", action="store_true", help="the further cells as well")
    made.add_argument("--only", choices=("perfbisect", "reference"), action="append", default=[])
    made.add_argument(
        "--rows", type=Path, help="every session as JSON lines: those that are there are not run again"
    )
    options = made.parse_args(argv)
    sim = _load(options.sim)
    known = {**CELLS, **(MORE if options.more or options.worlds else {})}
    cells = {json.dumps(options.cell): options.cell} if options.cell else choose(known, options.worlds)
    who = options.only or ["reference", "perfbisect"]
    print_head(
        *("cell", "strategy", "right %", "wrong %", "none %", "GPU minutes", "/ reference", "/ limit"),
        *("sets 50 80 95 hold %", "step in interval %", "whole %"),
    )
    ratios, sessions = [], []
    told = _known(options.rows)
    seeds = range(options.first, options.first + options.seeds)
    with process_pool(options.procs) as pool:
        for name, cell in cells.items():
            rows = {w: [told[name, w, s] for s in seeds if (name, w, s) in told] for w in who}
            jobs = [(str(options.sim), w, cell, s) for w in who for s in seeds if (name, w, s) not in told]
            for w, seed, row in pool.imap(_session, jobs, chunksize=2):
                rows[w].append(row)
                if options.rows:
                    session = {"cell": name, "strategy": w, "seed": seed, **row}
                    with options.rows.open("a") as file:
                        file.write(json.dumps(session, default=str) + "\n")
            for line in _table(sim, cell, rows):
                print_row([name, *line])
            sessions += rows.get("perfbisect", [])
            if len(who) == 2:
                a, b = (sum(r["cost"] for r in rows[w]) for w in ("perfbisect", "reference"))
                ratios.append(a / b)
    if sessions:
        wrong = sum(row["verdict"] == "wrong" for row in sessions)
        slowest = 1000 * max(row["slowest"] for row in sessions)
        print(f"\nWrong: {wrong} of {len(sessions)} sessions. Slowest decision: {slowest:.0f} ms of CPU.")
    if ratios:
        print(f"\nMinutes / reference, geometric mean over the cells: {geometric_mean(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
