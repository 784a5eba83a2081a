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


def rows(text: str, first: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins so, by their first cell; markup of emphasis is left out."""
    lines = text[text.index(f"| {first} |") :].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].replace("*", ""): [cell.replace("*", "") for cell in row[1:]] for row in cells}


def planted(series: str) -> tuple[str, str, str, str]:
    """F1 and unchanged series with an alarm as they were measured, and both as they are cited in short."""
    _, _, f1, _, _, alarmed, *_ = rows(DETECTION, "set | P | R")[series]
    return f1, alarmed, f"{float(f1):.2f}", alarmed.partition("= ")[2]


def short(p: str) -> str:
    return f"{float(p):.2f}"


def test_the_readme_cites_the_detector_and_its_rival_as_they_were_measured() -> None:
    cited = re.search(
        r"an F1 of (\S+) \((\S+ %) of unchanged series told\), perfbisect's detection\s+"
        r"\[(\S+) \((\S+ %)\)\]",
        README,
    )
    assert cited is not None
    tools = rows(DETECTION, "detector | shuffled")
    otava = next(row[0] for name, row in tools.items() if name.startswith("Apache Otava"))
    assert f"{cited[1]}, {cited[2]}" == otava
    assert (cited[3], cited[4]) == planted("shuffled")[2:]


def test_the_table_of_tools_has_our_row_as_it_was_measured() -> None:
    ours = rows(DETECTION, "detector | shuffled")["perfbisect"]
    _, _, *shuffled = planted("shuffled")
    _, _, *contiguous = planted("contiguous")
    p, r, *_ = rows(DETECTION, "set | P | R")["contiguous"]
    assert ours == [", ".join(shuffled), ", ".join(contiguous), f"{short(p)}, {short(r)}"]


@pytest.mark.parametrize("series", ["shuffled", "contiguous"])
def test_the_bars_of_the_method_have_what_was_measured_of_the_detector(series: str) -> None:
    f1, alarmed, *_ = planted(series)
    (_, seen) = rows(METHOD[METHOD.index("## Seeing a change") :], "bar | wanted")[
        f"F1 {series}; unchanged series told"
    ]
    assert (seen.split(",")[0].split(";")[0], seen.rpartition("; ")[2]) == (f1, alarmed)


def test_the_bars_of_places_and_false_discoveries_are_those_that_were_measured() -> None:
    bars = rows(METHOD[METHOD.index("## Seeing a change") :], "bar | wanted")
    held = [row[6].split(" % of")[0] for row in rows(DETECTION, "set | P | R").values()]
    assert bars["the 95 % set holds the place"][1] == f"{held[0]} and {held[1]} %"
    asked = re.search(r"^\| shuffled \| 0\.05 \| \d+ \| \d+ = (\S+ %) \|", DETECTION, re.M)
    assert asked is not None
    assert bars["false ones among the series alarmed at 5 %, 400 shuffled series"][1].startswith(
        f"{asked[1]};"
    )


def test_the_bars_of_a_comparison_are_those_of_its_worlds() -> None:
    bars = {name: seen for name, (_, seen) in rows(METHOD, "bar | wanted").items()}
    worlds = rows(PAGES["docs/compare.md"], "world | regression %")
    worse, better, same, _, holds, _ = worlds["no change"]
    step, *_, step_holds, _ = worlds["5 % slower"]
    called = bars["A against A called different, over the whole budget"]
    assert called.startswith(f"{float(worse) + float(better):.1f} % (")
    assert bars["A against A called `same`"] == f"{same} %"
    assert bars["a step of 5 % called"] == f"{step} %"
    assert bars["the 95 % interval holds the effect"] == f"{holds} and {step_holds} %"


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
