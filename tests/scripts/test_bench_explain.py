"""How what was explained is judged beside what was planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.bench_explain import Pair, Score, bars, judge_profile, named_hunk, row
from scripts.explain_plants import KINDS, Planted

PLANTED = Planted(
    Path("repo"),
    "a" * 40,
    "b" * 40,
    "a spin",
    "vllm/hot.py",
    "vllm/guilty.py",
    "x = 1",
    4.0,
    ("vllm/decoy.py",),
)


def group(path: str, *added: str, guilty: bool = True) -> dict[str, Any]:
    return {"label": path, "guilty": guilty, "hunks": [{"path": path, "added": added, "removed": ()}]}


@pytest.mark.parametrize(
    ("place", "names", "is_right"),
    [
        ("vllm/hot.py:3 f", "vllm/guilty.py:1", True),
        ("vllm/hot.py:3 f", "vllm/decoy.py:1", False),
        ("vllm/guilty.py:3 f", "vllm/guilty.py:1", False),
        ("vllm/decoy.py:3 f", "vllm/guilty.py:1", False),
        ("", "vllm/guilty.py:1", False),
    ],
)
def test_a_file_is_right_where_the_time_goes_and_the_changed_file_is_named(
    place: str, names: str, is_right: bool
) -> None:
    result = {"kind": "in the diff", "place": place, "sentence": f"it uses what changed at {names}"}
    said = judge_profile(Score("a spin", 1, "found"), PLANTED, {"result": result})
    assert (said.is_right_file, said.said, said.is_right_hunk) == (is_right, "in the diff", None)
    assert ("wrong" in row(said)) == (not is_right)


@pytest.mark.parametrize(
    ("groups", "is_right"),
    [
        ([group("vllm/guilty.py", "    x = 1")], True),
        ([group("vllm/guilty.py", "y = 2")], False),
        ([group("vllm/guilty.py", "x = 1"), group("vllm/decoy.py", "z")], False),
        ([group("vllm/guilty.py", "x = 1"), group("vllm/decoy.py", "z", guilty=False)], True),
        ([], False),
    ],
)
def test_a_hunk_is_right_if_it_alone_is_named(groups: list[dict[str, Any]], is_right: bool) -> None:
    assert named_hunk(PLANTED, {"verdict": "found", "groups": groups})[1] == is_right
    assert named_hunk(PLANTED, {"verdict": "too small", "groups": groups}) == ("too small", False)


def test_the_bars() -> None:
    good = Score("", 1, "found", "in the diff", "vllm/hot.py:1 f", True, "", "f", True, 12)
    kinds = [replace(good, name=kind) for kind in KINDS]
    same = Pair(1, 0, "no growth seen", 0.0, "")
    assert bars(kinds, [same])[1] == 0
    two_wrong = [replace(x, is_right_hunk=False) for x in kinds[:2]]
    assert bars([*two_wrong, *kinds[2:]], [])[1] == 0
    three_wrong = [replace(x, is_right_file=False, is_right_hunk=None) for x in kinds[:3]]
    lines, code = bars([*three_wrong, *kinds[3:]], [same])
    assert (lines[0], code) == ("right file first: 9 of 12; bar 10 of 12", 1)
    assert lines[1] == "right hunk: 9 of 9; bar 10 of 12"
    assert bars(kinds[:5], [same])[1] == 4, "not all kinds are there"
    unsearched = [*kinds[:-1], replace(kinds[-1], is_right_hunk=None)]
    assert bars(unsearched, [])[1] == 4, "a kind was not searched"
    lines, code = bars(kinds[:5], [same, replace(same, said="called from the diff")])
    assert (lines[2], code) == ('"in the diff" where nothing differs: 1 of 2; bar 0 of 20', 1)
    alone = bars([replace(x, is_right_file=None) for x in kinds], [])[0]
    assert [line.partition(":")[0] for line in alone[:1]] == ["right hunk"]
