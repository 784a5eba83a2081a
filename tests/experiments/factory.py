"""Plans and jobs of comparisons, checks and runs, over a world that launches nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfbisect.engine.experiment import run_experiment
from perfbisect.experiments.compare import COMPARE, ComparePlan, CompareResult
from perfbisect.experiments.measure import SidePlan
from perfbisect.experiments.run import RunPlan
from perfbisect.experiments.setup import MeasurementSetup, build_compare_plan, build_run_plan
from perfbisect.jobs.estimates import EarlierAttempts
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.plans import MeasurementConfig, resolve_metric, write_plan
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import Figure, Report
from perfbisect.report.plots import Plot
from tests.fixtures import jobs
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell, history

CHANGES = history(2).changes
SETTING = MeasurementConfig(environment="fake:it")
VARIANTS = {"async": {"serve_args": {"async-scheduling": True}}}


def setup_of(changed: dict[str, Any]) -> MeasurementSetup:
    """The setup of a plan; its fields are taken out of ``changed``."""
    fields = {
        "cell": cell(variants=VARIANTS),
        "metrics": (changed.pop("metric", parse_metric("tpot")), *changed.pop("further", ())),
        "setting": SETTING,
        "builder": FakeBuilder(),
        "earlier": EarlierAttempts(),
    }
    return MeasurementSetup(**{name: changed.pop(name, value) for name, value in fields.items()})


def compare_plan(**changed: Any) -> ComparePlan:
    setup = setup_of(changed)
    options = {
        "a": SidePlan(typed="main~1", change=CHANGES[0]),
        "b": SidePlan(typed="main", change=CHANGES[1]),
        "budget": 600.0,
        "blocks": 10,
    }
    return build_compare_plan(setup, **options | changed)


def measured(job: Job, world: World, watch: Watch | None = None, **changed: Any) -> CompareResult:
    """The comparison of a world's sides."""
    tools = (watch or Watch()).tools(world)
    write_plan(job, compare_plan(**changed), tools.clock)
    with job.held():
        return run_experiment(COMPARE, job, tools)


def run_plan(
    world: World, launches: int = 3, runs: int = 2, builder: FakeBuilder | None = None, **changed: object
) -> RunPlan:
    served = cell(**changed)
    setup = MeasurementSetup(served, (resolve_metric(served, None),), jobs.SETTING, builder or FakeBuilder())
    return build_run_plan(setup, change=world.changes[0], launches=launches, runs=runs)


def job_of(folder: Path, plan: RunPlan, watch: Watch, world: World) -> Job:
    job = Jobs(folder).new(Clock()(), "abcd")
    write_plan(job, plan, watch.tools(world).clock)
    return job


def figures(report: Report) -> dict[str, Plot]:
    """The plots of a report by name, in their order."""
    blocks = [*report.blocks, *(block for section in report.sections for block in section.blocks)]
    return {block.name: block.plot for block in blocks if isinstance(block, Figure)}
