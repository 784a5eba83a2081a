"""A range that crosses a pin: the rebase is measured first, named as such, and taken apart by package."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from perfbisect.bisect.plan import BisectPlan, Position, crossings, differing
from perfbisect.environments.base import Refusal
from perfbisect.measure.executor import AttemptRequest, Sink, Started
from perfbisect.model.attempt import Attempt
from perfbisect.model.change import Change
from tests.fixtures.jobs import MakePlan, Start
from tests.jobs.world import FakeBuilder, World, history, named

PACKAGES = {
    "v0.20.0": ["numpy==2.1", "nvidia-cublas-cu12==12.8", "torch==2.9", "vllm==0.20.0", "xgrammar==0.1"],
    "v0.21.0": ["numpy==2.2", "nvidia-cublas-cu12==12.9", "torch==2.9", "vllm==0.21.0", "xgrammar==0.1"],
}


@dataclass
class PinnedFake(FakeBuilder):
    """A builder that knows what each change stands on."""

    groups: Mapping[str, str] = field(default_factory=dict)

    def group(self, change: Change) -> str:
        return self.groups.get(change.id, "")


@dataclass
class PinnedWorld(World):
    """Attempts that tell their packages."""

    rebase: int = 0

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        made = super().run(request, started=started, sink=sink)
        position = next(i for i, c in enumerate(self.changes) if c.id == request.change.id)
        packages = PACKAGES["v0.21.0" if position >= self.rebase else "v0.20.0"]
        facts = {**made.provenance.facts, "engine": {"packages": packages}}
        return dataclasses.replace(made, provenance=dataclasses.replace(made.provenance, facts=facts))


def world(rebase: int, slow: int | None, count: int = 14) -> PinnedWorld:
    return PinnedWorld(history(count).changes, slow=slow, factor=1.3, rebase=rebase)


def plan(plan_for: MakePlan, here: PinnedWorld, refused: tuple[int, ...] = ()) -> BisectPlan:
    groups = {
        change.id: f"vllm v0.2{1 if i >= here.rebase else 0}.0" for i, change in enumerate(here.changes)
    }
    skipped = {here.changes[i].id: Refusal("no wheel") for i in refused}
    return plan_for(here, PinnedFake(groups=groups, refused=skipped))


def test_the_rebase_and_its_parent_are_measured_first_and_named(plan_for: MakePlan, start: Start) -> None:
    here = world(5, 5)
    report = start(here, plan=plan(plan_for, here)).run()
    searched = [x.change.id for x in report.launches if x.purpose == "search"]
    assert searched[:2] == [here.changes[4].id, here.changes[5].id]
    assert report.launches[len([x for x in report.launches if x.purpose == "end"])].why.startswith("beside a")
    assert named(report) == here.changes[5].id
    said = "\n".join(report.summary)
    rebase, parent = here.changes[5].short, here.changes[4].short
    assert f"The step is a rebase: {rebase} moves its pin of vllm from v0.20.0 to v0.21.0." in said
    assert "3 packages differ" in said
    assert "vllm 0.20.0 -> 0.21.0, numpy 2.1 -> 2.2, nvidia-cublas-cu12 12.8 -> 12.9" in said
    assert (
        f"`perfbisect compare tiny --a {parent} --b {parent}+pip:vllm==0.21.0 --env fake:it`; then "
        "+pip:numpy==2.2."
    ) in said
    assert "+pip:nvidia" not in said


@pytest.mark.parametrize("slow", [2, 10])
def test_a_step_beside_the_rebase_is_no_rebase(plan_for: MakePlan, start: Start, slow: int) -> None:
    here = world(5, slow)
    report = start(here, plan=plan(plan_for, here)).run()
    assert named(report) == here.changes[slow].id
    assert not any("rebase" in sentence for sentence in report.summary)


def test_a_pin_that_has_become_unlikely_is_not_measured(plan_for: MakePlan, start: Start) -> None:
    """Two crossings; the parent of one already shows that the step lies far from it."""
    here = world(4, 4, count=40)
    groups = {change.id: f"vllm v0.2{(i >= 4) + (i >= 36)}.0" for i, change in enumerate(here.changes)}
    made = plan_for(here, PinnedFake(groups=groups))
    assert [one.index for one in crossings(made.positions)] == [4, 36]
    moved = (
        f"crosses the vllm pin at {here.changes[4].short}: v0.20.0 -> v0.21.0; it and its parent are measured"
    )
    assert [note.startswith(moved) for note in made.notes if "pin" in note] == [True, False]
    report = start(here, plan=made).run()
    assert named(report) == here.changes[4].id
    measured = {x.change.id for x in report.launches}
    assert here.changes[36].id not in measured


def positions(*groups: str, skips: tuple[int, ...] = ()) -> tuple[Position, ...]:
    changes = history(len(groups)).changes
    return tuple(
        Position(changes=(change,), group=group, skip="no" if i in skips else "")
        for i, (change, group) in enumerate(zip(changes, groups, strict=True))
    )


def test_where_a_pin_moves() -> None:
    assert crossings(positions("", "", "")) == ()
    assert crossings(positions("e a", "e a")) == ()
    (one,) = crossings(positions("e a", "", "e b", ""))
    assert (one.parent, one.index, one.what, one.before, one.after) == (1, 2, "e", "a", "b")
    assert crossings(positions("e a", "e b", "e a", skips=(1,))) == ()
    (jump,) = crossings(positions("e a", "e b", "e c", skips=(1,)))
    assert (jump.parent, jump.index, jump.before, jump.after) == (0, 2, "a", "c")
    assert [one.index for one in crossings(positions("e a", "e b", "e c"))] == [1, 2]


def test_packages_that_differ() -> None:
    left, right = ["a==1", "Torch==2.9", "gone==1"], ["a==1", "torch==2.10", "new_one==3", "-e x"]
    assert differing(left, right) == (("torch", "2.9", "2.10"), ("gone", "1", ""), ("new-one", "", "3"))
