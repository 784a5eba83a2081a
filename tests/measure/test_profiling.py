"""Profile launches: what is recorded of a server under load, and that nothing of it is a measurement."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perfbisect.measure import profiling
from perfbisect.measure.profiling import (
    ProfileCapture,
    ProfileLimits,
    SampledWindow,
    engine_root,
    engine_steps,
    sampling_problem,
    with_torch_profiler,
)
from perfbisect.serving.families import Endpoint, ProbeRequest, ServerCommand
from perfbisect.serving.server import Server
from perfbisect.system.processes import Process
from tests import loopback
from tests.measure.pretend import Watch, attempt

QUICK = ProfileLimits(windows=2, window=1.0, load=2.0, trace=2.0, answer=2.0, least_steps=1)
COMMAND = ServerCommand(("-m", "vllm", "serve"), {"A": "1"}, ProbeRequest("/", {}))

STUB = """\
import sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if {code}:
    sys.exit("Error: Permission Denied")
path = sys.argv[sys.argv.index("--output") + 1]
with open(path, "w") as stream:
    stream.write("process 1:\\"VLLM::EngineCore\\";thread (1): MainThread;f (a.py:1) 100\\n")
"""


def py_spy(folder: Path, code: int = 0) -> Path:
    script = folder / "stub.py"
    script.write_text(STUB.format(code=code))
    command = folder / "py-spy"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    command.chmod(0o755)
    return command


@dataclass
class Engine:
    """Makes ten steps whenever it is asked for its counters."""

    counts: bool = True
    profiler: bool = True
    asked: list[str] = field(default_factory=list)
    steps: int = 0

    def answer(self, path: str) -> loopback.Answer:
        if path != "/metrics":
            self.asked.append(path)
            return (200 if self.profiler else 404), b"", {}
        self.steps += 10
        name = "vllm:iteration_tokens_total_count" if self.counts else "vllm:other"
        return 200, "".join(f'{name}{{engine="{i}"}} {self.steps / 2}\n' for i in range(2)).encode(), {}


@pytest.fixture
def serve() -> Iterator[Any]:
    with ExitStack() as servers:

        def start(engine: Engine) -> Server:
            address = servers.enter_context(loopback.answering(engine.answer))
            owned = cast(Any, SimpleNamespace(pid=os.getpid(), living=tuple))
            return Server(owned, Endpoint(int(address.rpartition(":")[2]), "m"), COMMAND)

        yield start


def capture(server: Server, folder: Path, spy: Path | None, limits: ProfileLimits = QUICK) -> ProfileCapture:
    made = ProfileCapture(server, folder, "ab" * 16, dict(os.environ), limits, lambda: False, spy)
    made.run()
    assert made.finished.is_set()
    return made


def test_the_first_python_process_is_sampled() -> None:
    def row(pid: int, parent: int, name: str) -> Process:
        return Process(pid, float(pid), parent, 1, 1, "S", name, 0.0)

    rows = (row(5, 1, "lease"), row(9, 8, "VLLM::EngineCore"), row(8, 5, "python3.11"), row(7, 5, "sh"))
    owned = cast(Any, SimpleNamespace(pid=5, living=lambda: rows))
    assert engine_root(owned) == 8
    assert engine_root(cast(Any, SimpleNamespace(pid=5, living=lambda: rows[:1]))) == 5


def test_windows_with_their_steps_and_a_trace(serve: Any, tmp_path: Path) -> None:
    engine = Engine()
    for name in ("rank0.1.pt.trace.json.gz", "host_7.async_llm.2.pt.trace.json.gz", "profiler_out.txt"):
        (tmp_path / name).touch()
    files = capture(serve(engine), tmp_path, py_spy(tmp_path)).files
    assert [(window.file, window.steps) for window in files.windows] == [
        ("stacks-1.collapsedstack.txt", 10.0),
        ("stacks-2.collapsedstack.txt", 10.0),
    ]
    assert all(window.seconds > 0 for window in files.windows)
    assert "VLLM::EngineCore" in (tmp_path / "stacks-2.collapsedstack.txt").read_text()
    assert engine.asked == ["/start_profile", "/stop_profile"]
    assert (files.traces, files.problems) == (("rank0.1.pt.trace.json.gz",), ())


def test_what_is_missing_is_said(serve: Any, tmp_path: Path) -> None:
    files = capture(serve(Engine(profiler=False)), tmp_path, None).files
    assert files.windows == ()
    assert files.problems == (
        "py-spy is not installed: no stacks",
        "the engine has no torch profiler (404): no trace",
    )


def test_a_sampler_that_fails_does_not_prevent_the_trace(serve: Any, tmp_path: Path) -> None:
    engine = Engine()
    files = capture(serve(engine), tmp_path, py_spy(tmp_path, 1)).files
    assert files.windows == ()
    assert len(files.problems) == 2 and all("Permission Denied" in problem for problem in files.problems)
    assert engine.asked == ["/start_profile", "/stop_profile"]


def test_an_engine_that_makes_no_steps_is_not_sampled(serve: Any, tmp_path: Path) -> None:
    limits = ProfileLimits(windows=2, load=0.3, answer=2.0)
    engine = Engine(counts=False)
    files = capture(serve(engine), tmp_path, py_spy(tmp_path), limits).files
    assert (files.windows, engine.asked) == ((), [])
    assert files.problems == ("the engine made no steps, or does not count them: no stacks",)


def test_a_profiler_that_does_not_stop_is_given_up(serve: Any, tmp_path: Path) -> None:
    engine = Engine()
    held = threading.Event()
    answer = engine.answer

    def slow(path: str) -> tuple[int, str]:
        if path == "/stop_profile":
            held.wait(10.0)
        return answer(path)

    engine.answer = slow  # type: ignore[method-assign]
    limits = ProfileLimits(windows=0, load=2.0, trace=2.0, answer=1.0)
    files = capture(serve(engine), tmp_path, py_spy(tmp_path), limits).files
    held.set()
    assert files.problems == ("the torch profiler was given up: no answer within 1 s",)


def test_a_load_that_ended_ends_the_sampling(serve: Any, tmp_path: Path) -> None:
    made = ProfileCapture(
        serve(Engine()), tmp_path, "ab" * 16, dict(os.environ), QUICK, lambda: False, py_spy(tmp_path)
    )
    made.abandoned.set()
    made.run()
    assert made.files.windows == ()


def test_steps_of_several_engines_are_summed(serve: Any) -> None:
    engine = Engine()
    server = serve(engine)
    assert engine_steps(server) == 10.0
    assert engine_steps(serve(Engine(counts=False))) is None


def test_the_torch_profiler_by_era(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "profiler.py").write_text(
        "class ProfilerConfig:\n    profiler: str\n    torch_profiler_dir: str\n"
        "    torch_profiler_with_stack: bool\n"
    )
    command = with_torch_profiler(COMMAND, tmp_path, folder)
    assert command.args[:-1] == (*COMMAND.args, "--profiler-config")
    # Only what this engine knows: it refuses other names.
    assert json.loads(command.args[-1]) == {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
    }
    before = with_torch_profiler(COMMAND, tmp_path / "older", folder)
    assert before.args == COMMAND.args
    assert before.env["VLLM_TORCH_PROFILER_DIR"] == str(folder)
    assert before.env["A"] == "1"


def test_a_cell_with_a_profiler_of_its_own_keeps_it(tmp_path: Path) -> None:
    for word in ("--profiler-config", "--profiler-config={}", "--profiler-config.profiler=cuda"):
        own = ServerCommand(("serve", word), {}, ProbeRequest("/", {}))
        assert with_torch_profiler(own, tmp_path, tmp_path) == own


def test_who_may_sample(tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    spy = Path("/bin/py-spy")
    assert "not installed" in sampling_problem(None, is_root=True, scope=scope)
    assert sampling_problem(spy, is_root=False, scope=scope) == ""
    scope.write_text("1\n")
    assert sampling_problem(spy, is_root=True, scope=scope) == ""
    assert "only root" in sampling_problem(spy, is_root=False, scope=scope)


def test_a_profile_launch_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter(range(0, 10_000_000, 100))
    monkeypatch.setattr(profiling, "engine_steps", lambda *_: float(next(counted)))
    monkeypatch.setattr(profiling, "find_py_spy", lambda: py_spy(tmp_path))
    watch = Watch()
    made = attempt(tmp_path, watch=watch, runs=2, purpose="profile")
    assert (made.failure, made.runs, made.purpose) == (None, (), "profile")
    assert watch.phases == ["build", "launch", "ready", "warm", "profile", "stop"]
    facts = made.provenance.facts[profiling.FACT]
    assert [SampledWindow(**window).steps for window in facts["windows"]] == [100.0] * 3
    assert (tmp_path / "attempt" / "profile" / "stacks-1.collapsedstack.txt").is_file()
    environment = made.provenance.facts["server"]["env"]
    assert environment["VLLM_TORCH_PROFILER_DIR"] == str(tmp_path / "attempt" / "profile")
