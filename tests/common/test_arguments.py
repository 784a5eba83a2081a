"""Options as data and as arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.common.arguments import merge_options, option_tokens, parse_options

NAMES = st.from_regex(r"[a-z]{2,5}(-[a-z]{1,4})?", fullmatch=True).filter(
    lambda name: not name.startswith("no-")
)
WORDS = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=6)
VALUES = (
    st.booleans()
    | st.integers(-99, 10**6)
    | st.floats(-9, 9).map(lambda x: round(x, 3))
    | WORDS
    | st.lists(WORDS, min_size=2, max_size=3)
    | st.dictionaries(WORDS, st.integers(0, 9) | WORDS | st.booleans(), max_size=2)
)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_arguments_read_back_as_the_same_options(options: dict[str, Any]) -> None:
    parsed = parse_options(options, negatable=True)
    assert parse_options(list(option_tokens(parsed, negatable=True)), negatable=True) == parsed


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_underscores_are_dashes(options: dict[str, Any]) -> None:
    spelled = {f"--{name}".replace("-", "_").replace("__", "--", 1): value for name, value in options.items()}
    assert parse_options(spelled, negatable=True) == parse_options(options, negatable=True)


def test_each_kind_of_value_becomes_its_arguments() -> None:
    options = {"on": True, "off": False, "n": 3, "f": 0.9, "t": "x y", "l": ["a", 1], "neg": -1}
    tokens = option_tokens({**options, "m": {"b": 1, "a": True}}, negatable=True)
    text = '--f 0.9 --l a 1 --m {"a":true,"b":1} --n 3 --neg=-1 --no-off --on --t'
    assert tokens == (*text.split(), "x y")


def test_a_program_without_negative_switches_gets_none() -> None:
    assert option_tokens({"off": False, "on": True}, negatable=False) == ("--on",)
    assert parse_options({"no-stream": True}, negatable=False) == {"no-stream": True}
    assert parse_options({"no-stream": True}, negatable=True) == {"stream": False}


def test_dotted_names_keep_what_follows_the_dot() -> None:
    parsed = parse_options({"compilation_config.cudagraph_mode": "FULL"}, negatable=True)
    assert parsed == {"compilation-config.cudagraph_mode": "FULL"}


def test_text_that_is_a_number_or_an_object_is_one() -> None:
    assert parse_options(
        {"a": "512", "b": "0.9", "c": '{"x": 1}', "d": "0.90", "e": "007", "f": "{x", "g": "1e5"},
        negatable=True,
    ) == {"a": 512, "b": 0.9, "c": {"x": 1}, "d": "0.90", "e": "007", "f": "{x", "g": "1e5"}
    assert parse_options({"a": '{"x": NaN}'}, negatable=True) == {"a": '{"x": NaN}'}


def test_null_is_nothing_said_or_an_option_taken_away() -> None:
    assert parse_options({"a": None, "b": 1}, negatable=True) == {"b": 1}
    override = parse_options({"a": None, "c": 2}, negatable=True, keep_null=True)
    assert merge_options({"a": 1, "b": 1}, override) == {"b": 1, "c": 2}


def test_a_servers_short_options_are_its_long_ones() -> None:
    tokens = ["-tp", "2", "-pp=3", "-ep", "-O3", "-cc.mode", "1", "--dp", "4"]
    assert parse_options(tokens, negatable=True) == {
        "tensor-parallel-size": 2,
        "pipeline-parallel-size": 3,
        "enable-expert-parallel": True,
        "optimization-level": 3,
        "compilation-config.mode": 1,
        "dp": 4,
    }
    assert parse_options(["-O", "2"], negatable=True) == parse_options(["-O=2"], negatable=True)
    with pytest.raises(ValueError, match="'-tp' is not a long option"):
        parse_options(["-tp", "2"], negatable=False)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("--a 1", "not one text"),
        (3, "not int"),
        (["a"], "'a' is not a long option"),
        (["-zz", "2"], "'-zz' is not a long option"),
        (["--a", "-x"], "'-x' is not a long option"),
        ({"a b": 1}, "is no option name"),
        ({1: 1}, "is no option name"),
        ({"-a": 1}, "is no option name"),
        ({"a_b": 1, "a-b": 2}, "'a-b' is given twice"),
        (["--a", "1", "--a", "2"], "'a' is given twice"),
        ({"x": True, "no-x": True}, "'x' is given twice"),
        ({"a": object()}, "cannot be the value"),
        ({"a": {2.5: 1}}, "cannot be a key"),
        ({"a": float("nan")}, "NaN is no number"),
    ],
)
def test_what_is_no_option(written: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_options(written, negatable=True)
