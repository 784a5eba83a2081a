"""Where environments are kept, and the one way in which they are built (DESIGN rule 8).

``CACHE/environments/KEY/`` is an environment; ``stamp.json`` in it is written last, so a folder without one
is what a dead build left and is built again. One process builds a key, others wait for its lock. Content is
made in a staging folder, moved to its place, checked there, as it will be used, and then stamped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfbisect.environments import Environment
from perfbisect.environments.sizes import own_bytes
from perfbisect.environments.use import Holds
from perfbisect.errors import MachineError
from perfbisect.system.whole_file import replace_file

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
