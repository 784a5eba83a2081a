"""Real processes that do what engines do: outlive their parent, ignore TERM, leave their session."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from perfbisect.errors import Interrupted, MachineError, ServerError
from perfbisect.system import commands, processes, shim, threads
from perfbisect.system.files import scratch_folder
from perfbisect.system.processes import TOKEN_VARIABLE, Process, alive, process, tree
from tests.system.stand_ins import (
    ENV,
    IDLE,
    STUBBORN,
    child_of,
    ended_child,
    family_script,
    gone,
    running,
    start,
    told,
    until,
)


def test_spawned_process_is_on_its_own(tmp_path: Path) -> None:
    script = """
import os, sys
print("session", os.getsid(0) == os.getpid(), flush=True)
print("input", repr(sys.stdin.read()), flush=True)
print("umask", os.umask(0), flush=True)
print("names", sorted(os.environ), flush=True)
print("error", file=sys.stderr)
"""
    owned = start(tmp_path, script, token="abc")
    assert owned.wait(10) == 0
    log = tmp_path / "out.log"
    assert told(log, "session") == "True"
    assert told(log, "input") == "''"
    assert told(log, "umask") == str(0o022)
    assert set(eval(told(log, "names"))) - {"LC_CTYPE"} == {*ENV, TOKEN_VARIABLE}
    assert "error" in log.read_text()
    processes.stop(owned)


def test_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"cannot start /no/such/python"):
        processes.spawn(["/no/such/python"], env=ENV, cwd=tmp_path, log=tmp_path / "log", token="t")


def test_machine_without_memory_for_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(MachineError, match="Cannot allocate memory"):
        processes.spawn([sys.executable], env=ENV, cwd=tmp_path, log=tmp_path / "log", token="t")


def test_interrupted_before_the_command_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C can strike when the shim exists and nobody has its id yet."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def late(*arguments: object, **options: object) -> None:
        started.append(real(*arguments, **options))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", late)
    with pytest.raises(KeyboardInterrupt):
        processes.spawn([sys.executable, "-c", IDLE], env=ENV, cwd=tmp_path, log=tmp_path / "log", token="a")
    assert started[0].wait(10) == 0
    assert not (tmp_path / "log").exists()


def test_interrupted_between_fork_and_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C can strike when the command runs and nobody has its id yet."""
    found: list[int] = []

    def late(pid: int) -> None:
        found.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "process", late)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(processes, "table", dict)  # the command has not even its mark yet
        processes.spawn([sys.executable, "-c", IDLE], env=ENV, cwd=tmp_path, log=tmp_path / "log", token="b")
    assert process(found[0]) is None


def test_gentle_end_is_tried_first(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"said goodbye\\n"), sys.exit(7)))
os.write(1, b"up\\n")  # TERM may come within a print, which its handler may not enter again
time.sleep(60)
"""
    owned = start(tmp_path, script)
    told(tmp_path / "out.log", "up")
    processes.stop(owned)
    assert owned.exited() == 7
    assert "said goodbye" in (tmp_path / "out.log").read_text()


@pytest.mark.parametrize("keeps_token, keeps_log", [(True, True), (True, False), (False, True)])
def test_child_that_left_and_outlives_its_parent_is_ended(
    tmp_path: Path, keeps_token: bool, keeps_log: bool
) -> None:
    """It has another session, no parent, and ignores TERM."""
    script = family_script(keeps_token=keeps_token, keeps_log=keeps_log, then="pass")
    owned = start(tmp_path, script)
    child = child_of(tmp_path / "out.log")
    assert owned.wait(10) == 0
    assert alive(*child)
    processes.stop(owned, grace=0.2)
    assert gone(child)


DAEMON = """
import os, subprocess, sys, time
def daemon():
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 64)
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]], {})
time.sleep(float(sys.argv[2]))
daemon()
print("daemon started", flush=True)
time.sleep(60)
"""
"""A daemon without a sign: two forks, a session, no environment, no descriptors; its arguments name it."""


def daemon_of(name: str) -> tuple[int, float]:
    """The identity of the daemon with this name, once it runs."""
    found: list[tuple[int, float]] = []

    def look() -> bool:
        for row in processes.table().values():
            with suppress(OSError):
                words = Path(f"/proc/{row.pid}/cmdline").read_bytes().split(b"\0")
                if name.encode() in words and not Path(f"/proc/{row.pid}/environ").read_bytes():
                    found.append(row.identity)
        return bool(found)

    until(look)
    return found[0]


@pytest.mark.parametrize("pause", ["0", "0.8"])
def test_a_daemon_without_any_sign_is_ended_and_the_users_processes_are_not(
    tmp_path: Path, pause: str
) -> None:
    """The user's: older than the launch or younger, a child of this process or an orphan."""
    users = [subprocess.Popen([sys.executable, "-c", IDLE])]
    orphan = subprocess.run(
        [sys.executable, "-c", DAEMON.replace("time.sleep(60)\n", ""), f"user-{tmp_path.name}", "0"],
        check=True,
    )
    assert orphan.returncode == 0
    owned = start(tmp_path, DAEMON, tmp_path.name, pause)
    try:
        daemon, users_daemon = daemon_of(tmp_path.name), daemon_of(f"user-{tmp_path.name}")
        users.append(subprocess.Popen([sys.executable, "-c", IDLE]))
        row = process(daemon[0])
        assert row is not None and row.session != owned.pid and row.parent != owned.pid
        processes.stop(owned, grace=0.2)
        assert gone(daemon)
        assert [user.poll() for user in users] == [None, None]
        assert alive(*users_daemon)
    finally:
        os.kill(daemon_of(f"user-{tmp_path.name}")[0], signal.SIGKILL)
        for user in users:
            user.kill()
            user.wait(10)


def test_a_daemon_belongs_to_its_own_launch(tmp_path: Path) -> None:
    """Two slots: the end of one launch leaves the other's daemon."""
    owned = [start(tmp_path, DAEMON, f"{tmp_path.name}-{i}", "0", name=f"{i}") for i in range(2)]
    daemons = [daemon_of(f"{tmp_path.name}-{i}") for i in range(2)]
    processes.stop(owned[0], grace=0.2)
    assert [alive(*daemon) for daemon in daemons] == [False, True]
    processes.stop(owned[1], grace=0.2)
    assert gone(daemons[1])


@pytest.mark.parametrize("by_token_alone", [False, True])
def test_a_daemon_of_a_killed_owner_is_ended(tmp_path: Path, by_token_alone: bool) -> None:
    """kill -9 of perfbisect and of the command: the token of the journal leads to the daemon."""
    (tmp_path / "script.py").write_text(DAEMON)
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert caller.stdout is not None
    with caller.stdout:
        _, pid, created = caller.stdout.readline().split()
        daemon = daemon_of(tmp_path.name)
        caller.kill()
        caller.wait(10)
    os.kill(int(pid), signal.SIGKILL)
    until(lambda: gone((int(pid), float(created))))
    owner = (0, 0.0) if by_token_alone else (int(pid), float(created))
    found = processes.stop_leftovers(tmp_path.name, *owner, grace=0.2)
    assert daemon in {row.identity for row in found}
    assert gone(daemon)
    assert not [row for row in processes.table().values() if marked_shim(row.pid, tmp_path.name)]


def marked_shim(pid: int, token: str) -> bool:
    with suppress(OSError):
        return f"{shim.MARK}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_killed_shim_leaves_nothing_that_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    if not is_marked:  # where the kernel lets no process be marked
        monkeypatch.setattr(processes.shim, "has_mark", lambda *_: False)
    owned = start(tmp_path, DAEMON, tmp_path.name, "0")
    daemon = daemon_of(tmp_path.name)
    owned.observe()
    os.kill(owned.own_shim, signal.SIGKILL)
    assert owned.wait(10) == -signal.SIGKILL
    processes.stop(owned, grace=0.2)
    assert gone(daemon) and gone((owned.pid, owned.created))


@pytest.mark.parametrize("token", ["owner", "owner.client-host"])
def test_a_daemon_of_a_killed_shim_ends_with_its_launch_alone(tmp_path: Path, token: str) -> None:
    """It has no sign and was never seen; daemons of the user and of another launch stay."""
    user = f"user-{tmp_path.name}"
    subprocess.run(
        [sys.executable, "-c", DAEMON.replace("time.sleep(60)\n", ""), user, "0"], env={}, check=True
    )
    owned = start(tmp_path, DAEMON, tmp_path.name, "0", token=f"{tmp_path.name}-{token}")
    other = start(tmp_path, DAEMON, f"other-{tmp_path.name}", "0", name="other")
    daemon, others_daemon = daemon_of(tmp_path.name), daemon_of(f"other-{tmp_path.name}")
    try:
        for each in (owned, other):
            os.kill(each.own_shim, signal.SIGKILL)
            assert each.wait(10) == -signal.SIGKILL
        row = process(daemon[0])
        assert row is not None and row.parent not in (owned.pid, owned.own_shim)
        found = processes.stop_leftovers(f"{tmp_path.name}-owner", 0, 0.0, grace=0.2)
        assert {row.identity for row in found} == {daemon, (owned.pid, owned.created)}
        assert gone(daemon)
        processes.stop(owned, grace=0.2)
        assert alive(*others_daemon) and alive(*daemon_of(user))
        processes.stop(other, grace=0.2)
        assert gone(others_daemon)
    finally:
        os.kill(daemon_of(user)[0], signal.SIGKILL)


def test_orphans_are_reaped_and_exit_codes_kept(tmp_path: Path) -> None:
    script = """
import os, time
for code in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(0.1)
            os._exit(code)
        os._exit(9)
    os.wait()
time.sleep(0.4)
os._exit(5)
"""
    owned = start(tmp_path, script)
    below = [row for row in processes.table().values() if row.parent == owned.own_shim]
    assert owned.wait(10) == 5
    assert owned.pid in {row.pid for row in below}
    until(lambda: not [row for row in processes.table().values() if row.parent == owned.own_shim])
    processes.stop(owned)


def test_child_without_any_mark_is_known_from_before(tmp_path: Path) -> None:
    owned = start(tmp_path, family_script(keeps_token=False, keeps_log=False, then=IDLE))
    child = child_of(tmp_path / "out.log")
    owned.observe()
    os.kill(owned.pid, signal.SIGKILL)
    owned.wait(10)
    assert alive(*child)
    processes.stop(owned, grace=0.2)
    assert gone(child)


@pytest.mark.parametrize("by_token_alone", [False, True])
def test_leftovers_of_a_dead_owner(tmp_path: Path, by_token_alone: bool) -> None:
    """The owner was killed; the token, id and start time in its journal are enough to end its tree."""
    token = secrets.token_hex(16)
    owned = start(tmp_path, family_script(), token=token)
    child = child_of(tmp_path / "out.log")
    os.kill(owned.pid, signal.SIGKILL)  # the leader alone, as the kernel does: the child lives on
    owned.wait(10)
    assert alive(*child)
    scratch = scratch_folder(token)
    scratch.mkdir()
    (scratch / "vllm_dist_1").touch()
    pid, created = (0, 0.0) if by_token_alone else (owned.pid, owned.created)
    found = processes.stop_leftovers(token, pid, created, grace=0.2)
    assert child in {member.identity for member in found}
    assert gone(child)
    assert not scratch.exists()
    assert processes.stop_leftovers(token, pid, created) == ()
    processes.stop(owned)


def test_leftover_leader_is_asked_first(tmp_path: Path) -> None:
    owned = start(
        tmp_path,
        "import signal, time; signal.signal(15, lambda *_: exit(3)); print('up', flush=True); time.sleep(9)",
    )
    told(tmp_path / "out.log", "up")
    processes.stop_leftovers(owned.token, owned.pid, owned.created)
    assert owned.exited() == 3
    processes.stop(owned)


def test_a_marked_descendant_of_another_token_belongs_to_its_prefix_only(tmp_path: Path) -> None:
    one = running(tmp_path, IDLE, token="aa.client-1")
    with one as marked, running(tmp_path, IDLE, token="aab", name="two"):
        assert {row.pid for row in tree("aa", 0, 0.0)} == {marked.pid}
        assert {row.pid for row in tree("aa.client-1", 0, 0.0)} == {marked.pid}
        assert tree("a", 0, 0.0) == ()


def test_process_id_that_was_used_again_is_left_alone(tmp_path: Path) -> None:
    """The journal names an id that is somebody else's by now: other start time, no token."""
    with running(tmp_path, IDLE) as stranger:
        assert processes.stop_leftovers("ours", stranger.pid, stranger.created - 100.0) == ()
        assert processes.stop_leftovers("ours", stranger.pid, stranger.created + 100.0) == ()
        assert stranger.exited() is None


def test_session_of_a_dead_stranger_is_left_alone(tmp_path: Path) -> None:
    """After a reboot a journal's id may name a session whose first process has gone, as daemons make them."""
    script = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
"""
    with running(tmp_path, script, token="theirs") as stranger:
        child = child_of(tmp_path / "out.log")
        stranger.wait(10)
        row = process(child[0])
        assert row is not None and row.session == stranger.pid
        assert tree("ours", stranger.pid, stranger.created - 100.0) == ()


def test_overwritten_environment_in_the_owners_session(tmp_path: Path) -> None:
    """A process that sets its title overwrites its environment; its session still says whose it is."""
    script = """
import ctypes, os, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
leader = os.getpid()
if os.fork() == 0:
    ctypes.memset(start, 0, end - start - 8)
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)
    while os.getppid() == leader:
        time.sleep(0.01)
    time.sleep(60)
else:
    time.sleep(0.3)
    os._exit(0)
"""
    owned = start(tmp_path, script)
    owned.wait(10)
    (left,) = tree("another token", owned.pid, owned.created)
    assert (left.session, left.parent) != (left.pid, owned.pid)
    assert not any(Path(f"/proc/{left.pid}/environ").read_bytes()[:-8])
    processes.stop(owned, grace=0.1)
    assert gone(left.identity)


@pytest.mark.parametrize("owner", [0, 70], ids=["an owner that never started", "an owner in its own session"])
def test_what_the_kernel_and_other_containers_started_never_belongs(
    monkeypatch: pytest.MonkeyPatch, owner: int
) -> None:
    """Before Linux 6.16 the environment of a thread of the kernel reads as empty."""
    rows = (
        Process(2, 0.0, 0, 0, 0, "S", "kthreadd", 0.0, of_kernel=True),
        Process(44, 0.5, 2, 0, 0, "I", "kworker/0:1", 0.0, of_kernel=True),
        Process(60, 2.0, 0, 0, 0, "S", "started outside this container", 0.0),
        Process(70, 3.0, 1, 70, 70, "S", "engine", 0.0),
        Process(71, 3.5, 70, 70, 70, "S", "worker with a title over its environment", 0.0),
        Process(72, 4.0, 71, 72, 0, "S", "child in no session of this container", 0.0),
    )
    monkeypatch.setattr(processes, "table", lambda: {row.pid: row for row in rows})
    monkeypatch.setattr(processes, "_environment", lambda pid: [b""] if pid != 60 else [])
    members = tree("token", owner, 0.0)
    assert [member.pid for member in members] == ([] if owner == 0 else [70, 71, 72])


def test_the_caller_and_its_ancestors_never_belong() -> None:
    me = process(os.getpid())
    assert me is not None
    for pid in (me.pid, me.parent, me.session, 1):
        row = process(pid)
        found = tree("no such token", pid, row.created if row else 0.0)
        assert not {me.pid, me.parent, 1} & {member.pid for member in found}


def test_what_cannot_be_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owned = start(tmp_path, IDLE)
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_signal", lambda *_: None)  # as if it hung in the kernel
        patch.setattr(processes, "_KILL_TIMEOUT_S", 0.2)
        with pytest.raises(ServerError, match=rf"1 process survived .* \(pid {owned.pid}\)"):
            processes.stop(owned, 0.0)
    processes.stop(owned, 0.0)
    assert owned.exited() == -signal.SIGKILL


def run(folder: Path, script: str, **options: object) -> commands.ProcessResult:
    defaults = {
        "env": ENV,
        "cwd": folder,
        "log": folder / "out.log",
        "token": secrets.token_hex(16),
        "timeout": 30.0,
    }
    return commands.run([sys.executable, "-c", script], **{**defaults, **options})  # type: ignore[arg-type]


def test_run_past_its_limit_is_stopped_with_its_children(tmp_path: Path) -> None:
    seen: list[bool] = []
    log = tmp_path / "out.log"
    ended = run(tmp_path, family_script(), timeout=1.0, at_limit=lambda: seen.append(alive(*child_of(log))))
    assert ended.timed_out
    assert seen == [True]
    assert ended_child(log)


def test_run_leaves_no_children_of_a_command_that_ended(tmp_path: Path) -> None:
    ended = run(tmp_path, family_script(then="pass"))
    assert (ended.code, ended.timed_out) == (0, False)
    assert ended_child(tmp_path / "out.log")


def test_run_is_stopped_when_asked(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    with pytest.raises(Interrupted):
        run(tmp_path, family_script(), stop_requested=lambda: log.exists() and "child" in log.read_text())
    assert ended_child(log)


CALLER = """
import sys, time
from pathlib import Path
from perfbisect.system import processes, shim, threads
folder = Path(sys.argv[1])
script = (folder / "script.py").read_text()
command = [sys.executable, "-c", script, folder.name, "0"]
owned = processes.spawn(command, env={}, cwd=folder, log=folder / "out.log", token=folder.name)
try:
    print("owned", owned.pid, owned.created, flush=True)
    time.sleep(60)
finally:
    print("stopping", flush=True)
    processes.stop(owned, grace=60.0)
"""


@pytest.mark.parametrize("impatient", [False, True])
def test_ctrl_c_leaves_nothing(tmp_path: Path, impatient: bool) -> None:
    """The second Ctrl-C, while a deaf server is waited for, makes it short; nothing is left either way."""
    (tmp_path / "script.py").write_text(STUBBORN if impatient else IDLE)
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    assert caller.stdout is not None
    with caller.stdout:
        _, pid, created = caller.stdout.readline().split()
        if impatient:
            until(lambda: "deaf" in (tmp_path / "out.log").read_text())
        caller.send_signal(signal.SIGINT)
        assert caller.stdout.readline() == "stopping\n"
        if impatient:
            time.sleep(0.3)
            caller.send_signal(signal.SIGINT)
        assert caller.wait(20) != 0
    assert gone((int(pid), float(created)))


def test_row_of_a_process() -> None:
    me = process(os.getpid())
    assert me is not None
    assert (me.pid, me.parent, me.group, me.session) == (
        os.getpid(),
        os.getppid(),
        os.getpgid(0),
        os.getsid(0),
    )
    assert me.living and me.cpu_seconds > 0
    assert process(2**22 + 1) is None


def test_name_with_brackets_and_spaces(tmp_path: Path) -> None:
    script = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b") R 1 (x y", 0, 0, 0)
print("up", flush=True)
time.sleep(60)
"""
    with running(tmp_path, script) as owned:
        told(tmp_path / "out.log", "up")
        row = process(owned.pid)
        assert row is not None
        assert (row.name, row.parent, row.session) == (") R 1 (x y", owned.own_shim, owned.pid)


def test_waiting_to_be_reaped_is_not_living() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    row = process(ended.pid)
    assert row is not None
    until(lambda: (now := process(ended.pid)) is not None and now.state == "Z")
    assert not alive(*row.identity)
    assert processes.tree("", *row.identity) == ()
    ended.wait(10)


def _start_threads(begun: threading.Event) -> None:
    try:
        while True:
            one = threading.Thread(target=begun.set)
            threads.start_thread(one)
            one.join()
    except KeyboardInterrupt:
        return


def test_an_interruption_reaches_the_thread_that_is_meant() -> None:
    """One that does nothing but start threads: without the lock, some rounds hit a thread that it starts."""
    for _ in range(100):
        begun = threading.Event()
        strays: list[threading.ExceptHookArgs] = []
        thread = threading.Thread(target=_start_threads, args=(begun,), daemon=True)
        thread.start()
        assert begun.wait(20)
        hook, threading.excepthook = threading.excepthook, strays.append
        try:
            threads.interrupt_thread(thread)
            thread.join(20)
        finally:
            threading.excepthook = hook
        assert not thread.is_alive()
        assert not strays
