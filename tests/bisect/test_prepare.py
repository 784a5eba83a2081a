"""From a history to a plan."""

from __future__ import annotations

import pytest

from perfbisect.bisect.plan import BisectPlan, make_plan
from perfbisect.bisect.positions import find_positions
from perfbisect.environments.base import Refusal
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.measurement import resolve_metric, runs_per_launch
from perfbisect.jobs.plans import cell_data, find_plan, plan_cell
from perfbisect.model.metric import parse_metric
from tests.fixtures.jobs import SETTING, MakePlan
from tests.jobs.world import FakeBuilder, World, cell, history


def plan(
    world: World, plan_for: MakePlan, merged: tuple[int, ...] = (), refused: dict[int, Refusal] | None = None
):  # type: ignore[no-untyped-def]
    ids = [change.id for change in world.changes]
    builder = FakeBuilder(
        merged=frozenset(ids[i] for i in merged),
        refused={ids[i]: refusal for i, refusal in (refused or {}).items()},
    )
    return plan_for(world, builder)


def test_neighbours_with_one_environment_are_one_position(plan_for: MakePlan) -> None:
    world = World(history(6).changes, slow=None)
    made = plan(world, plan_for, merged=(1, 3, 4))
    assert [[c.subject for c in p.changes] for p in made.positions] == [
        ["Change 0", "Change 1"],
        ["Change 2", "Change 3", "Change 4"],
        ["Change 5"],
    ]
    assert made.search.n == 2


def test_what_cannot_be_built_is_skipped_with_its_reason(plan_for: MakePlan) -> None:
    world = World(history(5).changes, slow=None)
    made = plan(world, plan_for, refused={2: Refusal("csrc differs")})
    assert made.positions[2].skip == "csrc differs"
    assert made.search.skips == frozenset({2})


def test_a_change_after_a_skip_is_not_merged_over_it(plan_for: MakePlan) -> None:
    world = World(history(5).changes, slow=None)
    made = plan(world, plan_for, merged=(3,), refused={2: Refusal("csrc differs")})
    assert [len(p.changes) for p in made.positions] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(("position", "end"), [(0, "good"), (4, "bad")])
def test_an_end_that_cannot_be_built_is_an_error(plan_for: MakePlan, position: int, end: str) -> None:
    world = World(history(5).changes, slow=None)
    with pytest.raises(
        BuildError, match=f"the {end} end {world.changes[position].short} .*: csrc differs"
    ) as caught:
        plan(world, plan_for, refused={position: Refusal("csrc differs")})
    assert caught.value.next_step == f"choose another --{end}, or another --env"


def test_a_wrong_specification_is_an_error_about_the_request(plan_for: MakePlan) -> None:
    world = World(history(5).changes, slow=None)
    with pytest.raises(UsageError, match="the base is unknown"):
        plan(world, plan_for, refused={2: Refusal("the base is unknown", error=True)})


def test_a_range_in_which_nothing_changes_is_an_error(plan_for: MakePlan) -> None:
    world = World(history(4).changes, slow=None)
    with pytest.raises(UsageError, match="all 4 changes have one and the same environment"):
        plan(world, plan_for, merged=(1, 2, 3))


def test_a_deploy_yaml_that_differs_is_not_merged_away() -> None:
    changes = history(5).changes
    builder = FakeBuilder(merged=frozenset(c.id for c in changes[1:4]))
    positions = find_positions(changes, builder, frozenset({changes[3].id}))
    assert [len(p.changes) for p in positions] == [3, 1, 1]


def test_the_metric_is_the_headline_or_what_was_asked() -> None:
    assert resolve_metric(cell(), None) == parse_metric("tpot")
    assert resolve_metric(cell(), "ttft:p99") == parse_metric("ttft:p99")
    with pytest.raises(UsageError, match=r"does not report request_goodput .* it reports: .*tpot:median"):
        resolve_metric(cell(), "request_goodput")
    with pytest.raises(UsageError, match="is a guard"):
        resolve_metric(cell(), "failed")
    with pytest.raises(UsageError, match="unknown metric"):
        resolve_metric(cell(), "ttf")


def test_without_a_reset_of_caches_a_launch_has_one_run() -> None:
    assert runs_per_launch(cell()) == 6
    assert runs_per_launch(cell(env={"VLLM_SERVER_DEV_MODE": "0"})) == 1


def test_a_plan_survives_the_journal(plan_for: MakePlan) -> None:
    world = World(history(5).changes, slow=None)
    made = plan(world, plan_for, merged=(1,), refused={3: Refusal("no")})
    event = JournalEvent(0, "2026-01-01T00:00:00+00:00", "plan", made.model_dump(mode="json"))
    again = find_plan((event,), BisectPlan)
    assert again is not None and again == made
    assert plan_cell(again) == cell()


def test_a_cell_that_reads_differently_now_is_refused(plan_for: MakePlan) -> None:
    made = plan(World(history(5).changes, slow=None), plan_for)
    changed = made.model_copy(update={"cell": cell_data(cell(num_prompts=11))})
    with pytest.raises(UsageError, match=r"had .* when the job began"):
        plan_cell(changed)
    with pytest.raises(UsageError, match="cannot be read"):
        plan_cell(made.model_copy(update={"cell": {"name": "x"}}))
    with pytest.raises(UsageError, match="no plan"):
        find_plan((), BisectPlan)
    with pytest.raises(UsageError, match="plan cannot be read"):
        find_plan((JournalEvent(0, "2026-01-01T00:00:00+00:00", "plan", {"verb": "bisect"}),), BisectPlan)


def test_costs_and_seed_reach_the_core() -> None:
    changes = history(3)
    made = make_plan(
        cell=cell(), history=changes, builder=FakeBuilder(), metric=parse_metric("output_throughput"),
        setting=SETTING, budget=90.0, seed=7,
    )  # fmt: skip
    question = made.search
    assert (question.budget, question.seed, question.sign, question.min_effect) == (90.0, 7, -1, 0.03)
