"""A figure that one page cites of another is the figure that stands there."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.docs.commands import ROOT

PAGES: Mapping[str, str] = {
    name: (ROOT / name).read_text()
    for name in ("README.md", "docs/detection.md", "docs/method.md", "docs/compare.md", "docs/sessions.md")
}
DETECTION, METHOD, README = PAGES["docs/detection.md"], PAGES["docs/method.md"], PAGES["README.md"]
SERIES = METHOD[METHOD.index("## Seeing a change in a series") :]


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


def test_the_readme_cites_the_detector_and_its_rival_as_they_were_measured() -> None:
    said = re.search(
        r"an F1 of (\S+) \((\S+ %) of unchanged series told\), perfbisect's detection\s+"
        r"\[(\S+) \((\S+ %)\)\]",
        README,
    )
    assert said is not None
    tools = rows(DETECTION, "detector | shuffled")
    otava = next(row["shuffled"] for name, row in tools.items() if name.startswith("Apache Otava"))
    assert f"{said[1]}, {said[2]}" == otava
    assert f"{said[3]}, {said[4]}" == cited("shuffled")


def test_the_table_of_tools_has_our_row_as_it_was_measured() -> None:
    ours, there = rows(DETECTION, "detector | shuffled")["perfbisect"], planted("contiguous")
    assert (ours["shuffled"], ours["contiguous"]) == (cited("shuffled"), cited("contiguous"))
    assert ours["contiguous, P and R"] == f"{short(there['P'])}, {short(there['R'])}"


@pytest.mark.parametrize("series", ["shuffled", "contiguous"])
def test_the_bars_of_the_method_have_what_was_measured_of_the_detector(series: str) -> None:
    seen = rows(SERIES, "bar | wanted")[f"F1 {series}; unchanged series told"]["seen"]
    f1, alarmed = re.split("[,;]", seen)[0], seen.rpartition("; ")[2]
    assert (f1, alarmed) == (planted(series)["F1"], planted(series)["unchanged with an alarm"])


def test_the_bars_of_places_and_false_discoveries_are_those_that_were_measured() -> None:
    bars = {name: row["seen"] for name, row in rows(SERIES, "bar | wanted").items()}
    held = [planted(name)["set of places holds"].split(" % of")[0] for name in ("shuffled", "contiguous")]
    assert bars["the 95 % set holds the place"] == f"{held[0]} and {held[1]} %"
    asked = re.search(r"^\| shuffled \| 0\.05 \| \d+ \| \d+ = (\S+ %) \|", DETECTION, re.M)
    assert asked is not None
    seen = bars["false ones among the series alarmed at 5 %, 400 shuffled series"]
    assert seen.startswith(f"{asked[1]};")


def test_the_bars_of_a_comparison_are_those_of_its_worlds() -> None:
    bars = {name: row["seen"] for name, row in rows(METHOD, "bar | wanted").items()}
    worlds = rows(PAGES["docs/compare.md"], "world | regression %")
    same, slower = worlds["no change"], worlds["5 % slower"]
    called = float(same["regression %"]) + float(same["improvement %"])
    assert bars["A against A called different, over the whole budget"].startswith(f"{called:.1f} % (")
    assert bars["A against A called `same`"] == f"{same['same %']} %"
    assert bars["a step of 5 % called"] == f"{slower['regression %']} %"
    holds = f"{same['interval holds %']} and {slower['interval holds %']} %"
    assert bars["the 95 % interval holds the effect"] == holds


def test_the_readme_has_its_own_table_in_its_first_lines() -> None:
    said = re.search(r"plain `git bisect` names the\s+wrong commit in (\d+) of 100 searches", README)
    row = re.search(r"^\| git bisect \| [^|]+ \| \d+ / (\d+), ", README, re.M)
    assert said is not None and row is not None
    assert said[1] == row[1]


def test_the_transcripts_of_the_readme_are_of_the_sessions() -> None:
    """Shortened, but every piece with a measured figure stands in the whole one."""
    whole = " ".join(PAGES["docs/sessions.md"].replace("demo:", "").split())
    measured = re.compile(r"\d %|\d ms|\d min of|^×| x \d|^<?\d\.\d\d ")
    pieces = [
        " ".join(piece.split())
        for block in re.findall(r"```\n(.*?)```", README, re.S)
        for line in block.splitlines()
        for piece in re.split(r"\s+\|\s+", line.strip())
    ]
    figures = [piece for piece in pieces if measured.search(piece)]
    assert len(figures) > 5
    assert [piece for piece in figures if piece not in whole] == []


@pytest.mark.parametrize("figure", [r"314 points", r"-0\.6 % \(", r"\+40\.7 %", r"\+35\.6 % to \+46\.3 %"])
def test_what_the_readme_tells_of_a_session_stands_in_it(figure: str) -> None:
    assert re.search(figure, README)
    assert re.search(figure, PAGES["docs/sessions.md"])
