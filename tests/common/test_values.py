"""Canonical values and digests, numbers for display, suggestions for mistyped names."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfbisect
from perfbisect.common.digests import canonical, canonical_json, digest
from perfbisect.common.quantities import counted, minutes, number, percent, probability, spent_text, with_unit
from perfbisect.common.text import hint, nearest

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_the_canonical_form_is_its_own_canonical_form(value: object) -> None:
    assert canonical(canonical(value)) == canonical(value)
    assert canonical(json.loads(canonical_json(value))) == canonical(value)


def test_the_digest_is_the_hash_of_sorted_json_without_spaces() -> None:
    expected = hashlib.sha256('{"a":[1,"é",null],"b":"inf"}'.encode()).hexdigest()
    assert digest({"b": math.inf, "a": (1.0, "é", None)}) == expected


def test_true_is_not_one() -> None:
    assert len({digest(True), digest(1), digest("1"), digest([1]), digest(None)}) == 5
    assert digest(1) == digest(1.0)
    assert digest(-0.0) == digest(0)


@pytest.mark.parametrize("value", [math.nan, {"a": [math.nan]}, object(), {1, 2}, b"x"])
def test_what_has_no_digest(value: object) -> None:
    with pytest.raises(ValueError, match="no digest"):
        digest(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (14.20449, "14.20"),
        (1234567.0, "1,234,567"),
        (0.0012344, "0.001234"),
        (-3.5, "-3.500"),
    ],
)
def test_a_value_has_four_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_units() -> None:
    assert with_unit(14.2, "ms") == "14.20 ms"
    assert with_unit(0.015, "share") == "1.50 %"
    assert percent(0.1234) == "+12.3 %"
    assert percent(-0.1234) == "-12.3 %"
    assert percent(0.1234, signed=False) == "12.3 %"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.2, "12 s"), (1.0, "1.0 min"), (99.94, "99.9 min"), (125.4, "2 h 05 min"), (0, "0 s")],
)
def test_times(value: float, shown: str) -> None:
    assert minutes(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(1.0, "0.99"), (0.5, "0.50"), (0.004, "<0.01"), (0.0, "0.00")])
def test_nothing_is_surer_than_the_model(value: float, shown: str) -> None:
    assert probability(value) == shown


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


def test_discarded_minutes_have_their_share_of_the_budget() -> None:
    assert spent_text(12.0, 0.0, 0.0) == "12.0 min"
    of_budget = "12.0 min of 60.0 min, 3.0 min (5.0 % of the budget) discarded or failed"
    assert spent_text(12.0, 60.0, 3.0) == of_budget
    assert spent_text(12.0, 0.0, 3.0) == "12.0 min, 3.0 min (25.0 %) discarded or failed"
    assert spent_text(12.0, 60.0, 1 / 60) == "12.0 min of 60.0 min", "a second is not worth a word"


def test_a_count_has_its_noun() -> None:
    assert [counted(number, "alert") for number in (0, 1, 2)] == ["0 alerts", "1 alert", "2 alerts"]
    assert [counted(2, noun) for noun in ("launch", "process", "series")] == [
        "2 launches", "2 processes", "2 series"
    ]  # fmt: skip


def test_no_message_forms_a_plural_by_itself() -> None:
    """``1 builds``, ``process(es)``, ``run{'s' if ...}``: a message counts its things by ``counted``."""
    by_itself = re.compile(r"""['"]s['"] (?:if|\*)|['"]['"] if [^}]+ else ['"]s['"]|[a-z]\(e?s\)[ ,:;"]""")
    sources = Path(str(perfbisect.__file__)).parent.rglob("*.py")
    lines = ((path, text) for path in sources for text in path.read_text().splitlines())
    found = [(path.name, text.strip()) for path, text in lines if 'f"' in text and by_itself.search(text)]
    assert found == []
