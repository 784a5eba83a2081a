"""A job's journal: JSON lines, each synced to disk before the next decision.

A line ends in the checksum of what stands before it. Journals of before have none; from the first line with a
checksum on, each line has one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from perfbisect.common.checked import required
from perfbisect.common.json_text import WRONG_SHAPE, compact
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
    "named",
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


_FACTS: Final[Mapping[EventKind, str]] = {"finished": "facts", "failed": "facts"}
"""Name of what is kept packed in the events of a kind."""

Clock = Callable[[], datetime]
"""Returns the current time with its zone."""


_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n?')
_CHECKSUM_BYTES = len(b',"crc32":"01234567"}\n')
RESTORE = "put the file back as it was, or start a new job: attempts stay in their folders"


@dataclass(frozen=True)
class JournalEvent:
    """One line of a journal: ``seq`` counts from 0, ``time`` is ISO 8601 in UTC. ``file``: the journal."""

    seq: Annotated[int, Field(strict=True, ge=0)]
    time: Annotated[
        str, required(lambda text: datetime.fromisoformat(text).tzinfo is not None, "time with a zone")
    ]
    kind: Annotated[EventKind, Field(alias="event")]
    data: Mapping[str, Any]
    file: Path = field(default=Path("journal.jsonl"), compare=False)

    def line(self) -> bytes:
        """The event as one line of JSON with its checksum; raises ValueError for non-finite numbers."""
        document = {
            "schema": SCHEMA,
            "seq": self.seq,
            "time": self.time,
            "event": self.kind,
            "data": self.data,
        }
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return with_checksum(text.encode("utf-8"))

    def error(self, problem: object, what: str = "") -> LocatedError:
        """The error of an event that cannot be replayed, at its line; ``what``: the part at fault."""
        part = what or f"the journal's event {self.seq}"
        return LocatedError(
            f"{part} cannot be read: {problem}",
            file=self.file,
            line=self.seq + 1,
            next_step=RESTORE,
        )


def with_checksum(document: bytes) -> bytes:
    """A line of a journal: an object of JSON, whose last member becomes its checksum."""
    start = document.rstrip()[:-1]
    return b'%b,"crc32":"%08x"}\n' % (start, zlib.crc32(start))


_EVENT = TypeAdapter(JournalEvent)


class NewerSchemaError(ValueError):
    """The line is from a later version of perfbisect."""


def stamp(moment: datetime) -> str:
    """Format a time in UTC with microseconds."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def parse(line: str) -> JournalEvent:
    """Parse a line.

    Raises:
        NewerSchemaError: the schema is newer than this version's.
        ValueError: the line is not an event.
    """
    document = json.loads(line, parse_constant=_refuse_constant)
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


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """The lines that a journal has now, whatever is appended meanwhile, and whether each is the last."""
    try:
        with path.open("rb") as file:
            # As long as the file is now: status reads while a job appends.
            left = os.fstat(file.fileno()).st_size
            while line := file.readline(left):
                left -= len(line)
                yield line, not left
    except FileNotFoundError:
        raise UsageError(f"no journal at {path}", next_step="perfbisect status") from None
    except OSError as error:
        raise MachineError(f"the journal cannot be read: {error}", where=path) from error


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
    events: list[JournalEvent] = []
    whole = 0
    has_checksums = False
    texts: dict[str, str] = {}
    for number, (line, last) in enumerate(_lines(path)):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the line does not end")
            event = parse(line.decode("utf-8"))
            # Launches of a job say the same but for their numbers; the larger part of each are its facts.
            event = replace(event, data=compact(event.data, texts, _FACTS.get(event.kind, "")), file=path)
            # Found by its place at the end, not by parsing: the bytes are checked, whatever they mean.
            start, end = line[:-_CHECKSUM_BYTES], line[-_CHECKSUM_BYTES:]
            checksum = _CHECKSUM.fullmatch(end)
            if checksum is not None and int(checksum[1], 16) != zlib.crc32(start):
                raise ValueError("its checksum is another: the line was changed")
            if checksum is None and has_checksums:
                raise ValueError("it has no checksum, and the lines before it have one")
            has_checksums = checksum is not None
            if event.seq != number:
                raise ValueError(f"seq {event.seq} where {number} must stand")
        except NewerSchemaError as error:
            raise UsageError(
                f"the journal was written by a later perfbisect: {error}",
                where=f"{path}:{number + 1}",
                next_step="upgrade perfbisect, or start a new job",
            ) from error
        except (ValueError, RecursionError) as error:
            # A kill or a full disk tears the last line alone; any other was whole once and has been edited.
            if last:
                return Contents(tuple(events), whole, line)
            raise LocatedError(
                f"not an event of a journal: {error}",
                file=path,
                line=number + 1,
                next_step=RESTORE,
            ) from error
        events.append(event)
        whole += len(line)
    return Contents(tuple(events), whole)


@contextlib.contextmanager
def replaying(path: Path) -> Iterator[None]:
    """Turn what the values of a journal break into a located error; for code that computes from them alone.

    Raises:
        UsageError: a part of the journal cannot be read, with its place.
        LocatedError: a value is of another kind, or beyond what can be computed with.
    """
    try:
        yield
    except UsageError as error:
        error.where = error.where or str(path)
        raise
    except (AssertionError, StopIteration, *WRONG_SHAPE) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise LocatedError(
            f"the journal cannot be replayed: {type(error).__name__}: {error} "
            f"(in {Path(frame.filename).name}, line {frame.lineno})",
            file=path,
            next_step=RESTORE,
        ) from error


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
        event = JournalEvent(len(events), stamp(self._clock()), kind, plain(data), self.path)
        line = event.line()
        try:
            self._cut()
            written = 0
            self._half = True
            # write() may write less than it is given, on a disk that becomes full.
            while written < len(line):
                written += os.write(self._file, line[written:])
            # Before the event counts: after a power cut no decision may rest on a line that is not there.
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
