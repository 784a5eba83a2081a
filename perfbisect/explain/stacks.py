"""Folded stacks of a sampling profiler: samples, waiting, self and inclusive time of functions.

The format is py-spy's ``-f raw``, with ``--subprocesses``, ``--threads``, ``--idle`` and ``--full-filenames``
or without. A call into C has no frame of its own: its time belongs to the Python line that makes it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

_LONGEST_COUNT = 15
"""Digits of a line's number of samples."""
_FRAME = re.compile(r"(?P<function>.+?) \((?P<path>[^()]*?)(?::(?P<line>\d+))?\)")
_PROCESS = re.compile(r'process (?P<pid>\d+):"(?P<command>.*)"')
_THREAD = re.compile(r"thread \((?P<id>0x[0-9A-Fa-f]+|\d+)\)(?:: ?(?P<name>.*))?")

_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
_STANDARD = re.compile(r".*/lib(?:64)?/python3\.\d+/")

MAIN_THREAD: Final = "MainThread"
_SLEEPING_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A line that is executed. ``path``: of a file in its repository or package; ``line``: 0 if unknown."""

    function: str
    path: str
    line: int = 0

    @property
    def key(self) -> FunctionKey:
        return self.path, self.function


FunctionKey = tuple[str, str]
"""Path and qualified name of a function."""


@dataclass(frozen=True, slots=True)
class StackSample:
    """A stack that was seen ``count`` times. ``frames``: the outermost caller first."""

    process: str
    thread: str
    frames: tuple[StackFrame, ...]
    count: int


WAITS: Final = (
    ("*wait*", "threading.py"),
    ("*acquire*", "threading.py"),
    ("*join*", "threading.py"),
    ("*.get", "queue.py"),
    ("*.put", "queue.py"),
    ("*select", "selectors.py"),
    ("*poll*", "selectors.py"),
    # uvloop is compiled: an idle loop of it shows as the Python line that runs it.
    ("*run", "asyncio/runners.py"),
    ("*run", "uvloop/*"),
    ("*", "uvloop/loop.pyx"),
    ("*", "multiprocessing/connection.py"),
    ("*wait*", "multiprocessing/*.py"),
    ("*poll*", "multiprocessing/*.py"),
    ("*join*", "multiprocessing/*.py"),
    ("*acquire*", "multiprocessing/*.py"),
    ("*.get", "multiprocessing/queues.py"),
    # Helper processes that only serve requests of others.
    ("main", "multiprocessing/resource_tracker.py"),
    ("*", "multiprocessing/forkserver.py"),
    ("*wait*", "subprocess.py"),
    ("*communicate*", "subprocess.py"),
    ("*accept*", "socket.py"),
    ("*recv*", "socket.py"),
    ("*readinto", "socket.py"),
    ("*wait*", "concurrent/futures/*.py"),
    ("*result", "concurrent/futures/*.py"),
    ("_worker", "concurrent/futures/thread.py"),
    ("*recv*", "zmq/*"),
    ("*poll*", "zmq/*"),
    # The host waits for its device: longer work on the device shows in the trace alone.
    ("*synchronize*", "torch/cuda/*"),
    # Workers and engine core take turns through shared memory and spin while they wait.
    ("*sched_yield*", "*"),
    ("*SpinCondition.wait", "*shm_broadcast.py"),
    ("wait", "*shm_broadcast.py"),
    ("*acquire_read*", "*shm_broadcast.py"),
    ("*acquire_write*", "*shm_broadcast.py"),
    ("memory_fence", "*shm_broadcast.py"),
    ("*_report_continu*", "*usage_lib.py"),
)
"""Python functions that wait, as patterns of name and path: on top of a stack they are no work."""

# Seen with --native only: otherwise a call into C has no frame, and the Python line above it counts.
_NATIVE = """
poll ppoll __poll select pselect epoll_wait epoll_pwait accept accept4 recv recvfrom recvmsg __recvmsg
nanosleep clock_nanosleep usleep sleep sem_wait sem_timedwait sem_clockwait do_futex_wait
pthread_cond_wait wait4 pthread_cond_timedwait pthread_cond_clockwait __lll_lock_wait futex_wait waitpid
sched_yield __sched_yield syscall PyThread_acquire_lock_timed take_gil sigtimedwait
__futex_abstimed_wait_common pthread_join __clock_nanosleep clock_nanosleep@GLIBC_2.2.5
"""
_NATIVE_WAITS: Final = frozenset(_NATIVE.split())
"""Functions of the C library and the interpreter that wait."""


# A recording has the same few thousand frames in every sample; patterns are slow to match.
@lru_cache(maxsize=65536)
def is_wait(frame: StackFrame) -> bool:
    """Whether a function waits, if it is on top of a stack."""
    if not frame.path.endswith((".py", ".pyx")):
        return frame.function in _NATIVE_WAITS
    return any(fnmatchcase(frame.function, name) and fnmatchcase(frame.path, path) for name, path in WAITS)


def is_waiting(sample: StackSample) -> bool:
    """Whether a sample's thread waits: for work, a lock, a message, or the other side of a spin."""
    return bool(sample.frames) and is_wait(sample.frames[-1])


def sleepers(samples: Iterable[StackSample]) -> frozenset[tuple[str, str, FunctionKey]]:
    """Functions (process, thread, key) in which a thread beside the main one spends nearly all of its time.

    Such a thread sleeps or waits in C: its time grows with that of a step, whatever the step does.
    """
    # A thread that sleeps in C looks like one that works in C: both stand in the Python line that called it.
    threads: defaultdict[tuple[str, str], Counter[FunctionKey]] = defaultdict(Counter)
    for sample in samples:
        if sample.thread != MAIN_THREAD and sample.frames:
            threads[sample.process, sample.thread][sample.frames[-1].key] += sample.count
    return frozenset(
        (*thread, key)
        for thread, counts in threads.items()
        for key, count in counts.items()
        if count >= _SLEEPING_SHARE * counts.total()
    )


def repository_path(path: str, roots: Sequence[str] = (), packages: Sequence[str] = ()) -> str:
    """The path of a file as its repository or package names it.

    ``roots``: folders that hold packages (an overlay, a work tree); ``packages``: names of the engine, found
    anywhere in a path that no folder explains. ``/x/lib/python3.11/site-packages/vllm/v1/a.py`` is
    ``vllm/v1/a.py``, ``/x/lib/python3.11/queue.py`` is ``queue.py``.
    """
    matching = [root.rstrip("/") for root in roots if path.startswith(root.rstrip("/") + "/")]
    if matching:
        return path[len(max(matching, key=len)) + 1 :]
    for pattern in (_INSTALLED, _STANDARD):
        if found := pattern.match(path):
            return path[found.end() :]
    if not path.startswith("/"):
        return path
    parts = path.split("/")
    for at, part in enumerate(parts[:-1]):
        # A clone is often named like the package that it holds: .../vllm/vllm/v1/a.py.
        if part in packages and parts[at + 1] != part:
            return "/".join(parts[at:])
    return path


def read_folded(
    text: str, roots: Sequence[str] = (), packages: Sequence[str] = ()
) -> tuple[StackSample, ...]:
    """Read folded stacks; equal stacks are joined. Lines that are none are left out.

    Of several processes in a line the innermost counts. Threads have their names: numbers differ between
    launches; a thread without a name is the main thread if its number is that of the process.
    """
    counts: Counter[tuple[str, str, tuple[StackFrame, ...]]] = Counter()
    parsed: dict[str, StackFrame] = {}
    for line in text.splitlines():
        stack, _, number = line.rstrip().rpartition(" ")
        # int() raises on numbers of thousands of digits, which a damaged file may have.
        if not number.isdecimal() or len(number) > _LONGEST_COUNT or not stack:
            continue
        process = thread = pid = ""
        frames: list[StackFrame] = []
        # Frames repeat from line to line: each piece is parsed once.
        for piece in _pieces(stack):
            if piece not in parsed:
                if found := _PROCESS.fullmatch(piece):
                    process, pid, thread = found["command"], found["pid"], ""
                    continue
                if found := _THREAD.fullmatch(piece):
                    named = (found["name"] or "").strip()
                    thread = named or (MAIN_THREAD if found["id"] == pid else "")
                    continue
                parsed[piece] = _frame(piece, roots, packages)
            frames.append(parsed[piece])
        if frames:
            counts[process, thread, tuple(frames)] += int(number)
    return tuple(StackSample(*where, count) for where, count in counts.items())


def _pieces(stack: str) -> list[str]:
    """The frames of a folded line; a command or a thread's name may hold semicolons itself."""
    pieces: list[str] = []
    for piece in stack.split(";"):
        last = pieces[-1] if pieces else ""
        in_command = last.startswith("process ") and not _PROCESS.fullmatch(last)
        in_name = last.startswith("thread (") and not (
            _FRAME.fullmatch(piece) or _THREAD.fullmatch(piece) or _PROCESS.fullmatch(piece)
        )
        if in_command or in_name:
            pieces[-1] = f"{last};{piece}"
        else:
            pieces.append(piece)
    return pieces


def _frame(piece: str, roots: Sequence[str], packages: Sequence[str]) -> StackFrame:
    found = _FRAME.fullmatch(piece)
    if found is None:
        return StackFrame(piece, "")
    return StackFrame(
        found["function"], repository_path(found["path"], roots, packages), int(found["line"] or 0)
    )


def working(samples: Sequence[StackSample]) -> tuple[StackSample, ...]:
    """Samples that do not wait."""
    asleep = sleepers(samples)
    return tuple(
        sample
        for sample in samples
        if sample.frames and not is_waiting(sample) and not is_asleep(sample, asleep)
    )


def is_asleep(sample: StackSample, asleep: frozenset[tuple[str, str, FunctionKey]]) -> bool:
    """Whether a sample is of one of the :func:`sleepers`."""
    return bool(sample.frames) and (sample.process, sample.thread, sample.frames[-1].key) in asleep


def process_role(command: str) -> str:
    """What a process of the engine is: ``VLLM::Worker_TP0`` is ``Worker``; any other is the API server."""
    # vLLM sets titles of its core and worker processes; the API server keeps its command line.
    found = re.search(r"VLLM::([A-Za-z]+)", command)
    if found:
        return found[1]
    return "helper" if "resource_tracker" in command or "forkserver" in command else "API server"
