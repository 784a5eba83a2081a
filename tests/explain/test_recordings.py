"""Recordings open in other tools: stacks in speedscope, traces in Perfetto."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from perfbisect.explain.stacks import read_folded
from tests.explain.test_trace import step, written

RECORDED = """\
process 4378:"python3 t.py";thread (4442): a; "b" thread;Thread.run (/usr/lib/python3.11/threading.py:982);\
spin (/srv/t.py:4);spin.<locals>.<lambda> (/srv/t.py:3) 97
process 4378:"python3 t.py";thread (4378): MainThread;<module> (/srv/t.py:9);main (/srv/t.py:8);\
spin (/srv/t.py:4) 2
"""
"""As py-spy 0.4.3 wrote it of a program with two threads, its folders renamed."""


def open_as_speedscope(text: str) -> list[tuple[list[str], int]]:
    """Collapsed stacks: frames divided by semicolons, a space, a weight (speedscope's bg-flamegraph.ts)."""
    # It takes a text for this format where a space and a number end every line.
    assert len(text.split("\n")) == len(re.split(r" \d+\r?\n", text))
    matches = [re.fullmatch(r"(.*) (\d+)", line) for line in text.splitlines()]
    return [(found[1].split(";"), int(found[2])) for found in matches if found is not None]


def open_as_perfetto(path: Path) -> list[dict[str, object]]:
    """Chrome's JSON, which may be compressed: events with a phase, complete ones with times and a thread."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    events: list[dict[str, object]] = document["traceEvents"]
    for event in events:
        assert isinstance(event["ph"], str) and isinstance(event["name"], str)
        if event["ph"] == "X":
            assert all(isinstance(event[key], int | float) for key in ("ts", "dur"))
            assert {"pid", "tid"} <= event.keys()
    return events


def test_stacks_open_in_speedscope() -> None:
    stacks = open_as_speedscope(RECORDED)
    assert [weight for _, weight in stacks] == [97, 2]
    assert stacks[1][0][-1] == "spin (/srv/t.py:4)"
    samples = read_folded(RECORDED)
    assert [sample.count for sample in samples] == [97, 2]
    assert [sample.thread for sample in samples] == ['a; "b" thread', "MainThread"]


def test_traces_open_in_perfetto(tmp_path: Path) -> None:
    path = tmp_path / "rank0.1.pt.trace.json.gz"
    path.write_bytes(gzip.compress(written(step(100.0)).encode()))
    events = open_as_perfetto(path)
    assert [event["name"] for event in events if event["ph"] == "X"][1:3] == ["aten::linear", "aten::mm"]
