"""Python of other programs: its functions and their lines."""

from __future__ import annotations

from perfbisect.common.python_source import function_spans


def test_functions_of_a_file() -> None:
    source = "@a\ndef f():\n    def g():\n        pass\n\nclass C:\n    async def h(self): ...\n"
    assert [(span.name, span.first, span.last) for span in function_spans(source)] == [
        ("f", 1, 4),
        ("f.<locals>.g", 3, 4),
        ("C.h", 7, 7),
    ]
    assert function_spans("def broken(:\n") == ()
    deep = "a = " + "+".join(["1"] * 1500) + "\ndef f(): ...\n"
    assert [span.name for span in function_spans(deep)] == ["f"]
