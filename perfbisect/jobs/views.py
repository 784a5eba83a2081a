"""Values of a job -> the parts of its documents."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from statistics import median
from typing import Any

import perfbisect
from perfbisect.clients import CLIENTS
from perfbisect.core import bisect as core
from perfbisect.core.attempt import Attempt, key
from perfbisect.core.cell import Cell, echo
from perfbisect.core.change import Change
from perfbisect.core.metric import MetricRef
from perfbisect.core.verdict import SHOWN
from perfbisect.families import FAMILIES
from perfbisect.jobs.fold import Launch
from perfbisect.jobs.plan import Position, Setting
from perfbisect.jobs.prepare import EXAMPLE
from perfbisect.render.documents import (
    BeliefDocument,
    CellDocument,
    ChangeDocument,
    CommandsDocument,
    LaunchDocument,
    MetricDocument,
    MinutesDocument,
    PositionDocument,
)


def change_document(change: Change) -> ChangeDocument:
    return ChangeDocument(
        id=change.id, short=change.short, subject=change.subject, date=change.date, author=change.author
    )


def position_document(index: int, position: Position) -> PositionDocument:
    return PositionDocument(index=index, changes=tuple(change_document(c) for c in position.changes))


def metric_document(metric: MetricRef) -> MetricDocument:
    row = metric.metric
    statistic = f", {metric.statistic}" if metric.statistic else ""
    return MetricDocument(
        name=str(metric),
        display=row.display + statistic,
        unit=row.unit,
        direction=row.direction,
        smallest_effect=row.smallest_effect,
    )


def cell_document(cell: Cell, metric: MetricRef) -> CellDocument:
    return CellDocument(
        name=cell.name, family=cell.family, digest=cell.digest, rows=tuple(echo(cell, metric))
    )


def launch_document(launch: Launch, change: Change, metric: MetricRef) -> LaunchDocument:
    """One attempt, with its value of one metric."""
    attempt = launch.attempt
    values: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    if attempt is not None:
        values = tuple(run.values[key(metric)] for run in attempt.runs if key(metric) in run.values)
        warnings = tuple(dict.fromkeys(text for run in attempt.runs for text in run.warnings))
    failure = attempt.failure if attempt else None
    outcome = {"finished": "measured", "failed": "failed", "abandoned": "abandoned", None: "running"}[
        launch.end
    ]
    return LaunchDocument.model_validate(
        {
            "number": launch.number,
            "attempt": launch.attempt_id,
            "position": launch.position,
            "change": change_document(change),
            "purpose": launch.purpose,
            "why": launch.why,
            "outcome": outcome,
            "value": reported_value(attempt, metric) if attempt is not None else None,
            "values": values,
            "spread": spread(attempt, metric),
            "reason": f"{failure.phase}: {failure.reason}" if failure else launch.reason,
            "fault": failure.fault if failure else "",
            "warnings": warnings,
            "minutes": launch.minutes,
            "seconds": dict(attempt.seconds) if attempt else {},
            "started_at": launch.started_at,
            "cold": bool(attempt and attempt.cold),
            "folder": launch.folder,
            "log": failure.log if failure else "",
            "slot": launch.slot,
            "at": launch.at,
        }
    )


def shown_probability(p: float) -> float:
    """A probability as documents tell it: to a ten-thousandth, and never above what the model is good for."""
    return min(SHOWN, round(p, 4))


def belief_document(told: core.Beliefs | None) -> BeliefDocument | None:
    """A posterior as it is shown."""
    if told is None:
        return None
    return BeliefDocument(
        none=shown_probability(told.none),
        leading=told.leading,
        leading_probability=shown_probability(told.leading_p),
        by_position=tuple(shown_probability(p) for p in told.p),
        noise_between_runs=told.sigma,
        noise_between_launches=told.tau,
        step=told.step,
        step_low=told.step_low,
        step_high=told.step_high,
    )


def spread(attempt: Attempt | None, metric: MetricRef) -> float | None:
    """Robust coefficient of variation over a run's requests, median over the runs; None without requests."""
    if attempt is None:
        return None
    known = [
        run.spread[name] for run in attempt.runs for name in (key(metric), metric.name) if name in run.spread
    ]
    return median(known) if known else None


def minutes_document(seen: Sequence[Launch], budget: float, saved: float = 0.0) -> MinutesDocument:
    """Where the minutes went, by phase; lost are those of attempts that are no evidence."""
    phases: dict[str, float] = {}
    for launch in seen:
        for phase, seconds in (launch.attempt.seconds if launch.attempt else {}).items():
            phases[phase] = phases.get(phase, 0.0) + seconds / 60
    lost = sum(x.minutes for x in seen if x.end != "finished" and not x.refused)
    total = sum(x.minutes for x in seen)
    return MinutesDocument(total=total, budget=budget, lost=lost, by_phase=phases, saved=saved)


def commands_document(
    cell: Cell, setting: Setting, change: Change, attempt: Attempt | None
) -> CommandsDocument:
    """The commands of an attempt as they ran, or, without one, as they will."""
    server = FAMILIES[cell.family].server(cell, EXAMPLE)
    client_env = CLIENTS[cell.client.name].env(cell)
    serve, bench = _ran(attempt, "server", server.env), _ran(attempt, "client", client_env)
    note = "as they ran; the whole process environment is in the attempt's attempt.json"
    if not serve:
        serve = " ".join([*_variables(server.env), shlex.join(("python", *server.args))])
        note = "each attempt draws its own port and model name; python is that of the change's environment"
    if not bench:
        client = CLIENTS[cell.client.name]
        arguments = client.command(
            cell, EXAMPLE, seed=cell.seed + 1, result=PurePosixPath("result.json"), metadata={}
        )
        bench = " ".join([*_variables(client_env), shlex.join(("python", *arguments))])
    return CommandsDocument(change=change.id, serve=serve, bench=bench, perfbisect=setting.typed, note=note)


def versions(setting: Setting, seen: Iterable[Launch]) -> dict[str, Any]:
    """With what was measured: perfbisect, engines, client, machine; several where they differ."""
    attempts = [launch.attempt for launch in seen if launch.attempt is not None]
    made = [attempt.provenance for attempt in attempts]
    facts: Mapping[str, Any] = next((p.facts for p in made if p.facts), {})
    return {
        "perfbisect": perfbisect.__version__,
        "python": platform.python_version(),
        "engine": sorted({p.engine_version for p in made if p.engine_version}),
        "client": sorted({p.client_digest for p in made if p.client_digest}),
        "machine_class": sorted({p.machine_class for p in made if p.machine_class}),
        "machine": facts.get("machine", {}),
        "exclude_newer": setting.exclude_newer,
        "constraints": setting.constraints,
    }


def reported_value(attempt: Attempt, metric: MetricRef) -> float | None:
    """The value of a launch; None if a run does not report the metric, or there is no run."""
    try:
        return attempt.value(metric)
    except (KeyError, ValueError):
        return None


def _ran(attempt: Attempt | None, which: str, named: Mapping[str, str]) -> str:
    """A command of an attempt, with the variables that make it what it is: the engine's path, the cell's."""
    facts = attempt.provenance.facts.get(which) if attempt else None
    argv = facts.get("argv") if isinstance(facts, Mapping) else None
    env = facts.get("env") if isinstance(facts, Mapping) else None
    if not argv or not isinstance(env, Mapping):
        return ""
    kept = {name: str(env[name]) for name in ("PYTHONPATH", *named) if env.get(name)}
    return " ".join([*_variables(kept), shlex.join(str(part) for part in argv)])


def _variables(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(env[name])}" for name in sorted(env)]
