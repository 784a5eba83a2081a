"""Prose of a report: what others wrote in it is read as it is, and does nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from perfbisect.common.text import line
from perfbisect.report.markdown import prose, table
from tests.fakes.history import HOSTILE_SUBJECT

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])

ACTING = r"ab1 _*`~[]()<>!#@$&|\/.:;-+=x"
"""Letters of which markup is made."""

GITHUB = re.compile(r"(?<!\w)@\w|#\d|\bGH-\d|://|\bwww\.|\$|\w@\w+\.\w", re.IGNORECASE)
"""Of what GitHub makes a mention, a reference, a link or a formula, after Markdown, outside code."""


def inline(text: str) -> list[Token]:
    """What a paragraph of it is made of; it has to be one paragraph."""
    tokens = MARKDOWN.parse(text)
    assert [token.type for token in tokens] in ([], ["paragraph_open", "inline", "paragraph_close"])
    return [one for token in tokens for one in token.children or []]


@given(st.text(ACTING, max_size=30) | st.text(st.characters(codec="utf-8"), max_size=30))
@example("<script>alert(1)</script>")
@example(r"![x](http://y) [^1] [ ] __init__ **b** ~~s~~ `c` \* &lt; &#64;x")
@example("(#2716), GH-7 owner/repo#8 @who, 'user@host.org' $x$ ${Y}")
@example("- a")
def test_nothing_in_it_acts(text: str) -> None:
    found = inline(prose(text))
    assert {one.type for one in found} <= {"text", "code_inline", "text_special"}
    assert not [one.content for one in found if one.type != "code_inline" and GITHUB.search(one.content)]
    shown = "".join(one.content for one in found)
    assert shown.replace("\u2223", "|") == line(text, 1000).strip().replace("\u2223", "|")


@pytest.mark.parametrize("mark", ["#", "##", "-", "+", ">", "1.", "12)", "===", "---", "***", "~~~", "    x"])
def test_nothing_in_it_begins_a_block(mark: str) -> None:
    assert inline(prose(f"{mark} x")) and inline(prose(mark))


@given(st.text(ACTING, max_size=20))
def test_a_cell_of_a_table_is_not_left(text: str) -> None:
    tokens = MARKDOWN.parse(table(("a", "b"), [(prose(text), "x")]))
    assert [token.type for token in tokens].count("td_open") == 2
    assert not [token for token in tokens if token.type == "html_block"]


def test_it_is_read_as_it_is() -> None:
    for plain in (
        "-17.3 % of 3 nights. 2.5 x",
        "audio_ttfp of qwen3_omni_chunk moved +17.0 %, x 4; 3 > 2 & done!",
        "the server's arguments are others (was 10.9), 2 to 70 times slower: see docs/track.md",
    ):
        assert prose(plain) == plain
    assert prose("ttfp of qwen3_tts/random@c1-n10, since (#2716)") == (
        "ttfp of `qwen3_tts/random@c1-n10`, since (`#2716`)"
    )
    assert prose("<script>") == "&lt;script>"
    assert prose(r"\x1b[31m and &lt; and a*b") == r"\x1b\[31m and &amp;lt; and a\*b"
    assert "&#" not in prose(HOSTILE_SUBJECT)
