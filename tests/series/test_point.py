"""Names of cells, and moments."""

from __future__ import annotations

import math

import pytest

from perfbisect.common.durations import moment, stamp
from perfbisect.series.points import Build, Workload


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        (Workload("tts", "random", 4, math.inf, 40), "tts/random@c4-n40"),
        (Workload("omni", "random-mm", None, 0.5, 100), "omni/random-mm@r0.5-n100"),
        (Workload("omni", "random", None, math.inf, 8), "omni/random@rinf-n8"),
        (Workload("omni", "random", 1, math.inf, 4, "in2500-out900"), "omni/random@c1-n4-in2500-out900"),
        (Workload("omni", "random", 1, math.inf, 4, only_text=True), "omni/random@c1-n4-text"),
        (Workload("text_cpu@c4-n64"), "text_cpu@c4-n64"),
    ],
)
def test_a_cells_name_says_what_is_known_of_its_workload(workload: Workload, name: str) -> None:
    assert workload.cell == name


@pytest.mark.parametrize(("branch", "of_main"), [("main", True), ("master", True), ("x", False), ("", None)])
def test_a_branch_that_is_not_said_is_not_known_to_be_main(branch: str, of_main: bool | None) -> None:
    assert Build("kanban", "p", "1", branch=branch).of_main is of_main


def test_a_moment_has_a_zone() -> None:
    assert stamp(moment("2026-07-02T15:23:35+08:00")) == "2026-07-02T07:23:35Z"
    assert stamp(moment("2026-07-02T15:23:35Z")) == "2026-07-02T15:23:35Z"
    with pytest.raises(ValueError, match="does not say its zone"):
        moment("2026-07-02T15:23:35")
