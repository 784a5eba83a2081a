"""Claim files, and what is wrong in them with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.compare.claims import load_claim
from perfbisect.errors import LocatedError

TEXT = """\
claim: async scheduling gives 3 to 15 % more throughput
source: vLLM pull request 19970
cells: [text_ladder@c1-n32, text_ladder@c8-n64]
a: HEAD+sync
b: HEAD+async
expect:
  metric: output_throughput
  change: 3 .. 15 %
  guards: [failed, output_tokens]
"""


def test_a_claim(tmp_path: Path) -> None:
    (tmp_path / "claim.yaml").write_text(TEXT)
    claim = load_claim(tmp_path / "claim.yaml")
    assert claim.cells_beside(tmp_path / "claim.yaml") == ("text_ladder@c1-n32", "text_ladder@c8-n64")
    assert (claim.a, claim.b) == ("HEAD+sync", "HEAD+async")
    assert claim.expect.metric == "output_throughput"
    assert claim.expect.change == "3 .. 15 %"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("source: vLLM pull request 19970\n", "", 1, "source: is missing"),
        ("metric: output_throughput", "metric: througput", 7, "unknown metric 'througput'; nearest:"),
        ("change: 3 .. 15 %", "change: faster", 8, "is no change; write"),
        ("guards: [failed, output_tokens]", "guards: [failled]", 9, "unknown metric 'failled'"),
        ("b: HEAD+async", "b: HEAD+sync", 1, "a and b are the same change"),
        ("cells: [", "cellls: [", 1, "cell"),
        ("cells: [text_ladder@c1-n32, text_ladder@c8-n64]", "cells: []", 1, "say which workload"),
        ("b: HEAD+async", "b: 7", 5, "b: expected text"),
        ("expect:", "expects:", 1, "expect"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    path = tmp_path / "claim.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(LocatedError) as caught:
        load_claim(path)
    assert said in caught.value.message
    assert caught.value.line is not None
    assert caught.value.line >= line
