"""A finished job with many launches, written as its journal: ``python -m scripts.long_job STATE``.

Each launch is one of the pretend engine (``data/launch.json``) with a number, a mark and values of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from perfbisect.experiments.run import RULE, RunPlan
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import EventKind, JournalEvent
from perfbisect.jobs.plans import MeasurementConfig, cell_data
from perfbisect.model.change import Change
from tests.fakes.history import ENGINE
from tests.jobs.world import cell

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = Path(__file__).parent / "data" / "launch.json"
CHANGE = Change("c0ffee" + "0" * 34)
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def write_long_job(state: Path, launches: int, seed: int) -> str:
    """Write a finished ``run`` of so many launches to the state folder and return its id."""
    job, rng = Jobs(state).new(BEGAN, "10b5"), random.Random(seed)
    measured = cell()
    setting = MeasurementConfig(
        repository=str(ROOT),
        environment=f"overlay:{sys.executable},base=any",
        client=f"existing:{sys.executable},path={ENGINE}",
    )
    plan = RunPlan(
        cell=cell_data(measured),
        digest=measured.digest,
        setting=setting,
        metric="tpot",
        change=CHANGE,
        launches=launches,
        runs=1,
    )
    template = LAUNCH.read_text(encoding="utf-8").replace("JOB", job.id).replace("CELL", measured.digest)
    with job.journal.open("wb") as journal:
        events = 0

        def append(kind: EventKind, data: dict[str, object]) -> None:
            nonlocal events
            journal.write(JournalEvent(events, BEGAN.isoformat(), kind, data).line())
            events += 1

        append("plan", plan.model_dump(mode="json"))
        for number in range(1, launches + 1):
            token = f"{rng.getrandbits(128):032x}"
            written = template.replace("NUMBER", f"{number:03d}").replace("MARK", token[:12])
            attempt = json.loads(written)
            for run in attempt["runs"]:
                run["values"] = {name: value * rng.uniform(0.9, 1.1) for name, value in run["values"].items()}
            attempt["seconds"] = {
                name: took * rng.uniform(0.9, 1.1) for name, took in attempt["seconds"].items()
            }
            append(
                "started",
                {
                    "attempt": attempt["id"],
                    "position": 0,
                    "change": CHANGE.id,
                    "purpose": "run",
                    "runs": 1,
                    "why": RULE.reason(plan, number - 1),
                    "folder": f"attempts/{number:03d}",
                    "token": token,
                    "slot": "",
                    "at": 0.05 * number,
                },
            )
            append(
                "launched", {"attempt": attempt["id"], "token": token, "pid": 0, "created": 1.0, "port": 8000}
            )
            append("finished", {"attempt": attempt})
        append("verdict", {"verdict": "measured"})
    return job.id


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the job and prints its id; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.long_job", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("state", type=Path)
    parser.add_argument("--launches", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    typed = parser.parse_args(arguments)
    print(write_long_job(typed.state, typed.launches, typed.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
