"""`make demo-track`: ninety generated nights of forty cells with planted changes, found by perfbisect alone.

Leaves in build/demo-track/: nightlies/ (the result files), repo/ (the history that the nights ran), state/
with the store, report.md, site/ (open site/index.html), and verdict.json. Exits 0 if and only if every
planted change was found with its shape and cause, the commit behind the step stands first among its
suspects, and nothing else was called a change of the product.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from scripts.demo import BUILD, PROGRAM
from scripts.demo_nights import FIRST, NIGHTS, PLANTS, SERVERS, SLOW, Plant, history, write

FOLDER = BUILD / "demo-track"

NEAR = 2
"""Nights by which the place of a change may be off, of a drift ..."""

SLOWLY = 15
"""... these."""

SHARE = 0.5
"""Of its cells that a planted change must be found on with its shape and cause."""


@dataclass(frozen=True)
class Found:
    """What was found of a planted change. ``right``: cells with an alert of its shape and cause."""

    plant: Plant
    right: int
    ids: frozenset[str]

    @property
    def enough(self) -> bool:
        """Whether it counts as found."""
        return self.right >= SHARE * self.plant.cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Plants, finds, compares."""
    parser = argparse.ArgumentParser(prog="make demo-track", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the noise")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    typed = parser.parse_args(arguments)
    folder: Path = typed.folder
    for name in ("nightlies", "repo", "state", "site"):
        shutil.rmtree(folder / name, ignore_errors=True)
    commits = history(folder / "repo")
    count = write(folder / "nightlies", commits, typed.seed)
    print(f"{NIGHTS} nights of {len(SERVERS)} servers: {count} results in {folder / 'nightlies'}", flush=True)
    perfbisect(folder, "ingest", str(folder / "nightlies"), "--zone", "UTC")
    told = json.loads(perfbisect(folder, "detect", "--json", "--full"))
    found = [compare(plant, told["alerts"]) for plant in PLANTS]
    wrong = unplanted(found, told["alerts"])
    for one in found:
        print(_line(one))
    product = [alert for alert in wrong if alert["cause"] == "product"]
    print(f"not planted, told all the same: {len(wrong)}, {len(product)} of them as changes of the product")
    for alert in wrong:
        print(
            f"  {alert['first'][:10]} {alert['cause']}, {alert['shape']}: {alert['cell']} {alert['metric']}"
        )
    ranked = suspects(folder, found, commits[SLOW])
    (folder / "report.md").write_text(perfbisect(folder, "report"), encoding="utf-8")
    site = folder / "site"
    print(
        perfbisect(
            folder, "build", "-o", str(site), "--repo", str(folder / "repo"), group="dashboard"
        ).strip()
    )
    good = all(one.enough for one in found) and not product and ranked == 1
    verdict = {
        "planted": {one.plant.name: {"cells": one.plant.cells, "found": one.right} for one in found},
        "unplanted": len(wrong), "unplanted_product": len(product), "rank_of_the_commit": ranked,
        "good": good,
    }  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n", encoding="utf-8")
    print("everything that was planted was found, and nothing else" if good else "NOT what was planted")
    return 0 if good else 1


def compare(plant: Plant, alerts: Sequence[dict[str, Any]]) -> Found:
    """The alerts of a planted change, and on how many of its cells they are right."""
    own = [alert for alert in alerts if _is_of(plant, alert)]
    right = {a["cell"] for a in own if a["shape"] == plant.shape and a["cause"] in plant.causes}
    return Found(plant, len(right), frozenset(alert["id"] for alert in own))


def _is_of(plant: Plant, alert: dict[str, Any]) -> bool:
    """Whether an alert is on a server and at a night of a planted change, whatever it says of it."""
    server = alert["cell"].partition("/")[0]
    first = alert["first"][:10]
    off = SLOWLY if plant.shape == "drift" else NEAR
    last = plant.until if plant.shape == "drift" else plant.night
    days = [(FIRST + timedelta(days=n)).date().isoformat() for n in (plant.night - off, last + off)]
    return server in plant.servers and days[0] <= first <= days[1]


def unplanted(found: Sequence[Found], alerts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Alerts that are of no planted change, or that call one of another cause a change of the product."""
    planted = frozenset().union(*(one.ids for one in found))
    product = frozenset().union(*(one.ids for one in found if "product" in one.plant.causes))
    return [
        alert for alert in alerts if alert["id"] not in (product if alert["cause"] == "product" else planted)
    ]


def suspects(folder: Path, found: Sequence[Found], culprit: str) -> int:
    """The place of the commit behind the step in the ranking of its suspects; 0 where it is not there."""
    step = next(one for one in found if one.plant.name == "step")
    if not step.ids:
        return 0
    told = json.loads(perfbisect(folder, "suspects", max(step.ids), "--repo", str(folder / "repo"), "--json"))
    order = [one["sha"] for one in told["ranking"]["suspects"]]
    rank = order.index(culprit) + 1 if culprit in order else 0
    if rank:
        p = told["ranking"]["suspects"][rank - 1]["p"]
        print(f"the commit behind the step is number {rank} of {told['of']}, with a probability of {p:.2f}")
    print(f"  {told['bisect']}")
    return rank


def _line(one: Found) -> str:
    plant = one.plant
    night = (FIRST + timedelta(days=plant.night)).date()
    word = "found" if one.enough else "MISSED"
    what = f"{plant.name} of {(plant.factor - 1) * 100:+.0f} % on {night}"
    return (
        f"{word}: {what}: {one.right} of {plant.cells} cells told as {plant.shape}, {'/'.join(plant.causes)}"
    )


def perfbisect(folder: Path, verb: str, *arguments: str, group: str = "track") -> str:
    """What a command prints. :raises SystemExit: it failed."""
    command = [PROGRAM, group, verb, *arguments, "--state", str(folder / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
