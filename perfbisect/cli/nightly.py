"""``perfbisect nightly``: measure every night and report what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfbisect.commands import options
from perfbisect.commands.options import PATH, MeasureOptions
from perfbisect.commands.output import CommandResult, print_output, report_result


@click.command(short_help="Measure every night, report changes, find the commit.")
@click.argument("config", type=PATH, required=False)
@click.option("--init", is_flag=True, help="Write CONFIG (nightly.yaml) for this repository, with comments.")
@click.option("--repo", type=PATH, help="With --init: the repository.  [default: the current one]")
@click.option("--dry-run", is_flag=True, help="Show what would be measured, in which order; start nothing.")
@options.state
@options.verbose
@options.quiet
@options.full
@options.json_flag
def nightly(
    config: Path | None, init: bool, repo: Path | None, dry_run: bool, state: Path | None, **working: Any
) -> int:
    """Measure the cells of CONFIG at the head of its branch and report changes since earlier nights.

    Cells already measured at this commit are skipped; the shortest that fit the budget run, in a random order
    of launches. Then alerts open and close, new ones are bisected in the remaining minutes, and reports,
    dashboard and notifications are written. An interrupted night resumes with the same command.

    \b
    Examples:
      perfbisect nightly --init
      perfbisect nightly nightly.yaml --dry-run
      perfbisect nightly nightly.yaml --json

    Exit code: of the worst finding: 130 interrupted, 2 wrong cell or setting, 3 new regression, 5 a cell or a
    step failed, 1 internal error, 4 a bisection is unsettled, 0 nothing new.
    """
    from perfbisect.errors import UsageError
    from perfbisect.nightly.measure import build_context, run_nightly
    from perfbisect.nightly.report import night_report

    typed = MeasureOptions(**working)
    if init:
        from perfbisect.setup.templates import write_nightly

        written = write_nightly(config, repo or Path.cwd())
        lines = [f"wrote {written.file}: review it before the first night", f"next: {written.next}"]
        return print_output(CommandResult(written, lines), as_json=typed.as_json)
    if repo is not None:
        raise UsageError(
            "--repo requires --init: CONFIG names its repository", next_step="perfbisect nightly -h"
        )
    if config is None:
        raise UsageError("CONFIG is missing", next_step="perfbisect nightly --init writes nightly.yaml")
    night = run_nightly(build_context(config, typed, state=state, fetch=not dry_run), dry_run=dry_run)
    output = report_result(night, night_report(night, paths=True), night.exit_code)
    return print_output(output, as_json=typed.as_json, full=typed.full)
