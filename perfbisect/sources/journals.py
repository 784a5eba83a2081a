"""Our own journals: what ``perfbisect run`` measured, one point for each launch.

Launches of a bisection or a comparison are no nights: they measure commits of one day on another, so their
jobs are left aside. An attempt knows more than a result from elsewhere: its digest, commit and machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from perfbisect.core.attempt import Attempt
from perfbisect.core.point import Build, Point, Rejection, Workload, known, moment, stamp
from perfbisect.errors import UsageError
from perfbisect.sources import Asked, Batch, Listed
from perfbisect.store.attempts import from_dict
from perfbisect.store.events import Event
from perfbisect.store.jobs import JOURNAL
from perfbisect.store.journal import read

PIPELINE = "perfbisect"


class Journals:
    """See :class:`perfbisect.sources.Source`."""

    name = "journals"
    what = "a state folder with jobs/, or one job's folder"
    remote = False

    def takes(self, argument: str) -> bool:
        """True for a state folder, its ``jobs`` and a job."""
        return "://" not in argument and any(True for _ in _journals(Path(argument).expanduser()))

    def batches(self, argument: str, asked: Asked) -> Iterator[Batch]:
        """A batch for every ``run``.

        :raises UsageError: no run among the jobs.
        :raises LocatedError: a journal that was changed.
        """
        root, found = Path(argument).expanduser().absolute(), False
        for path in _journals(root):
            seen = path.stat()
            events = read(path).events
            plan = next((event for event in reversed(events) if event.kind == "plan"), None)
            if plan is None or plan.data.get("verb") != "run" or plan.time[:10] < asked.since:
                continue
            found = True
            change = plan.data["change"]
            commit = str(change["id"]).partition("+")[0] if change.get("kind") == "commit" else ""
            build = Build("journal", PIPELINE, path.parent.name, commit=commit, fixed=plan.time)
            texts = partial(_texts, json.dumps(_document(events, plan)))
            file = Listed(JOURNAL, str(path), seen.st_size, str(seen.st_mtime_ns), texts)
            yield Batch(build, (file,))
        if not found:
            raise UsageError(
                f"no job of `perfbisect run` in {root}: others measure old commits and are no nights",
                next_step="perfbisect run CELL",
            )


def _texts(text: str) -> tuple[str, str]:
    return text, ""


def _journals(root: Path) -> Iterator[Path]:
    if (root / JOURNAL).is_file():
        yield root / JOURNAL
        return
    for folder in (root / "jobs", root):
        if folder.is_dir():
            found = sorted(folder.glob(f"*/{JOURNAL}"))
            yield from found
            if found:
                return


def _document(events: tuple[Event, ...], plan: Event) -> dict[str, Any]:
    attempts = [event.data["attempt"] for event in events if event.kind in ("finished", "failed")]
    gone = {event.data["attempt"]: event.data["reason"] for event in events if event.kind == "voided"}
    cell = plan.data["cell"]
    return {
        "schema": "perfbisect.attempts/1",
        "cell": cell["name"],
        "model": cell.get("model", ""),
        "voided": gone,
        "attempts": attempts,
    }


def points_of(build: Build, document: Mapping[str, Any], raw: str) -> Iterator[Point | Rejection]:
    """The attempts of a job's document: points, and those that failed or were void."""
    voided = document["voided"]
    for record, told in enumerate(document["attempts"]):
        try:
            attempt = from_dict(told)
        except ValueError as error:
            yield Rejection(build, "broken", str(error), raw, record, str(document["cell"]))
            continue
        reason = voided.get(attempt.id) or (attempt.failure.reason if attempt.failure else "")
        if reason or not attempt.runs:
            yield Rejection(build, "unmeasured", reason or "no run ended", raw, record, str(document["cell"]))
        else:
            yield _point(build, document, attempt, raw, record)


def _point(build: Build, document: Mapping[str, Any], attempt: Attempt, raw: str, record: int) -> Point:
    began = moment(attempt.started_at)
    names = set.intersection(*(set(run.values) for run in attempt.runs))
    facts = attempt.runs[-1].facts
    completed = facts.get("completed") or 0
    machine = attempt.provenance.facts.get("machine") or {}
    return Point(
        build=build,
        workload=Workload(
            test=str(document["cell"]),
            model=str(document["model"]),
            digest=attempt.provenance.cell_digest,
        ),
        began=stamp(began),
        ended=stamp(began),
        values={name: _mean(attempt, name) for name in sorted(names)},
        covariates=known(
            {
                "duration": sum(run.seconds for run in attempt.runs),
                "completed": completed,
                "failed": facts.get("failed"),
                "input_tokens": _each(facts.get("input_tokens"), completed),
                "output_tokens": _each(facts.get("output_tokens"), completed),
                "max_concurrent_requests": facts.get("max_concurrent_requests"),
                "keys": attempt.provenance.client_digest[:12],
                "host": str(machine.get("host", "")),
                "hardware": attempt.provenance.machine_class,
            }
        ),
        start=attempt.id,
        raw=attempt.folder or raw,
        record=record,
    )


def _mean(attempt: Attempt, name: str) -> float:
    """An attempt's value: the mean of the logarithms of its runs, where there are any."""
    values = [run.values[name] for run in attempt.runs]
    if all(value > 0 for value in values):
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)


def _each(total: object, completed: int) -> float | None:
    return total / completed if isinstance(total, (int, float)) and completed else None


SOURCE = Journals()
