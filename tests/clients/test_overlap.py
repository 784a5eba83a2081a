"""The client's host: its runs are what plain commands are; where it cannot be, plain commands are run."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perfbisect.clients.runner import Runner
from perfbisect.errors import ClientError, Interrupted, MachineError
from perfbisect.system import commands, processes
from perfbisect.system.commands import ProcessResult
from perfbisect.system.processes import TOKEN_VARIABLE, never
from tests.measure.pretend import Watch, attempt, environment
from tests.system.stand_ins import until

TOOL = """
import atexit, json, os, signal, sys, time
print("starts", os.getpid(), flush=True)
if "hang" in sys.argv:
    time.sleep(60)
if "raise" in sys.argv:
    raise RuntimeError("as asked")
if "exit" in sys.argv:
    sys.exit(7)
atexit.register(print, "at exit")
told = {
    "name": __name__, "argv": sys.argv, "cwd": os.getcwd(), "first": sys.path[0], "stdin": sys.stdin.read(),
    "leads": os.getsid(0) == os.getpid(), "sigchld": str(signal.getsignal(signal.SIGCHLD)),
    "sigint": str(signal.getsignal(signal.SIGINT)), "main": sys.modules["__main__"].__spec__.name,
    "files": [fd for fd in range(64) if os.path.exists(f"/proc/self/fd/{fd}")],
    "env": dict(os.environ), "wakeup": signal.set_wakeup_fd(-1), "umask": os.umask(0),
}
print(json.dumps(told))
"""
BEFORE = "import time; made = time.monotonic()"

TOKEN = secrets.token_hex(16)
"""Of this process of the tests: others run beside it."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A package with a tool and what it imports."""
    package = tmp_path / "site" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tool.py").write_text(TOOL)
    (package / "before.py").write_text(BEFORE)
    (tmp_path / "cwd").mkdir()
    return tmp_path


def env(site: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(site / "site"), **more}


@contextmanager
def host(site: Path, *modules: str, limit: float = 20.0) -> Iterator[Runner]:
    """A host that has imported ``pkg.before`` and further modules, or could not within the limit."""
    made = Runner(Path(sys.executable), env(site), site / "cwd", TOKEN, ("pkg.before", *modules))
    made.begin()
    try:
        made.ready(limit, never)
        yield made
    finally:
        made.end()
        assert processes.tree(TOKEN, 0, 0.0) == ()


def run(made: Runner, log: Path, *arguments: str, timeout: float = 20.0, **options: Any) -> ProcessResult:
    argv = (sys.executable, "-m", "pkg.tool", *arguments)
    options = {"stop_requested": never, **options}
    return made.run(argv, log=log, token=TOKEN + ".client-1", timeout=timeout, **options)


def has_started(log: Path) -> bool:
    return log.exists() and "starts" in log.read_text()


def told(log: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        next(line for line in log.read_text().splitlines() if line.startswith("{"))
    )
    return document


def test_a_run_is_what_the_plain_command_is(site: Path) -> None:
    with host(site, "pkg.tool_that_is_not_there") as made:
        hosted = run(made, site / "hosted.log", "bench", "--seed", "1")
    plain = commands.run(
        (sys.executable, "-m", "pkg.tool", "bench", "--seed", "1"),
        env=env(site),
        cwd=site / "cwd",
        log=site / "plain.log",
        token=TOKEN + ".client-1",
        timeout=20.0,
    )
    assert (hosted.code, plain.code, hosted.timed_out) == (0, 0, False)
    assert hosted.cpu_seconds > 0
    assert made.imported is not None and made.imported["cpu"] > 0
    left, right = told(site / "hosted.log"), told(site / "plain.log")
    assert left == right
    assert left["env"][TOKEN_VARIABLE] == TOKEN + ".client-1"
    assert (left["name"], left["first"], left["leads"]) == ("__main__", str(site / "cwd"), True)
    for log in ("hosted.log", "plain.log"):
        assert (site / log).read_text().splitlines()[-1] == "at exit"


def test_each_run_is_a_process_of_its_own(site: Path) -> None:
    with host(site) as made:
        ends = [run(made, site / f"{word}.log", word).code for word in ("raise", "exit", "")]
    assert ends == [1, 7, 0]
    assert "RuntimeError: as asked" in (site / "raise.log").read_text()


def test_a_run_at_its_limit_is_ended(site: Path) -> None:
    called: list[int] = []
    with host(site) as made:
        ended = run(made, site / "hang.log", "hang", timeout=0.5, at_limit=lambda: called.append(1))
        again = run(made, site / "again.log")
    assert ended.timed_out and ended.seconds < 20 and called == [1]
    assert again.code == 0 and not again.timed_out


def test_a_run_is_ended_when_a_stop_is_asked_for(site: Path) -> None:
    log = site / "hang.log"
    with host(site) as made:
        with pytest.raises(Interrupted):
            run(made, log, "hang", stop_requested=lambda: has_started(log))
        pid = int(log.read_text().split()[1])
        row = processes.process(pid)
        assert row is None or not row.living


def test_a_run_is_ended_when_a_stop_is_asked_for_before_it_starts(site: Path) -> None:
    log = site / "hang.log"
    with host(site) as made:
        with pytest.raises(Interrupted):
            run(made, log, "hang", stop_requested=lambda: True)
        assert made.host is not None
        assert [row for row in processes.table().values() if row.parent == made.host.pid and row.living] == []


def test_signal_of_a_run_is_told(site: Path) -> None:
    log = site / "hang.log"

    def kill() -> bool:
        if has_started(log):
            os.kill(int(log.read_text().split()[1]), signal.SIGSEGV)
        return False

    with host(site) as made:
        assert run(made, log, "hang", stop_requested=kill).code == -signal.SIGSEGV


@pytest.mark.parametrize(
    "module, said",
    [
        ("raise ImportError('no such symbol')", "ImportError: no such symbol"),
        ("import missing_elsewhere", "missing_elsewhere"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "2 th",
        ),
        ("import time; time.sleep(60)", "not imported after 1 s"),
    ],
)
def test_what_cannot_be_imported_beforehand_is_said(site: Path, module: str, said: str) -> None:
    (site / "site" / "pkg" / "before.py").write_text(module)
    with host(site, limit=1.0 if module[-9:] == "sleep(60)" else 20.0) as made:
        assert said in made.plain
        assert run(made, site / "run.log").code == 0, "as a plain command"


def test_idle_threads_that_end_before_a_fork_are_no_obstacle(site: Path) -> None:
    """As those of OpenBLAS: a handler ends them in whoever forks."""
    (site / "site" / "pkg" / "before.py").write_text(
        textwrap.dedent(
            """
            import os, threading
            gone = threading.Event()
            thread = threading.Thread(target=gone.wait, daemon=True)
            thread.start()
            def end():
                gone.set()
                thread.join()
            os.register_at_fork(before=end)
            """
        )
    )
    with host(site) as made:
        assert run(made, site / "run.log").code == 0


def test_host_that_is_ended_from_outside_is_the_machines(site: Path) -> None:
    log = site / "hang.log"
    with host(site) as made:
        owned = made.host
        assert owned is not None

        def kill() -> bool:
            if has_started(log) and owned.exited() is None:
                os.kill(owned.pid, signal.SIGKILL)
            return False

        with pytest.raises(MachineError, match="ended by signal 9 in hang"):
            run(made, log, "hang", stop_requested=kill)
        pid = int(log.read_text().split()[1])
        until(lambda: (row := processes.process(pid)) is None or not row.living)


def test_host_that_ends_by_itself_is_the_clients(site: Path) -> None:
    (site / "site" / "pkg" / "before.py").write_text("import os; os._exit(3)")
    with pytest.raises(ClientError, match="exit code 3"), host(site):
        pass


def test_host_goes_when_nobody_asks_any_more(site: Path) -> None:
    """kill -9 of its owner: the host and a run of it end by themselves."""
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from tests.clients import test_overlap
        from tests.clients.test_overlap import host, run

        test_overlap.TOKEN = {TOKEN!r}
        site = Path({str(site)!r})
        with host(site) as made:
            run(made, site / "hang.log", "hang")
        """
    )
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    log = site / "hang.log"
    try:
        until(lambda: has_started(log), 60.0)
        assert len(processes.tree(TOKEN, 0, 0.0)) == 2
    finally:
        caller.kill()
        caller.wait(10)
    until(lambda: processes.tree(TOKEN, 0, 0.0) == ())


def test_an_attempt_tells_what_its_host_saved(tmp_path: Path) -> None:
    made = attempt(tmp_path, runs=2)
    facts = made.provenance.facts
    assert facts["client_host"]["mode"] == "host"
    assert facts["client_host"]["import_cpu_seconds"] > 0
    assert facts["saved_seconds"] >= 0
    assert facts["client"]["argv"][1:5] == ["-m", "vllm.entrypoints.cli.main", "bench", "serve"]
    assert not made.provenance.client_digest.endswith("plain")


def test_a_client_that_has_no_host_is_another_instrument(tmp_path: Path) -> None:
    """Both ways are never mixed silently in one bisection: they cannot be compared."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "if sys.argv[0] == '-c':\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    engine = environment(tmp_path)
    path = f"{tmp_path}:{engine.env['PYTHONPATH']}"
    client = environment(tmp_path, "client", PYTHONPATH=path)
    made = attempt(tmp_path, engine, client, runs=2)
    assert made.failure is None and len(made.runs) == 2
    host = made.provenance.facts["client_host"]
    assert host["mode"] == "plain" and "2 threads" in host["why"]
    assert made.provenance.client_digest.endswith(" plain")


@pytest.mark.parametrize("when", ["ready", "warm"])
def test_host_that_dies_in_an_attempt_is_the_machines(tmp_path: Path, when: str) -> None:
    def kill(watch: Watch) -> None:
        def hosts() -> list[int]:
            rows = processes.tree(watch.launched["token"], 0, 0.0)
            return [row.pid for row in rows if _token(row.pid).endswith(".client-host")]

        until(hosts)
        for pid in hosts():
            os.kill(pid, signal.SIGKILL)

    made = attempt(tmp_path, watch=Watch(at={when: kill}))
    assert made.failure is not None
    assert made.failure.fault == "machine", made.failure
    assert "ended by signal 9" in made.failure.reason


def _token(pid: int) -> str:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((e.decode() for e in entries if e.startswith(TOKEN_VARIABLE.encode())), "")
