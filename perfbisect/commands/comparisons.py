"""Comparisons: the cells of a ladder or a claim, and from plans to jobs and their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from perfbisect.cells.loading import load_cells, metric_problems
from perfbisect.commands.options import JobOptions
from perfbisect.commands.output import CommandResult, plan_result
from perfbisect.commands.session import (
    PlannedJob,
    measure,
    record_exit,
    recording_error,
)
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import minutes
from perfbisect.common.text import hint
from perfbisect.common.yaml_source import load, validate
from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.experiments.claims import Claim
from perfbisect.experiments.compare import COMPARE, ComparePlan, CompareResult
from perfbisect.experiments.dry_run import ComparePlanDocument
from perfbisect.machine.profile import load_profile, machine
from perfbisect.measure.preparation import hub_repositories, missing_repositories
from perfbisect.resources import cells_folder

PlannedComparison = PlannedJob[ComparePlan, ComparePlanDocument]


def run_comparisons(
    workspace: Workspace,
    planned: Sequence[PlannedComparison],
    working: JobOptions,
    conclude: Callable[[list[CompareResult]], CommandResult],
    *,
    dry_run: bool,
) -> CommandResult:
    """Measure comparisons one after another, each in a job of its own, with one result; or show their plans.

    The first job is held until the last has ended, and keeps the result: waiting for it is waiting for all.
    """
    if dry_run:
        return show_plans(planned)
    first = workspace.new_job()
    with first.held(), recording_error(first):
        comparisons = [measure(workspace, first, COMPARE, planned[0], working, held=True)]
        comparisons += [
            measure(workspace, workspace.new_job(), COMPARE, further, working) for further in planned[1:]
        ]
        result = conclude(comparisons)
        record_exit(first, result.exit_code, result.document)
    return result


def show_plans(planned: Sequence[PlannedComparison], heading: str = "") -> CommandResult:
    """What a dry run of comparisons prints."""
    plans = [comparison.shown for comparison in planned]
    lines = [heading] if heading else []
    for comparison in planned:
        lines += ["", *comparison.lines] if lines else comparison.lines
        lines += comparison.commands
    # What the first comparison builds is there for the others.
    built = sum(other.builder.price(other.plan.changes).minutes for other in planned[1:])
    low, high = sum(plan.minutes_low for plan in plans), sum(plan.minutes_high for plan in plans)
    low, high = low - built, high - built
    if len(plans) > 1:
        lines += ["", f"All {len(plans)} comparisons: {minutes(low)} to {minutes(high)}"]
    document = plans[0].model_copy(update={"others": tuple(plans[1:]), "all_minutes": (low, high)})
    return plan_result(document, lines, can_start=all(comparison.slots for comparison in planned))


def ladder_cells(name: str | None) -> tuple[str, ...]:
    """The cells of a ladder by name, in the order of the file."""
    if name is None:
        raise UsageError("no cell was named", next_step="perfbisect cells list")
    cells = load_cells(name)
    if len(cells) < 2:
        raise UsageError(
            f"{name} has one load: there is nothing to sweep over",
            next_step="make max_concurrency and num_prompts paired lists in the cell file",
        )
    suffixes = [cell.name.partition("@")[2] for cell in cells]
    return tuple(f"{name}@{suffix}" for suffix in suffixes)


def find_claim(name: str) -> tuple[Path, Claim]:
    """A claim file, or one of those shipped by its name; a LocatedError says what is wrong in it."""
    path = Path(name)
    if not path.is_file():
        path = cells_folder() / "claims" / f"{name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.yaml"))
        raise UsageError(
            f"no claim {name!r}: neither a file nor one of: {', '.join(known)}{hint(name, known)}",
            next_step="perfbisect verify with the path of a claim's file, or with one of these names",
        )
    return path, validate(load(path), Claim)


def claim_cells(path: Path, claim: Claim, profile: str, *, dry_run: bool = False) -> tuple[str, ...]:
    """The cells of a claim by name, every load of a ladder; ``dry_run``: also those that cannot run here."""
    names: list[str] = []
    judged = [("metric", claim.expect.metric), *(("guards", name) for name in claim.expect.guards)]
    needs = f"; it needs {claim.needs}" if claim.needs else ""
    devices = len(machine(dict(os.environ), load_profile(profile)).gpus)
    for name in claim.cells_beside(path):
        cells = load_cells(name)
        for cell in cells:
            for field, problem in metric_problems(cell, judged):
                line = load(path).line(("expect", field))
                raise LocatedError(problem, file=path, line=line, field=f"expect.{field}")
            if dry_run:
                continue
            if cell.gpus > devices:
                raise MachineError(
                    f"the claim cannot be run here: {cell.name} needs {cell.gpus} devices and there are "
                    f"{devices}{needs}",
                    where=path,
                    next_step="run it on a machine with devices: perfbisect doctor shows those that are seen",
                )
            # Found out now, not after the first build: with HF_HUB_OFFLINE nothing can be fetched.
            missing = missing_repositories(hub_repositories(cell), dict(os.environ))
            if missing:
                raise MachineError(
                    f"the claim cannot be run here: {cell.name} needs {', '.join(missing)}, which is not on "
                    f"this machine, and HF_HUB_OFFLINE forbids to fetch it{needs}",
                    where=path,
                    next_step="fetch it into HF_HOME, or unset HF_HUB_OFFLINE",
                )
        bare = name.partition("@")[0]
        suffixes = [cell.name.partition("@")[2] for cell in cells]
        names += [f"{bare}@{suffix}" if suffix else bare for suffix in suffixes]
    return tuple(names)
