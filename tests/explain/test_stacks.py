"""Folded stacks as py-spy writes them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfbisect.explain.stacks import (
    StackFrame,
    StackSample,
    is_wait,
    process_role,
    read_folded,
    repository_path,
    working,
)

# Lines of real recordings: py-spy record -f raw --idle, with --subprocesses --threads --full-filenames.
SERVER = 'process 240:"python3 -m vllm serve; echo 1"'
CORE = 'process 283:"VLLM::EngineCore"'
BOOT = "Thread._bootstrap (/x/lib/python3.11/threading.py:1002)"
SITE = "/x/lib/python3.11/site-packages"

FOLDED = f"""\
{SERVER};thread (240): MainThread;<module> (/x/bin/vllm:7);run (/x/lib/python3.11/asyncio/runners.py:118) 14
{SERVER};thread (282): Wait;er;{BOOT};Queue.get (/x/lib/python3.11/queue.py:171);\
Condition.wait (/x/lib/python3.11/threading.py:327) 199
{SERVER};{CORE};thread (283): MainThread;EngineCoreProc.step ({SITE}/vllm/v1/engine/core.py:40);\
Scheduler.schedule ({SITE}/vllm/v1/core/sched/scheduler.py:210) 6
{SERVER};{CORE};thread (284): MainThread;EngineCoreProc.step ({SITE}/vllm/v1/engine/core.py:40);\
Scheduler.schedule ({SITE}/vllm/v1/core/sched/scheduler.py:210) 2
{SERVER};{CORE};thread (283): MainThread;EngineCoreProc.step ({SITE}/vllm/v1/engine/core.py:41);\
f.<locals>.<lambda> ({SITE}/vllm/v1/a.py:3) 1
not a stack
"""


def test_reads_processes_threads_and_frames() -> None:
    samples = read_folded(FOLDED)
    core = StackFrame("EngineCoreProc.step", "vllm/v1/engine/core.py", 40)
    schedule = StackFrame("Scheduler.schedule", "vllm/v1/core/sched/scheduler.py", 210)
    # Two threads of one name are one; the innermost process counts.
    assert StackSample("VLLM::EngineCore", "MainThread", (core, schedule), 8) in samples
    waiting = next(sample for sample in samples if sample.thread == "Wait;er")
    assert waiting.process == "python3 -m vllm serve; echo 1"
    assert waiting.frames[-1] == StackFrame("Condition.wait", "threading.py", 327)
    assert sum(sample.count for sample in samples) == 222


def test_a_recording_of_py_spy() -> None:
    """As version 0.4.3 wrote it of a program with two threads, its folders renamed."""
    text = """\
process 4378:"python3 t.py";thread (4442): a; "b" thread;Thread.run (/usr/lib/python3.11/threading.py:982);\
spin (/srv/t.py:4);spin.<locals>.<lambda> (/srv/t.py:3) 97
process 4378:"python3 t.py";thread (4378): MainThread;<module> (/srv/t.py:9);main (/srv/t.py:8);\
spin (/srv/t.py:4) 2
"""
    assert [(sample.thread, sample.count, len(sample.frames)) for sample in read_folded(text)] == [
        ('a; "b" thread', 97, 3),
        ("MainThread", 2, 3),
    ]


def test_waits_are_set_aside() -> None:
    samples = working(read_folded(FOLDED))
    assert sum(sample.count for sample in samples) == 222 - 213
    assert {sample.frames[-1].path for sample in samples} == {
        "vllm/v1/core/sched/scheduler.py",
        "vllm/v1/a.py",
    }
    broadcast = "vllm/distributed/device_communicators/shm_broadcast.py"
    for name, path in (
        ("sched_yield", "vllm/distributed/utils.py"),
        ("SpinCondition.wait", broadcast),
        ("MessageQueue.acquire_read", broadcast),
        ("Socket.recv_multipart", "zmq/sugar/socket.py"),
        ("Poller.poll", "zmq/sugar/poll.py"),
        ("EpollSelector.select", "selectors.py"),
        ("select", "selectors.py"),
        ("epoll_wait", "libc.so.6"),
        ("Connection._recv", "multiprocessing/connection.py"),
    ):
        assert is_wait(StackFrame(name, path, 1)), name
    for name, path in (
        ("Scheduler.select", "vllm/v1/core/sched/scheduler.py"),
        ("Request.wait", "vllm/v1/request.py"),
        ("MessageQueue.enqueue", broadcast),
        ("epoll_wait", "vllm/a.py"),
        ("gemm_kernel", "libtorch_cpu.so"),
    ):
        assert not is_wait(StackFrame(name, path, 1)), name


def test_a_thread_that_sleeps_is_set_aside() -> None:
    text = 'process 1:"x";thread (2): beat;beat (v/a.py:3) 95\n'
    text += 'process 1:"x";thread (2): beat;beat (v/a.py:3);check (v/a.py:9) 5\n'
    text += 'process 1:"x";thread (1): MainThread;beat (v/a.py:3) 100\n'
    text += 'process 1:"x";thread (3): busy;f (v/a.py:3) 60\nprocess 1:"x";thread (3): busy;g (v/a.py:4) 40\n'
    samples = working(read_folded(text))
    assert [(sample.thread, sample.count) for sample in samples] == [
        ("beat", 5),
        ("MainThread", 100),
        ("busy", 60),
        ("busy", 40),
    ]


def test_native_frames_and_names_without_a_file() -> None:
    (sample,) = read_folded("a (a.py:1);at::add (libtorch_cpu.so);0x7f12 (?);std::f(int) (b.cpp:4) 3")
    assert [(frame.function, frame.path, frame.line) for frame in sample.frames] == [
        ("a", "a.py", 1),
        ("at::add", "libtorch_cpu.so", 0),
        ("0x7f12", "?", 0),
        ("std::f(int)", "b.cpp", 4),
    ]


def test_paths_are_those_of_the_repository() -> None:
    packages = ("vllm",)
    for path, expected in (
        (f"{SITE}/vllm/v1/a.py", "vllm/v1/a.py"),
        ("/x/environments/3c86/layer/vllm/v1/a.py", "vllm/v1/a.py"),
        ("/home/u/vllm/vllm/v1/a.py", "vllm/v1/a.py"),
        ("/x/lib/python3.12/json/encoder.py", "json/encoder.py"),
        ("vllm/v1/a.py", "vllm/v1/a.py"),
        ("/srv/other/a.py", "/srv/other/a.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ):
        assert repository_path(path, packages=packages) == expected
    assert repository_path("/a/tree/csrc/vllm/x.py", roots=("/a", "/a/tree/")) == "csrc/vllm/x.py"


def test_roles_of_processes() -> None:
    assert process_role("VLLM::EngineCore_DP0") == "EngineCore"
    assert process_role("VLLM::Worker_TP1") == "Worker"
    assert process_role("python -m vllm.entrypoints.openai.api_server") == "API server"
    assert process_role("python -c from multiprocessing.resource_tracker import main") == "helper"


_NAMES = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=6)
_FRAMES = st.builds(
    lambda name, file, line: StackFrame(name, f"{file}.py", line), _NAMES, _NAMES, st.integers(1, 9999)
)


@given(st.lists(st.tuples(st.lists(_FRAMES, min_size=1, max_size=5), st.integers(1, 50)), max_size=8))
def test_what_was_written_is_read(stacks: list[tuple[list[StackFrame], int]]) -> None:
    text = "".join(
        ";".join(f"{frame.function} ({frame.path}:{frame.line})" for frame in frames) + f" {count}\n"
        for frames, count in stacks
    )
    samples = read_folded(text)
    assert sum(sample.count for sample in samples) == sum(count for _, count in stacks)
    assert {sample.frames for sample in samples} == {tuple(frames) for frames, _ in stacks}
