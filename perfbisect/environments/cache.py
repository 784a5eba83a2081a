"""Cache of built environments.

``CACHE/environments/KEY/`` is an environment. One process builds a key while others wait for its lock:
content is written to a staging folder, moved into place and checked there. ``stamp.json`` is written last,
so a folder without a stamp is unfinished and is built again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfbisect.environments.base import Environment
from perfbisect.errors import MachineError
from perfbisect.system.files import replace_file

USED = "used"
"""Empty file; its modification time is the time of the last use."""


class UsageLocks:
    """Shared locks on the environments that this process uses."""

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}
        self._guard = threading.Lock()

    def acquire(self, folder: Path) -> bool:
        """Mark a folder as used and lock it, once; False if it is being removed.

        A read-only folder is used without a lock: nobody can remove it either.
        """
        with self._guard:
            try:
                if folder not in self._handles:
                    handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT, 0o644)
                    try:
                        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except OSError:
                        os.close(handle)
                        return False
                    self._handles[folder] = handle
                os.utime(self._handles[folder])
            except OSError:
                return folder.is_dir()
        return True

    def release(self, folder: Path) -> None:
        with self._guard:
            handle = self._handles.pop(folder, None)
            if handle is not None:
                os.close(handle)

    def __del__(self) -> None:
        for handle in self._handles.values():
            with contextlib.suppress(OSError):
                os.close(handle)


@contextlib.contextmanager
def exclusive_use(folder: Path) -> Iterator[bool]:
    """Yield True if no process uses the folder; none can start to inside the block."""
    try:
        handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except OSError:
            is_free = False
        yield is_free
    finally:
        os.close(handle)


def last_used(folder: Path) -> float | None:
    """Unix time of the last use; None if it was never used."""
    try:
        return (folder / USED).stat().st_mtime
    except OSError:
        return None


def own_bytes(folder: Path) -> int:
    """Bytes on disk of the files without further hard links."""
    return sum(status.st_blocks * 512 for status in _files(folder) if status.st_nlink == 1)


def disk_bytes(folder: Path) -> int:
    """Bytes on disk; a file with n hard links counts 1/n, so that folders add up to their total."""
    return sum(status.st_blocks * 512 // status.st_nlink for status in _files(folder) if status.st_nlink)


def _files(folder: Path) -> Iterator[os.stat_result]:
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield (Path(parent) / name).lstat()
            except FileNotFoundError:  # being built or removed
                continue


SCHEMA = "perfbisect.environment/1"
STAMP = "stamp.json"
BYTES = "bytes"
"""Fact of a stamp: bytes on disk that only this environment holds."""

_CACHE_VARIABLES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "TILELANG_CACHE_DIR": "tilelang",
    "NUMBA_CACHE_DIR": "numba",
}
"""Compile and kernel caches. Not XDG_CACHE_HOME, which holds downloaded models, which are shared."""


class Stamp(BaseModel):
    """Record of a finished environment; paths inside its folder are relative to it."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_: str = Field(SCHEMA, alias="schema")
    key: str
    builder: str
    spec: str
    change: str
    interpreter: str
    engine_version: str
    engine_commit: str
    engine_file: str
    packages_digest: str
    seconds: float
    built_at: float
    facts: dict[str, Any]


@dataclass(frozen=True)
class CheckedEnvironment:
    """Result of a health check: a stamp without key, builder, change and times."""

    interpreter: Path
    engine_version: str
    engine_commit: str
    engine_file: Path
    packages_digest: str
    facts: dict[str, Any]


def variables(folder: Path, python_path: str = "") -> dict[str, str]:
    """Process environment in which an interpreter imports its own engine only.

    An empty string unsets a variable. ``PYTHONSAFEPATH`` keeps the current folder off the search path (Python
    3.11 and later), since that may be a checkout of the engine.
    """
    caches = {name: str(folder / "caches" / part) for name, part in _CACHE_VARIABLES.items()}
    fixed = {
        "PYTHONPATH": python_path,
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    return fixed | caches


class EnvironmentCache:
    """The environments in one cache folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path / "environments"
        self._locks = UsageLocks()

    def folder(self, key: str) -> Path:
        return self.root / key

    def log(self, key: str) -> Path:
        """Log of builds whose caller names none."""
        return self.path / "logs" / f"{key}.log"

    def stamp(self, key: str) -> Stamp | None:
        """The stamp of a complete environment; None if it must be built."""
        folder = self.folder(key)
        found = read_stamp(folder)
        if found is None or found.key != key:
            return None
        there = (folder / found.interpreter).exists() and (folder / found.engine_file).exists()
        return found if there else None

    def stamps(self) -> tuple[Stamp, ...]:
        """The stamps of all complete environments."""
        folders = sorted(self.root.glob("[!.]*")) if self.root.is_dir() else []
        return tuple(stamp for folder in folders if (stamp := read_stamp(folder)) is not None)

    def ensure(
        self,
        key: str,
        *,
        builder: str,
        spec: str,
        change: str,
        make: Callable[[Path], None],
        check: Callable[[Path], CheckedEnvironment],
        timeout: float,
        in_place: bool = False,
    ) -> tuple[Stamp, float]:
        """Return the stamp and the build time; build with ``make(staging)`` and ``check(folder)`` if needed.

        ``in_place``: ``make`` writes to the final folder, for content that cannot be moved.

        :raises MachineError: no disk, or another process holds the lock for ``timeout`` seconds.
        """
        stamp = self._acquire(key)
        if stamp is not None:
            return stamp, 0.0
        with os_errors_as_machine_errors(f"build {change} in {self.root}"), self._exclusive(key, timeout):
            stamp = self._acquire(key)
            if stamp is not None:
                return stamp, 0.0
            began = time.monotonic()
            folder, staging = self.folder(key), self._staging(key)
            try:
                if in_place:
                    staging.rename(folder)
                    staging = folder
                make(staging)
                (staging / "caches").mkdir(exist_ok=True)
                if not in_place:
                    staging.rename(folder)
                checked = check(folder)
                seconds = time.monotonic() - began
                stamp = self._write_stamp(folder, key, builder, spec, change, checked, seconds)
            except BaseException:
                self._locks.release(folder)
                for path in (staging, folder):
                    shutil.rmtree(path, ignore_errors=True)
                raise
            self._locks.acquire(folder)
            return stamp, stamp.seconds

    def _acquire(self, key: str) -> Stamp | None:
        """The stamp of a complete environment, locked as in use; None if it must be built."""
        if self.stamp(key) is None or not self._locks.acquire(self.folder(key)):
            return None
        return self.stamp(key)  # it may have been removed in between

    def failure(self, key: str) -> str | None:
        """Why an earlier build of a key failed, as a chain of builders noted it."""
        path = self._failures / key
        return path.read_text().strip() if path.is_file() else None

    def note_failure(self, key: str, reason: str) -> None:
        with os_errors_as_machine_errors(f"write in {self._failures}"):
            self._failures.mkdir(parents=True, exist_ok=True)
            replace_file(self._failures / key, f"{reason}\n")

    def forget_failure(self, key: str) -> None:
        (self._failures / key).unlink(missing_ok=True)

    @property
    def _failures(self) -> Path:
        return self.root / ".failed"

    def _exclusive(self, key: str, timeout: float) -> contextlib.AbstractContextManager[None]:
        return exclusive_lock(self.root / ".locks" / f"{key}.lock", f"environment {key}", timeout)

    def _staging(self, key: str) -> Path:
        """Create an empty build folder and remove leftovers of this key; needs the key's lock."""
        stagings = self.root / ".staging"
        stagings.mkdir(parents=True, exist_ok=True)
        for path in (*stagings.glob(f"{key}.*"), self.folder(key)):
            if path.exists():
                shutil.rmtree(path, ignore_errors=path.parent == stagings)
        # A unique name: a command of a killed build may still write to the old one.
        staging = stagings / f"{key}.{secrets.token_hex(4)}"
        staging.mkdir()
        return staging

    def _write_stamp(
        self,
        folder: Path,
        key: str,
        builder: str,
        spec: str,
        change: str,
        checked: CheckedEnvironment,
        seconds: float,
    ) -> Stamp:
        stamp = Stamp(
            schema_=SCHEMA,
            key=key,
            builder=builder,
            spec=spec,
            change=change,
            interpreter=_relative(checked.interpreter, folder),
            engine_version=checked.engine_version,
            engine_commit=checked.engine_commit,
            engine_file=_relative(checked.engine_file, folder),
            packages_digest=checked.packages_digest,
            seconds=round(seconds, 3),
            built_at=round(time.time(), 3),
            facts={**checked.facts, BYTES: own_bytes(folder)},
        )
        replace_file(folder / STAMP, stamp.model_dump_json(by_alias=True, indent=1) + "\n")
        return stamp


def stamped_environment(stamp: Stamp, folder: Path, *, seconds: float, python_path: str = "") -> Environment:
    """The environment in a stamped folder."""
    return Environment(
        key=stamp.key,
        interpreter=folder / stamp.interpreter,
        folder=folder,
        env=variables(folder, python_path),
        engine_version=stamp.engine_version,
        engine_commit=stamp.engine_commit,
        engine_file=str(folder / stamp.engine_file),
        packages_digest=stamp.packages_digest,
        seconds=seconds,
        facts={"builder": stamp.builder, **stamp.facts},
    )


def read_stamp(folder: Path) -> Stamp | None:
    """The stamp in a folder; None if it is missing, damaged or of another schema."""
    try:
        stamp = Stamp.model_validate(json.loads((folder / STAMP).read_text()))
    except (OSError, ValueError, ValidationError):
        return None
    return stamp if stamp.schema_ == SCHEMA else None


@contextlib.contextmanager
def exclusive_lock(lock: Path, what: str, timeout: float) -> Iterator[None]:
    """Hold a build lock; ``what`` names the build in the error.

    :raises MachineError: another process holds the lock for ``timeout`` seconds.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    file_lock = filelock.FileLock(lock)
    try:
        file_lock.acquire(timeout=timeout)
    except filelock.Timeout as error:
        raise MachineError(
            f"another perfbisect has been building {what} for {timeout:.0f} s",
            where=lock,
            next_step="wait for it, or end it",
        ) from error
    try:
        yield
    finally:
        file_lock.release()


@contextlib.contextmanager
def os_errors_as_machine_errors(action: str) -> Iterator[None]:
    """Raise MachineError for errors of the operating system."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise MachineError(
            f"cannot {action}: {error.strerror or error}",
            where=error.filename,
            next_step="free disk space, or set PERFBISECT_CACHE to a larger disk" if full else None,
        ) from error


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
