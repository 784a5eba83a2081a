"""Paired lists."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfbisect.cells.ladder import LadderError, expand


def names(document: dict[str, Any]) -> list[str]:
    return [rung.suffix for rung in expand(document)]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"max_concurrency": [1, 8], "num_prompts": 100}, ["@c1-n100", "@c8-n100"]),
        ({"max_concurrency": 4, "num_prompts": [10, 20]}, ["@c4-n10", "@c4-n20"]),
        ({"request_rate": [0.5, 2, 10.0], "num_prompts": 100}, ["@r0.5-n100", "@r2.0-n100", "@r10.0-n100"]),
        ({"max_concurrency": [1.0, "y z"], "num_prompts": 5}, ["@c1-n5", "@cx-n5"]),
        ({"request_rate": [1.0], "max_concurrency": 8, "num_prompts": 5}, ["@c8-r1.0-n5"]),
        ({"request_rate": "inf", "num_prompts": [5]}, ["@rinf-n5"]),
        (
            {"request_rate": [math.inf, 2.0], "max_concurrency": [1, 2], "num_prompts": 5},
            ["@c1-n5", "@c2-r2.0-n5"],
        ),
    ],
)
def test_the_suffix_names_the_place(document: dict[str, Any], expected: list[str]) -> None:
    assert names(document) == expected


@pytest.mark.parametrize(
    ("document", "field", "said"),
    [
        (
            {"max_concurrency": [1, 2], "num_prompts": [1, 2, 3]},
            "max_concurrency",
            "has 2 values where num_prompts has 3",
        ),
        ({"num_prompts": []}, "num_prompts", "is an empty list"),
        ({"num_prompts": [5, 5], "max_concurrency": 1}, "num_prompts", "two cells the name @c1-n5"),
    ],
)
def test_lists_that_cannot_be_paired(document: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(LadderError, match=said) as caught:
        expand(document)
    assert caught.value.field == field
