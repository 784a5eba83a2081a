"""The process tree of the real engine: API server, EngineCore, Worker; children outlive a killed parent."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from . import faults

LIFETIME_SECONDS = 300.0
"""A child that nobody ends gives up after this long."""


def _title(name):
    ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)


def _forget_signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if faults.wanted("orphans"):
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if faults.wanted("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _idle():
    end = time.monotonic() + LIFETIME_SECONDS
    while time.monotonic() < end:
        time.sleep(1.0)
    os._exit(0)


def _start_daemon(pause):
    """A process without a sign of its launch: two forks, a session, no environment, no descriptors."""
    if os.fork():
        return
    time.sleep(pause)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 256)
    sleeps = f"import time; time.sleep({LIFETIME_SECONDS})"
    os.execve(sys.executable, [sys.executable, "-c", sleeps, "pretend-daemon", str(Path.cwd())], {})


def start_engine():
    """Fork the EngineCore, which forks the Worker. Call before any thread exists; returns both ids."""
    for name, pause in (("daemon", 0.0), ("late_daemon", 0.8)):
        if faults.wanted(name):
            _start_daemon(pause)
    reading, writing = os.pipe()
    core = os.fork()
    if core == 0:
        os.close(reading)
        _title("VLLM::EngineCor")
        worker = os.fork()
        if worker == 0:
            os.close(writing)
            _title("VLLM::Worker")
            _forget_signals()
            _idle()
        os.write(writing, f"{worker}\n".encode())
        os.close(writing)
        _forget_signals()
        _idle()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        worker = int(pipe.readline())
    return core, worker


def stop_engine(children, patience=2.0):
    """TERM the children, wait, KILL what is left; with the fault ``orphans`` they are left alone."""
    if faults.wanted("orphans"):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            try:
                os.kill(child, number)
            except ProcessLookupError:
                continue
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if not alive(children[0]):
                return
            time.sleep(0.005)


def alive(child):
    """True while our own child has not ended (and reap it when it has)."""
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False
