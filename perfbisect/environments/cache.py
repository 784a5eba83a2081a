"""Where environments are kept, and the one way in which they are built (DESIGN rule 8).

``CACHE/environments/KEY/`` is an environment; ``stamp.json`` in it is written last, so a folder without one
is what a dead build left and is built again. One process builds a key, others wait for its lock. Content is
made in a staging folder, moved to its place, checked there, as it will be used, and then stamped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfbisect.environments.base import Environment, Refusal
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file

USED = "used"
"""The file whose time is that of the last use."""


class Holds:
    """The environments that this process uses, each from its first use on."""

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}
        self._guard = threading.Lock()

    def hold(self, folder: Path) -> bool:
        """Mark a folder as used now and hold it; False if it is being removed. Held already is held.

        A folder that cannot be written to is used without a mark: nobody can remove it either.
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

    def drop(self, folder: Path) -> None:
        """Let a folder go."""
        with self._guard:
            handle = self._handles.pop(folder, None)
            if handle is not None:
                os.close(handle)

    def __del__(self) -> None:
        for handle in self._handles.values():
            with contextlib.suppress(OSError):
                os.close(handle)


@contextlib.contextmanager
def used_alone(folder: Path) -> Iterator[bool]:
    """True inside if no process holds the folder, and none can while this lasts."""
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
    """Seconds since 1970 of the last use; None if it was never used."""
    try:
        return (folder / USED).stat().st_mtime
    except OSError:
        return None


def own_bytes(folder: Path) -> int:
    """Bytes on disk of the files that have no other name: those linked from elsewhere do not count."""
    return sum(status.st_blocks * 512 for status in _files(folder) if status.st_nlink == 1)


def disk_bytes(folder: Path, counted: set[tuple[int, int]]) -> int:
    """Bytes on disk of the files that are not yet in ``counted`` (device, inode), to which they are added.

    As ``du`` does for several folders: a file that they share counts with the first of them.
    """
    total = 0
    for status in _files(folder):
        inode = (status.st_dev, status.st_ino)
        if inode not in counted:
            counted.add(inode)
            total += status.st_blocks * 512
    return total


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
"""The fact of a stamp that says what disk the environment alone holds."""

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
"""Compile and kernel caches. Not XDG_CACHE_HOME: downloaded models are under it, and are shared."""


class Stamp(BaseModel):
    """What was built: paths inside the environment's folder are relative to it."""

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
class Built:
    """What a check found in a finished environment: the stamp, less key, builder, change and times."""

    interpreter: Path
    engine_version: str
    engine_commit: str
    engine_file: Path
    packages_digest: str
    facts: dict[str, Any]


def variables(folder: Path, python_path: str = "") -> dict[str, str]:
    """Process environment in which an environment's interpreter imports its own engine and nobody else's.

    Empty strings take a variable away: a search path or a ban on byte code that came from outside. The
    current folder is kept off the search path (from Python 3.11 on), since a checkout of the engine may be
    the current folder.
    """
    caches = {name: str(folder / "caches" / part) for name, part in _CACHE_VARIABLES.items()}
    fixed = {
        "PYTHONPATH": python_path,
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    return fixed | caches


class Cabinet:
    """The environments of one cache folder."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.root = cache / "environments"
        self._holds = Holds()

    def folder(self, key: str) -> Path:
        return self.root / key

    def log(self, key: str) -> Path:
        """A log for builds that nobody gave one."""
        return self.cache / "logs" / f"{key}.log"

    def stamp(self, key: str) -> Stamp | None:
        """The stamp of a finished environment with interpreter and engine still there; None: build it."""
        folder = self.folder(key)
        found = read_stamp(folder)
        if found is None or found.key != key:
            return None
        there = (folder / found.interpreter).exists() and (folder / found.engine_file).exists()
        return found if there else None

    def stamps(self) -> tuple[Stamp, ...]:
        """Of every finished environment."""
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
        check: Callable[[Path], Built],
        timeout: float,
        in_place: bool = False,
    ) -> tuple[Stamp, float]:
        """The stamp of an environment and the seconds it took: built by ``make(staging)`` and
        ``check(folder)``.

        ``in_place``: ``make`` is given the final folder, for what cannot be moved.

        :raises MachineError: no disk, or another process held the lock for ``timeout`` seconds.
        """
        found = self._held(key)
        if found is not None:
            return found, 0.0
        with told_as_machine(f"build {change} in {self.root}"), self._alone(key, timeout):
            found = self._held(key)
            if found is not None:
                return found, 0.0
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
                built = check(folder)
                stamp = self._stamped(folder, key, builder, spec, change, built, time.monotonic() - began)
            except BaseException:
                self._holds.drop(folder)
                for left in (staging, folder):
                    shutil.rmtree(left, ignore_errors=True)
                raise
            self._holds.hold(folder)
            return stamp, stamp.seconds

    def _held(self, key: str) -> Stamp | None:
        """The stamp of a finished environment, which from now on is in use."""
        if self.stamp(key) is None or not self._holds.hold(self.folder(key)):
            return None
        return self.stamp(key)  # it may have been removed in between

    def failure(self, key: str) -> str | None:
        """Why building a key failed, where a chain of builders went on to the next; None if it did not."""
        path = self._failures / key
        return path.read_text().strip() if path.is_file() else None

    def note_failure(self, key: str, why: str) -> None:
        with told_as_machine(f"write in {self._failures}"):
            self._failures.mkdir(parents=True, exist_ok=True)
            replace_file(self._failures / key, f"{why}\n")

    def forget_failure(self, key: str) -> None:
        (self._failures / key).unlink(missing_ok=True)

    @property
    def _failures(self) -> Path:
        return self.root / ".failed"

    def _alone(self, key: str, timeout: float) -> contextlib.AbstractContextManager[None]:
        return alone(self.root / ".locks" / f"{key}.lock", f"environment {key}", timeout)

    def _staging(self, key: str) -> Path:
        """An empty folder for a build; what dead builds of this key left is removed. Under the key's lock."""
        stagings = self.root / ".staging"
        stagings.mkdir(parents=True, exist_ok=True)
        for left in (*stagings.glob(f"{key}.*"), self.folder(key)):
            if left.exists():
                shutil.rmtree(left, ignore_errors=left.parent == stagings)
        # A name of its own: a command of a killed build may still be writing into the one before.
        staging = stagings / f"{key}.{secrets.token_hex(4)}"
        staging.mkdir()
        return staging

    def _stamped(
        self, folder: Path, key: str, builder: str, spec: str, change: str, built: Built, seconds: float
    ) -> Stamp:
        stamp = Stamp(
            schema_=SCHEMA,
            key=key,
            builder=builder,
            spec=spec,
            change=change,
            interpreter=_relative(built.interpreter, folder),
            engine_version=built.engine_version,
            engine_commit=built.engine_commit,
            engine_file=_relative(built.engine_file, folder),
            packages_digest=built.packages_digest,
            seconds=round(seconds, 3),
            built_at=round(time.time(), 3),
            facts={**built.facts, BYTES: own_bytes(folder)},
        )
        replace_file(folder / STAMP, stamp.model_dump_json(by_alias=True, indent=1) + "\n")
        return stamp


def as_environment(stamp: Stamp, folder: Path, *, seconds: float, python_path: str = "") -> Environment:
    """A stamped folder as the environment it is."""
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
    """The stamp in a folder; None if there is none, or it is torn or of another schema."""
    try:
        stamp = Stamp.model_validate(json.loads((folder / STAMP).read_text()))
    except (OSError, ValueError, ValidationError):
        return None
    return stamp if stamp.schema_ == SCHEMA else None


@contextlib.contextmanager
def alone(lock: Path, what: str, timeout: float) -> Iterator[None]:
    """Nobody else builds the same meanwhile; ``what`` names it in the error.

    :raises MachineError: another process had the lock for ``timeout`` seconds.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = filelock.FileLock(lock)
    try:
        held.acquire(timeout=timeout)
    except filelock.Timeout as error:
        raise MachineError(
            f"another perfbisect has been building {what} for {timeout:.0f} s",
            where=lock,
            next_step="wait for it, or end it",
        ) from error
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def told_as_machine(doing: str) -> Iterator[None]:
    """Turn what the operating system refuses into a MachineError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise MachineError(
            f"cannot {doing}: {error.strerror or error}",
            where=error.filename,
            next_step="free disk space, or set PERFBISECT_CACHE to a larger disk" if full else None,
        ) from error


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def earlier(cabinet: Cabinet, builder: str, spec: str) -> tuple[Stamp, ...]:
    """Stamps of a builder: those of the same specification, if there are any, else all."""
    stamps = [stamp for stamp in cabinet.stamps() if stamp.builder == builder and stamp.seconds > 0.0]
    return tuple(stamp for stamp in stamps if stamp.spec == spec) or tuple(stamps)


def median_minutes(stamps: Iterable[Stamp], chosen: Callable[[Stamp], bool] = lambda _: True) -> float | None:
    """Median of what building took, in minutes; None if none is ``chosen``."""
    seconds = [stamp.seconds for stamp in stamps if chosen(stamp)]
    return statistics.median(seconds) / 60.0 if seconds else None


def median_bytes(stamps: Iterable[Stamp]) -> int | None:
    """Median of the bytes that only one environment holds; None if none is known."""
    sizes = [size for stamp in stamps if isinstance(size := stamp.facts.get(BYTES), int)]
    return round(statistics.median(sizes)) if sizes else None


def bytes_of(stamps: Iterable[Stamp], missing: Collection[str]) -> int | None:
    """Bytes that so many environments will take, by their keys; None if none like them was built yet."""
    if not missing:
        return 0
    each = median_bytes(stamps)
    return None if each is None else each * len(missing)


_PATIENCE = 3600.0


def unread(changes: Iterable[Change], known: Container[str]) -> list[str]:
    """The commits among some changes that are not among those that were looked up."""
    return [change.id for change in changes if change.kind == "commit" and change.id not in known]


class KeptBuilder(ABC):
    """A builder (:class:`perfbisect.environments.base.Builder`) over a cabinet.

    ``client_commit``: the change whose environment is the client's on all sides; None: there is none.
    """

    name: str
    spec: str
    cabinet: Cabinet
    client_commit: Change | None = None

    @abstractmethod
    def refuses(self, change: Change) -> Refusal | None: ...

    @abstractmethod
    def key(self, change: Change) -> str: ...

    @abstractmethod
    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment: ...

    def cached(self, change: Change) -> bool:
        return self.cabinet.stamp(self.key(change)) is not None

    def client(self) -> Environment | None:
        if self.client_commit is None:
            return None
        log = self.cabinet.log(self.key(self.client_commit))
        return self.ensure(self.client_commit, log=log, timeout=_PATIENCE)

    def minutes(self, change: Change) -> float | None:
        return 0.0 if self.cached(change) else median_minutes(self.stamps())

    def notes(self) -> tuple[str, ...]:
        return ()

    def disk(self, changes: Iterable[Change]) -> int | None:
        return bytes_of(self.stamps(), self.missing(changes))

    def stamps(self) -> tuple[Stamp, ...]:
        """What was built like this before: prices."""
        return earlier(self.cabinet, self.name, self.spec)

    def missing(self, changes: Iterable[Change]) -> dict[str, Change]:
        """By key, one change for each environment that can be built and is not there."""
        buildable = (change for change in changes if self.refuses(change) is None)
        return {self.key(change): change for change in buildable if not self.cached(change)}

    def folder_of(self, change: Change) -> Path:
        """Where the environment of a change is, or will be.

        :raises BuildError: it is refused.
        """
        refusal = self.refuses(change)
        if refusal is not None:
            raise BuildError(f"{change.short}: {refusal.reason}")
        return self.cabinet.folder(self.key(change))

    def kept(
        self,
        change: Change,
        *,
        make: Callable[[Path], None],
        check: Callable[[Path], Built],
        timeout: float,
        in_place: bool = False,
        python_path: str = "",
        before: float = 0.0,
    ) -> Environment:
        """The environment of a change, made and checked if it is not there (:meth:`Cabinet.ensure`).

        Built for another commit of which all that enters the key is the same, it is this one as well.
        ``before``: seconds that what it stands on took.

        :raises BuildError: it is refused, or ``make`` or ``check`` say so.
        :raises MachineError: no disk, no lock, no registry.
        """
        folder, key = self.folder_of(change), self.key(change)
        stamp, seconds = self.cabinet.ensure(
            key,
            builder=self.name,
            spec=self.spec,
            change=change.id,
            make=make,
            check=check,
            timeout=timeout,
            in_place=in_place,
        )
        if change.kind == "commit":
            stamp = stamp.model_copy(update={"engine_commit": change.id})
        return as_environment(stamp, folder, seconds=before + seconds, python_path=python_path)
