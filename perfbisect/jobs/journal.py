"""A job's journal: JSON lines, each synced to disk before the next decision."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.measure.attempt import plain

EventKind = Literal[
    "plan",
    "started",
    "launched",
    "finished",
    "failed",
    "abandoned",
    "discarded",
    "built",
    "machine",
    "replicate",
    "revert",
    "node",
    "unusable",
    "job",
    "cell",
    "step",
    "verdict",
]

SCHEMA: Final = 1
KINDS: Final[frozenset[str]] = frozenset(get_args(EventKind))


def _zoned(time: str) -> str:
    if datetime.fromisoformat(time).tzinfo is None:
        raise ValueError("a time has a zone")
    return time


Clock = Callable[[], datetime]
"""Returns the current time with its zone."""


@dataclass(frozen=True)
class JournalEvent:
    """One line of a journal: ``seq`` counts from 0, ``time`` is ISO 8601 in UTC."""

    seq: Annotated[int, Field(strict=True, ge=0)]
    time: Annotated[str, AfterValidator(_zoned)]
    kind: Annotated[EventKind, Field(alias="event")]
    data: Mapping[str, Any]

    def line(self) -> str:
        """The event as one line of JSON; raises ValueError for non-finite numbers."""
        document = {
            "schema": SCHEMA,
            "seq": self.seq,
            "time": self.time,
            "event": self.kind,
            "data": self.data,
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


_EVENT = TypeAdapter(JournalEvent)


class NewerSchemaError(ValueError):
    """The line is from a later version of perfbisect."""


def stamp(moment: datetime) -> str:
    """Format a time in UTC with microseconds."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def parse(line: str) -> JournalEvent:
    """Parse a line.

    Raises:
        NewerSchemaError: the schema is newer than this version's.
        ValueError: the line is not an event.
    """
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("not an object")
    version = document.get("schema")
    if isinstance(version, bool) or not isinstance(version, int) or version < SCHEMA:
        raise ValueError(f"schema {version!r} is not a version")
    if version > SCHEMA:
        raise NewerSchemaError(f"schema {version} is newer than {SCHEMA}")
    try:
        return _EVENT.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{first['loc'][0]} {first['input']!r}: {first['msg']}") from error


@dataclass(frozen=True)
class Contents:
    """A journal's events, the bytes of its complete lines, and a torn last line."""

    events: tuple[JournalEvent, ...]
    whole: int
    torn: bytes = b""


def read(path: Path) -> Contents:
    """Read a journal without changing it; an incomplete last line (kill -9, full disk) is ``torn``.

    Raises:
        LocatedError: an invalid line before the last: the file was edited.
        UsageError: there is no journal, or it is from a later version.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no journal at {path}", next_step="perfbisect status") from None
    except OSError as error:
        raise MachineError(f"the journal cannot be read: {error}", where=path) from error
    events: list[JournalEvent] = []
    whole = 0
    lines = BytesIO(raw).readlines()
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the line does not end")
            event = parse(line.decode("utf-8"))
            if event.seq != number:
                raise ValueError(f"seq {event.seq} where {number} must stand")
        except NewerSchemaError as error:
            raise UsageError(
                f"the journal was written by a later perfbisect: {error}",
                where=f"{path}:{number + 1}",
                next_step="upgrade perfbisect, or start a new job",
            ) from error
        except (ValueError, RecursionError) as error:
            if last:
                return Contents(tuple(events), whole, line)
            raise LocatedError(
                f"not an event of a journal: {error}",
                file=path,
                line=number + 1,
                next_step="put the file back as it was, or start a new job: attempts stay in their folders",
            ) from error
        events.append(event)
        whole += len(line)
    return Contents(tuple(events), whole)


class Journal:
    """Appends to a journal; thread-safe. The process holds the job's lock.

    ``torn``: the incomplete last line that was cut off on opening and kept in ``journal.torn``.
    """

    def __init__(self, path: Path, *, clock: Clock) -> None:
        """Open or create the journal; raises what :func:`read` raises, MachineError if the disk fails."""
        self.path = path
        self._clock = clock
        contents = read(path) if path.exists() else Contents((), 0)
        self._written = contents.events, contents.whole
        """Events, and bytes of their lines: one value, so that an interruption changes both or none."""
        self.torn = contents.torn
        try:
            if contents.torn:
                with path.with_suffix(".torn").open("ab") as kept:
                    kept.write(contents.torn + (b"" if contents.torn.endswith(b"\n") else b"\n"))
                os.truncate(path, contents.whole)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise MachineError(f"the journal cannot be opened: {error}", where=path) from error
        self._half = False
        self._turn = threading.Lock()

    @property
    def events(self) -> tuple[JournalEvent, ...]:
        return self._written[0]

    def append(self, kind: EventKind, data: Mapping[str, Any]) -> JournalEvent:
        """Write one event and sync it to disk.

        Raises:
            MachineError: the disk is full or failed; the journal is unchanged.
        """
        with self._turn:
            return self._append(kind, data)

    def _append(self, kind: EventKind, data: Mapping[str, Any]) -> JournalEvent:
        events, size = self._written
        event = JournalEvent(len(events), stamp(self._clock()), kind, plain(data))
        line = event.line().encode("utf-8")
        try:
            self._cut()
            written = 0
            self._half = True
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
            self._written = (*events, event), size + len(line)
        except BaseException as error:  # also Ctrl-C: the file stays consistent with this object
            with contextlib.suppress(OSError):  # else the next append or opening cuts off half a line
                self._cut()
            if not isinstance(error, OSError):
                raise
            raise MachineError(
                f"the journal's {kind!r} line could not be written: {error.strerror or error}",
                where=self.path,
                next_step=f"make room on the disk, then: perfbisect resume {self.path.parent.name}",
            ) from error
        self._half = False
        return event

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self) -> None:
        """Cut off half a line."""
        if self._half:
            os.ftruncate(self._file, self._written[1])
            self._half = False
