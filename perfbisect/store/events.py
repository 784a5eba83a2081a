"""What a journal can say, of a job or of a night: one event a line, with schema, number, time, kind and data.

========== ==========================================================================================
kind       data
========== ==========================================================================================
plan       the question as asked, enough to go on without arguments: see ``perfbisect.jobs.plan``
started    ``attempt`` id, ``position``, ``change``, ``purpose``, ``runs``, ``why``, ``folder``, ``token``,
           ``slot`` it runs on, ``at``: minutes from the job's first launch, by a clock that cannot be set
launched   ``attempt`` id, ``token``, ``pid``, ``created``, ``port`` of the server that now exists
finished   ``attempt``: an attempt with its measurements, whole
failed     ``attempt``: an attempt with its failure, whole
abandoned  ``attempt`` id, ``reason``, ``minutes`` that were lost
voided     ``attempt`` id of one that had finished, ``reason``: its values are no evidence after all
built      ``position`` of an environment that was built beside a running attempt, ``seconds``
revert     how the later end compares with itself less the culprit; ``note`` where it could not be told
job        of a night: the ``job`` that measures a ``cell``, or that bisects an ``event``
cell       of a night: a ``cell`` that failed, ``reason``, ``log``, ``next``, ``exit_code``
step       of a night: a step with its ``name`` has ended, and what came of it
verdict    how the job ended
========== ==========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, Literal, get_args

Kind = Literal[
    "plan",
    "started",
    "launched",
    "finished",
    "failed",
    "abandoned",
    "voided",
    "built",
    "revert",
    "job",
    "cell",
    "step",
    "verdict",
]

SCHEMA: Final = 1
KINDS: Final[frozenset[str]] = frozenset(get_args(Kind))

Clock = Callable[[], datetime]
"""Gives the time now, aware of its zone: passed in, so that a test can say when things happen."""


@dataclass(frozen=True)
class Event:
    """One line of a journal: ``seq`` counts from 0, ``time`` is ISO 8601 in UTC."""

    seq: int
    time: str
    kind: Kind
    data: Mapping[str, Any]

    def line(self) -> str:
        """The event as one line of JSON, with its newline.

        :raises ValueError: the data hold what JSON cannot (a number that is not finite).
        """
        document = {
            "schema": SCHEMA,
            "seq": self.seq,
            "time": self.time,
            "event": self.kind,
            "data": self.data,
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


class NewerSchemaError(ValueError):
    """A line was written by a later version of perfbisect."""


def stamp(moment: datetime) -> str:
    """A moment as the journal writes it: UTC, microseconds."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def parse(line: str) -> Event:
    """One line -> an event.

    :raises NewerSchemaError: the line's schema is newer than this perfbisect's.
    :raises ValueError: not an event.
    """
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("not an object")
    version = document.get("schema")
    if isinstance(version, bool) or not isinstance(version, int) or version < SCHEMA:
        raise ValueError(f"schema {version!r} is not a version")
    if version > SCHEMA:
        raise NewerSchemaError(f"schema {version} is newer than {SCHEMA}")
    seq, time, kind, data = (document.get(name) for name in ("seq", "time", "event", "data"))
    if isinstance(seq, bool) or not isinstance(seq, int) or seq < 0:
        raise ValueError(f"seq {seq!r} is not a number from 0")
    if not isinstance(time, str) or datetime.fromisoformat(time).tzinfo is None:
        raise ValueError(f"time {time!r} is not a time with its zone")
    if kind not in KINDS:
        raise ValueError(f"event {kind!r} is none of {', '.join(sorted(KINDS))}")
    if not isinstance(data, dict):
        raise ValueError("data is not an object")
    return Event(seq, time, kind, data)
