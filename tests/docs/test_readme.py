"""What the README says of itself in numbers stands in the page that it names."""

from __future__ import annotations

import re

from tests.docs.commands import ROOT

METHOD = (ROOT / "docs" / "method" / "bisection.md").read_text()


def measured(world: str) -> tuple[int, int, int]:
    """Right and wrong in per cent, and minutes, of perfbisect in a world of docs/method/bisection.md."""
    row = re.search(
        rf"^\| {re.escape(world)} \| perfbisect \| (\d+) \| (\d+) \| \d+ \| (\d+) \|", METHOD, re.M
    )
    assert row is not None, world
    right, wrong, minutes = map(int, row.groups())
    return right, wrong, minutes


def test_the_table_of_tools_has_our_numbers_as_they_were_measured() -> None:
    readme = (ROOT / "README.md").read_text()
    row = re.search(r"^\| \*\*perfbisect\*\* \|.*$", readme, re.M)
    assert row is not None
    told = [cell.strip() for cell in row[0].strip("|").split("|")][2:]
    wanted = ["{} / {}, {} min".format(*measured(f"N{n} d{d} s3 t1.5")) for n, d in ((32, 10), (128, 5))]
    _, blamed, minutes = measured("N64 no change s1 t1.5")
    assert told == [*wanted, f"{blamed} %, {minutes} min"]


def test_it_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 170
