"""``perfbisect nightly``: every night's measurements, what they show, and who is told."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.commands import options


@click.command(short_help="Measure every night, tell what changed, name the commit.")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--init", is_flag=True, help="Write CONFIG (nightly.yaml) for this repository, with comments.")
@click.option(
    "--repo", type=click.Path(path_type=Path), help="With --init: the repository.  [default: the current one]"
)
@click.option("--dry-run", is_flag=True, help="Show what would be measured, in which order; start nothing.")
@options.state
@options.verbose
@options.quiet
@options.full
@options.as_json
def nightly(
    config: Path | None,
    init: bool,
    repo: Path | None,
    dry_run: bool,
    state: Path | None,
    verbose: bool,
    quiet: bool,
    full: bool,
    as_json: bool,
) -> int:
    """Measure what CONFIG says at the head of its branch, and tell what changed since the nights before.

    Cells that were measured at this commit are left out; the shortest that fit into the budget are measured,
    each in launches far apart, in an order that a seed draws. Then alerts open and close, new ones that are
    worth it are bisected in the minutes that are left, and report, site and message are written. Killed at
    any point and started again it goes on.

    \b
    Examples:
      perfbisect nightly --init
      perfbisect nightly nightly.yaml --dry-run
      perfbisect nightly nightly.yaml --json

    Exit code: that of the worst finding: 130 interrupted, 2 a cell is wrong, 3 a regression is new, 5 a cell
    or a step failed, 1 a failure of ours, 4 a bisection is not settled, 0 nothing new.
    """
    from perfbisect.commands.invocation import Measuring
    from perfbisect.commands.output import emit
    from perfbisect.errors import UsageError
    from perfbisect.nightly.documents import night_document
    from perfbisect.nightly.measure import dress, go
    from perfbisect.nightly.render import nightly_lines

    if init:
        from perfbisect.nightly.init import write_first

        first = write_first(config, repo or Path.cwd())
        emit(first, [f"wrote {first.file}: read it before", f"next: {first.next}"], as_json=as_json)
        return 0
    if repo is not None:
        raise UsageError(
            "--repo goes with --init: CONFIG names its repository", next_step="perfbisect nightly -h"
        )
    if config is None:
        raise UsageError("no CONFIG was named", next_step="perfbisect nightly --init writes nightly.yaml")
    working = Measuring(state=state, verbose=verbose, quiet=quiet, full=full, as_json=as_json)
    scene, hands = dress(config, working, fetch=not dry_run)
    night = go(scene, hands, dry_run=dry_run)
    shown = night_document(night)
    emit(shown, nightly_lines(shown), as_json=as_json, full=full)
    return night.exit_code
