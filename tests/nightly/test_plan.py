"""What a night measures and in which order, as properties of the pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.machine.slots import Slot
from perfbisect.nightly.model import SEVERITY, night_exit_code
from perfbisect.nightly.plan import (
    CellMachines,
    CellPlan,
    ScheduledGroup,
    ScheduledLaunch,
    assign_machines,
    derive_seed,
    find_home,
    fit_to_budget,
    next_launch,
    schedule_launches,
)

MINUTES = st.floats(min_value=0.1, max_value=60, allow_nan=False)
GROUPS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(2, 4), MINUTES, st.booleans()), min_size=1, max_size=8
).map(
    lambda rows: tuple(
        ScheduledGroup(tuple(f"c{i}{'abc'[k]}" for k in range(size)), launches, each, ordered)
        for i, (size, launches, each, ordered) in enumerate(rows)
    )
)
BUDGETS = st.floats(min_value=0, max_value=600, allow_nan=False)


@given(GROUPS, BUDGETS)
def test_the_shortest_that_fit_are_chosen(groups: tuple[ScheduledGroup, ...], budget: float) -> None:
    taken, left = fit_to_budget(groups, budget)
    assert sorted((*taken, *left), key=str) == sorted(groups, key=str)
    assert sum(group.launches * group.launch_minutes for group in taken) <= budget
    assert all(a.total_minutes <= b.total_minutes for a in taken for b in left)
    if left:
        assert sum(g.total_minutes for g in taken) + min(g.total_minutes for g in left) > budget


@given(GROUPS, BUDGETS, st.integers(0, 99))
def test_every_launch_once_and_no_second_before_all_first(
    groups: tuple[ScheduledGroup, ...], budget: float, seed: int
) -> None:
    order = schedule_launches(groups, budget, seed)
    launches = [(cell, sitting.launch) for sitting in order for cell in sitting.cells]
    assert len(launches) == len(set(launches))
    assert set(launches) == {(c, k) for g in groups for c in g.cells for k in range(1, g.launches + 1)}
    taken = {cell for group in fit_to_budget(groups, budget)[0] for cell in group.cells}
    rounds = [sitting.launch for sitting in order if set(sitting.cells) <= taken]
    assert rounds == sorted(rounds)
    for group in groups:
        for sitting in order:
            if set(sitting.cells) == set(group.cells) and group.ordered:
                assert sitting.cells == group.cells


def test_the_seed_draws_the_order() -> None:
    groups = [ScheduledGroup((f"c{i}",), 2, 1.0) for i in range(8)]
    orders = {schedule_launches(groups, 100.0, seed) for seed in range(20)}
    assert len(orders) == 20
    assert schedule_launches(groups, 100.0, 3) == schedule_launches(list(reversed(groups)), 100.0, 3)
    rounds = [[s.cells for s in schedule_launches(groups, 100.0, 0) if s.launch == k] for k in (1, 2)]
    assert rounds[0] != rounds[1], "each round has an order of its own"
    suite = ScheduledGroup(("a", "b", "c", "d"), 2, 1.0)
    drawn = {schedule_launches([suite], 9.0, seed)[0].cells for seed in range(20)}
    assert len(drawn) > 5


def _night(groups: tuple[ScheduledGroup, ...], budget: float, factor: float) -> tuple[dict[str, int], float]:
    """A whole night in which launches take ``factor`` times what was expected."""
    order, done, spent = schedule_launches(groups, budget, 1), dict[str, int](), 0.0
    of = {cell: group for group in groups for cell in group.cells}
    while (sitting := next_launch(order, groups, done, (), spent, budget)) is not None:
        spent += factor * of[sitting.cells[0]].launch_minutes
        for cell in sitting.cells:
            assert done.get(cell, 0) == sitting.launch - 1, "one after the other"
            done[cell] = sitting.launch
    return done, spent


@given(GROUPS, BUDGETS)
def test_a_night_as_foreseen_keeps_its_budget_and_begins_nothing_that_it_does_not_end(
    groups: tuple[ScheduledGroup, ...], budget: float
) -> None:
    done, spent = _night(groups, budget, 1.0)
    assert spent <= budget + 1e-6
    for group in groups:
        assert {done.get(cell, 0) for cell in group.cells} <= {0, group.launches}
    taken = {cell for group in fit_to_budget(groups, budget - 1e-6)[0] for cell in group.cells}
    assert taken <= done.keys()


@given(GROUPS, BUDGETS, st.floats(min_value=1, max_value=8))
def test_a_slow_night_overruns_by_one_launch_at_most(
    groups: tuple[ScheduledGroup, ...], budget: float, factor: float
) -> None:
    _, spent = _night(groups, budget, factor)
    assert spent <= budget + factor * max(group.launch_minutes for group in groups) + 1e-6


def test_minutes_that_are_left_go_to_the_cells_that_did_not_fit() -> None:
    groups = (ScheduledGroup(("short",), 2, 10.0), ScheduledGroup(("long",), 2, 30.0))
    order = schedule_launches(groups, 70.0, 0)
    assert order[:2] == (ScheduledLaunch(("short",), 1), ScheduledLaunch(("short",), 2))
    assert next_launch(order, groups, {"short": 2}, (), 20.0, 70.0) is None
    assert next_launch(order, groups, {"short": 2}, (), 10.0, 70.0) == ScheduledLaunch(("long",), 1)


def test_what_failed_is_left_and_its_suite_goes_on() -> None:
    groups = (ScheduledGroup(("a", "b"), 2, 5.0, ordered=True), ScheduledGroup(("c",), 2, 1.0))
    order = schedule_launches(groups, 60.0, 0)
    seen = []
    done = {"a": 0, "b": 0, "c": 0}
    while (sitting := next_launch(order, groups, done, {"b"}, 0.0, 60.0)) is not None:
        seen.append(sitting)
        done |= dict.fromkeys(sitting.cells, sitting.launch)
    assert sorted(seen, key=str) == sorted(
        [
            ScheduledLaunch(("a",), 1),
            ScheduledLaunch(("a",), 2),
            ScheduledLaunch(("c",), 1),
            ScheduledLaunch(("c",), 2),
        ],
        key=str,
    )
    assert next_launch(order, groups, {}, {"a", "b", "c"}, 0.0, 60.0) is None


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([], 0), ([0, 4], 4), ([4, 1], 1), ([1, 5, 4], 5), ([5, 3], 3), ([3, 2], 2), ([2, 130, 3], 130)],
)
def test_the_exit_code_is_that_of_the_worst(codes: list[int], worst: int) -> None:
    assert night_exit_code((), (), codes) == night_exit_code((), (), reversed(codes)) == worst
    assert len(set(SEVERITY)) == 7


def test_a_night_has_its_own_seed() -> None:
    told = [("n", "abc", "2026-01-01"), ("n", "abc", "2026-01-02"), ("n", "abd", "2026-01-01")]
    assert len({derive_seed(*words) for words in told}) == 3
    assert derive_seed(*told[0]) == derive_seed(*told[0])
    assert derive_seed("ab", "c") != derive_seed("a", "bc")


@pytest.mark.parametrize(
    ("nights", "among", "home"),
    [
        ([], None, ""),
        (["x"] * 9 + ["y"] * 2, None, "x"),
        (["x"] * 2 + ["y"] * 2, None, "y"),
        (["y", "x"] * 2 + ["y"], ["x"], "x"),
        (["x"] * 40 + ["y"] * 11, None, "y"),
        (["x"] * 3, ["y"], ""),
    ],
    ids=["never measured", "most nights", "of equals the later", "among", "long ago counts no more", "gone"],
)
def test_a_cell_is_at_home_where_most_of_its_last_nights_were(
    nights: list[str], among: list[str] | None, home: str
) -> None:
    assert find_home(nights, among) == home


def planned(name: str, minutes: float) -> CellPlan:
    return CellPlan(
        name=name, source=name, cell={"name": name}, digest=name, metric="tpot", launches=2, runs=1,
        launch_minutes=minutes, forecast_basis="",
    )  # fmt: skip


def test_new_cells_go_where_least_is_to_do_and_others_stay() -> None:
    cells = [planned("old", 30), planned("long", 25), planned("short", 5), planned("none", 5)]
    slots = {name: Slot(name, machine=name) for name in ("x", "y", "a100")}
    both = CellMachines(slots, ("x", "y"))
    machines = {"old": both, "long": both, "short": both, "none": CellMachines()}
    assigned = assign_machines(cells, machines, {"old": ["a100"]})
    assert assigned == {"old": "a100", "long": "x", "short": "y"}, "new cells: of the class that most have"
    assert assign_machines(cells, machines, {"old": ["x"]}) == {"old": "x", "long": "y", "short": "y"}
    assert assign_machines(cells, machines, {"old": ["gone"]})["old"] == "x"
