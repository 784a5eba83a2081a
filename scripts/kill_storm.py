"""``python -m scripts.kill_storm --kills 60 --seed N``: bisections under kill -9 and other signals.

At random moments the driver, the server, the client, its fork server, their shims, git, a build, its shim, or
all of them at once are killed, and the driver gets TERM, INT or HUP; a driver that ended is resumed. Each job
and some resumed drivers begin with an empty cache, so that git and builds run. Each launch of the pretend
engine starts two daemons without a sign and prints a token. Of every job: the same verdict as undisturbed,
one end of each start, nothing lost or counted twice, no lock and no process left, no token in any file. Exits
with 1 if one of these is violated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from perfbisect.machine.leases import holders
from perfbisect.system import shim
from perfbisect.system.processes import TOKEN_VARIABLE, Process, table
from tests.fakes.history import CALM, MEASURED_WITH, make_history

CELL = Path(__file__).parent.parent / "pretend" / "cells" / "pretend.yaml"
FAULTS = "daemon,late_daemon,print_secrets"
TOKEN = "token-of-the-kill-storm"
FOUND = 3
PATIENCE_S = 300.0
ROLE_WAIT_S = 8.0
"""For a process of a role to begin."""
START_WAIT_S = 30.0
"""For a git or a build, which begin after the driver has."""
EMPTIED = 0.4
"""Share of resumed drivers that find an empty cache."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
BUILDING = ("git", "build", "shim of a build")
"""What lives until the environments are built: struck after the cache was emptied."""
LAUNCHING = ("server", "client", "fork server", "shim of a launch")
TARGETS = ("driver", *LAUNCHING, "all", "signal")


@dataclass(frozen=True)
class Marked:
    """A living process of the scene and what it is."""

    row: Process
    role: str


@dataclass
class Scene:
    """A history of the pretend engine, and the command line that bisects it."""

    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    daemons: set[tuple[int, float]] = field(default_factory=set)
    build_tokens: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state, self.locks, self.temporary = (self.folder / n for n in ("state", "locks", "tmp"))
        self.temporary.mkdir(parents=True)
        self.history = make_history(self.folder / "repo", commits=4, slow=2, factor=2.5, pace=CALM)
        self.cell = self.folder / "storm.yaml"
        shutil.copytree(CELL.parent / "models", self.folder / "models")
        self.cell.write_text(CELL.read_text("utf-8") + f"env: {{PRETEND_FAULT: '{FAULTS}'}}\n", "utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        env = os.environ | {
            "PERFBISECT_STATE": str(self.state),
            "PERFBISECT_CACHE": str(self.folder / "cache"),
            "PERFBISECT_LOCKS": str(self.locks),
            "PERFBISECT_LIMITS": "off",
            "PERFBISECT_BACKOFF": ",".join(["0.1"] * 20),
            "TMPDIR": str(self.temporary),
            "HF_TOKEN": TOKEN,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, "-c", "from perfbisect.cli import main; main()", *arguments, "--json"]
        with (self.folder / "out.json").open("wb") as out, (self.folder / "err.log").open("ab") as errors:
            return subprocess.Popen(command, env=env, stdout=out, stderr=errors, cwd=self.folder)

    def bisect(self) -> subprocess.Popen[bytes]:
        ends = ("--good", self.history.good, "--bad", self.history.bad)
        return self.start("bisect", str(self.cell), "--repo", str(self.history.path), *ends, *MEASURED_WITH)

    def empty_cache(self) -> None:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def newest(self) -> Job | None:
        jobs = Jobs(self.state).all()
        return jobs[-1] if jobs else None

    def document(self) -> Mapping[str, object]:
        found: Mapping[str, object] = json.loads((self.folder / "out.json").read_text("utf-8"))
        return found

    def errors(self) -> str:
        """What the driver said last."""
        return "".join(
            (self.folder / name).read_text("utf-8", "replace")[-2000:] for name in ("out.json", "err.log")
        )

    def living(self, driver: int = 0) -> tuple[Marked, ...]:
        """Processes of this scene, whoever their parent is."""
        rows = {pid: row for pid, row in table().items() if row.living and pid != os.getpid()}
        return tuple(self._marked(rows, driver))

    def _marked(self, rows: Mapping[int, Process], driver: int) -> Iterator[Marked]:
        tokens = {token for job in Jobs(self.state).all() for token in _tokens(job)}
        for row in rows.values():
            words, entries = _words(row.pid, "cmdline"), _words(row.pid, "environ")
            values = dict(entry.split("=", 1) for entry in entries if "=" in entry)
            owner = values.get(shim.MARK, "") or values.get(TOKEN_VARIABLE, "")
            launch, _, part = owner.partition(".")
            if owner and launch not in tokens and _descends(rows, row, driver):
                self.build_tokens.add(owner)
            if "pretend-daemon" in words and str(self.folder) in words[-1]:
                self.daemons.add(row.identity)
                yield Marked(row, "daemon")
            elif launch in tokens and shim.MARK in values:
                yield Marked(row, "shim of a launch")
            elif owner in self.build_tokens:
                yield Marked(row, "shim of a build" if shim.MARK in values else "build")
            elif launch in tokens:
                is_run = part == "client-host" and _is_child_of_host(rows, row)
                role = "client" if is_run or part.startswith("client-") else "server"
                yield Marked(row, "fork server" if part == "client-host" and not is_run else role)
            elif row.name == "git" and _descends(rows, row, driver):
                yield Marked(row, "git")
            elif _folder(row.pid).startswith(str(self.state)):
                yield Marked(row, "other")

    def git(self, driver: int) -> tuple[Marked, ...]:
        """As :meth:`living`, git alone: it lives for milliseconds, so only the process table is read."""
        rows = table()
        return tuple(
            Marked(row, "git")
            for row in rows.values()
            if row.living and row.name == "git" and _descends(rows, row, driver)
        )


def _tokens(job: Job) -> Iterator[str]:
    with suppress(Exception):  # it is being written
        yield from (launch.token for launch in launches(read(job.journal).events))


def _words(pid: int, name: str) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    return []


def _folder(pid: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/cwd").readlink())
    return ""


def _is_child_of_host(rows: Mapping[int, Process], row: Process) -> bool:
    parent = rows.get(row.parent)
    return (
        parent is not None
        and row.session != parent.session
        and shim.MARK not in " ".join(_words(parent.pid, "environ"))
    )


def _descends(rows: Mapping[int, Process], row: Process, ancestor: int) -> bool:
    while ancestor and row.parent in rows:
        if row.parent == ancestor:
            return True
        row = rows[row.parent]
    return False


@dataclass
class Storm:
    scene: Scene
    kills: int
    draw: random.Random
    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    made: int = 0
    starts: int = 0

    def run(self) -> None:
        while self.made < self.kills and not self.violations:
            self.scene.empty_cache()
            before, process = self.scene.newest(), self.scene.bisect()
            job = self._begun(before, process)
            if job is None:
                self.violations.append("a bisection ended before its job began")
                return
            self._disturb(job, process)
            self.jobs += 1

    def _begun(self, before: Job | None, process: subprocess.Popen[bytes]) -> Job | None:
        while process.poll() is None:
            job = self.scene.newest()
            if job is not None and job != before and job.journal.exists() and job.journal.stat().st_size:
                return job
            time.sleep(0.01)
        return None

    def _disturb(self, job: Job, process: subprocess.Popen[bytes]) -> None:
        first = self.draw.sample(BUILDING, len(BUILDING))
        while True:
            target = (first.pop() if first else self.draw.choice(TARGETS)) if self.made < self.kills else ""
            wait = 0.0 if target in BUILDING else self.draw.uniform(0.0, 2.5)
            end = time.monotonic() + (wait if target else PATIENCE_S)
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            if target and process.poll() is None:
                self._strike(target, process)
            elif process.poll() is None:
                process.kill()
                self.violations.append(f"{job.id}: it did not end within {PATIENCE_S:.0f} s")
            if process.poll() is not None:
                if process.returncode == FOUND:
                    self._check(job)
                    return
                if process.returncode not in (-signal.SIGKILL, *(-x for x in SIGNALS), 5, 130):
                    self.violations.append(f"{job.id}: exit code {process.returncode}: {self.scene.errors()}")
                    return
                if self.violations:
                    return
                if self.draw.random() < EMPTIED:
                    self.scene.empty_cache()
                    first.append(self.draw.choice(BUILDING))
                process = self.scene.start("resume", job.id)

    def _strike(self, target: str, process: subprocess.Popen[bytes]) -> None:
        """Kill one process of a role, or all; a role without a process is not counted."""
        if target == "signal":
            number = self.draw.choice(SIGNALS)
            process.send_signal(number)
            self._count(f"{number.name} to the driver")
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            return
        wanted, killed = self._found(target, process), Counter[str]()
        if target in ("driver", "all") and process.poll() is None:  # it may have ended meanwhile
            process.kill()
            killed["driver"] += 1
        for each in wanted if target == "all" else self.draw.sample(wanted, min(1, len(wanted))):
            with suppress(ProcessLookupError):
                os.kill(each.row.pid, signal.SIGKILL)
                killed[each.role] += 1
        if target in ("driver", "all"):
            process.wait()
        if killed:
            self._count("all at once" if target == "all" else target)
            self.scene.counts.update({f"kill -9 of {role}": number for role, number in killed.items()})

    def _found(self, target: str, process: subprocess.Popen[bytes]) -> list[Marked]:
        """The processes to kill, waited for; of all, once a server lives."""
        end = time.monotonic() + (START_WAIT_S if target in BUILDING else ROLE_WAIT_S)
        while target != "driver" and process.poll() is None and time.monotonic() < end:
            if target == "git":
                living = self.scene.git(process.pid)
            else:
                living = tuple(x for x in self.scene.living(process.pid) if x.role in BUILDING + LAUNCHING)
            if any(each.role == ("server" if target == "all" else target) for each in living):
                return [each for each in living if target in ("all", each.role)]
        return []

    def _count(self, what: str) -> None:
        self.made += 1
        self.scene.counts[what if what.startswith("SIG") else f"strikes at {what}"] += 1

    def _check(self, job: Job) -> None:
        def require(holds: bool, what: str) -> None:
            if not holds:
                self.violations.append(f"{job.id}: {what}")

        document = self.scene.document()
        culprit = document.get("culprit")
        name = culprit.get("id") if isinstance(culprit, dict) else None
        require(name == self.scene.history.culprit, f"the verdict names {name}")
        events = read(job.journal).events
        started = [event.data["attempt"] for event in events if event.kind == "started"]
        seen = launches(events)
        self.starts += len(started)
        require(len(started) == len(set(started)), "an attempt started twice")
        require([launch.id for launch in seen] == started, "attempts are lost")
        require(all(launch.outcome != "running" for launch in seen), "an attempt has no end")
        on_disk = {path.parent.name for path in job.path.glob("attempts/*/attempt.json")}
        ended = {f"{launch.number:03d}" for launch in seen if launch.outcome in ("measured", "failed")}
        require(on_disk == ended, f"results on disk and in the journal differ: {on_disk ^ ended}")
        require([event.kind for event in events].count("verdict") == 1, "not one verdict")
        require(job.holder is None and not holders(self.scene.locks), "a lock is left")
        left = self.scene.living()
        require(not left, f"processes are left: {', '.join(f'{each.role} {each.row}' for each in left)}")
        require(not list(self.scene.temporary.glob("pb-*")), "a temporary folder is left")
        for path in self.scene.folder.rglob("*"):
            if path.is_file() and TOKEN.encode() in path.read_bytes():
                require(False, f"the token is in {path}")


def storm(folder: Path, kills: int, seed: int) -> Storm:
    """The storm, from a first undisturbed bisection on; prints nothing."""
    scene = Scene(folder)
    made = Storm(scene, kills, random.Random(seed))
    process, job = scene.bisect(), None
    while process.poll() is None:
        scene.living(process.pid)
        time.sleep(0.1)
    job = scene.newest()
    if process.returncode != FOUND or job is None:
        made.violations.append(f"undisturbed: exit code {process.returncode}: {scene.errors()}")
        return made
    made._check(job)
    made.run()
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the storm and print its summary; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.kill_storm", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=20_261)
    typed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kill-storm-") as name:
        made = storm(Path(name) / "scene", typed.kills, typed.seed)
        for what, count in sorted(made.scene.counts.items()):
            print(f"{count:5}  {what}")
        print(f"{made.made} strikes in {made.jobs} jobs, {made.starts} starts, seed {typed.seed}")
        print(f"{len(made.scene.daemons)} daemons were seen alive")
        for violation in made.violations:
            print(f"VIOLATION  {violation}", file=sys.stderr)
    return 1 if made.violations else 0


if __name__ == "__main__":
    sys.exit(main())
