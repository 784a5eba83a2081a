"""Lines in a terminal of any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perfbisect.report.terminal import fitted

WORDS = st.lists(st.text("abc-中", min_size=1, max_size=9), min_size=1, max_size=12)


@given(WORDS, st.integers(0, 12), st.integers(20, 60))
def test_no_line_is_wider_and_no_word_is_lost(words: list[str], indent: int, width: int) -> None:
    text = " " * indent + "  ".join(words)
    shown = fitted(text, width)
    assert [word for row in shown for word in row.split()] == words
    for row in shown:
        assert cell_len(row) <= width or len(row.split()) == 1
        assert row.startswith(" " * min(indent, width // 2))


def test_the_rest_is_indented_further() -> None:
    assert fitted("  name    value and more of it", 20) == ["  name    value and", "      more of it"]
    assert fitted("short", 20) == ["short"]


def test_what_is_copied_is_left_to_the_terminal() -> None:
    command = "  next:  perfbisect resume 20260102-030405-ab12 --budget 150m --state /a/b/c"
    assert fitted(command, 30) == [command]
    page = "# A report\n\n| a | b |\n|---|---|\n| a long row of a table | that Markdown needs whole |"
    assert fitted(page, 20) == [page]
