"""Tracebacks of engines' logs, and the signatures of failures."""

from __future__ import annotations

import pytest

from perfbisect.model.attempt import Failure, Phase
from perfbisect.model.trace import Trace, TraceLine, constant_text

LOG = """\
(EngineCore pid=71) INFO 11-28 00:10:00 [core.py:90] Initializing
(EngineCore pid=71) ERROR 11-28 00:10:01 [core.py:9] EngineCore failed to start.
(EngineCore pid=71) ERROR 11-28 00:10:01 [core.py:9] Traceback (most recent call last):
(APIServer pid=9) Traceback (most recent call last):
(EngineCore pid=71) ERROR 11-28 00:10:01 [core.py:9]   File "/site-packages/vllm/v1/core.py", line 83, in run
(APIServer pid=9)   File "/usr/bin/vllm", line 8, in <module>
(EngineCore pid=71) ERROR 11-28 00:10:01 [core.py:9]     self.step()
(EngineCore pid=71) ERROR 11-28 00:10:01 [core.py:9]   File "/site-packages/vllm/v1/pool.py", line 12, in take
(EngineCore pid=71) ERROR 11-28 00:10:01 [core.py:9]     raise ValueError(n)
(EngineCore pid=71) ERROR 11-28 00:10:01 [core.py:9] ValueError: no block 17 of /tmp/x at 0x7f00
(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_the_cause_is_found_among_lines_of_several_processes() -> None:
    trace = Trace.read(LOG)
    assert trace is not None
    assert trace.error == "ValueError: no block 17 of /tmp/x at 0x7f00"
    assert trace.frames == (
        TraceLine("vllm/v1/core.py", 83, "run"),
        TraceLine("vllm/v1/pool.py", 12, "take"),
    )
    assert trace.signature == "ValueError: no block # of PATH at # at v1/pool.py take"


def test_a_syntax_error_and_a_native_crash_have_a_place() -> None:
    syntax = 'Traceback (most recent call last):\n  File "/r/vllm/a.py", line 3\n    x = (\n        ^\n'
    read = Trace.read(f"{syntax}SyntaxError: '(' was never closed\n")
    assert read == Trace("SyntaxError: '(' was never closed", (TraceLine("/r/vllm/a.py", 3),))
    native = Trace.read(
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
    )
    assert native is not None
    assert native.signature == "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize("log", ["", "INFO all is well\nValueError: a word in a log\n", LOG.splitlines()[-1]])
def test_without_a_traceback_there_is_no_cause(log: str) -> None:
    assert Trace.read(log) is None


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ("no memory for 17 blocks\nmore", "no memory for 4 blocks"),
        ("pb-5bd03041ab99 at 127.0.0.1:8000", "pb-77aa20c1d0e5 at 127.0.0.1:9"),
        ("cannot read /state/a/1.json", "cannot read /b.json"),
        ("ended after run warm", "ended after run 1"),
    ],
)
def test_what_differs_between_launches_is_no_part_of_a_signature(one: str, another: str) -> None:
    assert constant_text(one) == constant_text(another)


def test_a_signature_tells_failures_apart() -> None:
    kinds: list[tuple[Phase, str, Trace | None]] = [
        ("launch", "ended with exit code 1", None),
        ("first_request", "ended with exit code 1", None),
        ("bench", "ended with exit code 1", None),
        ("bench", "was ended", None),
        ("bench", "ended with exit code 1", Trace("ValueError: x")),
        ("bench", "ended with exit code 1", Trace("ValueError: x", (TraceLine("a.py", 1, "f"),))),
        ("bench", "ended with exit code 1", Trace("ValueError: x", (TraceLine("a.py", 1, "g"),))),
    ]
    signatures = {Failure(phase, "change", text, trace=trace).signature for phase, text, trace in kinds}
    assert len(signatures) == len(kinds)
    assert Failure("warm", "change", "it ended").signature == Failure("bench", "change", "it ended").signature
