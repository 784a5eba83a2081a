"""The stacks of both sides as a tree: nothing is lost, small frames are folded, and it has a bound."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.explain.attribution import explain_profiles
from perfbisect.explain.figures import LEAST_SHARE, MOST_LEVELS, build_flames, flame_tree
from perfbisect.explain.stacks import FunctionKey
from perfbisect.report.flames import FlameDocument
from tests.explain.test_attribution import BASE, CALL, CHECK, LOOP, OTHER, PATCH, PATH, SAME, diff_of, launch

KEYS = [(f"vllm/{name}.py", name) for name in "abc"]
MS = st.floats(0.0, 50.0)
STACKS = st.lists(st.sampled_from(KEYS), max_size=6).map(tuple)
ROWS = st.dictionaries(STACKS, st.tuples(MS, MS), max_size=25).map(
    lambda found: [(stack, *times) for stack, times in found.items()]
)


def frames(frame: FlameDocument) -> Iterator[FlameDocument]:
    yield frame
    for child in frame.children:
        yield from frames(child)


def own(frame: FlameDocument) -> tuple[float, float]:
    """The time of a frame that no call of it has."""
    return (
        frame.before - sum(child.before for child in frame.children),
        frame.after - sum(child.after for child in frame.children),
    )


@given(ROWS)
def test_nothing_is_lost(rows: list[tuple[tuple[FunctionKey, ...], float, float]]) -> None:
    root = flame_tree(rows)
    for side in range(2):
        total = sum(row[1 + side] for row in rows)
        assert (root.before, root.after)[side] == pytest.approx(total)
        parts = [own(frame)[side] for frame in frames(root)]
        assert sum(parts) == pytest.approx(total)
        assert min(parts) > -1e-9


@given(ROWS)
def test_frames_are_folded_where_they_are_small(
    rows: list[tuple[tuple[FunctionKey, ...], float, float]],
) -> None:
    root = flame_tree(rows)
    least = LEAST_SHARE * max(root.before, root.after)
    for frame in frames(root):
        assert not frame.folded or not frame.children
        for child in frame.children:
            assert child.folded or max(child.before, child.after) >= least
        assert sum(child.folded > 0 for child in frame.children) <= 1


def test_a_deep_stack_counts_for_its_last_frame_that_is_kept() -> None:
    deep = tuple((f"{level}.py", "f") for level in range(3 * MOST_LEVELS))
    root = flame_tree([(deep, 1.0, 2.0)])
    found = list(frames(root))
    assert len(found) == 1 + MOST_LEVELS
    assert (found[-1].path, found[-1].before, found[-1].after) == (deep[MOST_LEVELS - 1][0], 1.0, 2.0)


def test_many_small_frames_are_one() -> None:
    rows = [((("a.py", f"f{index}"),), 0.001, 0.002) for index in range(500)]
    (big, rest) = flame_tree([*rows, ((("b.py", "g"),), 99.0, 98.0)]).children
    assert (big.function, big.folded) == ("g", 0)
    assert (rest.folded, rest.before, rest.after) == (500, pytest.approx(0.5), pytest.approx(1.0))


def test_both_sides_of_launches() -> None:
    b = SAME | {(LOOP, CALL, CHECK): 8.0}
    sides = [launch(BASE)] * 2, [launch(b)] * 2
    diff = diff_of(PATCH)
    root = build_flames(*sides, diff)
    assert root is not None
    total = explain_profiles(*sides, diff).functions.total
    assert (root.before, root.after) == (pytest.approx(total.before), pytest.approx(total.after))
    (process,) = root.children
    assert (process.function, process.path) == ("EngineCore", "")
    found = {(frame.path, frame.function): frame for frame in frames(root)}
    new = found[PATH, "Scheduler.check"]
    assert (new.before, new.after) == (0.0, pytest.approx(8.0, abs=0.1))
    # Lines moved with the diff, and the function is the same.
    same = found[PATH, "Scheduler.choose"]
    assert same.before == pytest.approx(same.after)
    assert (OTHER, "Worker.forward") in found
    assert not any("zmq" in path for path, _ in found)


def test_a_side_without_a_launch_has_no_graph() -> None:
    assert build_flames([], [launch(BASE)], None) is None
