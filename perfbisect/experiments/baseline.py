"""Recorded levels: launches of one change that were measured before, and when they can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from perfbisect.common.quantities import counted
from perfbisect.common.secret_references import hide_literals
from perfbisect.common.text import json_text
from perfbisect.errors import LocatedError, UsageError
from perfbisect.jobs.plans import PlanPart
from perfbisect.jobs.replay import require_ratio
from perfbisect.measure.attempt import from_dict, to_dict
from perfbisect.model.attempt import Attempt, provenance_differences
from perfbisect.model.cell import SERVER_SIDE, Cell, cell_difference
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.stats.threshold import LEAST
from perfbisect.system.files import write_atomic


class RecordedLevel(PlanPart):
    """Launches of one change under one cell; ``cell`` as it was served.

    ``attempts``: with no fact but what they ran in.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_: Literal["perfbisect.baseline/1"] = Field(default="perfbisect.baseline/1", alias="schema")
    job: str
    change: Change
    cell: dict[str, Any]
    environment: str
    exclude_newer: str = ""
    constraints: str = ""
    attempts: tuple[
        Annotated[
            Attempt,
            PlainValidator(lambda value: value if isinstance(value, Attempt) else from_dict(value)),
            PlainSerializer(to_dict),
        ],
        ...,
    ]

    @property
    def days(self) -> str:
        """When it was measured: ``2026-11-20``, or the first and the last day."""
        days = sorted({attempt.started_at[:10] for attempt in self.attempts})
        return days[0] if len(days) < 2 else f"{days[0]} to {days[-1]}"

    def values(self, metric: MetricRef) -> tuple[tuple[float, ...], ...]:
        """The metric of each run of each launch. :raises KeyError: it was not reported."""
        return tuple(attempt.values(metric) for attempt in self.attempts)


class ReportedLevel(PlanPart):
    """What a client reported of one run, by the names of the judged metrics.

    The file says neither machine nor build, and one value has no spread. ``day``: empty where it has none.
    """

    file: str
    client: str
    day: str = ""
    values: Mapping[str, float]


def require_same_workload(level: RecordedLevel, cell: Cell, metrics: Sequence[MetricRef]) -> None:
    """Require that a level is of this workload, was served alike, and has the metrics; else a UsageError."""
    recorded = Cell.model_validate_json(json.dumps(level.cell))
    digest = level.attempts[0].provenance.cell_digest
    differences = list(cell_difference(recorded, cell))
    # The cell in the file was edited after its launches, or this version computes another digest.
    if not differences and recorded.digest != digest:
        differences.append(("cell_digest", digest, cell.digest))
    # The digest has no settings of the server: the same workload, served otherwise, has another level.
    for name in SERVER_SIDE:
        there, here = getattr(recorded, name), getattr(cell, name)
        if there != here:
            differences.append((name, str(hide_literals(there)), str(hide_literals(here))))
    if differences:
        fields = "; ".join(f"{name} {there} there, {here} here" for name, there, here in differences)
        raise UsageError(
            f"the baseline of {level.job} is of another workload: {fields}",
            next_step="perfbisect check CELL --save-baseline FILE measures one of this cell",
        )
    try:
        for metric in metrics:
            for values in level.values(metric):
                require_ratio(values, metric, where=level.job)
    except KeyError:
        known = sorted({name for attempt in level.attempts for name in attempt.reported})
        raise UsageError(
            f"the baseline of {level.job} does not have {metric}; it has: {', '.join(known)}",
            next_step="name one of these with --metric",
        ) from None


def require_same_machine(
    level: RecordedLevel, *, machine_class: str | None = None, client: tuple[str, str] | None = None
) -> None:
    """Require that a level is of this machine and client (digest and era); else a UsageError."""
    here: dict[str, Any] = {}
    if machine_class is not None:
        here["machine_class"] = machine_class
    if client is not None:
        here["client_digest"], here["client_era"] = client
    for attempt in level.attempts:
        theirs = attempt.provenance
        for field, left, right in provenance_differences(theirs, replace(theirs, **here)):
            raise UsageError(
                f"the baseline of {level.job} cannot be compared: {field} was {left!r} there "
                f"and is {right!r} here",
                next_step="record one on this machine with this client: --save-baseline; or --against REV, "
                "which measures both",
            )


def require_enough(level: RecordedLevel, name: str) -> RecordedLevel:
    """Require enough launches for a level."""
    if len(level.attempts) < LEAST:
        raise UsageError(
            f"{name} has {counted(len(level.attempts), 'launch')} of {level.change.short}: "
            f"a baseline needs at least {LEAST}",
            next_step="perfbisect check CELL --save-baseline FILE",
        )
    return level


def write_baseline(path: Path, level: RecordedLevel) -> None:
    """Write a level atomically."""
    write_atomic(
        path,
        json_text(level.model_dump_json(by_alias=True, indent=1)) + "\n",
        what="the baseline",
        next_step=f"the launches are kept: --against baseline --baseline {level.job}",
    )


def read_baseline(path: Path) -> RecordedLevel:
    """Read a level from a file; a LocatedError says why it holds none."""
    again = "perfbisect check CELL --save-baseline FILE writes one"
    try:
        level = RecordedLevel.model_validate_json(path.read_bytes())
    except OSError as error:
        raise LocatedError(f"it cannot be read: {error}", file=path) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise LocatedError(str(first["msg"]), file=path, field=field, next_step=again) from None
    return require_enough(level, str(path))
