"""Text of others is shown, and does nothing."""

from __future__ import annotations

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from perfbisect.common.text import block, code, line, lines
from tests.fakes.history import HOSTILE_SUBJECT

ANY = st.text(st.characters(codec=None), max_size=40)


@given(ANY)
def test_no_character_of_a_line_acts(text: str) -> None:
    shown = line(text, limit=1000)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for c in shown)
    assert "\n" not in shown


@given(st.text("abc äß 日本 \u00b5|`*", max_size=30))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert line(text) == text


def test_terminal_escapes_are_spelt_out() -> None:
    shown = line(HOSTILE_SUBJECT)
    assert r"\x1b[31mlogs\x1b[0m\x1b]0;owned\x07 \x9b2J\r" in shown
    assert r"\u202egnp.exe" in shown
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", shown)


def test_a_long_line_is_cut_and_says_so() -> None:
    assert line("x" * 300) == "x" * 199 + "…"
    assert lines("a\x1b\nb") == "a\\x1b\nb"


@given(ANY)
def test_a_code_span_is_not_left(text: str) -> None:
    span = code(text)
    fence = re.match("`+", span)
    assert fence is not None
    inner = span[len(fence[0]) : -len(fence[0])]
    assert span.endswith(fence[0])
    assert fence[0] not in re.findall("`+", inner), "a run of as many backticks would close it"
    assert inner
    assert "|" not in span, "a bar would end the cell of a table"
    assert "\n" not in span


@given(ANY)
def test_a_block_is_not_left(text: str) -> None:
    first, *rest, last = block(text, "sh").split("\n")
    assert first == last + "sh"
    assert not any(part.startswith(last) for part in rest)
