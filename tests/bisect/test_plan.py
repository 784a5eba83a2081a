"""From a history to a plan, and what the plan says of its price."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from perfbisect.bisect.decision.decide import next_action
from perfbisect.bisect.decision.model import NoisePrior
from perfbisect.bisect.forecast import forecast, plan_document, plan_lines
from perfbisect.bisect.plan import (
    BisectPlan,
    find_positions,
    make_plan,
    prior_of_noise,
    require_first_launch,
)
from perfbisect.environments.base import Refusal
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.estimates import EarlierAttempts, Noise, attempts_before, learnt_noise
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.plans import cell_data, find_plan, plan_cell, resolve_metric, runs_per_launch
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Attempt, Costs, Provenance, RunResult
from perfbisect.model.change import Change
from perfbisect.model.metric import parse_metric
from tests.fixtures.jobs import SETTING, MakePlan
from tests.jobs.world import FakeBuilder, World, cell, history


def plan(
    plan_for: MakePlan,
    count: int = 5,
    merged: tuple[int, ...] = (),
    refused: dict[int, Refusal] | None = None,
) -> BisectPlan:
    """A plan over so many changes, some of them merged with their neighbour or refused."""
    world = World(history(count).changes, slow=None)
    ids = [change.id for change in world.changes]
    builder = FakeBuilder(
        merged=frozenset(ids[i] for i in merged),
        refused={ids[i]: refusal for i, refusal in (refused or {}).items()},
    )
    return plan_for(world, builder)


def test_neighbours_with_one_environment_are_one_position(plan_for: MakePlan) -> None:
    made = plan(plan_for, 6, merged=(1, 3, 4))
    assert [[c.subject for c in p.changes] for p in made.positions] == [
        ["Change 0", "Change 1"],
        ["Change 2", "Change 3", "Change 4"],
        ["Change 5"],
    ]
    assert made.search.n == 2


def test_what_cannot_be_built_is_skipped_with_its_reason(plan_for: MakePlan) -> None:
    made = plan(plan_for, refused={2: Refusal("csrc differs")})
    assert made.positions[2].skip == "csrc differs"
    assert made.search.skips == frozenset({2})


def test_a_change_after_a_skip_is_not_merged_over_it(plan_for: MakePlan) -> None:
    made = plan(plan_for, merged=(3,), refused={2: Refusal("csrc differs")})
    assert [len(p.changes) for p in made.positions] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(("position", "end"), [(0, "good"), (4, "bad")])
def test_an_end_that_cannot_be_built_is_an_error(plan_for: MakePlan, position: int, end: str) -> None:
    with pytest.raises(
        BuildError, match=f"the {end} end {history(5).changes[position].short} .*: csrc differs"
    ) as caught:
        plan(plan_for, refused={position: Refusal("csrc differs")})
    assert caught.value.next_step == f"choose another --{end}, or another --env"


def test_a_wrong_specification_is_an_error_about_the_request(plan_for: MakePlan) -> None:
    with pytest.raises(UsageError, match="the base is unknown"):
        plan(plan_for, refused={2: Refusal("the base is unknown", error=True)})


def test_a_range_in_which_nothing_changes_is_an_error(plan_for: MakePlan) -> None:
    with pytest.raises(UsageError, match="all 4 changes have one and the same environment"):
        plan(plan_for, 4, merged=(1, 2, 3))


def test_a_deploy_yaml_that_differs_is_not_merged_away() -> None:
    changes = history(5).changes
    builder = FakeBuilder(merged=frozenset(c.id for c in changes[1:4]))
    positions = find_positions(changes, builder, frozenset({changes[3].id}))
    assert [len(p.changes) for p in positions] == [3, 1, 1]


@dataclass
class OverBases(FakeBuilder):
    """Layers over a base that so many changes in turn share."""

    each: int = 1

    def binaries(self, change: Change) -> str:
        return str(int(change.id[:2], 16) // self.each)


@pytest.mark.parametrize(("each", "compiles_each"), [(1, True), (3, False), (100, False)])
def test_whether_changes_have_compiled_files_of_their_own(
    plan_for: MakePlan, each: int, compiles_each: bool
) -> None:
    world = World(history(12).changes, slow=6)
    made = plan_for(world, OverBases(each=each, refused={world.changes[3].id: Refusal("no wheel")}))
    assert made.search.compiles_each is compiles_each
    assert not replace(made.search, binaries=()).compiles_each


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
    made = plan(plan_for, merged=(1,), refused={3: Refusal("no")})
    event = JournalEvent(0, "2026-01-01T00:00:00+00:00", "plan", made.model_dump(mode="json"))
    again = find_plan((event,), BisectPlan)
    assert again is not None and again == made
    assert plan_cell(again) == cell()


def test_a_cell_that_reads_differently_now_is_refused(plan_for: MakePlan) -> None:
    made = plan(plan_for)
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
        BisectPlan, cell=cell(), history=changes,
        builder=FakeBuilder(), metric=parse_metric("output_throughput"),
        setting=SETTING, budget=90.0, seed=7,
    )  # fmt: skip
    question = made.search
    assert (question.budget, made.seed, question.sign, question.min_effect) == (90.0, 7, -1, 0.03)
    own = made.model_copy(update={"min_effect": 0.01})
    shown = plan_document(own, learnt_noise((), own.ref), basis="")
    assert own.search.min_effect == shown.metric.smallest_effect == 0.01


class SizedBuilder(FakeBuilder):
    """A megabyte for each environment; remembers for which it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    def disk(self, changes: Iterable[Change]) -> int | None:
        self.asked.append([change.id for change in changes])
        return 10**6 * len(self.asked[-1])


def test_disk_is_that_of_as_many_environments_as_launches(plan_for: MakePlan) -> None:
    world, builder = World(history(300).changes, slow=None), SizedBuilder()
    shown = plan_document(plan_for(world, builder), Noise(), builder, basis="")
    low, high = shown.expected.launches_low, shown.expected.launches_high
    assert any(note.startswith(f"disk: about {low} MB to {high} MB") for note in shown.notes)
    index = {change.id: number for number, change in enumerate(world.changes)}
    places = [[index[name] for name in names] for names in builder.asked]
    assert [len(found) for found in places] == [low, high]
    assert all(later - earlier >= 300 // high for found in places for earlier, later in pairwise(found))


def fleet_machine(name: str, slots: int) -> MachineDocument:
    return MachineDocument(
        name=name,
        version="0",
        machine_class="H200",
        devices=(),
        slots=tuple(Slot(f"gpu{number}") for number in range(slots)),
        leased=(),
        problem="",
        environments=(),
    )


@pytest.mark.parametrize("gpus", [0, 4])
@pytest.mark.parametrize("build", [0.0, 90.0])
def test_gpu_minutes_are_shared_by_slots_and_building_takes_none(
    plan_for: MakePlan, build: float, gpus: int
) -> None:
    world, builder = World(history(20).changes, slow=None), FakeBuilder()
    made = plan_for(world, builder, cell=cell(gpus=gpus), costs=Costs(build, 1.0, 0.0))
    shown = plan_document(
        made, Noise(), builder, [fleet_machine("two", 2), fleet_machine("one", 1)], basis=""
    )
    two, one = shown.machines
    low, high = shown.expected.launches_low, shown.expected.launches_high
    assert two.gpu_minutes_low + one.gpu_minutes_low == pytest.approx(gpus * low)
    assert two.gpu_minutes_high + one.gpu_minutes_high == pytest.approx(gpus * high)
    assert two.gpu_minutes_low == pytest.approx(2 * one.gpu_minutes_low)
    assert ("GPU minutes" in "\n".join(plan_lines(shown))) == (gpus > 0)


TPOT = parse_metric("tpot")


def attempt(change: str, *values: float) -> Attempt:
    runs = tuple(RunResult(i, i, {"tpot:median": v}) for i, v in enumerate(values))
    seconds = {"build": 600.0, "launch": 60.0, "warm": 30.0, "bench": 24.0}
    return Attempt("a", change, "run", Provenance("d", "m", "c"), runs, None, seconds)


def test_more_launches_resolve_smaller_steps_and_cost_more(plan_for: MakePlan) -> None:
    short, long = (plan_for(World(history(n).changes, slow=None)) for n in (4, 200))
    a, b = forecast(short, Noise()), forecast(long, Noise())
    assert a.launches_low < b.launches_low <= b.launches_high
    assert a.minutes_low < b.minutes_low < b.minutes_high
    steps = [step for _, step in a.resolves]
    assert steps == sorted(steps, reverse=True)


def test_the_step_that_is_resolved_is_the_textbook_one(plan_for: MakePlan) -> None:
    """Two groups of four, one value a launch: 80 % power at 5 % is 2.8 standard errors of the difference."""
    made = plan_for(World(history(4).changes, slow=None)).model_copy(update={"max_runs": 1})
    told = dict(forecast(made, Noise(0.03, 0.04)).resolves)
    assert told[4] == pytest.approx(math.exp(2.8 * 0.05 * math.sqrt(2 / 4)) - 1, rel=1e-9)


def test_prices_are_learnt_from_earlier_launches_of_the_cell_or_of_others() -> None:
    own = attempt("a", 1.0, 1.0)
    other = replace(own, provenance=replace(own.provenance, cell_digest="other"), seconds={"launch": 600.0})
    before = attempts_before([own, other], "d")
    assert before.costs == Costs(4, 1.5, 0.2)
    assert before.basis == "from 1 earlier launch of this cell"
    before = attempts_before([other, other], "d")
    assert before.costs == Costs(4, 10, 0)
    assert before.basis.startswith("a guess from 2 earlier launches of other cells")
    assert EarlierAttempts().costs == Costs()


def test_a_price_that_is_no_measurement_is_said_to_be_a_guess(plan_for: MakePlan) -> None:
    made = plan_for(World(history(4).changes, slow=None))
    basis = EarlierAttempts().basis
    assert basis == (
        "a guess, since nothing was launched here before: 3 min to start and stop, 1.5 min a run"
    )
    shown = plan_document(made, Noise(), basis=basis)
    assert shown.expected.minutes_basis == basis
    rows = plan_lines(shown)
    (place,) = (i for i, row in enumerate(rows) if row.lstrip().startswith("expected "))
    assert rows[place + 1].strip() == f"minutes of a launch: {basis}", "beside the price"


def test_no_more_is_expected_than_the_budget_allows(plan_for: MakePlan) -> None:
    made = plan_for(World(history(30).changes, slow=None), costs=Costs(0.0, 3.0, 1.5))
    free = forecast(made, Noise())
    least, most = free.minutes_low, free.minutes_high
    between = made.model_copy(update={"budget": (least + most) / 2})
    assert forecast(between, Noise()).minutes_high == between.budget
    below = forecast(made.model_copy(update={"budget": least / 2}), Noise())
    assert below.minutes_low == below.minutes_high == least, "the budget does not make it cheaper"


def test_a_budget_below_its_estimate_is_said_before_anything_starts(plan_for: MakePlan) -> None:
    made = plan_for(World(history(30).changes, slow=None), costs=Costs(4.0, 3.0, 1.5))
    least = forecast(made, Noise()).minutes_low
    short = made.model_copy(update={"budget": least / 2})
    assert any("is below the" in note for note in plan_document(short, Noise(), basis="").notes)
    assert not any("is below the" in note for note in plan_document(made, Noise(), basis="").notes)
    require_first_launch(short)
    nothing = made.model_copy(update={"budget": 1.0})
    with pytest.raises(UsageError, match="does not hold one launch"):
        require_first_launch(nothing)
    assert next_action(nothing.search, []).culprits == (), "no outcome without a launch"


def test_learnt_noise_is_unbiased() -> None:
    """Pairs of launches of 40 changes, with one to four runs: both variances are what was simulated."""
    rng = Random(4)
    found = []
    for _ in range(30):
        attempts = []
        for change in range(40):
            for _ in range(2):
                level = rng.gauss(0, 0.02)
                runs = [math.exp(level + rng.gauss(0, 0.03)) for _ in range(rng.randint(1, 4))]
                attempts.append(attempt(str(change), *runs))
        noise = learnt_noise(attempts, TPOT)
        found.append((noise.runs**2, noise.launches**2))
    runs, launches = (math.sqrt(fmean(column)) for column in zip(*found, strict=True))
    assert runs == pytest.approx(0.03, rel=0.04)
    assert launches == pytest.approx(0.02, rel=0.06)


def test_noise_is_learnt_from_launches_of_one_run() -> None:
    """An engine whose caches cannot be emptied has one run a launch, and never showed its noise."""
    rng = Random(5)
    noise = learnt_noise([attempt(str(n % 40), math.exp(rng.gauss(0, 0.2))) for n in range(400)], TPOT)
    assert noise.runs == 0.0
    assert noise.launches == pytest.approx(0.2, rel=0.1)
    assert "% between launches of one run" in noise.source


def test_the_noise_of_a_first_packet_is_not_assumed_where_processors_are_shared() -> None:
    ttfp = parse_metric("audio_ttfp")
    shared = learnt_noise((), ttfp, has_devices=False)
    assert shared.launches > Noise().launches
    assert learnt_noise((), ttfp) == learnt_noise((), TPOT, has_devices=False) == Noise()
    few = [attempt(change, value) for change in "ab" for value in (1.0, 1.001)]
    usual = NoisePrior()
    assert prior_of_noise(ttfp, Noise()) == prior_of_noise(TPOT, shared) == usual
    assert prior_of_noise(ttfp, learnt_noise(few, TPOT)) == usual, "two pairs that agree narrow nothing"
    assert prior_of_noise(ttfp, Noise(0.0, 0.3)) == NoisePrior(usual.runs, 0.3)
    assert prior_of_noise(ttfp, shared) == NoisePrior(shared.runs, shared.launches)


def test_noise_is_learnt_from_enough_launches_of_one_change() -> None:
    assert learnt_noise([attempt("a", 1.0, 1.1)], TPOT) == Noise()
    assert learnt_noise([attempt(c, 1.0, 1.1) for c in "abcd"], TPOT) == Noise(), "no change twice"
    values = [(1.0, math.exp(0.02)), (math.exp(0.1), math.exp(0.12))]
    noise = learnt_noise([attempt(c, *pair) for c in "ab" for pair in values], TPOT)
    assert noise.runs == pytest.approx(0.02 / math.sqrt(2))
    assert noise.launches == pytest.approx(math.sqrt(0.1**2 / 2 - noise.runs**2 / 2))
    assert "from 4 earlier launches" in noise.source
    assert learnt_noise([attempt("a", 1.0)] * 9, parse_metric("ttft")) == Noise()
