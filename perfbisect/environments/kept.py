"""Wheels and images that are kept for when their registry has them no longer.

``CACHE/kept/files/SHA256/NAME`` holds each file once, ``CACHE/kept/records/KEY.json`` says which files a
change needs. A record is written last and removed first; a file is hashed each time before it is used.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Artifact
from perfbisect.environments.build import BuildRun
from perfbisect.environments.cache import exclusive_lock, os_errors_as_machine_errors
from perfbisect.errors import MachineError, UsageError
from perfbisect.system.files import replace_file

KeepReason = Literal["changed night", "last good night", "asked for"]
"""Why an artifact is kept, what goes first before what stays."""

LINKS = "kept"
"""Folder of a new environment with links to kept files, while it is made."""
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+!-]*$"
_STRENGTH: tuple[KeepReason, ...] = ("changed night", "last good night", "asked for")
_LOCK_TIMEOUT_S = 600.0
_SAVE_TIMEOUT_S = 3 * 3600.0


@dataclass(frozen=True)
class KeptFile:
    """``digest``: SHA-256. ``origin``: a wheel's address, or the name by which a tool runs an image."""

    name: Annotated[str, Field(pattern=FILE_NAME)]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]
    origin: str


@dataclass(frozen=True)
class KeptArtifact:
    """What a change needs of a registry, kept.

    ``source``: what the registry is asked for. ``digest``: of the wheel, or of an image's configuration.
    ``kept_at``: Unix time. ``nightly``: whose night it is, empty if it was asked for only.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    change: str
    spec: str
    kept_at: float
    why: KeepReason
    nightly: str = ""
    source: str = ""
    digest: str = ""
    files: Annotated[tuple[KeptFile, ...], Field(min_length=1)] = ()
    schema: Literal["perfbisect.kept/1"] = "perfbisect.kept/1"


_RECORD = TypeAdapter(KeptArtifact)


def total_bytes(kept: Iterable[KeptArtifact]) -> int:
    """Bytes of artifacts together: a file that several need counts once."""
    return sum({file.digest: file.bytes for one in kept for file in one.files}.values())


def surplus(kept: Sequence[KeptArtifact], size: float, new: str = "") -> tuple[KeptArtifact, ...]:
    """What goes, in this order, until the rest fits into ``size`` bytes; never what has the source ``new``.

    The changed nights of a nightly are thinned out evenly: first that between the two nights nearest to each
    other; its first and its newest night go last. Then the last good nights. What was asked for stays.
    """
    left, removed = sorted(kept, key=lambda one: (one.kept_at, one.source)), []
    while total_bytes(left) > size:
        gaps: dict[str, float] = {}
        for nightly in {one.nightly for one in left}:
            nights = [one for one in left if one.nightly == nightly]
            for (before, one), (_, after) in pairwise(pairwise(nights)):
                gaps[one.source] = after.kept_at - before.kept_at
        ranked = [
            (_STRENGTH.index(one.why), gaps.get(one.source, float("inf")), place)
            for place, one in enumerate(left)
            if one.why != "asked for" and one.source != new
        ]
        if not ranked:
            break
        removed.append(left.pop(min(ranked)[2]))
    return tuple(removed)


class KeptArtifacts:
    """The kept artifacts of a cache folder; processes may keep and remove at the same time."""

    def __init__(self, cache: Path) -> None:
        self.root = cache / "kept"
        self._records, self._files = self.root / "records", self.root / "files"

    def all(self) -> tuple[KeptArtifact, ...]:
        """Those whose files are there in their full length, the oldest first."""
        read = map(self._read, sorted(self._records.glob("[!.]*.json")))
        whole = [one for one in read if one is not None]
        return tuple(sorted(whole, key=lambda one: (one.kept_at, one.source)))

    def find(self, source: str) -> KeptArtifact | None:
        """What is kept of an address or image."""
        found = self._read(self._record(source))
        return found if found is not None and found.source == source else None

    def link(self, kept: KeptArtifact, folder: Path) -> tuple[Path, ...]:
        """Hard links in a folder to an artifact's files, which are hashed now.

        Empty if a file is damaged, which is then removed. A link stays valid while the artifact is dropped.
        """
        folder.mkdir(parents=True, exist_ok=True)
        links = []
        for file in kept.files:
            original, link = self._path(file), folder / file.name
            try:
                os.link(original, link)
            except FileNotFoundError:
                return ()
            except OSError:
                # A filesystem without hard links.
                shutil.copyfile(original, link)
            if file_sha256(link) != file.digest:
                for damaged in (original, link):
                    damaged.unlink(missing_ok=True)
                return ()
            links.append(link)
        return tuple(links)

    def keep(
        self,
        artifact: Artifact,
        wanted: KeptArtifact,
        build: BuildRun,
        size: float | None,
    ) -> tuple[KeptArtifact, tuple[KeptArtifact, ...]]:
        """Keep an artifact; of one that is kept the reason may become a stronger one.

        ``wanted``: its record, yet without files. ``size``: bytes of all that is kept, None: no limit.
        Returns what is kept now, and what was dropped for it.

        Raises:
            UsageError: it does not fit into ``size``.
            MachineError: no registry, disk or lock.
        """
        key = environment_key(artifact.source)
        lock = self.root / ".locks" / f"{key}.lock"
        with (
            os_errors_as_machine_errors(f"keep files in {self.root}"),
            exclusive_lock(lock, "the same kept files", _SAVE_TIMEOUT_S),
            self._staging(key) as staging,
        ):
            known = self.find(artifact.source)
            if known is not None and artifact.digest in ("", known.digest):
                why = max(wanted.why, known.why, key=_STRENGTH.index)
                new = replace(known, why=why, nightly=wanted.nightly or known.nightly)
            else:
                origins = artifact.save(build, staging)
                files = tuple(
                    KeptFile(name, file_sha256(path), path.stat().st_size, origin)
                    for name, origin in origins.items()
                    for path in (staging / name,)
                )
                digest = artifact.digest or f"sha256:{files[0].digest}"
                new = replace(wanted, source=artifact.source, digest=digest, files=files)
            with self._locked():
                places = ((staging / file.name, self._path(file)) for file in new.files)
                if all(path.exists() or staged.exists() for staged, path in places):
                    return new, self._place(new, staging, size)
        # Another process has dropped it since it was found.
        return self.keep(artifact, wanted, build, size)

    def drop(self, kept: Iterable[KeptArtifact]) -> None:
        """Remove artifacts, and files that no other needs."""
        with os_errors_as_machine_errors(f"remove files in {self.root}"), self._locked():
            for one in kept:
                self._record(one.source).unlink(missing_ok=True)
            self._sweep()

    def collect(self, size: float | None, *, dry_run: bool) -> tuple[KeptArtifact, ...]:
        """Drop what does not fit into ``size`` bytes, and what dead processes and damage left."""
        if not self.root.is_dir():
            return ()
        with os_errors_as_machine_errors(f"remove files in {self.root}"), self._locked():
            dropped = () if size is None else surplus(self.all(), size)
            if not dry_run:
                for one in dropped:
                    self._record(one.source).unlink(missing_ok=True)
                self._sweep()
        return dropped

    def _place(self, new: KeptArtifact, staging: Path, size: float | None) -> tuple[KeptArtifact, ...]:
        """Make room, move files into place, then write the record; needs the lock."""
        before = {one.source: one for one in self.all()}
        records = before | {new.source: new}
        if new.why == "last good night":
            records |= {
                one.source: replace(one, why="changed night")
                for one in records.values()
                if one.why == new.why and one.nightly == new.nightly and one.source != new.source
            }
        dropped = () if size is None else surplus(tuple(records.values()), size, new.source)
        left = [one for one in records.values() if one not in dropped]
        if size is not None and total_bytes(left) > size:
            asked = total_bytes(one for one in left if one.why == "asked for" and one != new)
            raise UsageError(
                f"{new.change[:12]} takes {total_bytes([new]) / 1e6:.1f} MB and does not fit: all kept files "
                f"may take {size / 1e6:.1f} MB, of which {asked / 1e6:.1f} MB were asked for",
                next_step="a larger --kept-size or kept_size:, or perfbisect env keep --drop CHANGE",
            )
        replaced = [one for one in before.values() if one.source == new.source and one.files != new.files]
        for one in (*dropped, *replaced):
            self._record(one.source).unlink(missing_ok=True)
        self._sweep()
        for file in new.files:
            if (staging / file.name).exists():
                self._path(file).parent.mkdir(parents=True, exist_ok=True)
                (staging / file.name).replace(self._path(file))
        self._records.mkdir(exist_ok=True)
        for one in left:
            if one != before.get(one.source):
                replace_file(self._record(one.source), _RECORD.dump_json(one, indent=1) + b"\n")
        return dropped

    def _sweep(self) -> None:
        """Remove records that are not whole, files that no record needs, and what dead processes left."""
        needed = {file.digest for one in self.all() for file in one.files}
        for path in self._records.glob("*"):
            if self._read(path) is None:
                path.unlink(missing_ok=True)
        for folder in self._files.glob("*"):
            if folder.name not in needed:
                shutil.rmtree(folder, ignore_errors=True)
        for staging in self.root.glob(".staging/*"):
            with suppress(MachineError):
                lock = self.root / ".locks" / f"{staging.name.partition('.')[0]}.lock"
                with exclusive_lock(lock, "", 0.0):
                    shutil.rmtree(staging, ignore_errors=True)

    def _read(self, path: Path) -> KeptArtifact | None:
        try:
            found = _RECORD.validate_json(path.read_bytes())
            is_whole = all(self._path(file).stat().st_size == file.bytes for file in found.files)
        except (OSError, ValueError):
            return None
        return found if is_whole else None

    def _record(self, source: str) -> Path:
        return self._records / f"{environment_key(source)}.json"

    def _path(self, file: KeptFile) -> Path:
        return self._files / file.digest / file.name

    def _locked(self) -> AbstractContextManager[None]:
        return exclusive_lock(self.root / ".locks" / "all.lock", "kept files", _LOCK_TIMEOUT_S)

    @contextmanager
    def _staging(self, key: str) -> Iterator[Path]:
        folder = self.root / ".staging" / f"{key}.{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def file_sha256(path: Path) -> str:
    """The digest of a file that is on the disk then."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
        os.fsync(file.fileno())
    return digest.hexdigest()
