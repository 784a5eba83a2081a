"""Faults of the machine, with real processes: no attempt is blamed on a change, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.machine.interference import UNJUDGED, parse_limits
from perfbisect.machine.interference import InterferenceLimits as MachineLimits
from perfbisect.machine.slots import Slot
from perfbisect.measure import bench
from perfbisect.model.attempt import RunResult
from perfbisect.system import held_files, processes
from tests.long import mostly_long
from tests.measure.pretend import Watch, attempt, environment, failure
from tests.system.stand_ins import start, until

FOREIGN = MachineLimits(foreign_cpu=0.7, steal=None, available=None, memory_pressure=None)


def send(number: signal.Signals, name: str = "") -> Callable[[Watch], None]:
    """Sends a signal to the leader of the server's processes, or to the one with a name."""

    def at(watch: Watch) -> None:
        rows = processes.tree(watch.launched["token"], watch.launched["pid"], watch.launched["created"])
        for row in rows:
            if row.name == name or (not name and row.pid == watch.launched["pid"]):
                os.kill(row.pid, number)

    return at


CORE = "VLLM::EngineCor"


@pytest.mark.parametrize(
    ("name", "phase"),
    mostly_long(
        product(("", CORE), ("launch", "ready", "warm", "bench")),
        short=[("", "launch"), ("", "bench"), (CORE, "ready"), (CORE, "warm")],
    ),
)
def test_server_that_is_killed_from_outside_is_never_the_changes(
    tmp_path: Path, phase: str, name: str
) -> None:
    """Half the launches of clean commits end so; each is lost and none is evidence."""
    if (phase, name) == ("launch", CORE):
        return  # it is not there yet
    made = attempt(tmp_path, watch=Watch(at={phase: send(signal.SIGKILL, name)}), runs=2)
    assert failure(made).fault == "machine", made.failure
    assert len(made.runs) == (1 if phase == "bench" else 0)


@pytest.mark.parametrize("name", ["", CORE])
def test_engine_that_crashes_is_the_changes(tmp_path: Path, name: str) -> None:
    """A segmentation fault leaves a line in the log, whoever is the parent."""
    made = attempt(tmp_path, watch=Watch(at={"ready": send(signal.SIGSEGV, name)}))
    assert failure(made).fault == "change", made.failure


@pytest.mark.parametrize("overlap", [True, False])
def test_client_that_waits_for_a_server_that_has_ended_is_stopped(tmp_path: Path, overlap: bool) -> None:
    begun = tmp_path / "attempt" / "client-warm.log"

    def when_it_runs() -> None:
        until(begun.exists)
        send(signal.SIGKILL)(watch)

    killer = threading.Thread(target=when_it_runs)
    watch = Watch(at={"ready": lambda _: killer.start()})
    client = environment(tmp_path, "client", PRETEND_FAULT="hang")
    made = attempt(tmp_path, client=client, watch=watch, overlap=overlap)
    killer.join()
    assert failure(made).fault == "machine"
    assert "its client went on, and was stopped" in failure(made).reason


HOLD = """
import mmap, os, pathlib, sys
path = pathlib.Path("/dev/shm", sys.argv[1])
handle = path.open("w+b")
handle.truncate(4096)
held = mmap.mmap(handle.fileno(), 4096)
"""


def test_orphaned_core_and_its_shared_memory_are_cleared_away(tmp_path: Path) -> None:
    """kill -9 of the API server alone leaves core, worker and what they share."""
    name = f"pb-test-{os.getpid()}"
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif 'serve' in sys.argv and 'bench' not in sys.argv:\n    sys.argv[1:1] = [{name!r}]\n"
        + "".join(f"    {line}\n" for line in HOLD.strip().splitlines())
        + "    del sys.argv[1]\n"
    )
    engine = environment(tmp_path)
    engine = environment(tmp_path, PYTHONPATH=f"{tmp_path}:{engine.env['PYTHONPATH']}")
    orphans: list[processes.Process] = []

    def kill(watch: Watch) -> None:
        send(signal.SIGKILL)(watch)
        until(lambda: not processes.alive(watch.launched["pid"], watch.launched["created"]))
        orphans.extend(
            row for row in processes.tree(watch.launched["token"], 0, 0.0) if row.name.startswith("VLLM::")
        )

    client = environment(tmp_path, "client")
    made = attempt(tmp_path, engine, client, watch=Watch(at={"warm": kill}))
    assert failure(made).fault == "machine"
    assert {row.name for row in orphans} == {CORE, "VLLM::Worker"}
    assert not any(processes.alive(*row.identity) for row in orphans)
    assert name not in {Path(path).name for path, _ in held_files.list_segments()}
    assert any(name in path for path in made.provenance.facts["shared_memory_removed"])


@contextmanager
def slow_proxy() -> Iterator[tuple[int, list[int]]]:
    """A proxy that never answers; who connects to it is counted."""
    came: list[int] = []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            kept = []
            while True:
                try:
                    kept.append(listening.accept())
                except OSError:
                    return
                came.append(1)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], came
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("overlap", [True, False])
def test_proxy_of_the_shell_is_not_used_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """Neither by the client nor by perfbisect itself, which asks the server over HTTP too."""
    with slow_proxy() as (port, came):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        made = attempt(tmp_path, overlap=overlap)
    assert made.failure is None
    assert came == []


HOG = "while True: pass"


@pytest.mark.processes
def test_hog_voids_the_attempt_it_touches(tmp_path: Path) -> None:
    """A CPU hog during a third of the runs, on the core of their slot."""
    core = min(os.sched_getaffinity(0))
    slot = Slot("one", server_cores=(core,))
    made = []
    for index in range(3):
        folder = tmp_path / str(index)
        folder.mkdir()
        hog = start(folder, f"import os; os.sched_setaffinity(0, {{{core}}})\n{HOG}") if index == 1 else None
        try:
            made.append(attempt(folder, slot=slot, limits_of_machine=FOREIGN))
        finally:
            if hog is not None:
                processes.stop(hog, 0.0)
    assert (failure(made[1]).phase, failure(made[1]).fault) == ("bench", "machine")
    assert (
        "discarded: other work used" in failure(made[1]).reason and "(limit 70%)" in failure(made[1]).reason
    )
    for other in (made[0], made[2]):  # unless somebody else had this core
        assert other.failure is None or "discarded: other work used" in other.failure.reason
        assert other.provenance.client_digest == made[1].provenance.client_digest


def test_failure_under_load_is_no_evidence(tmp_path: Path) -> None:
    """The engine dies in a run while others hold the memory: nobody can say that it is the change."""
    limits = MachineLimits(foreign_cpu=None, steal=None, available=1.0, memory_pressure=None)
    server = environment(tmp_path, "server", PRETEND_FAULT="die_in_bench")
    for chosen, fault in ((UNJUDGED, "change"), (limits, "machine")):
        made = attempt(
            tmp_path,
            server,
            environment(tmp_path, "client"),
            limits_of_machine=chosen,
            token=os.urandom(16).hex(),
        )
        assert failure(made).fault == fault, made.failure
    assert "meanwhile:" in failure(made).reason


def test_engine_that_ends_with_an_error_of_its_own_is_the_changes_on_a_busy_machine_too(
    tmp_path: Path,
) -> None:
    limits = MachineLimits(foreign_cpu=None, steal=None, available=1.0, memory_pressure=None)
    server = environment(tmp_path, "server", PRETEND_FAULT="import_error")
    made = attempt(tmp_path, server, environment(tmp_path, "client"), limits_of_machine=limits)
    assert (failure(made).phase, failure(made).fault) == ("launch", "change")


@pytest.mark.parametrize("exact", [False, True])
def test_load_discards_no_launch_of_exact_metrics(tmp_path: Path, exact: bool) -> None:
    # Below what any machine has: each run is one under load.
    limits = MachineLimits(foreign_cpu=-1.0)
    made = attempt(tmp_path, limits_of_machine=limits, exact=exact)
    if exact:
        assert made.failure is None and len(made.runs) == 1
    else:
        assert made.failure is not None and "other work used" in made.failure.reason


def test_limits_as_they_are_typed() -> None:
    assert parse_limits("") == MachineLimits()
    assert parse_limits("off") == UNJUDGED
    assert parse_limits(" foreign_cpu=0.5, steal=off") == MachineLimits(foreign_cpu=0.5, steal=None)
    for text, said in (
        ("cpu=1", "no limit 'cpu'"),
        ("steal", "'steal' is not"),
        ("burst=off", "'burst=off'"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_limits(text)


def test_run_whose_packets_were_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged is each measured run, and what is seen of it, but not the warm run before it."""
    seen: list[RunResult] = []

    def late(run: RunResult, _: MachineLimits) -> str:
        seen.append(run)
        return "667.9 ms for the client and 238.0 ms for the server"

    monkeypatch.setattr(bench, "late_packets_reason", late)
    made = attempt(tmp_path, runs=2)
    found = failure(made)
    assert (found.phase, found.fault, found.code) == ("bench", "machine", "load_exceeded")
    assert "discarded: 667.9 ms for the client" in found.reason
    assert made.runs == ()
    (judged,) = seen
    assert judged.index == 1 and judged.facts["sampled"]["samples"] > 0
