"""Whole bisections over a stand-in for the machine: every outcome, every fault, every interruption."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perfbisect.bisect.decision.model import Measured
from perfbisect.bisect.plan import BisectPlan, channel_names
from perfbisect.bisect.result import BisectResult
from perfbisect.bisect.search_events import to_search_events
from perfbisect.errors import BuildError, ClientError, Interrupted, MachineError, ServerError, UsageError
from perfbisect.jobs.events import LaunchEnded, LaunchStarted, MachineBackoff
from perfbisect.jobs.plans import require_plan
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt, Failure, Provenance, RunResult
from perfbisect.model.metric import parse_metric
from tests.fixtures.jobs import Play, Start
from tests.jobs.world import SECONDS, FakeBuilder, World, cell, history, named

CHANGE_FAILS = Failure("launch", "change", "it ended with exit code 1", "/log")


def at(world: World, position: int) -> Callable[[AttemptRequest], bool]:
    return lambda request: request.change.id == world.changes[position].id


def test_the_planted_change_is_named(start: Start) -> None:
    world = World(history(16).changes, slow=11, factor=1.3)
    begun = start(world)
    report = begun.run()
    assert named(report) == world.changes[11].id
    assert report.parent is not None and report.confirmed is not None
    assert report.parent.id == world.changes[10].id
    assert report.probability <= 0.99
    assert report.confirmed.low < 0.3 < report.confirmed.high
    assert [launch.purpose for launch in report.launches[:2]] == ["end", "end"]
    assert [launch.purpose for launch in report.launches].count("confirm") >= 4
    assert report.minutes.total == pytest.approx(sum(x.minutes for x in report.launches))
    events = begun.kinds
    assert (events[0], events[-1]) == ("plan", "verdict")
    assert events.count("started") == events.count("finished") == len(world.requests)
    started = [n for n in begun.watch.notices if isinstance(n, LaunchStarted)]
    ended = [n for n in begun.watch.notices if isinstance(n, LaunchEnded)]
    numbers = list(range(1, len(report.launches) + 1))
    assert [n.number for n in started] == [n.launch.number for n in ended] == numbers
    assert all(n.request.why for n in started)
    assert ended[0].detail == ""
    assert ended[-1].detail.startswith(f"leading {world.changes[11].short} 0.99, ")
    assert ended[-1].used == pytest.approx(report.minutes.total)


def test_a_metric_of_which_more_is_better_is_followed_downwards(play: Play) -> None:
    world = World(history(10).changes, slow=4, factor=1.4)
    report = play(world, metric="output_throughput")
    assert named(report) == world.changes[4].id
    assert report.confirmed is not None
    assert report.confirmed.effect == pytest.approx(1 / 1.4 - 1, abs=0.08)
    assert "worse: -" in report.summary[0]


def test_no_difference_is_not_reproduced(play: Play) -> None:
    report = play(World(history(8).changes, slow=None, sigma=0.002, tau=0.002))
    assert (report.outcome, report.culprit, report.culprits) == ("not reproduced", None, ())
    assert {x.purpose for x in report.launches} == {"end"}
    assert "no such difference" in report.summary[0]


def test_a_step_in_the_noise_is_too_small_and_says_what_more_would_cost(play: Play) -> None:
    report = play(World(history(8).changes, slow=4, factor=1.03, tau=0.06, sigma=0.03, seed=3))
    assert report.outcome == "too small"
    assert any("launches a side" in text for text in report.summary)


def test_out_of_budget_names_who_leads_and_a_larger_budget_goes_on(start: Start) -> None:
    world = World(history(24).changes, slow=9, factor=1.3)
    begun = start(world, budget=8.0)
    report = begun.run()
    assert report.outcome == "out of budget"
    assert report.minutes.total <= 8.0
    assert report.next.startswith(f"perfbisect resume {begun.job.id} --budget")
    before = len(world.requests)
    with pytest.raises(UsageError, match="is not larger than"):
        begun.amend(budget=8.0)
    begun.amend(budget=120.0)
    again = begun.run()
    assert named(again) == world.changes[9].id
    assert len(again.launches) == len(world.requests) > before, "what was measured is not measured again"
    with pytest.raises(UsageError, match="has its verdict, 'found'"):
        begun.amend(budget=500.0)


@pytest.mark.parametrize("budget", [15.0, 22.0, 24.0])
def test_the_retry_of_a_failed_change_starts_within_the_budget(start: Start, budget: float) -> None:
    world = World(history(32).changes, slow=11, factor=1.1)
    ends = {world.changes[0].id, world.changes[-1].id}
    world.fault = lambda _, request: None if request.change.id in ends else CHANGE_FAILS
    report = start(world, budget=budget).run()
    assert report.outcome == "out of budget"
    assert report.minutes.total < budget + 0.25, "a launch takes a little more than is expected"


def test_a_retry_is_priced_without_the_build_that_it_has(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECONDS, "build", 600.0)
    world = World(history(32).changes, slow=11, factor=1.3)
    ends = {world.changes[0].id, world.changes[-1].id}
    world.fault = lambda _, request: None if request.change.id in ends else CHANGE_FAILS
    report = start(world, budget=36.0).run()
    assert report.outcome == "out of budget"
    assert [x.why.startswith("once more") for x in report.launches] == [False, False, False, True]


def test_a_value_of_zero_is_refused_after_a_failure_of_the_machine_too(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(history(16).changes, slow=11, factor=1.01)
    machine = Failure("launch", "machine", "a device was lost", "/log")
    world.fault = lambda n, _: machine if n == 6 else None
    measure = world.run

    def run(*arguments: Any, **more: Any) -> Attempt:
        made = measure(*arguments, **more)
        zeros = (replace(x, values={**x.values, "tpot:median": 0.0}) for x in made.runs)
        return replace(made, runs=tuple(zeros)) if len(world.requests) > 6 else made

    monkeypatch.setattr(world, "run", run)
    with pytest.raises(UsageError, match="tpot:median is 0 in a run"):
        start(world).run()


def test_a_change_that_fails_is_tried_once_more_and_then_a_skip(play: Play) -> None:
    world = World(history(12).changes, slow=6)
    broken = at(world, 6)
    world.fault = lambda _, request: CHANGE_FAILS if broken(request) else None
    report = play(world)
    assert report.outcome == "found"
    assert report.culprit is None
    assert [p.index for p in report.culprits] == [6, 7]
    assert [(s.change.id, s.known) for s in report.skips] == [(world.changes[6].id, "measured")]
    assert "exit code 1" in report.skips[0].reason
    tries = [i for i, request in enumerate(world.requests) if broken(request)]
    assert tries == [tries[0], tries[0] + 1], "the second try comes at once, with a fresh launch"
    assert "cannot be distinguished" in report.summary[0]


def test_a_change_that_fails_once_is_measured(play: Play) -> None:
    world = World(history(12).changes, slow=6)
    failures = [CHANGE_FAILS]
    world.fault = lambda _, request: failures.pop() if at(world, 6)(request) and failures else None
    report = play(world)
    assert not failures
    assert named(report) == world.changes[6].id
    assert report.skips == ()


def test_a_build_that_fails_is_not_built_again(play: Play) -> None:
    world = World(history(12).changes, slow=6)
    failure = Failure("build", "change", "does not import")
    world.fault = lambda _, request: failure if at(world, 6)(request) else None
    report = play(world)
    assert sum(at(world, 6)(request) for request in world.requests) == 1
    assert [s.change.id for s in report.skips] == [world.changes[6].id]


@pytest.mark.parametrize(("position", "end"), [(0, "good"), (-1, "bad")])
@pytest.mark.parametrize(("phase", "kind"), [("build", BuildError), ("launch", ServerError)])
def test_an_end_that_fails_is_an_error_about_the_range(
    start: Start, position: int, end: str, phase: str, kind: type[BuildError]
) -> None:
    world = World(history(6).changes, slow=3)
    failure = Failure(phase, "change", "dead", "/the/log")  # type: ignore[arg-type]
    world.fault = lambda _, request: failure if at(world, position)(request) else None
    begun = start(world)
    with pytest.raises(kind, match=f"the {end} end {world.changes[position].short}") as caught:
        begun.run()
    assert (caught.value.exit_code, caught.value.where) == (5, "/the/log")
    assert f"--{end}" in str(caught.value.next_step)
    assert "verdict" not in begun.kinds
    assert sum(at(world, position)(r) for r in world.requests) == (1 if phase == "build" else 6)


def test_an_end_that_fails_by_chance_is_tried_again(play: Play) -> None:
    world = World(history(12).changes, slow=6)
    failures = [CHANGE_FAILS] * 3
    world.fault = lambda _, request: failures.pop() if at(world, 0)(request) and failures else None
    report = play(world)
    assert not failures
    assert named(report) == world.changes[6].id
    assert "could not be served at times" in " ".join(report.summary)


def test_the_machine_is_waited_for_and_is_no_evidence(play: Play, start: Start) -> None:
    undisturbed = play(World(history(12).changes, slow=5))
    world = World(history(12).changes, slow=5)
    world.fault = lambda n, _: Failure("launch", "machine", "no memory") if n in (2, 3, 6) else None
    begun = start(world)
    report = begun.run()
    assert begun.watch.waits == [30.0, 120.0, 30.0]
    assert [n.seconds for n in begun.watch.notices if isinstance(n, MachineBackoff)] == begun.watch.waits
    assert report.culprit == undisturbed.culprit
    assert report.skips == ()
    failed = [x for x in report.launches if x.outcome == "failed"]
    assert [x.fault for x in failed] == ["machine"] * 3
    assert report.minutes.lost == pytest.approx(sum(x.minutes for x in failed))


def test_three_failures_of_the_machine_in_a_row_end_the_job_which_can_be_resumed(start: Start) -> None:
    world = World(history(12).changes, slow=5)
    world.fault = lambda n, _: Failure("launch", "machine", "no port") if 3 <= n <= 5 else None
    begun = start(world)
    with pytest.raises(MachineError, match="3 times in a row") as caught:
        begun.run()
    assert f"perfbisect resume {begun.job.id}" in str(caught.value.next_step)
    assert begun.watch.waits == [30.0, 120.0]
    assert named(begun.run()) == world.changes[5].id


def test_a_client_that_fails_twice_is_an_error_and_never_a_skip(start: Start) -> None:
    failure = Failure("bench", "client", "completed 0 of 10")
    world = World(history(12).changes, slow=5)
    world.fault = lambda n, _: failure if n == 2 or n >= 4 else None
    begun = start(world)
    with pytest.raises(ClientError, match="2 times in a row, in bench: completed 0 of 10"):
        begun.run()
    assert len(world.requests) == 5, "the second launch failed alone"
    assert "verdict" not in begun.kinds


def test_a_metric_that_did_not_come_is_told_with_those_that_did(start: Start) -> None:
    world = World(history(6).changes, slow=3, reported=("output_throughput", "failed"))
    begun = start(world)
    for _ in range(2):
        with pytest.raises(UsageError, match="did not report tpot:median; reported: failed, output_"):
            begun.run()
    assert len(world.requests) == 1, "a resumed job measures nothing that it cannot use"
    begun.amend(metric=parse_metric("output_throughput"))
    assert named(begun.run()) == world.changes[3].id


def test_a_launch_that_cannot_be_compared_is_no_evidence(start: Start) -> None:
    world = World(history(6).changes, slow=3)
    begun = start(world)
    world.fault = lambda n, _: setattr(world, "machine_class", "other" if n == 3 else "toy")
    with pytest.raises(MachineError, match="cannot be compared"):
        begun.run()
    assert begun.kinds[-1] == "discarded"
    assert named(begun.run()) == world.changes[3].id


class WithoutTokens(World):
    """Answers of one token: nothing between tokens is measured."""

    def _runs(self, *args: Any) -> tuple[RunResult, ...]:
        return tuple(replace(run, values={**run.values, "tpot:median": 0.0}) for run in super()._runs(*args))


def test_a_metric_of_which_no_ratio_exists_is_refused_at_its_first_launch(play: Play) -> None:
    world = WithoutTokens(history(6).changes, slow=3)
    with pytest.raises(UsageError, match=r"tpot:median is 0 in a run, and effects are ratios"):
        play(world)
    assert len(world.requests) == 1


@pytest.mark.parametrize("field", ["machine_class", "client_digest"])
def test_what_cannot_be_compared_is_refused_with_both_values(play: Play, field: str) -> None:
    world = World(history(6).changes, slow=3)

    def change_it(n: int, _: AttemptRequest) -> None:
        if n == 3:
            setattr(world, field, "another")

    before = getattr(world, field)
    world.fault = change_it
    with pytest.raises(MachineError, match=f"{field} was '{before}' and is 'another'"):
        play(world)


def test_a_guard_that_moved_is_told(play: Play) -> None:
    world = World(history(8).changes, slow=5, sigma=0.02, tau=0.05, factor=1.25)
    world.tokens = lambda position: 32.0 if position < 5 else 28.0
    guards = {guard.name: guard for guard in play(world).guards}
    tokens = guards["output_tokens"]
    assert (tokens.moved, tokens.left, tokens.right) == (True, 32.0, 28.0)
    assert not guards["failed"].moved


def test_channels_are_searched_with_and_told_among_the_guards(start: Start) -> None:
    world = World(history(8).changes, slow=5, sigma=0.02, tau=0.05, factor=1.25)
    begun = start(world, channels=("output_throughput", "kv_cache_tokens"))
    report = begun.run()
    told = {guard.name: guard for guard in report.guards}
    assert named(report) == world.changes[5].id
    assert told["output_throughput"].moved
    assert told["kv_cache_tokens"].note == "not reported"
    plan = require_plan(begun.job, begun.job.events(), BisectPlan)
    events = [x for x in to_search_events(begun.records, plan) if isinstance(x, Measured)]
    assert all(len(throughput) == len(x.values) for x in events for throughput in x.channels[:1])
    assert all(x.channels[1] == () for x in events)


class CompiledWorld(World):
    """Two neighbours share their compiled files."""

    def provenance(self, request: AttemptRequest) -> Provenance:
        position = [change.id for change in self.changes].index(request.change.id)
        facts = {"engine": {"compiled": f"files {position // 2}"}}
        return replace(super().provenance(request), facts=facts)


def test_a_search_knows_which_compiled_files_each_launch_ran(start: Start) -> None:
    begun = start(CompiledWorld(history(8).changes, slow=5))
    begun.run()
    plan = require_plan(begun.job, begun.job.events(), BisectPlan)
    events = [x for x in to_search_events(begun.records, plan) if isinstance(x, Measured)]
    assert {x.binary for x in events if x.index in (4, 5)} == {"files 2"}
    assert all(x.binary == f"files {x.index // 2}" for x in events)


@pytest.mark.parametrize(
    ("asked", "own", "searched", "taken"),
    [
        ((), ("kv_cache_tokens", "tpot"), "tpot", ("kv_cache_tokens",)),
        (("ttft:p99", "ttft:p99"), ("kv_cache_tokens",), "tpot", ("ttft:p99",)),
        (("ttft",), (), "kv_cache_tokens", ()),
    ],
    ids=["the cell's, without the metric itself", "typed ones", "none of an exact metric"],
)
def test_the_channels_of_a_search(
    asked: tuple[str, ...], own: tuple[str, ...], searched: str, taken: tuple[str, ...]
) -> None:
    assert channel_names(cell(channels=own), asked, parse_metric(searched)) == taken


def test_an_unknown_channel_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown metric 'speed'"):
        channel_names(cell(), ("speed",), parse_metric("tpot"))


def test_a_requested_stop_comes_before_the_next_launch(start: Start) -> None:
    world = World(history(8).changes, slow=5)
    begun = start(world)
    world.fault = lambda n, _: (begun.job.path / "stop").touch() if n == 2 else None
    with pytest.raises(Interrupted, match="stop was requested"):
        begun.run()
    assert len(world.requests) == 2
    world.fault = lambda *_: None
    assert begun.run().outcome == "found", "the next start forgets the stop"


def test_the_report_needs_the_journal_alone(play: Play) -> None:
    world = World(history(10).changes, slow=6)
    builder = FakeBuilder(merged=frozenset({world.changes[2].id, world.changes[7].id}))
    report = play(world, builder=builder)
    assert BisectResult.model_validate_json(report.text()) == report
    assert json.loads(report.text())["schema"] == "perfbisect.report/6"
    assert (report.changes, report.positions) == (10, 8)
    ids = [change.id for change in world.changes]
    assert [[c.id for c in p.changes] for p in report.merged] == [ids[1:3], ids[6:8]]
    assert named(report) == ids[6]
    assert "and 1 after it with the same environment" in report.summary[0]
    tested = {x.change.id for x in report.launches}
    assert {c.id for c in report.not_tested} == {ids[i] for i in (1, 3, 4, 5, 6, 8)} - tested
