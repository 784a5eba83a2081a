"""What ``perfbisect doctor`` looks at: each with what was found and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from perfbisect.cli.documents import CheckDocument
from perfbisect.cli.place import Place
from perfbisect.errors import PerfbisectError

_GIB = 1024**3
_ENOUGH_DISK, _LITTLE_DISK = 20 * _GIB, 2 * _GIB
_ENOUGH_MEMORY, _LITTLE_MEMORY = 4 * _GIB, 2 * _GIB
_BUSY = 0.25
"""Share of the processors that other work may take before measurements are worth a warning."""


def all_checks(place: Place, *, online: bool) -> tuple[CheckDocument, ...]:
    """Every check, in the order in which a measurement would need it; none of them raises."""
    checks: list[tuple[str, Callable[[], CheckDocument]]] = [
        ("python", _python),
        ("system", _system),
        ("git", _git),
        ("uv", _uv),
        ("state", lambda: _disk("state", place.state)),
        ("cache", lambda: _disk("cache", place.cache)),
        ("memory", _memory),
        ("shm", _shared_memory),
        ("ports", _ports),
        ("devices", _devices),
        ("load", _load),
        ("clock", _clock),
    ]
    if online:
        checks.append(("registry", _registry))
    return tuple(_guarded(name, check) for name, check in checks)


def _guarded(name: str, check: Callable[[], CheckDocument]) -> CheckDocument:
    try:
        return check()
    except (OSError, subprocess.SubprocessError, psutil.Error, PerfbisectError) as error:
        return _bad(name, str(error).splitlines()[0], "this could not be looked at; see the message")


def _good(name: str, found: str) -> CheckDocument:
    return CheckDocument(name=name, state="good", found=found, advice="")


def _warning(name: str, found: str, advice: str) -> CheckDocument:
    return CheckDocument(name=name, state="warning", found=found, advice=advice)


def _bad(name: str, found: str, advice: str) -> CheckDocument:
    return CheckDocument(name=name, state="bad", found=found, advice=advice)


def _python() -> CheckDocument:
    return _good("python", f"{platform.python_version()} at {sys.executable}")


def _system() -> CheckDocument:
    found = f"{platform.system()} {platform.release()}, {os.cpu_count()} processors"
    if platform.system() != "Linux":
        return _bad("system", found, "servers are found and ended through /proc: measure on Linux")
    return _good("system", found)


def _git() -> CheckDocument:
    if shutil.which("git") is None:
        return _bad("git", "no git command", "install git; only releases can be bisected without it")
    done = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10, check=True)
    return _good("git", done.stdout.strip())


def _uv() -> CheckDocument:
    from perfbisect.environments import uv

    done = subprocess.run(
        [str(uv.find_uv()), "--version"], capture_output=True, text=True, timeout=20, check=True
    )
    return _good("uv", done.stdout.strip())


def _disk(name: str, folder: Path) -> CheckDocument:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{free / _GIB:.1f} GiB free for {folder}"
    if not os.access(there, os.W_OK):
        return _bad(name, f"{there} cannot be written", f"choose another folder: PERFBISECT_{name.upper()}")
    if free < _LITTLE_DISK:
        return _bad(name, found, f"make room, or choose another folder: PERFBISECT_{name.upper()}")
    if name == "cache" and free < _ENOUGH_DISK:
        return _warning(name, found, "an environment of vLLM takes 3 to 10 GiB")
    return _good(name, found)


def _memory() -> CheckDocument:
    memory = psutil.virtual_memory()
    found = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available"
    if memory.available < _LITTLE_MEMORY:
        return _bad("memory", found, "end other work: vLLM on a CPU takes 3 GiB for the smallest model")
    if memory.available < _ENOUGH_MEMORY:
        return _warning("memory", found, "vLLM on a CPU takes 3 GiB for the smallest model")
    return _good("memory", found)


def _shared_memory() -> CheckDocument:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return _warning("shm", "no /dev/shm", "the engine's processes talk through it: mount it")
    free = shutil.disk_usage(folder).free
    found = f"{free / _GIB:.1f} GiB free in /dev/shm"
    if free < _GIB // 4:
        return _warning("shm", found, "in a container: give it more, for example --shm-size 2g")
    return _good("shm", found)


def _ports() -> CheckDocument:
    from perfbisect.system.ports import free_port

    return _good("ports", f"a free one was found on 127.0.0.1, for example {free_port()}")


def _devices() -> CheckDocument:
    from perfbisect.system.machine import gpus

    found = gpus()
    if not found:
        return _good("devices", "no GPU: cells with `gpus: 0` only")
    return _good("devices", ", ".join(str(gpu) for gpu in found))


def _load() -> CheckDocument:
    busy = psutil.cpu_percent(interval=0.3) / 100
    found = f"{busy * 100:.0f} % of the processors are busy"
    if busy > _BUSY:
        return _warning("load", found, "measure on a machine of its own: other work is noise")
    return _good("load", found)


def _clock() -> CheckDocument:
    with tempfile.NamedTemporaryFile() as file:
        drift = abs(Path(file.name).stat().st_mtime - time.time())
    if drift > 5:
        return _warning("clock", f"clock and file system differ by {drift:.0f} s", "set the clock")
    if time.time() < 1_700_000_000:
        return _warning("clock", time.strftime("%Y-%m-%d"), "the clock is wrong: job ids sort by it")
    return _good("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _registry() -> CheckDocument:
    from perfbisect.system.releases import published

    found = published("pip")
    return _good("registry", f"answers: pip {found[-1]} is the newest")
