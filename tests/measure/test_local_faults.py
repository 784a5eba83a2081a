"""Everything that can go wrong in an attempt comes back as its failure, with its fault; nothing stays."""

from __future__ import annotations

import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfbisect.errors import BuildError, Interrupted, MachineError, ServerError
from perfbisect.machine import profile
from perfbisect.measure import local
from perfbisect.measure.attempt import read_attempt
from perfbisect.measure.executor import PhaseLimits
from perfbisect.system import ports, processes
from perfbisect.system.processes import OwnedProcess
from tests.long import mostly_long
from tests.measure.pretend import LIMITS, Watch, attempt, cell, environment, failure
from tests.system.stand_ins import listen, until

SHORT = PhaseLimits(build=30.0, ready=1.5, first_request=20.0, bench=20.0, stop=1.0)


@pytest.mark.parametrize(
    "fault, phase, said",
    [
        ("import_error", "launch", "exit code 1 before it was ready: ImportError"),
        ("exit0", "launch", "exit code 0 before it was ready"),
        ("exit1", "launch", "exit code 1 before it was ready"),
        ("never_ready", "launch", "not ready after 2 s"),
        ("wrong_model", "launch", "it serves"),
        ("die_at_first", "first_request", "at the first request"),
        ("error_body", "first_request", "an error, with status 200"),
        ("error_stream", "first_request", "the first stream has an error, with status 200"),
        ("nothing_completed", "first_request", "the first streamed request was refused: 500"),
    ],
)
def test_server_that_misbehaves_is_the_changes_fault(
    tmp_path: Path, fault: str, phase: str, said: str
) -> None:
    server = environment(tmp_path, "server", PRETEND_FAULT=fault)
    limits = SHORT if fault == "never_ready" else LIMITS
    made = attempt(tmp_path, server, environment(tmp_path, "client"), limits=limits)
    found = failure(made)
    assert (found.phase, found.fault) == (phase, "change")
    assert said in found.reason
    assert Path(found.log).is_file()
    assert made.runs == ()
    assert made.seconds["launch"] > 0  # a start that failed took its time, too
    assert read_attempt(tmp_path / "attempt") == made


@pytest.mark.parametrize(
    "fault, said",
    [
        ("client_exit1", "exit code 1"),
        ("no_file", "wrote no run-warm.json"),
        ("nothing_completed", "0 of 4 requests completed"),
        ("zero_template", "0"),
        ("nan", "nan"),
        ("missing_keys", "_ms"),
        ("garbage_json", "not JSON"),
        ("half_written", "not JSON"),
        ("odd_types", "errors is 1.5, not a list"),
        ("pipe", "cannot be read: it is no file"),
    ],
)
def test_client_that_lies_or_fails_is_no_measurement(tmp_path: Path, fault: str, said: str) -> None:
    client = environment(tmp_path, "client", PRETEND_FAULT=fault)
    made = attempt(tmp_path, environment(tmp_path, "server"), client)
    found = failure(made)
    assert found.phase == "warm"
    assert said.lower() in found.reason.lower()
    assert made.runs == ()
    # A client that says that requests failed accuses the server.
    assert found.fault == ("change" if fault == "nothing_completed" else "client")


def test_server_that_stalls(tmp_path: Path) -> None:
    server = environment(tmp_path, "server", PRETEND_FAULT="stall")
    made = attempt(
        tmp_path, server, environment(tmp_path, "client"), limits=PhaseLimits(first_request=1.0, stop=1.0)
    )
    assert (failure(made).phase, failure(made).fault) == ("first_request", "change")
    assert "no answer within 1 s" in failure(made).reason


def test_gates_hold_in_measured_runs_too(tmp_path: Path) -> None:
    """The warm run is good, the first measured one is not."""
    interpreter = wrapper(
        tmp_path, 'case "$*" in *run-1.json*) PRETEND_FAULT=nan; export PRETEND_FAULT ;; esac', ' "$@"'
    )
    made = attempt(tmp_path, client=environment(tmp_path, "client", interpreter), overlap=False)
    assert (failure(made).phase, failure(made).fault) == ("bench", "client")


def wrapper(folder: Path, first: str, arguments: str = ' "$@"') -> Path:
    """An interpreter that does something first."""
    path = folder / "wrapped-python"
    path.write_text(f"#!/bin/sh\n{first}\nexec {sys.executable}{arguments}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


BENCH_ONLY = 'case "$*" in *"bench serve"*) {} ;; esac'


def test_disk_that_is_full_under_the_client(tmp_path: Path) -> None:
    """A real error of a full device, in the client's process."""
    broken = BENCH_ONLY.format(f"exec {sys.executable} -c \"open('/dev/full', 'w').write('x' * 99999)\"")
    client = environment(tmp_path, "client", wrapper(tmp_path, broken))
    made = attempt(tmp_path, client=client, overlap=False)
    assert (failure(made).phase, failure(made).fault) == ("warm", "machine")
    assert failure(made).reason.startswith("the disk is full: ")


def test_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    found = failure(attempt(tmp_path, environment(tmp_path, "server")))
    assert (found.phase, found.fault) == ("build", "machine")
    assert "1 MiB free, an attempt needs 64 MiB" in found.reason


def test_kernel_that_ends_processes_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of such ends rises in the attempt: a worker was ended, the log knows nothing of it."""
    count = iter(range(100))
    monkeypatch.setattr(profile, "oom_kills", lambda: next(count))
    server = environment(tmp_path, "server", PRETEND_FAULT="exit1")
    made = attempt(tmp_path, server, environment(tmp_path, "client"))
    assert failure(made).fault == "machine"
    assert "lack of memory" in failure(made).reason


def test_measurement_survives_a_disk_too_full_for_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local, "write_attempt", full)
    watch = Watch()
    made = attempt(tmp_path, watch=watch)
    assert made.failure is None and len(made.runs) == 1
    assert "No space left" in str(dict(watch.events)["warning"]["text"])


@pytest.mark.parametrize(
    "error, fault, said",
    [
        (BuildError("compiled sources differ", where="build.log"), "change", "compiled sources differ"),
        (BuildError("uv failed", output="No space left on device"), "machine", "the disk is full: uv failed"),
        (MachineError("lock is held"), "machine", "lock is held"),
        (
            OSError(28, "No space left on device", "/cache/x"),
            "machine",
            "the disk is full: No space left on device: /cache/x",
        ),
    ],
)
def test_environment_that_is_not_built(tmp_path: Path, error: Exception, fault: str, said: str) -> None:
    made = attempt(tmp_path, error)
    assert (failure(made).phase, failure(made).fault) == ("build", fault)
    assert failure(made).reason.startswith(said)
    assert made.provenance.cell_digest == cell().digest
    assert made.provenance.environment_key == ""


def test_mistake_of_ours_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    def stumble(_: Watch) -> None:
        raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        attempt(tmp_path, watch=Watch(at={"warm": stumble}))


@pytest.fixture
def fixed_port(monkeypatch: pytest.MonkeyPatch) -> int:
    port = ports.free_port()
    monkeypatch.setattr(ports, "free_port", lambda: port)
    return port


def test_stale_server_shares_the_port(tmp_path: Path, fixed_port: int) -> None:
    stale = listen(tmp_path, fixed_port, name="stale")
    try:
        with pytest.raises(AssertionError):  # the look at what is left sees the stale one, as it must
            attempt(tmp_path, limits=SHORT)
        made = read_attempt(tmp_path / "attempt")
        assert made is not None
        assert (failure(made).phase, failure(made).fault) == ("launch", "machine")
        assert f"(pid {stale.pid})" in failure(made).reason
        assert stale.exited() is None
    finally:
        processes.stop(stale, 0.0)


def test_port_that_is_taken(tmp_path: Path, fixed_port: int) -> None:
    """Somebody binds the port without sharing it before the server can."""
    binds = f"import socket, time; s = socket.socket(); s.bind(('127.0.0.1', {fixed_port}))"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{binds}; print(1, flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    with holder.stdout:
        holder.stdout.readline()
        made = attempt(tmp_path, limits=SHORT)
        holder.kill()
        holder.wait(10)
    assert (failure(made).phase, failure(made).fault) == ("launch", "machine")
    assert failure(made).reason.startswith("a port is taken")


def test_what_does_not_end_is_told_and_the_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = processes.stop

    def stop(owned: OwnedProcess, grace: float = 15.0) -> tuple[str, ...]:
        real(owned, grace)
        if owned.log.name == "server.log":
            raise ServerError("1 process(es) live on")
        return ()

    monkeypatch.setattr(processes, "stop", stop)
    made = attempt(tmp_path)
    assert (failure(made).phase, failure(made).fault) == ("stop", "machine")
    assert len(made.runs) == 1


@pytest.mark.parametrize("phase", ["build", "launch", "ready", "warm", "bench"])
def test_stop_that_is_asked_for(tmp_path: Path, phase: str) -> None:
    asked: list[int] = []
    watch = Watch(at={phase: lambda _: asked.append(1)})
    with pytest.raises(Interrupted):
        attempt(tmp_path, watch=watch, runs=2, stop_requested=lambda: bool(asked), limits=LIMITS)
    assert not (tmp_path / "attempt" / "attempt.json").exists()


@pytest.mark.parametrize("phase", mostly_long(["launch", "ready", "warm"], short=["ready"]))
def test_ctrl_c(tmp_path: Path, phase: str) -> None:
    """A process that runs an attempt is interrupted as by a terminal: its servers are gone when it is."""
    script = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from perfbisect.errors import Interrupted
        from tests.measure.pretend import Watch, attempt, environment

        folder = Path({str(tmp_path)!r})
        def tell(watch):
            print(watch.launched["token"], watch.launched["pid"], watch.launched["created"], flush=True)
        server = environment(folder, "server", PRETEND_FAULT="slow_ready,orphans", PRETEND_SLOW_SECONDS="1")
        client = environment(folder, "client", PRETEND_FAULT={"hang" if phase == "ready" else ""!r})
        try:
            attempt(folder, server, client, watch=Watch(at={{{phase!r}: tell}}), runs=9)
        except Interrupted:
            sys.exit(130)
        """
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert caller.stdout is not None
    with caller.stdout:
        token, pid, created = caller.stdout.readline().split()
        wait_for(lambda: processes.tree(token, int(pid), float(created)))
        caller.send_signal(signal.SIGINT)
        assert caller.wait(30) == 130
    assert processes.tree(token, int(pid), float(created)) == ()


def test_kill_of_perfbisect_leaves_what_its_token_finds(tmp_path: Path) -> None:
    """kill -9 in mid-attempt: server, engine and client live on; the token in the journal ends them."""
    token = "5e" * 16
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from tests.measure.pretend import Watch, attempt, environment

        folder = Path({str(tmp_path)!r})
        attempt(folder, environment(folder, "server", PRETEND_FAULT="orphans"),
                environment(folder, "client", PRETEND_FAULT="hang"), token={token!r}, overlap=False)
        """
    )
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    wait_for(lambda: (tmp_path / "attempt" / "client-warm.log").exists())
    wait_for(lambda: len(processes.tree(token, 0, 0.0)) == 4)  # API server, engine, worker, client
    caller.kill()
    caller.wait(10)
    # A client whose id perfbisect has not read yet ends with perfbisect.
    assert len(processes.stop_leftovers(token, 0, 0.0, grace=0.2)) >= 3
    assert processes.tree(token, 0, 0.0) == ()


def wait_for(true: Callable[[], object]) -> None:
    until(true, 30.0)
