"""``perfbisect nightly``: measure every night and report what changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from perfbisect.commands.options import ProgressOptions, State
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints


@prints("perfbisect.nightly.model:Night", "perfbisect.setup.templates:InitDocument")
@dataclass(frozen=True, kw_only=True)
class NightlyRequest(ProgressOptions):
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

    config: Annotated[Path | None, Argument()] = None
    init: Annotated[bool, Option("Write CONFIG (nightly.yaml) for this repository, with comments.")] = False
    repo: Annotated[Path | None, Option("With --init: the repository.", default="the current one")] = None
    state: State = None
    dry_run: Annotated[bool, Option("Show what would be measured, in which order; start nothing.")] = False

    def run(self) -> CommandResult:
        from perfbisect.commands.output import report_result
        from perfbisect.errors import UsageError
        from perfbisect.nightly.measure import build_context, run_nightly
        from perfbisect.nightly.report import night_report

        if self.init:
            return self._write_config()
        if self.repo is not None:
            raise UsageError(
                "--repo requires --init: CONFIG names its repository", next_step="perfbisect nightly -h"
            )
        if self.config is None:
            raise UsageError("CONFIG is missing", next_step="perfbisect nightly --init writes nightly.yaml")
        night = run_nightly(build_context(self.config, self, fetch=not self.dry_run), dry_run=self.dry_run)
        return report_result(night, night_report(night, paths=True), night.exit_code)

    def _write_config(self) -> CommandResult:
        from perfbisect.commands.settings import load_settings
        from perfbisect.setup.templates import write_nightly

        keys_of = lambda root: load_settings(root).texts  # noqa: E731
        written = write_nightly(self.config, self.repo or Path.cwd(), keys_of)
        lines = [f"wrote {written.file}: review it before the first night", f"next: {written.next}"]
        return CommandResult(written, lines)
