"""Names that were meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.common.suggest import hint, nearest

KNOWN = ("ttft", "tpot", "itl", "e2el", "output_throughput", "request_throughput", "total_token_throughput")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ttf", "ttft"),
        ("TTFT", "ttft"),
        ("output", "output_throughput"),
        ("request_thruput", "request_throughput"),
    ],
)
def test_a_typo_finds_what_was_meant(typed: str, meant: str) -> None:
    assert nearest(typed, KNOWN)[0] == meant


def test_what_is_like_nothing_has_no_hint() -> None:
    assert nearest("zzzz", KNOWN) == ()
    assert hint("zzzz", KNOWN) == ""
    assert hint("", KNOWN) == ""
    assert hint("ttf", ("ttft", "e2el")) == "; nearest: ttft"


@given(st.text(max_size=12), st.lists(st.text(min_size=1, max_size=12), max_size=8))
def test_only_known_names_are_named_and_few(typed: str, known: list[str]) -> None:
    found = nearest(typed, known)
    assert len(found) <= 3
    assert set(found) <= set(known)
    assert len(set(found)) == len(found)


@given(st.sampled_from(KNOWN))
def test_a_known_name_is_nearest_to_itself(name: str) -> None:
    assert nearest(name, KNOWN)[0] == name
