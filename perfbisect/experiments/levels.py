"""Levels that jobs have measured: what a later check is held against."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfbisect.errors import UsageError
from perfbisect.experiments.baseline import RecordedLevel, record_level, require_enough
from perfbisect.experiments.check import CheckPlan, RecordedDocument
from perfbisect.experiments.measure import attempts_of, measured_launches
from perfbisect.experiments.run import ChangeResult, RunPlan
from perfbisect.jobs.documents import Document
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read, replaying
from perfbisect.jobs.plans import find_plan, plan_cell, plan_data
from perfbisect.jobs.replay import launches
from perfbisect.report.document import Report
from perfbisect.report.template import render_report


def level_of_job(job: Job) -> RecordedLevel:
    """The level that a ``run`` or a ``check`` measured; a UsageError says why there is none."""
    events = read(job.journal).events
    plan = find_plan(events, RunPlan) or find_plan(events, CheckPlan)
    if plan is None:
        verb = plan_data(events).get("verb")
        raise UsageError(
            f"job {job.id} is a {verb}: it measured several changes, and a baseline is of one",
            next_step="name a job of perfbisect run or check, or a file of --save-baseline",
        )
    with replaying(job.journal):
        attempts = attempts_of(measured_launches(launches(events)), 0)
        level = record_level(job.id, plan, plan.change, plan_cell(plan), attempts)
    return require_enough(level, f"job {job.id}")


class BaselineResult(Document):
    """``perfbisect check --save-baseline``: the run that was made, and the ``file`` that keeps its level."""

    schema_: Literal["perfbisect.check-baseline/3"] = Field(
        default="perfbisect.check-baseline/3", alias="schema"
    )
    file: str
    recorded: RecordedDocument
    run: ChangeResult

    def brief(self) -> BaselineResult:
        return self.model_copy(update={"run": self.run.brief()})


def baseline_report(result: BaselineResult) -> Report:
    """The report of a recorded baseline."""
    return render_report("experiments/templates/baseline.md.jinja", {"r": result})
