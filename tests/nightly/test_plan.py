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
    ScheduledLaunch,
    assign_machines,
    find_home,
    fit_to_budget,
    next_launch,
    schedule_launches,
)

MINUTES = st.floats(min_value=0.1, max_value=60, allow_nan=False)
CELLS = st.lists(st.tuples(st.integers(2, 4), MINUTES), min_size=1, max_size=8).map(
    lambda rows: tuple(planned(f"c{i}", each, launches) for i, (launches, each) in enumerate(rows))
)
BUDGETS = st.floats(min_value=0, max_value=600, allow_nan=False)


def planned(name: str, minutes: float, launches: int = 2) -> CellPlan:
    return CellPlan(
        name=name, source=name, cell={"name": name}, digest=name, metric="tpot", launches=launches, runs=1,
        launch_minutes=minutes, forecast_basis="",
    )  # fmt: skip


@given(CELLS, BUDGETS)
def test_the_shortest_that_fit_are_chosen(cells: tuple[CellPlan, ...], budget: float) -> None:
    taken, left = fit_to_budget(cells, budget)
    assert sorted((*taken, *left), key=str) == sorted(cells, key=str)
    assert sum(cell.launches * cell.launch_minutes for cell in taken) <= budget
    assert all(a.minutes <= b.minutes for a in taken for b in left)
    if left:
        assert sum(cell.minutes for cell in taken) + min(cell.minutes for cell in left) > budget


@given(CELLS, BUDGETS, st.integers(0, 99))
def test_every_launch_once_and_no_second_before_all_first(
    cells: tuple[CellPlan, ...], budget: float, seed: int
) -> None:
    order = schedule_launches(cells, budget, seed)
    assert len(order) == len(set(order))
    assert set(order) == {ScheduledLaunch(c.name, k) for c in cells for k in range(1, c.launches + 1)}
    taken = {cell.name for cell in fit_to_budget(cells, budget)[0]}
    rounds = [scheduled.launch for scheduled in order if scheduled.cell in taken]
    assert rounds == sorted(rounds)


def test_the_seed_draws_the_order() -> None:
    cells = [planned(f"c{i}", 1.0) for i in range(8)]
    orders = {schedule_launches(cells, 100.0, seed) for seed in range(20)}
    assert len(orders) == 20
    assert schedule_launches(cells, 100.0, 3) == schedule_launches(list(reversed(cells)), 100.0, 3)
    rounds = [[s.cell for s in schedule_launches(cells, 100.0, 0) if s.launch == k] for k in (1, 2)]
    assert rounds[0] != rounds[1], "each round has an order of its own"


def _night(cells: tuple[CellPlan, ...], budget: float, factor: float) -> tuple[dict[str, int], float]:
    """A whole night in which launches take ``factor`` times what was expected."""
    order, done, spent = schedule_launches(cells, budget, 1), dict[str, int](), 0.0
    each = {cell.name: cell.launch_minutes for cell in cells}
    while (scheduled := next_launch(order, cells, done, (), spent, budget)) is not None:
        spent += factor * each[scheduled.cell]
        assert done.get(scheduled.cell, 0) == scheduled.launch - 1, "one after the other"
        done[scheduled.cell] = scheduled.launch
    return done, spent


@given(CELLS, BUDGETS)
def test_a_night_as_foreseen_keeps_its_budget_and_begins_nothing_that_it_does_not_end(
    cells: tuple[CellPlan, ...], budget: float
) -> None:
    done, spent = _night(cells, budget, 1.0)
    assert spent <= budget + 1e-6
    assert all(done.get(cell.name, 0) in (0, cell.launches) for cell in cells)
    assert {cell.name for cell in fit_to_budget(cells, budget - 1e-6)[0]} <= done.keys()


@given(CELLS, BUDGETS, st.floats(min_value=1, max_value=8))
def test_a_slow_night_overruns_by_one_launch_at_most(
    cells: tuple[CellPlan, ...], budget: float, factor: float
) -> None:
    _, spent = _night(cells, budget, factor)
    assert spent <= budget + factor * max(cell.launch_minutes for cell in cells) + 1e-6


def test_minutes_that_are_left_go_to_the_cells_that_did_not_fit() -> None:
    cells = (planned("short", 10.0), planned("long", 30.0))
    order = schedule_launches(cells, 70.0, 0)
    assert order[:2] == (ScheduledLaunch("short", 1), ScheduledLaunch("short", 2))
    assert next_launch(order, cells, {"short": 2}, (), 20.0, 70.0) is None
    assert next_launch(order, cells, {"short": 2}, (), 10.0, 70.0) == ScheduledLaunch("long", 1)


def test_what_failed_is_left_and_others_go_on() -> None:
    cells = (planned("a", 5.0), planned("b", 5.0), planned("c", 1.0))
    order = schedule_launches(cells, 60.0, 0)
    seen = []
    done = {"a": 0, "b": 1, "c": 0}
    while (scheduled := next_launch(order, cells, done, {"b"}, 0.0, 60.0)) is not None:
        seen.append(scheduled)
        done[scheduled.cell] = scheduled.launch
    assert sorted(seen, key=str) == [ScheduledLaunch(name, k) for name in "ac" for k in (1, 2)]
    assert next_launch(order, cells, {}, {"a", "b", "c"}, 0.0, 60.0) is None


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([], 0), ([0, 4], 4), ([4, 1], 1), ([1, 5, 4], 5), ([5, 3], 3), ([3, 2], 2), ([2, 130, 3], 130)],
)
def test_the_exit_code_is_that_of_the_worst(codes: list[int], worst: int) -> None:
    assert night_exit_code((), (), codes) == night_exit_code((), (), reversed(codes)) == worst
    assert len(set(SEVERITY)) == 7


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


def test_new_cells_go_where_least_is_to_do_and_others_stay() -> None:
    cells = [planned("old", 30), planned("long", 25), planned("short", 5), planned("none", 5)]
    slots = {name: Slot(name, machine=name) for name in ("x", "y", "a100")}
    both = CellMachines(slots, ("x", "y"))
    machines = {"old": both, "long": both, "short": both, "none": CellMachines()}
    assigned = assign_machines(cells, machines, {"old": ["a100"]})
    assert assigned == {"old": "a100", "long": "x", "short": "y"}, "new cells: of the class that most have"
    assert assign_machines(cells, machines, {"old": ["x"]}) == {"old": "x", "long": "y", "short": "y"}
    assert assign_machines(cells, machines, {"old": ["gone"]})["old"] == "x"
