"""`make demo-nightly`: ten nights of a nightly in a few minutes, with what goes wrong in ten nights planted.

A generated repository, the pretend engine, four cells, and the clock of each night, set by PERFBISECT_NOW.
Planted: a slow commit, a client that begins to count otherwise, a head that does not import, a kill -9 in the
middle of a night, and a night without a new commit.

Leaves in build/demo-nightly/: repo/, state/ with every journal and raw file, nights/ (the document of each
night), report/, site/ (open site/index.html) and verdict.json. Exits 0 if and only if the alert opened on the
right night, the bisection that began by itself named the slow commit, no commit was named for the client,
nothing was measured twice or lost, and report and site say so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from perfbisect.dashboard.build import PLOT_SCRIPT
from perfbisect.errors import UsageError
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import Launch, launches
from perfbisect.series.store import SeriesStore
from scripts import demo_nightly_world as planted
from scripts.demo import BUILD, CACHE, PROGRAM, say
from scripts.demo_nightly_judge import Found, judge
from scripts.demo_nightly_world import CLIENT, KILLED, NIGHTS, World, change_the_client, make, moment
from tests.fakes.gitwriter import run_git

FOLDER = BUILD / "demo-nightly"
PATIENCE = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the changes, run the nights, compare."""
    parser = argparse.ArgumentParser(prog="make demo-nightly", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the noise")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    typed = parser.parse_args(arguments)
    folder: Path = typed.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    world = make(folder, typed.seed)
    (folder / "nights").mkdir()
    documents, kept = [], frozenset[str]()
    for night in range(1, NIGHTS + 1):
        run_git(world.repository, "update-ref", "refs/heads/main", world.heads[night - 1])
        if night == CLIENT:
            change_the_client(world)
        if night == KILLED:
            kept = run_killed_night(world, night)
            say(f"night {night}: killed with {len(kept)} launches measured; it is started again")
        document = run_night(world, night)
        documents.append(document)
        say(f"night {night} ({moment(night):%a %d %b}): {summarize(document)}")
    found = judge(collect_results(world, tuple(documents), kept))
    for check in found:
        print(f"{'yes' if check.holds else 'NO '}  {check.what}: {check.words}")
    good = all(check.holds for check in found)
    verdict = {
        "planted": {"slow": world.slow, "night": planted.SLOW, "earliest": planted.OPENS},
        "checks": {check.what: check.holds for check in found},
        "minutes": round((time.monotonic() - began) / 60, 2),
        "good": good,
    }
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=1) + "\n")
    say(f"report: {folder / 'report' / 'nightly.md'}")
    say(f"site: {folder / 'site' / 'index.html'}")
    print("all planted changes were found and no other commit was named" if good else "NOT as planted")
    return 0 if good else 1


def collect_results(world: World, documents: tuple[dict[str, Any], ...], kept: frozenset[str]) -> Found:
    """Collect what ten nights left."""
    launched = tuple(launch for job in Jobs(world.state).all() for launch in _launches_of(job))
    pages = [path for path in sorted((world.folder / "site").rglob("*")) if path.suffix in (".js", ".html")]
    with SeriesStore.of(world.state) as store:
        points = len(store.points())
    return Found(
        world=world,
        nights=documents,
        launches=launched,
        kept=kept,
        started=(world.folder / "launches" / "launches").stat().st_size,
        points=points,
        report=(world.folder / "report" / "nightly.md").read_text(),
        site="\n".join(path.read_text(errors="replace") for path in pages if path.name != PLOT_SCRIPT),
    )


def start(world: World, night: int, minutes: float = 0.0) -> subprocess.Popen[str]:
    """Start a night as cron would."""
    environment = os.environ | {
        "PERFBISECT_NOW": (moment(night) + timedelta(minutes=minutes)).isoformat(),
        "PERFBISECT_CACHE": str(CACHE),
        # Its runs are too short for shares of time to mean much, and it sleeps more than it computes.
        "PERFBISECT_LIMITS": "off",
        "PERFBISECT_BACKOFF": "1,5",
    }
    log = (world.folder / "nights" / f"{night:02d}.log").open("a")
    with log:
        return subprocess.Popen(
            [PROGRAM, "nightly", str(world.config), "--full", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=world.folder,
        )


def run_night(world: World, night: int) -> dict[str, Any]:
    """Run a night to its end; return its document."""
    process = start(world, night, minutes=5.0 if night == KILLED else 0.0)
    output, _ = process.communicate(timeout=PATIENCE)
    path = world.folder / "nights" / f"{night:02d}.json"
    path.write_text(output)
    try:
        document: dict[str, Any] = json.loads(output)
    except ValueError:
        raise SystemExit(
            f"night {night} ended with {process.returncode}, without a document: {path.with_suffix('.log')}"
        ) from None
    return document | {"ended_with": process.returncode}


def run_killed_night(world: World, night: int) -> frozenset[str]:
    """Start a night and kill it during its fourth launch or later; return the launches that had ended."""
    before = {job.id for job in Jobs(world.state).all()}
    process = start(world, night)
    while process.poll() is None:
        launched = [
            launch for job in Jobs(world.state).all() if job.id not in before for launch in _launches_of(job)
        ]
        ended = frozenset(launch.id for launch in launched if launch.outcome == "measured")
        if len(ended) >= 3 and any(launch.outcome == "running" and launch.pid for launch in launched):
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return ended
        time.sleep(0.02)
    raise SystemExit(f"night {night} ended before it was killed, with {process.returncode}")


def _launches_of(job: Job) -> tuple[Launch, ...]:
    try:
        return launches(read(job.journal).events)
    except UsageError:
        return ()


def summarize(document: dict[str, Any]) -> str:
    """Summarize a night in a line."""
    cells: dict[str, int] = {}
    for cell in document["cells"]:
        cells[cell["state"]] = cells.get(cell["state"], 0) + 1
    parts = [", ".join(f"{count} {state}" for state, count in cells.items())]
    opened = [alert for alert in document["alerts"] if alert["change"] == "opened"]
    parts += [f"{len(opened)} alerts opened"] if opened else []
    parts += [
        f"{item['state']}: {item['culprit']['short'] if item['culprit'] else item['why']}"
        for item in document["bisections"]
    ]
    return "; ".join([*parts, f"exit code {document['ended_with']}"])


if __name__ == "__main__":
    sys.exit(main())
