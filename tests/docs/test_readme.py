"""Every measured figure in README stands in the page or recording that it comes from."""

from __future__ import annotations

import re

from tests.docs.commands import ROOT

README = (ROOT / "README.md").read_text()
CALIBRATION = (ROOT / "docs" / "method" / "calibration.md").read_text()
DEMO = (ROOT / "tests" / "docs" / "recorded" / "make_demo.txt").read_text()


def measured(world: str) -> tuple[int, int, int]:
    """Return right and wrong in per cent, and GPU minutes, of perfbisect in a simulated world."""
    row = re.search(
        rf"^\| {re.escape(world)} \| perfbisect \| (\d+) \| (\d+) \| \d+ \| (\d+) \|", CALIBRATION, re.M
    )
    assert row is not None, world
    right, wrong, minutes = map(int, row.groups())
    return right, wrong, minutes


def cited(task: str) -> str:
    row = re.search(rf"^\| {re.escape(task)}[^|]*\| (.+) \|$", README, re.M)
    assert row is not None, task
    return row[1]


def test_results_of_bisections_are_those_measured() -> None:
    for task, world in (
        ("32 commits, a step of 10 %", "N32 d10 s3 t1.5"),
        ("128 commits, a step of 5 %", "N128 d5 s3 t1.5"),
    ):
        right, wrong, minutes = measured(world)
        assert cited(task) == f"right {right} %, wrong {wrong} %, {minutes} GPU minutes"
    right, _, minutes = measured("N64 no change s1 t1.5")
    assert cited("64 commits, no change") == f"no commit blamed in {right} %, {minutes} GPU minutes"


def test_demo_figures_are_recorded() -> None:
    pattern = r"[+-]?\d+\.\d %(?= longer| to|\))|\d+ launches in \d+\.\d min|\b[0-9a-f]{12}\b"
    section = README[README.index("![") : README.index("## What it does")]
    figures = [figure.replace("launches in", "launches,") for figure in re.findall(pattern, section)]
    recording = DEMO.replace('"launches": 11,\n "minutes": 10.04', "11 launches, 10.0 min")
    assert len(figures) >= 5
    assert [figure for figure in figures if figure not in recording] == []


def test_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []
