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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import filelock
from pydantic import TypeAdapter

from perfbisect.environments.base import Environment
from perfbisect.errors import MachineError
from perfbisect.system.files import replace_file

USED = "used"
"""Empty file; its modification time is the time of the last use."""
STAMP = "stamp.json"
BYTES = "bytes"
"""Fact of a stamp: bytes on disk that only this environment holds."""

CACHE_VARIABLES = {
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


def cache_variables(folder: Path) -> dict[str, str]:
    """The variables by which engines keep their compile and kernel caches in a folder."""
    return {name: str(folder / part) for name, part in CACHE_VARIABLES.items()}


def variables(folder: Path, python_path: str = "") -> dict[str, str]:
    """Process environment in which an interpreter imports its own engine only; empty unsets a variable."""
    caches = cache_variables(folder / "caches")
    fixed = {
        "PYTHONPATH": python_path,
        "PYTHONNOUSERSITE": "1",
        # Modules must not be imported from the folder of an attempt.
        "PYTHONSAFEPATH": "1",
        # Unset: without byte code every process of an engine compiles all modules again, which doubles its
        # start.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    return fixed | caches


def _flock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def file_stats(folder: Path) -> Iterator[os.stat_result]:
    """The status of every file below a folder that may be changing."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield (Path(parent) / name).lstat()


_STAMP = TypeAdapter(Environment)
_WRITTEN = {field.name for field in fields(Environment)} - {"folder", "env", "python_path", "schema"}


def read_stamp(folder: Path) -> Environment | None:
    """The stamp in a folder; None if it is missing, damaged or of another schema."""
    try:
        text = (folder / STAMP).read_bytes()
        stamp = _STAMP.validate_json(text)
    except (OSError, ValueError):
        return None
    # The fields have defaults for environments without a stamp; in a stamp a missing field is damage.
    return stamp if json.loads(text).keys() >= _WRITTEN else None


def _placed(stamp: Environment, folder: Path, seconds: float = 0.0) -> Environment:
    """The environment in the stamped folder; ``seconds``: what building it now took."""
    path = ":".join(str(folder / part) for part in stamp.python_path)
    return replace(
        stamp,
        interpreter=folder / stamp.interpreter,
        folder=folder,
        env=variables(folder, path),
        engine_file=str(folder / stamp.engine_file),
        seconds=seconds,
        facts={"builder": stamp.builder, **stamp.facts},
    )


class EnvironmentCache:
    """The environments in a folder; holds a shared lock on each that this process uses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path / "environments"
        self._failures = self.root / ".failed"
        self._in_use: dict[Path, int] = {}
        self._guard = threading.Lock()

    def __del__(self) -> None:
        for handle in self._in_use.values():
            with contextlib.suppress(OSError):
                os.close(handle)

    def folder(self, key: str) -> Path:
        return self.root / key

    def log(self, key: str) -> Path:
        return self.path / "logs" / f"{key}.log"

    def stamp(self, key: str) -> Environment | None:
        """The stamp of a complete environment; None if it must be built."""
        folder = self.folder(key)
        stamp = read_stamp(folder)
        if stamp is None or stamp.key != key:
            return None
        # An interpreter that the user removed leaves environments whose links lead nowhere.
        is_complete = (folder / stamp.interpreter).exists() and (folder / stamp.engine_file).exists()
        return stamp if is_complete else None

    def stamps(self) -> tuple[Environment, ...]:
        folders = sorted(self.root.glob("[!.]*")) if self.root.is_dir() else []
        return tuple(stamp for folder in folders if (stamp := read_stamp(folder)) is not None)

    def ensure(
        self,
        key: str,
        *,
        builder: str,
        spec: str,
        change: str,
        make: Callable[[Path], Mapping[str, Any]],
        check: Callable[[Path], Environment],
        timeout: float,
        in_place: bool = False,
    ) -> Environment:
        """Return an environment; if it is missing, ``make`` it in a staging folder, move it and ``check`` it.

        ``make`` returns facts for the stamp. ``in_place``: for content that cannot be moved.

        Raises:
            MachineError: no disk, or another process holds the lock for ``timeout`` seconds.
        """
        environment = self.find(key)
        if environment is not None:
            return environment
        with self._locked(key, f"build {change}", timeout):
            environment = self.find(key)
            if environment is not None:
                return environment
            began = time.monotonic()
            folder = self.folder(key)
            with self._staging(key) as staging:
                if in_place:
                    staging = staging.rename(folder)
                facts = make(staging)
                (staging / "caches").mkdir(exist_ok=True)
                if not in_place:
                    staging.rename(folder)
                checked = check(folder)
                # Files with further hard links take no room of their own.
                own = (status for status in file_stats(folder) if status.st_nlink == 1)
                own_bytes = sum(status.st_blocks * 512 for status in own)
                stamp = replace(
                    checked,
                    key=key,
                    interpreter=_relative(checked.interpreter, folder),
                    engine_file=str(_relative(Path(checked.engine_file), folder)),
                    python_path=tuple(_relative(path, folder) for path in checked.python_path),
                    facts={**checked.facts, **facts, BYTES: own_bytes},
                    builder=builder,
                    spec=spec,
                    change=change,
                    seconds=round(time.monotonic() - began, 3),
                    built_at=round(time.time(), 3),
                )
                replace_file(folder / STAMP, _STAMP.dump_json(stamp, indent=1).decode() + "\n")
            self.use(folder)
            return _placed(stamp, folder, stamp.seconds)

    def receive(self, key: str, fill: Callable[[Path], None], timeout: float) -> None:
        """Add an environment that another machine built; ``fill`` writes it, with its stamp, to a folder.

        Raises:
            MachineError: no disk, or it is not whole, or the lock is held for ``timeout`` seconds.
        """
        with self._locked(key, f"write environment {key}", timeout):
            if self.stamp(key) is not None:
                return
            folder = self.folder(key)
            with self._staging(key) as staging:
                fill(staging)
                (staging / "caches").mkdir(exist_ok=True)
                staging.rename(folder)
                if self.stamp(key) is None:
                    raise MachineError(f"environment {key} arrived in part", where=folder)

    def find(self, key: str) -> Environment | None:
        """A complete environment, locked as in use; None if it must be built."""
        folder = self.folder(key)
        if self.stamp(key) is None or not self.use(folder):
            return None
        # Before the lock was taken, another process may have removed it.
        stamp = self.stamp(key)
        return None if stamp is None else _placed(stamp, folder)

    def use(self, folder: Path) -> bool:
        """Mark an environment as used and lock it, once; False if it is being removed."""
        with self._guard:
            try:
                if folder not in self._in_use:
                    handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT, 0o644)
                    if not _flock(handle, fcntl.LOCK_SH):
                        os.close(handle)
                        return False
                    self._in_use[folder] = handle
                os.utime(self._in_use[folder])
            except OSError:
                # On a read-only cache nothing can be locked, and nothing is removed either.
                return folder.is_dir()
        return True

    @contextlib.contextmanager
    def unused(self, folder: Path) -> Iterator[bool]:
        """Yield True if no process uses an environment; none can start to inside the block."""
        try:
            handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            yield True
            return
        try:
            yield _flock(handle, fcntl.LOCK_EX)
        finally:
            os.close(handle)

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

    def forget_failures(self, before: float) -> None:
        """Forget failures that were noted before a Unix time."""
        for note in self._failures.iterdir() if self._failures.is_dir() else ():
            if note.stat().st_mtime < before:
                note.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, key: str, action: str, timeout: float) -> Iterator[None]:
        with (
            os_errors_as_machine_errors(f"{action} in {self.root}"),
            exclusive_lock(self.root / ".locks" / f"{key}.lock", f"environment {key}", timeout),
        ):
            yield

    @contextlib.contextmanager
    def _staging(self, key: str) -> Iterator[Path]:
        """An empty build folder, whose content the block moves into place; needs the key's lock.

        Leftovers of the key are removed first; so is what the block wrote if it fails.
        """
        stagings, folder = self.root / ".staging", self.folder(key)
        stagings.mkdir(parents=True, exist_ok=True)
        for path in (*stagings.glob(f"{key}.*"), folder):
            if path.exists():
                shutil.rmtree(path, ignore_errors=path.parent == stagings)
        # A unique name: a command of a killed build may still write to the old one.
        staging = stagings / f"{key}.{secrets.token_hex(4)}"
        staging.mkdir()
        try:
            yield staging
        except BaseException:
            with self._guard:
                handle = self._in_use.pop(folder, None)
                if handle is not None:
                    os.close(handle)
            for path in (staging, folder):
                shutil.rmtree(path, ignore_errors=True)
            raise


def _relative(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


@contextlib.contextmanager
def exclusive_lock(lock: Path, what: str, timeout: float) -> Iterator[None]:
    """Hold a build lock, or raise MachineError after ``timeout``; ``what`` names the build."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(lock, timeout=timeout):
            yield
    except filelock.Timeout as error:
        message = f"another perfbisect has been building {what} for {timeout:.0f} s"
        raise MachineError(message, where=lock, next_step="wait for it, or end it") from error


@contextlib.contextmanager
def os_errors_as_machine_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise MachineError(
            f"cannot {action}: {error.strerror or error}",
            where=error.filename,
            next_step="free disk space, or set PERFBISECT_CACHE to a larger disk" if full else None,
        ) from error
