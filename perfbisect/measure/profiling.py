"""Profile launches: stacks and a torch trace of a server under load. They are never a measurement.

Stacks are sampled by py-spy in windows, each with the steps that the engine made meanwhile. The trace has no
Python stacks: with them vLLM needs minutes to write it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from perfbisect.common.checked import FileName, Seconds
from perfbisect.errors import Interrupted, PerfbisectError
from perfbisect.measure.bench import BenchRuns
from perfbisect.measure.executor import Sink
from perfbisect.serving.families import ServerCommand
from perfbisect.serving.server import Server
from perfbisect.system import commands, http, logs
from perfbisect.system.http import NoAnswerError
from perfbisect.system.processes import ProcessTree, StopRequested
from perfbisect.system.threads import start_thread

FOLDER: Final = "profile"
"""Of a profile launch, in the folder of its attempt."""

FACT: Final = "profile"
"""Names the facts of a profile launch: :class:`ProfileFiles` as JSON."""

TRACED_STEPS: Final = 20

_OPTION: Final = "profiler-config"
_PYTHON = re.compile(r"python|vllm", re.IGNORECASE)
_TICK = 0.2
_COUNTED_WITHIN_S = 10.0
"""For counters of an engine that py-spy has just stopped again and again."""
_SEED_OFFSET = 2_000_003
"""Gives the runs of a profile prompts that no measured run has."""


@dataclass(frozen=True)
class ProfileLimits:
    """How much is sampled, and how long is waited. ``rate``: samples a second; times in seconds.

    Four processes with their threads are stopped for every sample: on two cores a rate of 100 falls behind.
    """

    windows: int = 3
    window: float = 10.0
    rate: int = 50
    load: float = 120.0
    """For the client to make the engine work."""
    trace: float = 30.0
    """For the engine to make the traced steps."""
    answer: float = 60.0
    """For the profiler to start, and to stop."""
    least_steps: int = 5
    """Steps of a window, at least."""


@dataclass(frozen=True)
class SampledWindow:
    """A recording of stacks, by its file's name, with its seconds and the engine's steps in them."""

    file: FileName
    seconds: Seconds
    steps: Seconds


@dataclass(frozen=True)
class ProfileFiles:
    """What a profile launch recorded, in ``profile/`` of its attempt; ``problems``: why something is not."""

    windows: tuple[SampledWindow, ...] = ()
    traces: tuple[FileName, ...] = ()
    problems: tuple[str, ...] = ()


def find_py_spy() -> Path | None:
    """py-spy of this installation (``perfbisect[explain]``), or of the PATH."""
    own = Path(sys.executable).with_name("py-spy")
    found = str(own) if os.access(own, os.X_OK) else shutil.which("py-spy")
    return Path(found) if found else None


PTRACE_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")


def sampling_problem(py_spy: Path | None, *, is_root: bool, scope: Path = PTRACE_SCOPE) -> str:
    """Why py-spy cannot sample processes of this user; empty if it can."""
    if py_spy is None:
        return "py-spy is not installed"
    try:
        level = int(scope.read_text().strip())
    except (OSError, ValueError):
        level = 0
    if is_root or level == 0:
        return ""
    return f"{scope} is {level}: only root may read the stacks of other processes"


def with_torch_profiler(command: ServerCommand, package: Path, folder: Path) -> ServerCommand:
    """The command with the torch profiler ready to be started, as the engine's era has it.

    ``package``: the folder of the engine's code. Before ``--profiler-config`` (vLLM 0.13) variables say it;
    engines that have the option ignore them.
    """
    if any(word.split("=")[0].split(".")[0] == f"--{_OPTION}" for word in command.args):
        return command
    wanted: dict[str, object] = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        # The API server makes no steps of the model.
        "ignore_frontend": True,
        "max_iterations": TRACED_STEPS,
    }
    try:
        text = (package / "config" / "profiler.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if "torch_profiler_dir" in text:
        # The engine refuses options that its version does not have: its source says which it has.
        known = {name: value for name, value in wanted.items() if re.search(rf"^    {name}:", text, re.M)}
        return replace(command, args=(*command.args, f"--{_OPTION}", json.dumps(known)))
    variables = {
        "VLLM_TORCH_PROFILER_DIR": str(folder),
        "VLLM_TORCH_PROFILER_WITH_STACK": "0",
        "VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM": "1",
        "VLLM_PROFILER_MAX_ITERS": str(TRACED_STEPS),
    }
    return replace(command, env={**command.env, **variables})


def engine_steps(server: Server) -> float | None:
    """Steps of the engine since its start; None if it does not count them."""
    return server.counters(_COUNTED_WITHIN_S).total("iterations")


def engine_root(owned: ProcessTree) -> int:
    """The first Python process of a server: a lease command or a container may stand before it."""
    named = {row.pid: row for row in owned.living() if _PYTHON.match(row.name)}
    roots = [row for row in named.values() if row.parent not in named]
    # The oldest is the API server, below which py-spy finds the engine's processes.
    return min(roots, key=lambda row: (row.created, row.pid)).pid if roots else owned.pid


@dataclass
class ProfileCapture:
    """Samples a server while it works; ``run`` belongs to a thread beside the load.

    ``finished``: set at its end, whatever it recorded.
    """

    server: Server
    folder: Path
    token: str
    env: Mapping[str, str]
    limits: ProfileLimits
    stop_requested: StopRequested
    py_spy: Path | None
    finished: threading.Event = field(default_factory=threading.Event)
    abandoned: threading.Event = field(default_factory=threading.Event)
    """The load has ended."""
    _windows: list[SampledWindow] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Record the windows, then the trace; a problem of one does not prevent the other."""
        try:
            for part in (self._sample, self._trace):
                try:
                    part()
                except (PerfbisectError, NoAnswerError, OSError) as error:
                    if not isinstance(error, Interrupted):
                        self._problems.append(logs.excerpt(str(error), 300))
        finally:
            self.finished.set()

    @property
    def files(self) -> ProfileFiles:
        """What was recorded."""
        names = sorted(path.name for path in self.folder.glob("*.pt.trace.json*"))
        # That of the API server has no steps of the model.
        traces = tuple(name for name in names if "async_llm" not in name)
        return ProfileFiles(tuple(self._windows), traces, tuple(self._problems))

    def _is_over(self) -> bool:
        return self.stop_requested() or self.abandoned.is_set()

    def _sample(self) -> None:
        if self.py_spy is None:
            self._problems.append("py-spy is not installed: no stacks")
            return
        for number in range(1, self.limits.windows + 1):
            if not self._await_steps(1, self.limits.load):
                self._problems.append("the engine made no steps, or does not count them: no stacks")
                return
            self._record(self.py_spy, f"stacks-{number}.collapsedstack.txt")

    def _record(self, py_spy: Path, name: str) -> None:
        limits, output = self.limits, self.folder / name
        log = self.folder / "py-spy.log"
        argv = [
            str(py_spy), "record", "--pid", str(engine_root(self.server.owned)), "--format", "raw",
            "--rate", str(limits.rate), "--duration", f"{limits.window:.0f}",
            "--subprocesses", "--threads", "--idle", "--full-filenames", "--output", str(output),
        ]  # fmt: skip
        # The seconds are those of the steps: py-spy may fall behind, and its own start counts too.
        steps, began = engine_steps(self.server), time.monotonic()
        ended = commands.run(
            argv,
            env=self.env,
            cwd=self.folder,
            log=log,
            token=f"{self.token}.py-spy",
            timeout=limits.window * 4 + 30,
            stop_requested=self._is_over,
        )
        after, seconds = engine_steps(self.server), time.monotonic() - began
        if ended.code or ended.timed_out or not output.is_file():
            self._problems.append(f"py-spy failed: {logs.cause(log) or logs.tail(log)}")
        elif steps is None or after is None or after - steps < limits.least_steps:
            self._problems.append(f"{name}: fewer than {limits.least_steps} steps in {seconds:.0f} s")
        else:
            self._windows.append(SampledWindow(name, round(seconds, 3), after - steps))

    def _trace(self) -> None:
        if not self._await_steps(1, self.limits.load):
            return
        url = self.server.endpoint.base_url
        try:
            started = http.ask_server("POST", f"{url}/start_profile", self.limits.answer)
            if started.status != 200:
                self._problems.append(f"the engine has no torch profiler ({started.status}): no trace")
                return
            self._await_steps(TRACED_STEPS + 5, self.limits.trace)
            stopped = http.ask_server("POST", f"{url}/stop_profile", self.limits.answer)
            if stopped.status != 200:
                self._problems.append(f"/stop_profile: {stopped}")
        except NoAnswerError as error:
            self._problems.append(f"the torch profiler was given up: {error}")

    def _await_steps(self, count: int, limit: float) -> bool:
        """Wait for steps of the engine; False if it makes none in time, or all is over."""
        first, end = engine_steps(self.server), time.monotonic() + limit
        while not self._is_over() and time.monotonic() < end:
            time.sleep(_TICK)
            now = engine_steps(self.server)
            first = now if first is None else first
            if now is not None and first is not None and now - first >= count:
                return True
        return False


def profile_load(
    bench: BenchRuns, env: Mapping[str, str], sink: Sink, limits: ProfileLimits | None = None
) -> None:
    """Profile a warm server under the load of its cell, which is repeated until all is recorded.

    Raises:
        BlamedError: the load failed, with its fault.
        MachineError: another process listens on the port.
        Interrupted: a stop was requested.
    """
    limits = limits or ProfileLimits()
    record, stop_requested = bench.record, bench.stop_requested
    folder = record.request.folder / FOLDER
    folder.mkdir(exist_ok=True)
    capture = ProfileCapture(bench.server, folder, record.token, env, limits, stop_requested, find_py_spy())
    thread = threading.Thread(target=capture.run, name="profile", daemon=True)
    # The load ends with the recording, not with its last request.
    load = replace(bench, stop_requested=lambda: stop_requested() or capture.finished.is_set())
    start_thread(thread)
    try:
        index = 0
        while not capture.finished.is_set():
            index += 1
            record.log = bench.log(f"profile-{index}")
            try:
                load.run(
                    f"profile-{index}", index, record.request.cell.seed + _SEED_OFFSET + index, judged=False
                )
            except Interrupted:
                if stop_requested() or not capture.finished.is_set():
                    raise
    finally:
        capture.abandoned.set()
        thread.join(limits.answer + _TICK)
        files = capture.files
        record.facts[FACT] = asdict(files)
    sink("profile", {"windows": len(files.windows), "traces": len(files.traces), "problems": files.problems})
