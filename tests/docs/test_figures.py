"""A figure that one page cites of another, or of a recording, is the figure that stands there."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.docs.commands import ROOT

METHODS = tuple(f"docs/method/{page}.md" for page in ("detection", "comparison", "calibration"))
PAGES: Mapping[str, str] = {name: (ROOT / name).read_text() for name in ("README.md", *METHODS)}
DETECTION, README = PAGES["docs/method/detection.md"], PAGES["README.md"]
COMPARISON = PAGES["docs/method/comparison.md"]
CALIBRATION = PAGES["docs/method/calibration.md"]
DEMOS = [
    (ROOT / "tests" / "docs" / "recorded" / name).read_text()
    for name in ("make_demo.txt", "make_demo_small_step.txt")
]


def rows(text: str, first: str) -> dict[str, dict[str, str]]:
    """The rows of the table whose head begins so, by their first cell, each by its columns' names; markup of
    emphasis is left out."""
    lines = text[text.index(f"| {first} |") :].partition("\n\n")[0].replace("*", "").splitlines()
    head, _, *cells = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]
    return {row[0]: dict(zip(head, row, strict=True)) for row in cells}


def planted(series: str) -> dict[str, str]:
    """What was measured of steps that were planted in a kind of noise."""
    return rows(DETECTION, "set | P | R")[series]


def cited(series: str) -> str:
    """F1 and the share of unchanged series with an alarm, as they are cited in short."""
    row = planted(series)
    return f"{short(row['F1'])}, {row['unchanged with an alarm'].partition('= ')[2]}"


def short(p: str) -> str:
    return f"{float(p):.2f}"


def test_readme_cites_detectors_as_measured() -> None:
    measured, table = (
        rows(DETECTION, "detector | shuffled"),
        rows(README, "detector | F1, unchanged series with an alarm"),
    )
    assert len(table) == 3
    for detector, row in table.items():
        assert row["F1, unchanged series with an alarm"] == measured[detector]["shuffled"]


def test_readme_cites_comparisons_as_measured() -> None:
    worlds, results = rows(COMPARISON, "world | regression %"), rows(README, "task | result")
    same, slower = worlds["no change"], worlds["5 % slower"]
    called = float(same["regression %"]) + float(same["improvement %"])
    assert results["compare two equal commits"]["result"].startswith(f"called different in {called:.1f} %")
    assert (
        results["compare with a commit that is 5 % slower"]["result"]
        == f"found in {slower['regression %']} %"
    )


def test_the_table_of_tools_has_our_row_as_it_was_measured() -> None:
    ours, there = rows(DETECTION, "detector | shuffled")["perfbisect"], planted("contiguous")
    assert (ours["shuffled"], ours["contiguous"]) == (cited("shuffled"), cited("contiguous"))
    assert ours["contiguous, P and R"] == f"{short(there['P'])}, {short(there['R'])}"


@pytest.mark.parametrize("series", ["shuffled", "contiguous"])
@pytest.mark.parametrize("detector", ["perfbisect", "Apache Otava"])
def test_f1_beside_otava_is_that_of_the_table_of_tools(detector: str, series: str) -> None:
    tools = rows(DETECTION, "detector | shuffled")
    (name,) = [name for name in tools if name.startswith(detector)]
    row = re.search(rf"^\| {series} \| {detector} \| \S+ \| \S+ \| (\S+) \(", DETECTION, re.M)
    assert row is not None
    assert row[1] == tools[name][series].split(",")[0]


@pytest.mark.parametrize("series", ["shuffled", "contiguous"])
def test_the_bars_of_the_method_have_what_was_measured_of_the_detector(series: str) -> None:
    seen = rows(DETECTION, "bar | wanted")[f"F1 {series}; unchanged series reported"]["seen"]
    f1, alarmed = re.split("[,;]", seen)[0], seen.rpartition("; ")[2]
    assert (f1, alarmed) == (planted(series)["F1"], planted(series)["unchanged with an alarm"])


def test_the_bars_of_places_and_false_discoveries_are_those_that_were_measured() -> None:
    bars = {name: row["seen"] for name, row in rows(DETECTION, "bar | wanted").items()}
    held = [planted(name)["set of places holds"].split(" % of")[0] for name in ("shuffled", "contiguous")]
    assert bars["the 95 % set holds the place"] == f"{held[0]} and {held[1]} %"
    asked = re.search(r"^\| shuffled \| 0\.05 \| \d+ \| \d+ = (\S+ %) \|", DETECTION, re.M)
    assert asked is not None
    seen = bars["false ones among the series alarmed at 5 %, 400 shuffled series"]
    assert seen.startswith(f"{asked[1]};")


def test_the_bars_of_a_comparison_are_those_of_its_worlds() -> None:
    bars = {name: row["seen"] for name, row in rows(COMPARISON, "bar | wanted").items()}
    worlds = rows(COMPARISON, "world | regression %")
    same, slower = worlds["no change"], worlds["5 % slower"]
    called = float(same["regression %"]) + float(same["improvement %"])
    assert bars["A against A called different, over the whole budget"].startswith(f"{called:.1f} % (")
    assert bars["A against A called `same`"] == f"{same['same %']} %"
    assert bars["a step of 5 % called"] == f"{slower['regression %']} %"
    holds = f"{same['interval holds %']} and {slower['interval holds %']} %"
    assert bars["the 95 % interval holds the effect"] == holds


def measured(world: str) -> tuple[int, int, int]:
    """Return right and wrong in per cent, and GPU minutes, of perfbisect in a simulated world."""
    row = re.search(
        rf"^\| {re.escape(world)} \| perfbisect \| (\d+) \| (\d+) \| \d+ \| (\d+) \|", CALIBRATION, re.M
    )
    assert row is not None, world
    right, wrong, minutes = map(int, row.groups())
    return right, wrong, minutes


def result_of(task: str) -> str:
    row = re.search(rf"^\| {re.escape(task)}[^|]*\| (.+) \|$", README, re.M)
    assert row is not None, task
    return row[1]


def test_results_of_bisections_are_those_measured() -> None:
    for task, world in (
        ("32 commits, a step of 10 %", "N32 d10 s3 t1.5"),
        ("128 commits, a step of 5 %", "N128 d5 s3 t1.5"),
    ):
        right, wrong, minutes = measured(world)
        assert result_of(task) == f"right {right} %, wrong {wrong} %, {minutes} GPU minutes"
    right, _, minutes = measured("N64 no change s1 t1.5")
    assert result_of("64 commits, no change") == f"no commit blamed in {right} %, {minutes} GPU minutes"


def test_readme_cites_other_tools_as_measured() -> None:
    peers = (ROOT / "docs/method/peers.md").read_text()
    table = rows(README, "rule | a step of 5 %")
    assert len(table) >= 4
    for rule, row in table.items():
        for world, cell in zip(("5 %", "10 %, runs 3 %", "30 %"), [*row.values()][1:], strict=True):
            name = re.escape(f"| 128 commits, {world} | {rule} |")
            found = re.search(rf"^{name} (\d+) \| (\d+) \([^|]+\| \d+ \| (\d+) \|", peers, re.M)
            assert found is not None and cell == "{} / {}, {}".format(*found.groups())


def test_demo_figures_are_recorded() -> None:
    pattern = r"[+-]?\d+\.\d %(?= longer| to|\))|\d+ launches in \d+\.\d min|\b[0-9a-f]{12}\b"
    section = README[README.index("![") : README.index("## What it does")]
    figures = re.findall(pattern, section)
    totals = re.compile(r'"launches": (\d+),\n "minutes": ([\d.]+)')
    recording = "".join(
        totals.sub(lambda found: f"{found[1]} launches in {float(found[2]):.1f} min", demo) for demo in DEMOS
    )
    assert len(figures) >= 8
    assert [figure for figure in figures if figure not in recording] == []


def test_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []
