"""`make bench`: what perfbisect itself costs, each number beside its limit.

    python -m scripts.bench [--quick] [--real INTERPRETER]
    python -m scripts.bench --omni [--pairs N] [--before REVISION]

CPU seconds where a process is ours, not seconds by the clock: those are the neighbours' as well. Exits 1
where a limit is passed.
``--real``: an interpreter that has vLLM, in place of the pretend engine, for the share of an attempt.
``--omni``: instead, the seconds of a launch of the real vLLM-Omni server, without a limit
(:mod:`scripts.bench_omni`).
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.model import Event, Measured, NextLaunch, Plan
from perfbisect.bisect.job import BISECT
from perfbisect.bisect.plan import BisectPlan, make_plan
from perfbisect.bisect.search_events import to_search_events
from perfbisect.cells.loading import load_cell
from perfbisect.commands.fleets import FleetJob
from perfbisect.engine.experiment import run_experiment
from perfbisect.environments.factory import make_builder
from perfbisect.experiments.run import RUN
from perfbisect.experiments.setup import MeasurementSetup, build_run_plan
from perfbisect.fleet.connection import Connection
from perfbisect.fleet.executor import MOST_POLL_S, FleetExecutor
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.hosts import FleetHost, HostSettings
from perfbisect.jobs.events import JobEvent, LaunchEnded, LaunchStarted, PhaseStarted
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import JournalEvent as Line
from perfbisect.jobs.journal import read, stamp
from perfbisect.jobs.plans import MeasurementConfig, find_plan, resolve_metric, write_plan
from perfbisect.jobs.replay import launches
from perfbisect.jobs.runner import JobContext
from perfbisect.machine.profile import load_machine
from perfbisect.machine.slots import Slot
from perfbisect.measure.attempt import to_dict
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.measure.local import LocalExecutor
from perfbisect.model.attempt import Attempt, Costs, Provenance, RunResult
from perfbisect.model.change import Change, History
from perfbisect.system.processes import stop_leftovers
from scripts import bench_ingest, bench_omni
from tests.fakes.history import ENGINE
from tests.jobs.world import FakeBuilder, Watch, World

ROOT = Path(__file__).resolve().parent.parent
CHANGE = Change("c0ffee" + "0" * 34)
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Cost:
    """What was measured: in ``unit``, and no more than ``limit`` of it is allowed."""

    what: str
    value: float
    limit: float
    unit: str
    how: str

    @property
    def over(self) -> bool:
        return not self.value <= self.limit


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    starts: int = 9
    launches: int = 3
    positions: int = 500
    events: int = 10_000
    files: int = 5_000


QUICK = Sizes(starts=1, launches=1, positions=20, events=60, files=30)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--real", metavar="INTERPRETER", help="an interpreter that has vLLM")
    parser.add_argument("--peak", type=int, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=int, metavar="LAUNCHES", help=argparse.SUPPRESS)
    parser.add_argument("--omni", action="store_true", help="a launch of the real vLLM-Omni, by phase")
    options, more = parser.parse_known_args(argv)
    if options.omni:
        return bench_omni.main(more)
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if options.peak:
        print(json.dumps(asdict(peak(options.peak))))
        return 0
    if options.share:
        print(json.dumps(asdict(share(options.share, options.real))))
        return 0
    sizes = QUICK if options.quick else Sizes()
    real = ("--real", options.real) if options.real else ()
    costs = [
        start(sizes.starts),
        elsewhere("--share", str(sizes.launches), *real),
        agent(sizes.launches),
        decision(sizes.positions),
        elsewhere("--peak", str(sizes.positions)),
        fold(sizes.events),
        *ingested(sizes.files),
    ]
    print("\n".join(table(costs)))
    return int(any(cost.over for cost in costs))


def table(costs: Sequence[Cost]) -> list[str]:
    """A row for each, the name of what is over its limit in capitals."""
    rows = [
        ("", "measured", "limit", ""),
        *((_name(c), _shown(c.value, c), _shown(c.limit, c), c.how) for c in costs),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return [
        f"{name:<{widths[0]}}  {value:>{widths[1]}}  {limit:>{widths[2]}}  {how}".rstrip()
        for name, value, limit, how in rows
    ]


def _name(cost: Cost) -> str:
    return f"OVER: {cost.what}" if cost.over else cost.what


def _shown(value: float, cost: Cost) -> str:
    return f"{value:.3g} {cost.unit}"


def start(repetitions: int) -> Cost:
    """The start of the command line beside that of the library that it is made with; both by turns."""
    plain, ours = [], []
    for _ in range(repetitions):
        plain.append(cpu_of(sys.executable, "-c", "import click"))
        ours.append(cpu_of(sys.executable, "-c", "from perfbisect.cli import main; main()", "--help"))
    shown = f"{median(ours) * 1000:.0f} ms beside {median(plain) * 1000:.0f} ms, {repetitions} times by turns"
    return Cost("start, in imports of click", median(ours) / median(plain), 2.5, "times", shown)


def cpu_of(*command: str) -> float:
    """CPU seconds of a process and those it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def elsewhere(*arguments: str) -> Cost:
    """A cost measured in a process of its own."""
    command = (sys.executable, "-m", "scripts.bench", *arguments)
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


class Marks:
    """A sink that notes the CPU seconds of this process: ``ours``, and those of ``start`` and ``runs``.

    Ours are those from the end of the build to the server's spawn, and from the server's end to the next
    attempt: commands, provenance, the journal, the decision. ``start``: while the environment is made and the
    server starts; ``runs``: beside the runs, and while the server stops.
    """

    def __init__(self, cpu: Callable[[], float]) -> None:
        self._cpu = cpu
        self._last = cpu()
        self._now = "ours"
        self.spent = {"ours": 0.0, "start": 0.0, "runs": 0.0}

    def __call__(self, notice: JobEvent) -> None:
        now = self._cpu()
        self.spent[self._now] += now - self._last
        self._last = now
        if isinstance(notice, PhaseStarted):
            self._now = _DURING.get(notice.phase, self._now)
        elif isinstance(notice, LaunchStarted | LaunchEnded):
            self._now = "ours" if isinstance(notice, LaunchEnded) else "start"


_DURING = {"build": "ours", "launch": "start", "ready": "runs", "stop": "ours"}
"""A phase that was told -> whose the seconds after it are."""


def share(count: int, real: str | None) -> Cost:
    """The share of one core that perfbisect takes of an attempt, beside what it waits for."""
    spec = f"existing:{real},trust=yes" if real else f"existing:{sys.executable},path={ENGINE},trust=yes"
    name = "text_cpu_llama100m" if real else str(ROOT / "pretend" / "cells" / "pretend.yaml")
    with tempfile.TemporaryDirectory() as folder:
        builder = make_builder(spec, repository=None, cache=Path(folder) / "cache")
        cell = load_cell(name)
        setting = MeasurementConfig(environment=spec)
        setup = MeasurementSetup(cell, (resolve_metric(cell, None),), setting, builder)
        plan = build_run_plan(setup, change=CHANGE, launches=count, runs=2)
        marks = Marks(time.process_time)
        tools = JobContext(
            executor=LocalExecutor(builder), clock=lambda: datetime.now(timezone.utc), wait=time.sleep,
            sink=marks, stop_leftovers=stop_leftovers,
        )  # fmt: skip
        job = Jobs(Path(folder)).new(BEGAN, "be4c")
        with job.held():
            write_plan(job, plan, tools.clock)
            document = run_experiment(RUN, job, tools)
        wall = sum(launch.minutes for launch in document.launches) * 60
    ours, start_up, runs = (marks.spent[name] for name in ("ours", "start", "runs"))
    how = (
        f"of {wall / count:.1f} s an attempt, {count} attempts; another {start_up / count:.2f} s of CPU "
        f"while it starts, {runs / count:.2f} s beside its runs"
    )
    return Cost("own share of an attempt", 100 * ours / wall, 3.0, "%", how)


def agent(count: int) -> Cost:
    """What an agent adds by the clock to an attempt, as a share of a launch of five minutes.

    The same attempt here and through an agent on this machine, by turns; the differences hold what a bundle
    costs: the agent's start, its lease, looking at it, and bringing the results. The end of a long launch is
    seen half the longest pause late.
    """
    spec = f"existing:{sys.executable},path={ENGINE},trust=yes"
    cell = load_cell(str(ROOT / "pretend" / "cells" / "pretend.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        home, cache = Path(folder), Path(folder) / "cache"
        builder = make_builder(spec, repository=None, cache=cache)
        setting = MeasurementConfig(environment=spec, cache=str(cache), machine="cpu")
        start_agent = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {_MAIN}"
        command = ("env", f"PERFBISECT_LOCKS={home / 'locks'}", sys.executable, "-c", start_agent)
        host = FleetHost("here", Connection(), HostSettings(folder=str(home / "there"), command=command))
        job = FleetJob(builder, setting, interference="off")
        executors = (
            LocalExecutor(builder, profile=load_machine("cpu")),
            FleetExecutor(FolderFleet("here", lambda: [host]), job),
        )
        took: list[list[float]] = [[], []]
        for number in range(2 * count + 2):
            side = number % 2
            request = AttemptRequest(
                f"be4c-{number}", cell, CHANGE, 2, "run", home / str(number), PhaseLimits(),
                token=f"{number:032x}", slot=Slot("here", machine="here") if side else None,
            )  # fmt: skip
            began = time.monotonic()
            attempt = executors[side].run(request, started=_unheard, sink=lambda *_: None)
            took[side].append(time.monotonic() - began)
            assert attempt.failure is None, attempt.failure
            while side and host.lives(request.token):
                time.sleep(0.05)
    added = median(there - here for here, there in zip(*(side[1:] for side in took), strict=True))
    late = MOST_POLL_S / 2
    how = (
        f"of five minutes; {added:.1f} s by the clock, {count} attempts by turns, and {late:.1f} s of a pause"
    )
    return Cost("an agent's share of a launch", 100 * (added + late) / 300, 3.0, "%", how)


_MAIN = "from perfbisect.cli import main; main()"


def _unheard(*, token: str, pid: int, created: float, port: int) -> None: ...


def decision(positions: int) -> Cost:
    """The dearest decision of a bisection with a step of ten per cent; of each the least of three times."""
    decided(10)
    took = [min(times) for times in zip(*(decided(positions) for _ in range(3)), strict=True)]
    how = f"the dearest of {len(took)} at N = {positions}; median {median(took) * 1000:.0f} ms of CPU"
    return Cost("a decision", max(took) * 1000, 50.0, "ms", how)


def decided(positions: int) -> list[float]:
    """CPU seconds of each decision of one bisection, the same every time."""
    plan = Plan(positions - 1, costs=Costs(4.0, 3.0, 1.5))
    events: list[Event] = []
    took = []
    while True:
        began = time.process_time()
        action = next_action(plan, events)
        took.append(time.process_time() - began)
        if not isinstance(action, NextLaunch):
            return took
        level = 10.0 * (1.1 if action.index > positions * 2 // 3 else 1.0)
        wobble = [1 + 0.01 * math.sin(7.0 * len(events) + 3.0 * run) for run in range(action.runs)]
        values = tuple(level * part for part in wobble)
        minutes = 1.5 * action.runs
        events.append(
            Measured(action.index, action.purpose, values, launch=3.0, run=minutes, trial=action.trial)
        )


def peak(positions: int) -> Cost:
    """The most memory that a whole bisection has, with its report."""
    with tempfile.TemporaryDirectory() as folder:
        job, _ = bisected(Path(folder), positions)
        events = len(read(job.journal).events)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    how = f"a bisection of {positions} commits, {events} events"
    return Cost("memory", kilobytes / 1024, 200.0, "MB", how)


def bisected(folder: Path, positions: int) -> tuple[Job, BisectPlan]:
    """A finished bisection over a stand-in for the machine."""
    changes = tuple(
        Change(f"{i:040x}", "commit", f"Change {i}", stamp(BEGAN + timedelta(hours=i)))
        for i in range(positions)
    )
    cell = load_cell(str(ROOT / "pretend" / "cells" / "pretend.yaml"))
    world, watch = World(changes, slow=positions * 2 // 3, factor=1.2), Watch()
    plan = make_plan(
        BisectPlan, cell=cell, history=History(changes),
        builder=FakeBuilder(), metric=resolve_metric(cell, None),
        setting=MeasurementConfig(environment="fake:it"), budget=900.0, costs=Costs(4.0, 3.0, 1.5),
    )  # fmt: skip
    job = Jobs(folder).new(BEGAN, "be4c")
    tools = watch.tools(world)
    with job.held():
        write_plan(job, plan, tools.clock)
        run_experiment(BISECT, job, tools)
    return job, plan


def fold(count: int) -> Cost:
    """A journal of so many lines, from the file to what the core sees."""
    with tempfile.TemporaryDirectory() as folder:
        job, _ = bisected(Path(folder), 20)
        long = Path(folder) / "long.jsonl"
        long.write_bytes(b"".join(line.line() for line in journal(read(job.journal).events[0], count)))
        began = time.process_time()
        events = read(long).events
        plan = find_plan(events, BisectPlan)
        seen = launches(events)
        assert plan is not None
        to_search_events(seen, plan)
        took = time.process_time() - began
    return Cost("a journal folded", took, 1.0, "s", f"{len(events)} events, {len(seen)} attempts")


def ingested(files: int) -> list[Cost]:
    """Results of a kanban brought in, and once more without a change: each by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        kanban, state = Path(folder) / "kanban", Path(folder) / "state"
        bench_ingest.make(kanban, files)
        command = (sys.executable, "-m", "scripts.bench_ingest", str(kanban), str(state))
        told = [
            json.loads(
                subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
            )
            for _ in range(2)
        ]
    how = f"{files} files, from the start of the command"
    return [
        Cost("results ingested", told[0]["cpu"], 20.0, "s", how),
        Cost("ingested again, unchanged", told[1]["cpu"], 2.0, "s", how),
        Cost("memory of an ingest", max(t["memory"] for t in told), 300.0, "MB", f"{files} files"),
    ]


def journal(plan: Line, count: int) -> list[Line]:
    """A plan and attempts that began, were launched and finished, over and over."""
    lines = [plan]
    positions = len(plan.data["positions"])
    while len(lines) + 3 <= count:
        at, number = stamp(BEGAN), len(lines) // 3 + 1
        position = number % positions
        change = plan.data["positions"][position]["changes"][0]["id"]
        identity = f"be4c-{number}"
        runs = tuple(
            RunResult(
                k, k, {"tpot:median": 10.0 + number % 7, "tpot:p99": 12.0, "failed": 0.0}, {"tpot": 0.05}
            )
            for k in (1, 2)
        )
        attempt = Attempt(identity, change, "search", Provenance("digest", "machine", "client"), runs,
                          seconds={"launch": 30.0, "bench": 20.0})  # fmt: skip
        began = {
            "attempt": identity, "position": position, "change": change, "purpose": "search", "runs": 2,
            "why": "most bits a minute", "folder": f"attempts/{number:03d}", "token": "0" * 32,
        }  # fmt: skip
        server = {"attempt": identity, "token": "0" * 32, "pid": 1, "created": 1.0, "port": 8000}
        first = len(lines)
        lines += [
            Line(first, at, "started", began),
            Line(first + 1, at, "launched", server),
            Line(first + 2, at, "finished", {"attempt": to_dict(attempt)}),
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
