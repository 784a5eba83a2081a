"""A kind of job from outside the package is run, resumed, reported and listed like our own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field

from perfbisect.commands import experiments
from perfbisect.commands.slots import slots_here
from perfbisect.engine.experiment import Experiment, JobStatus
from perfbisect.environments.factory import ChainBuilder
from perfbisect.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_REGRESSION, EXIT_USAGE, Interrupted
from perfbisect.jobs.documents import MeasuredDocument, measured_fields
from perfbisect.jobs.folders import Job, Jobs, finished
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.loop import Decision, Done, Idle, JobState, LaunchPolicy, SlotView
from perfbisect.jobs.plans import (
    BudgetedPlan,
    MeasurementConfig,
    cell_data,
    plan_cell,
    require_plan,
    write_plan,
)
from perfbisect.jobs.replay import LaunchRequest, launches
from perfbisect.machine.profile import load_profile
from perfbisect.machine.slots import Slot, machine_of
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.change import Change
from perfbisect.report.document import Report, Verdict
from tests.command_line import isolate, type_command, type_json
from tests.jobs.world import Clock, World, cell, history


class SoakPlan(BudgetedPlan):
    """Launches of one change, none of which may be slower than ``limit``."""

    noun: ClassVar[str] = "soak"
    verb: Literal["soak"] = "soak"
    change: Change
    launches: int
    limit: float

    @property
    def changes(self) -> tuple[Change, ...]:
        return (self.change,)


class SoakDocument(MeasuredDocument):
    schema_: Literal["toy.soak/1"] = Field(default="toy.soak/1", alias="schema")
    slow: int


def soak_policy(plan: SoakPlan) -> LaunchPolicy:
    """The launches of a soak, for the loop of the engine; everything is admitted."""

    def next_launch(state: JobState, _: SlotView) -> Decision:
        made = sum(launch.outcome in ("running", "measured") for launch in state.launches)
        if made < plan.launches:
            return LaunchRequest(0, plan.change, "run", 1, "soak")
        return Idle() if state.is_running else Done({"word": "soaked"})

    return LaunchPolicy(next_launch, plan.ref)


def soak_document(job: Job, events: Sequence[JournalEvent]) -> SoakDocument:
    plan, seen = require_plan(job, events, SoakPlan), launches(events)
    fields = measured_fields(job, plan, plan_cell(plan), seen, lambda _: plan.change)
    return SoakDocument(
        **fields,
        finished=finished(events),
        next=f"perfbisect report {job.id}",
        slow=sum(row.value is not None and row.value > plan.limit for row in fields["launches"]),
    )


def soak_status(document: SoakDocument) -> JobStatus:
    return JobStatus(
        outcome="soaked" if document.finished else "unfinished",
        exit_code=EXIT_REGRESSION if document.slow else EXIT_OK,
        verdict=f"{document.slow} slow",
    )


SOAK = Experiment(
    plan=SoakPlan,
    policy=lambda _job, plan, _tools: soak_policy(plan),
    result=soak_document,
    status=soak_status,
    report=lambda document: Report("Soak", Verdict(f"{document.slow} slow"), ()),
    client_change=lambda plan: plan.change,
)


def interrupt_second(number: int, _: AttemptRequest) -> BaseException | None:
    return Interrupted("interrupted") if number == 2 else None


@pytest.fixture
def world() -> World:
    """Its second launch is interrupted once."""
    return World(history(2).changes, slow=0, factor=2.0, fault=interrupt_second)


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> Callable[..., Job]:
    """Makes a soak of three launches that has its plan, with other fields of it."""
    monkeypatch.setattr(experiments, "EXPERIMENTS", {**experiments.EXPERIMENTS, "soak": SOAK})
    monkeypatch.setattr("perfbisect.commands.session.LocalExecutor", lambda *_, **__: world)
    isolate(tmp_path, monkeypatch)
    measured = cell(gpus=0)
    slot = slots_here(measured, 1, "cpu")[0]
    world.machine_class = machine_of(slot, dict(os.environ), load_profile("cpu")).kind
    plan = SoakPlan(
        cell=cell_data(measured),
        digest=measured.digest,
        setting=MeasurementConfig(environment=f"existing:{sys.executable}", client="change", machine="cpu"),
        metric="tpot",
        change=world.changes[0],
        launches=3,
        limit=20.0,
    )

    def make(**fields: Any) -> Job:
        job = Jobs(tmp_path / "state").new(Clock()(), "abcd")
        write_plan(job, plan.model_copy(update=fields), Clock())
        return job

    return make


@pytest.fixture
def job(make_job: Callable[..., Job]) -> Job:
    return make_job()


def test_a_kind_from_outside_is_resumed_to_its_exit_code(job: Job) -> None:
    type_json("resume", job.id, code=EXIT_INTERRUPTED)
    status = type_json("status", job.id)
    assert (status["verb"], status["state"], status["outcome"]) == ("soak", "unfinished", "unfinished")
    ended = type_json("resume", job.id, code=EXIT_REGRESSION)
    assert ended["schema"] == "toy.soak/1"
    assert [launch["outcome"] for launch in ended["launches"]].count("measured") == 3
    assert ended["slow"] == 3
    assert json.loads(job.document.read_text()) == json.loads(json.dumps(ended))
    assert "<bdi>Soak</bdi>" in job.page.read_text()


def test_a_killed_kind_from_outside_goes_on(job: Job, world: World) -> None:
    """A second process, as the first one, dies of kill -9 within its second launch."""
    world.fault = lambda number, _: os.kill(os.getpid(), signal.SIGKILL) if number == 2 else None
    child = os.fork()
    if not child:
        try:
            type_command(["resume", job.id])
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    world.fault = lambda *_: None
    status = type_json("status", job.id)
    assert (status["verb"], status["state"], status["launches"]) == ("soak", "unfinished", 2), status
    ended = type_json("resume", job.id, code=EXIT_REGRESSION)
    assert [launch["outcome"] for launch in ended["launches"]] == [
        "measured",
        "abandoned",
        "measured",
        "measured",
    ]


def test_a_kind_from_outside_keeps_its_budget(make_job: Callable[..., Job], world: World) -> None:
    world.fault = lambda *_: None
    job = make_job(launches=9, budget=2.5)
    ended = type_json("resume", job.id, code=EXIT_REGRESSION)
    minutes = ended["minutes"]
    assert minutes["budget"] == 2.5 and minutes["total"] <= 2.5 < minutes["total"] * 3 / 2
    assert (ended["finished"], len(ended["launches"])) == (True, 2)


def test_a_kind_from_outside_uses_two_slots(
    make_job: Callable[..., Job], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = tuple(Slot(name, server_cores=(core,)) for core, name in enumerate(("left", "right")))
    monkeypatch.setattr("perfbisect.commands.slots.slots_here", lambda *_: slots)
    both = threading.Barrier(2, timeout=60)
    world.fault = lambda *_: None

    def wait_for_other(_: AttemptRequest) -> None:
        both.wait()

    world.hold = wait_for_other
    ended = type_json("resume", make_job(launches=4).id, "--workers", "2", code=EXIT_REGRESSION)
    assert sorted(launch["slot"] for launch in ended["launches"]) == ["left", "left", "right", "right"]
    assert [launch["outcome"] for launch in ended["launches"]] == ["measured"] * 4


def test_a_resumed_job_builds_as_it_was_planned(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Change] = []
    monkeypatch.setattr(ChainBuilder, "prepare", lambda _, changes: prepared.extend(changes))
    type_json("resume", job.id, code=EXIT_INTERRUPTED)
    assert prepared == [history(2).changes[0]]


def test_a_kind_from_outside_is_reported_and_listed(job: Job) -> None:
    type_json("resume", job.id, code=EXIT_INTERRUPTED)
    type_json("resume", job.id, code=EXIT_REGRESSION)
    assert type_command(["report", job.id]).out == job.report.read_text() == "# Soak: 3 slow\n"
    assert type_json("report", job.id)["slow"] == 3
    (listed,) = type_json("status")["jobs"]
    assert (listed["verb"], listed["outcome"], listed["verdict"]) == ("soak", "soaked", "3 slow")
    assert (listed["launches"], listed["exit_code"]) == (4, EXIT_REGRESSION)
    assert "soaked: 3 slow" in type_command(["status"]).out


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("resume", "--budget", "3h"), "is a soak, which goes on as it was planned"),
        (("report", "--metric", "ttft"), "is a soak: its report has every metric"),
    ],
)
def test_what_a_kind_does_not_offer_is_refused(job: Job, typed: tuple[str, ...], says: str) -> None:
    command, *more = typed
    error = type_json(command, job.id, *more, code=EXIT_USAGE)
    assert says in error["error"]


def test_a_job_of_an_unknown_kind_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"run": experiments.EXPERIMENTS["run"]})
    error = type_json("resume", job.id, code=EXIT_USAGE)
    assert "no kind of job is called 'soak'" in error["error"]
    (listed,) = type_json("status")["jobs"]
    assert listed["state"] == "broken"
    assert "no kind of job" in listed["problem"]
