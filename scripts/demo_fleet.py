"""`make demo-fleet`: one bisection over two Slurm nodes and a machine behind ssh, beside one machine.

    python -m scripts.demo_fleet [--seed N]

sshd and a Slurm of two nodes run on the loopback; the engine is a pretend one that sleeps, so that three
machines fit on one host. One machine is 8 % slower, one is killed on the way. Leaves in build/demo-fleet/ the
history in repo/, the jobs in state/, and verdict.json. Exits 0 if and only if the planted commit was named
both times. The wall clock is that to the name: only a fleet then measures the step again on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.replay import Launch, launches
from scripts.demo import PRETEND_CELL, PROGRAM, ROOT, new_folder, say, write_verdict
from scripts.demo_history import draw_places
from tests.fakes.history import ENGINE, PretendHistory, make_history
from tests.fleet.sites import SlurmSite, SshSite

COMMITS, FACTOR, SLOWER = 64, 1.12, 1.08
KILLED = "fast"
"""A node of the cluster ..."""

KILLED_AFTER = 6
"""... that is killed once so many launches have ended."""

_LOAD = {"num_prompts: 6": "num_prompts: 16", "random_output_len: 8": "random_output_len: 64"}
"""Runs of some seconds: what the engine sleeps, not the starts of processes on few cores, takes the time."""


@dataclass(frozen=True)
class Search:
    """A bisection that has ended."""

    document: dict[str, Any]
    seconds: float
    """To the end of the A/B that named the commit."""
    in_all: float
    records: tuple[Launch, ...]

    @property
    def culprit(self) -> str | None:
        return (self.document.get("culprit") or {}).get("id")

    @property
    def minutes(self) -> float:
        """Of the machines together."""
        return sum(record.minutes for record in self.records)

    @property
    def machines(self) -> dict[str, int]:
        """Launches that gave values, by machine."""
        return dict(Counter(record.machine for record in self.records if record.outcome == "measured"))


def search(history: PretendHistory, fleet: str, state: Path, cell: Path, cluster: SlurmSite | None) -> Search:
    """Bisect as a user would; ``cluster``: one of its nodes is killed on the way."""
    command = [
        *(PROGRAM, "bisect", str(cell), "--fleet", fleet),
        *("--repo", str(history.path), "--good", history.good, "--bad", history.bad),
        *("--env", f"overlay:{sys.executable},base=any", "--machine", "cpu"),
        *("--client", f"existing:{sys.executable},path={ENGINE}", "--budget", "60m", "--json", "--full"),
    ]
    say(" ".join(["perfbisect", *command[1:]]))
    variables = os.environ | {
        "PERFBISECT_STATE": str(state),
        "PERFBISECT_CACHE": str(cell.parent / "cache"),
        "PERFBISECT_LIMITS": "off",
        "PERFBISECT_BACKOFF": "2,4",
    }
    began = time.monotonic()
    process = subprocess.Popen(command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if cluster is not None:
        _kill_on_the_way(process, state, cluster)
    output, _ = process.communicate()
    seconds = time.monotonic() - began
    (job,) = Jobs(state).all()
    events, records = job.events(), launches(job.events())
    times = {event.seq: datetime.fromisoformat(event.time).timestamp() for event in events}
    last = max((record.ended for record in records if record.purpose == "confirm"), default=events[-1].seq)
    to_the_name = times[last] - times[events[0].seq]
    return Search(json.loads(output), to_the_name, seconds, records)


def _kill_on_the_way(process: subprocess.Popen[str], state: Path, cluster: SlurmSite) -> None:
    while process.poll() is None:
        jobs = Jobs(state).all()
        if jobs and _ended(jobs[0]) >= KILLED_AFTER and _is_running(jobs[0]):
            say(f"killing node {KILLED}")
            cluster.kill_node(KILLED)
            return
        time.sleep(0.5)


def _ended(job: Job) -> int:
    return sum(record.outcome == "measured" for record in launches(job.events()))


def _is_running(job: Job) -> bool:
    return any(record.outcome == "running" and record.machine == KILLED for record in launches(job.events()))


def main(argv: Sequence[str] | None = None) -> int:
    """Plant, search twice, compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="where the slow commit is planted")
    options = parser.parse_args(argv)
    build = new_folder("demo-fleet")
    planted = draw_places(COMMITS, options.seed).planted
    history = make_history(build / "repo", commits=COMMITS + 1, slow=planted, factor=FACTOR)
    say(f"planted {history.commits[planted][:12]}, {100 * (FACTOR - 1):.0f} %, commit {planted} of {COMMITS}")
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        boxes, cluster = SshSite(Path(folder) / "ssh"), SlurmSite(Path(folder) / "slurm")
        for site in (boxes, cluster):
            site.folder.mkdir()
            site.make()
            site.use_real_agent()
            site.start()
        try:
            alone, fleet = _both(history, build / "state", Path(folder), cluster)
        finally:
            for site in (boxes, cluster):
                site.stop()
    verdict = {
        "planted": history.commits[planted],
        "culprits": [alone.culprit, fleet.culprit],
        "replication": fleet.document.get("replication"),
        "launches": [alone.machines, fleet.machines],
        "seconds": [round(alone.seconds), round(fleet.seconds)],
        "seconds_in_all": [round(alone.in_all), round(fleet.in_all)],
        "wall_clock": round(fleet.seconds / alone.seconds, 2),
        "machine_minutes": round(fleet.minutes / alone.minutes, 2),
    }
    write_verdict(build, verdict)
    named = verdict["culprits"] == [history.commits[planted]] * 2
    say("the planted commit was named both times" if named else "the planted commit was NOT named both times")
    return 0 if named else 1


def _both(history: PretendHistory, state: Path, folder: Path, cluster: SlurmSite) -> tuple[Search, Search]:
    text = PRETEND_CELL.read_text().replace("./models", str(PRETEND_CELL.parent / "models"))
    for short, long in _LOAD.items():
        text = text.replace(short, long)
    cell = folder / "cell.yaml"
    cell.write_text(f"{text}\nenv: {{PRETEND_SLOW_DEVICES: 'slow:{SLOWER}'}}\n")
    hosts = folder / "ssh" / "box.yaml"
    lines = (folder / "ssh" / "hosts.yaml").read_text().splitlines()
    entry = next(line for line in lines if "name: fast" in line).replace("name: fast", "name: box")
    hosts.write_text("\n".join([*(line for line in lines if not line.startswith("- ")), entry, ""]))
    say("one machine")
    alone = search(history, f"ssh:{hosts}", state / "one", cell, None)
    say("three machines, one of them slower, one killed on the way")
    command = folder / "slurm" / "agent"
    spec = f"slurm:command={command}+ssh:{hosts}"
    return alone, search(history, spec, state / "fleet", cell, cluster)


if __name__ == "__main__":
    sys.exit(main())
