"""Launches of earlier jobs beside a comparison: shown and planned with, never part of its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfbisect.core.attempt import Attempt, comparable
from perfbisect.core.cell import SERVER_SIDE, Cell, difference
from perfbisect.core.compare import Side
from perfbisect.errors import UsageError
from perfbisect.jobs.compare_plan import ComparePlan, cells_of
from perfbisect.jobs.fold import launches
from perfbisect.jobs.plan import find_plan, plan_data, read_cell
from perfbisect.jobs.sides import SIDES
from perfbisect.store.attempts import from_dict, to_dict
from perfbisect.store.events import Clock, Event
from perfbisect.store.jobs import Job
from perfbisect.store.journal import Journal, read


@dataclass(frozen=True)
class Imported:
    """A launch of an earlier job that was of one side of a comparison."""

    job: str
    side: Side
    attempt: Attempt


def imports_from(job: Job, plan: ComparePlan) -> tuple[Imported, ...]:
    """The launches of a job that measured one of the sides, as it is served here.

    :raises UsageError: it measured another workload (the fields are named) or neither side.
    """
    events = read(job.journal).events
    here, compared, theirs = cells_of(plan), find_plan(events, ComparePlan), plan_data(events)
    digest = str(theirs["digest"])
    served = (read_cell(theirs["cell"], digest),) if compared is None else cells_of(compared)
    if digest != plan.digest:
        fields = "; ".join(f"{name} {a} there, {b} here" for name, a, b in difference(served[0], here[0]))
        raise UsageError(
            f"job {job.id} cannot be imported: it measured another workload (cell_digest): {fields}",
            next_step="perfbisect cells diff shows how two cells differ",
        )
    found = []
    for launch in launches(events):
        attempt = launch.attempt
        if launch.end != "finished" or attempt is None:
            continue
        as_served = served[launch.position if len(served) > 1 else 0]
        found += [
            Imported(job.id, side, attempt)
            for side, mine, cell in zip(SIDES, plan.sides, here, strict=True)
            if attempt.change_id == mine.change.id and alike(as_served, cell)
        ]
    if not found:
        raise UsageError(
            f"job {job.id} cannot be imported: none of its launches is of {plan.a.name} or {plan.b.name}",
            next_step=f"perfbisect report {job.id} shows what it measured",
        )
    return tuple(found)


def alike(a: Cell, b: Cell) -> bool:
    """True if two cells of one workload are served alike."""
    return all(getattr(a, field) == getattr(b, field) for field in SERVER_SIDE)


def check_imports(
    found: Sequence[Imported], *, machine_class: str | None = None, client: tuple[str, str] | None = None
) -> None:
    """Refuses what cannot be compared with the launches that will be made: ``client`` is digest and era.

    :raises UsageError: the field, with both values.
    """
    for one in found:
        theirs = one.attempt.provenance
        digest, era = client or (theirs.client_digest, theirs.client_era)
        ours = replace(
            theirs,
            machine_class=theirs.machine_class if machine_class is None else machine_class,
            client_digest=digest,
            client_era=era,
        )
        for field, left, right in comparable(theirs, ours):
            raise UsageError(
                f"attempt {one.attempt.id} of job {one.job} cannot be imported: "
                f"{field} was {left!r} there and is {right!r} here",
                where=one.attempt.folder,
                next_step="leave that --import out",
            )


def take_in(job: Job, found: Sequence[Imported], clock: Clock) -> None:
    """Writes imported launches into the journal of a comparison that has its plan."""
    with Journal(job.journal, clock=clock) as journal:
        for one in found:
            journal.append("imported", {"attempt": to_dict(one.attempt), "job": one.job, "side": one.side})


def imports_of(events: Sequence[Event]) -> tuple[Imported, ...]:
    """The imported launches of a comparison.

    :raises UsageError: an event that holds none.
    """
    found = []
    for event in events:
        if event.kind != "imported":
            continue
        try:
            side: Side = "a" if event.data["side"] == "a" else "b"
            found.append(Imported(str(event.data["job"]), side, from_dict(event.data["attempt"])))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"the journal's event {event.seq} imports no attempt: {error!r}") from error
    return tuple(found)
