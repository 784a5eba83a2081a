"""Score perfbisect's bisection beside the reference strategy of the shared simulator.

    python scripts/yardstick.py --sim ../shared/tools/bisect_sim.py --seeds 100 --procs 2

``Strategy`` is the interface that the simulator documents: a thin adapter over
``perfbisect.bisect.decision.decide``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import numpy as np  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from perfbisect.bisect.decision.decide import beliefs, next_action  # noqa: E402
from perfbisect.bisect.decision.model import (  # noqa: E402
    Event,
    Measured,
    NextLaunch,
    Plan,
    SearchOutcome,
    Skipped,
)
from perfbisect.model.attempt import Costs  # noqa: E402
from scripts.comparison import Comparison  # noqa: E402
from scripts.detection import change_sets, detect_indices  # noqa: E402

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
        price = Costs(**costs) if costs else Costs()
        weights = None if prior is None else tuple(float(w) for w in prior)
        self.plan = Plan(n=n, costs=price, prior=weights, seed=seed, budget=budget)
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


def load(path: Path) -> ModuleType:
    """The simulator as a module. :raises SystemExit: it is not there."""
    if not path.is_file():
        raise SystemExit(f"no simulator at {path}: name bisect_sim.py with --sim")
    spec = importlib.util.spec_from_file_location("bisect_sim", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bisect_sim"] = module
    spec.loader.exec_module(module)
    return module


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
    for name, seen in (("step", end.confirmed), ("whole", end.whole)):
        if seen is not None:
            effect = math.expm1(world.level[seen.culprit] - world.level[seen.parent])
            out[name] = bool(seen.low <= effect <= seen.high)
    return out


def _session(job: tuple[str, str, dict[str, Any], int]) -> tuple[str, int, dict[str, Any]]:
    path, who, cell, seed = job
    sim = sys.modules.get("bisect_sim") or load(Path(path))
    made: list[Any] = []

    def factory(n: int, **given: Any) -> Any:
        made.append((Strategy if who == "perfbisect" else sim.BayesStep)(n, **given))
        return made[-1]

    row = sim.run_trial(sim.ObjectAdapter(factory, who), sim.Scenario(**cell), seed)
    if who == "perfbisect":
        row.update(_held(made[-1], sim.World(sim.Scenario(**cell), seed)))
    return who, seed, row


def _share(got: list[dict[str, Any]], name: str) -> str:
    told = [row[name] for row in got if name in row]
    return f"{100 * sum(told) / len(told):.0f}" if told else "-"


def _sets(got: list[dict[str, Any]]) -> str:
    told = [row["sets"] for row in got if "sets" in row]
    return " ".join(f"{100 * sum(s[k] for s in told) / len(told):.0f}" for k in range(3)) if told else "-"


def _known(rows: Path | None) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Sessions that an earlier call wrote, by cell, strategy and seed."""
    if rows is None or not rows.is_file():
        return {}
    told = [json.loads(line) for line in rows.read_text().splitlines()]
    return {(row["cell"], row["strategy"], row["seed"]): row for row in told}


def _table(sim: ModuleType, cell: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    out = []
    limit = sim.floor(sim.Scenario(**cell))["minutes"]
    means = {who: sum(r["cost"] for r in got) / len(got) for who, got in rows.items()}
    for who, got in rows.items():
        share = {
            v: 100.0 * sum(r["verdict"] == v for r in got) / len(got) for v in ("right", "wrong", "none")
        }
        if not cell["d"]:
            share["right"], share["none"] = share["none"], 0.0
        ratio = means[who] / means["reference"] if "reference" in means else math.nan
        over = f"{means[who] / limit:.1f}" if limit else "-"
        out.append(
            f"{who} | {share['right']:.0f} | {share['wrong']:.0f} | {share['none']:.0f} "
            f"| {means[who]:.0f} | {ratio:.2f} | {over} | {_sets(got)} | {_share(got, 'step')} "
            f"| {_share(got, 'whole')}"
        )
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sim", type=Path, default=ROOT.parent / "shared" / "tools" / "bisect_sim.py")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--procs", type=int, default=1)
    parser.add_argument(
        "--cell", action="append", default=[], help="name (a part of it), or a scenario as JSON"
    )
    parser.add_argument("--more", action="store_true", help="the further cells as well")
    parser.add_argument("--only", choices=("perfbisect", "reference"), action="append", default=[])
    parser.add_argument(
        "--rows", type=Path, help="every session as JSON lines: those that are there are not run again"
    )
    args = parser.parse_args(argv)
    sim = load(args.sim)
    known = {**CELLS, **(MORE if args.more or args.cell else {})}
    cells: dict[str, dict[str, Any]] = {} if args.cell else known
    for text in args.cell:
        if text.startswith("{"):
            cells[text] = json.loads(text)
        else:
            cells.update({name: cell for name, cell in known.items() if text in name})
    if not cells:
        raise SystemExit(f"no such cell; known: {', '.join(known)}")
    who = args.only or ["reference", "perfbisect"]
    print(
        "| cell | strategy | right % | wrong % | none % | GPU minutes | / reference | / limit "
        "| sets 50 80 95 hold % | step in interval % | whole % |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    ratios, sessions = [], []
    told = _known(args.rows)
    with multiprocessing.get_context("spawn").Pool(args.procs) as pool:
        for name, cell in cells.items():
            seeds = range(args.first, args.first + args.seeds)
            rows = {w: [told[name, w, s] for s in seeds if (name, w, s) in told] for w in who}
            jobs = [(str(args.sim), w, cell, s) for w in who for s in seeds if (name, w, s) not in told]
            for w, seed, row in pool.imap(_session, jobs, chunksize=2):
                rows[w].append(row)
                if args.rows:
                    with args.rows.open("a") as file:
                        file.write(
                            json.dumps({"cell": name, "strategy": w, "seed": seed, **row}, default=str) + "\n"
                        )
            for line in _table(sim, cell, rows):
                print(f"| {name} | {line} |", flush=True)
            sessions += rows.get("perfbisect", [])
            if len(who) == 2:
                a, b = (sum(r["cost"] for r in rows[w]) for w in ("perfbisect", "reference"))
                ratios.append(a / b)
    if sessions:
        wrong = sum(row["verdict"] == "wrong" for row in sessions)
        slowest = max(row["slowest"] for row in sessions)
        print(
            f"\nWrong: {wrong} of {len(sessions)} sessions. Slowest decision: {1000 * slowest:.0f} ms of CPU."
        )
    if ratios:
        mean = math.exp(sum(math.log(r) for r in ratios) / len(ratios))
        print(f"\nMinutes / reference, geometric mean over the cells: {mean:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
