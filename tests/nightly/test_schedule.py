"""What a night measures and in which order, as properties of the pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.nightly.schedule import WORST, Group, Sitting, chosen, next_sitting, seed_of, sittings, worst

MINUTES = st.floats(min_value=0.1, max_value=60, allow_nan=False)
GROUPS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(2, 4), MINUTES, st.booleans()), min_size=1, max_size=8
).map(
    lambda rows: tuple(
        Group(tuple(f"c{i}{'abc'[k]}" for k in range(size)), launches, each, ordered)
        for i, (size, launches, each, ordered) in enumerate(rows)
    )
)
BUDGETS = st.floats(min_value=0, max_value=600, allow_nan=False)


@given(GROUPS, BUDGETS)
def test_the_shortest_that_fit_are_chosen(groups: tuple[Group, ...], budget: float) -> None:
    taken, left = chosen(groups, budget)
    assert sorted((*taken, *left), key=str) == sorted(groups, key=str)
    assert sum(group.launches * group.each for group in taken) <= budget
    assert all(a.whole <= b.whole for a in taken for b in left)
    if left:
        assert sum(g.whole for g in taken) + min(g.whole for g in left) > budget


@given(GROUPS, BUDGETS, st.integers(0, 99))
def test_every_launch_once_and_no_second_before_all_first(
    groups: tuple[Group, ...], budget: float, seed: int
) -> None:
    order = sittings(groups, budget, seed)
    launches = [(cell, sitting.launch) for sitting in order for cell in sitting.cells]
    assert len(launches) == len(set(launches))
    assert set(launches) == {(c, k) for g in groups for c in g.cells for k in range(1, g.launches + 1)}
    taken = {cell for group in chosen(groups, budget)[0] for cell in group.cells}
    rounds = [sitting.launch for sitting in order if set(sitting.cells) <= taken]
    assert rounds == sorted(rounds)
    for group in groups:
        for sitting in order:
            if set(sitting.cells) == set(group.cells) and group.ordered:
                assert sitting.cells == group.cells


def test_the_seed_draws_the_order() -> None:
    groups = [Group((f"c{i}",), 2, 1.0) for i in range(8)]
    orders = {sittings(groups, 100.0, seed) for seed in range(20)}
    assert len(orders) == 20
    assert sittings(groups, 100.0, 3) == sittings(list(reversed(groups)), 100.0, 3)
    rounds = [[s.cells for s in sittings(groups, 100.0, 0) if s.launch == k] for k in (1, 2)]
    assert rounds[0] != rounds[1], "each round has an order of its own"
    suite = Group(("a", "b", "c", "d"), 2, 1.0)
    drawn = {sittings([suite], 9.0, seed)[0].cells for seed in range(20)}
    assert len(drawn) > 5


def _night(groups: tuple[Group, ...], budget: float, factor: float) -> tuple[dict[str, int], float]:
    """A whole night in which launches take ``factor`` times what was expected."""
    order, done, spent = sittings(groups, budget, 1), dict[str, int](), 0.0
    of = {cell: group for group in groups for cell in group.cells}
    while (sitting := next_sitting(order, groups, done, (), spent, budget)) is not None:
        spent += factor * of[sitting.cells[0]].each
        for cell in sitting.cells:
            assert done.get(cell, 0) == sitting.launch - 1, "one after the other"
            done[cell] = sitting.launch
    return done, spent


@given(GROUPS, BUDGETS)
def test_a_night_as_foreseen_keeps_its_budget_and_begins_nothing_that_it_does_not_end(
    groups: tuple[Group, ...], budget: float
) -> None:
    done, spent = _night(groups, budget, 1.0)
    assert spent <= budget + 1e-6
    for group in groups:
        assert {done.get(cell, 0) for cell in group.cells} <= {0, group.launches}
    taken = {cell for group in chosen(groups, budget - 1e-6)[0] for cell in group.cells}
    assert taken <= done.keys()


@given(GROUPS, BUDGETS, st.floats(min_value=1, max_value=8))
def test_a_slow_night_overruns_by_one_launch_at_most(
    groups: tuple[Group, ...], budget: float, factor: float
) -> None:
    _, spent = _night(groups, budget, factor)
    assert spent <= budget + factor * max(group.each for group in groups) + 1e-6


def test_minutes_that_are_left_go_to_the_cells_that_did_not_fit() -> None:
    groups = (Group(("short",), 2, 10.0), Group(("long",), 2, 30.0))
    order = sittings(groups, 70.0, 0)
    assert order[:2] == (Sitting(("short",), 1), Sitting(("short",), 2))
    assert next_sitting(order, groups, {"short": 2}, (), 20.0, 70.0) is None
    assert next_sitting(order, groups, {"short": 2}, (), 10.0, 70.0) == Sitting(("long",), 1)


def test_what_failed_is_left_and_its_suite_goes_on() -> None:
    groups = (Group(("a", "b"), 2, 5.0, ordered=True), Group(("c",), 2, 1.0))
    order = sittings(groups, 60.0, 0)
    seen = []
    done = {"a": 0, "b": 0, "c": 0}
    while (sitting := next_sitting(order, groups, done, {"b"}, 0.0, 60.0)) is not None:
        seen.append(sitting)
        done |= dict.fromkeys(sitting.cells, sitting.launch)
    assert sorted(seen, key=str) == sorted(
        [Sitting(("a",), 1), Sitting(("a",), 2), Sitting(("c",), 1), Sitting(("c",), 2)], key=str
    )
    assert next_sitting(order, groups, {}, {"a", "b", "c"}, 0.0, 60.0) is None


@pytest.mark.parametrize(
    ("codes", "told"),
    [([], 0), ([0, 4], 4), ([4, 1], 1), ([1, 5, 4], 5), ([5, 3], 3), ([3, 2], 2), ([2, 130, 3], 130)],
)
def test_the_worst_finding_is_told(codes: list[int], told: int) -> None:
    assert worst(codes) == told
    assert worst(reversed(codes)) == told


def test_an_exit_code_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        worst([0, 7])
    assert len(set(WORST)) == 7


def test_a_night_has_its_own_seed() -> None:
    told = [("n", "abc", "2026-01-01"), ("n", "abc", "2026-01-02"), ("n", "abd", "2026-01-01")]
    assert len({seed_of(*words) for words in told}) == 3
    assert seed_of(*told[0]) == seed_of(*told[0])
    assert seed_of("ab", "c") != seed_of("a", "bc")
