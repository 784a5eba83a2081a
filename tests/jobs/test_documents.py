"""JSON that is printed moves no cursor and turns no text around."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from perfbisect.common.text import json_text
from perfbisect.jobs.documents import ErrorDocument


@given(st.text())
def test_json_is_printable_and_means_the_same(text: str) -> None:
    shown = json_text(json.dumps({text: [text]}, ensure_ascii=False, indent=1))
    assert json.loads(shown) == {text: [text]}
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_documents_escape_what_a_terminal_acts_on() -> None:
    text = "\x9b2J \u202egnp.exe \x7f \U000e0041 µs"
    document = ErrorDocument(error=text, kind="k", exit_code=1, where=None, next="n").text()
    assert "\\u009b2J \\u202egnp.exe \\u007f \\udb40\\udc41 µs" in document
    assert json.loads(document)["error"] == text
