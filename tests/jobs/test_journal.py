"""The journal: what is written is there, what is torn is cut off, what is broken is an error at its line."""

from __future__ import annotations

import errno
import json
import os
import sys
import tracemalloc
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import KINDS, Journal, read, stamp
from perfbisect.jobs.replay import launches
from perfbisect.measure.attempt import from_dict, to_dict
from scripts.long_job import write_long_job
from tests.jobs.world import no_file_above

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def clock() -> datetime:
    return MOMENT


def written(path: Path, count: int = 3) -> list[bytes]:
    """A journal of so many events; its lines."""
    with Journal(path, clock=clock) as journal:
        for number in range(count):
            journal.append(
                "abandoned", {"attempt": f"a{number}", "reason": "Ünïcode\n\u2028|", "minutes": 1.5}
            )
    return path.read_bytes().splitlines(keepends=True)


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), st.dictionaries(st.text(), JSON, max_size=3)), max_size=5
    )
)
@settings(max_examples=50)
def test_what_was_appended_is_read_again(tmp_path_factory: pytest.TempPathFactory, said: list[tuple]) -> None:
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    with Journal(path, clock=clock) as journal:
        for kind, data in said:
            journal.append(kind, data)
    again = Journal(path, clock=clock)
    again.close()
    assert [(e.seq, e.time, e.kind, e.data) for e in again.events] == [
        (n, "2026-01-02T03:04:05.678901+00:00", kind, data) for n, (kind, data) in enumerate(said)
    ]
    assert read(path).events == again.events == journal.events


def test_a_line_is_on_the_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), real(fd))[1])
    with Journal(tmp_path / "journal.jsonl", clock=clock) as journal:
        journal.append("verdict", {})
        assert synced[-1] == (tmp_path / "journal.jsonl").stat().st_size > 0


def test_a_line_torn_at_any_byte_is_cut_off_and_kept(tmp_path: Path) -> None:
    lines = written(tmp_path / "whole.jsonl")
    before, last = b"".join(lines[:-1]), lines[-1]
    for end in range(1, len(last)):
        path = tmp_path / f"{end}" / "journal.jsonl"
        path.parent.mkdir()
        path.write_bytes(before + last[:end])
        assert read(path).torn == last[:end]
        assert path.read_bytes() == before + last[:end], "looking changes nothing"
        with Journal(path, clock=clock) as journal:
            assert (len(journal.events), journal.torn) == (2, last[:end])
            assert path.read_bytes() == before
            assert path.with_suffix(".torn").read_bytes() == last[:end] + b"\n"
            journal.append("verdict", {"word": "found"})
        assert [event.kind for event in read(path).events] == ["abandoned", "abandoned", "verdict"]
        assert read(path).torn == b""


def test_a_last_line_of_zeros_is_torn_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path)
    path.write_bytes(b"".join(lines[:-1]) + b"\0" * 40 + b"\n")
    with Journal(path, clock=clock) as journal:
        assert len(journal.events) == 2
        assert journal.torn == b"\0" * 40 + b"\n"


@pytest.mark.parametrize(
    "broken",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"not json\n",
        b'{"schema":0,"seq":1,"time":"2026-01-02T03:04:05+00:00","event":"verdict","data":{}}\n',
        b'{"schema":1,"seq":7,"time":"2026-01-02T03:04:05+00:00","event":"verdict","data":{}}\n',
        b'{"schema":1,"seq":1,"time":"yesterday","event":"verdict","data":{}}\n',
        b'{"schema":1,"seq":1,"time":"2026-01-02T03:04:05","event":"verdict","data":{}}\n',
        b'{"schema":1,"seq":1,"time":"2026-01-02T03:04:05+00:00","event":"dance","data":{}}\n',
        b'{"schema":1,"seq":1,"time":"2026-01-02T03:04:05+00:00","event":"verdict","data":[]}\n',
        b'{"schema":true,"seq":1,"time":"2026-01-02T03:04:05+00:00","event":"verdict","data":{}}\n',
        b"\xff\xfe\n",
    ],
)
def test_a_broken_line_in_the_middle_is_an_error_at_its_line(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path)
    path.write_bytes(lines[0] + broken + lines[2])
    for look in (read, lambda p: Journal(p, clock=clock)):
        with pytest.raises(LocatedError) as caught:
            look(path)
        assert caught.value.where == f"{path}:2"
        assert caught.value.exit_code == 2
    assert path.read_bytes() == lines[0] + broken + lines[2], "nothing is cut out of the middle"


def test_a_later_schema_is_refused_even_on_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path)
    later = lines[2].replace(b'"schema":1', b'"schema":2')
    path.write_bytes(b"".join(lines[:2]) + later)
    with pytest.raises(UsageError, match="later perfbisect: schema 2 is newer than 1") as caught:
        Journal(path, clock=clock)
    assert caught.value.where == f"{path}:3"
    assert path.read_bytes().endswith(later)


def test_times_are_written_in_utc() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    assert stamp(datetime(2026, 1, 1, 2, 0, tzinfo=east)) == "2025-12-31T20:30:00.000000+00:00"


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A real ENOSPC: the journal's file is the device that is always full."""
    path = tmp_path / "20260102-000000-aaaa" / "journal.jsonl"
    path.parent.mkdir()
    written(path)
    whole = path.read_bytes()
    journal = Journal(path, clock=clock)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._file)
    os.close(full)
    with pytest.raises(MachineError, match="could not be written: No space left") as caught:
        journal.append("verdict", {})
    assert caught.value.exit_code == 5
    assert caught.value.next_step == "make room on the disk, then: perfbisect resume 20260102-000000-aaaa"
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert len(journal.events) == 3
    assert path.read_bytes() == whole


def test_half_a_line_is_taken_back_and_the_journal_goes_on(tmp_path: Path) -> None:
    """A real limit in the middle of a line: 40 bytes fit, then the write is refused."""
    path = tmp_path / "journal.jsonl"
    lines = written(path)
    with Journal(path, clock=clock) as journal:
        with (
            no_file_above(path.stat().st_size + 40),
            pytest.raises(MachineError, match="could not be written"),
        ):
            journal.append("verdict", {"word": "x" * 200})
        assert path.read_bytes() == b"".join(lines), "half a line was left"
        journal.append("verdict", {"word": "found"})
    assert [event.kind for event in read(path).events] == ["abandoned"] * len(lines) + ["verdict"]


@pytest.mark.parametrize("after", range(12))
def test_ctrl_c_at_any_line_of_an_append_leaves_a_whole_journal(tmp_path: Path, after: int) -> None:
    path = tmp_path / "journal.jsonl"
    written(path)
    left = after

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not Journal._append.__code__:
            return interrupt
        if event == "line" and (left := left - 1) < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    with Journal(path, clock=clock) as journal:
        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                journal.append("verdict", {})
        finally:
            sys.settrace(before)
        assert journal.events == read(path).events, "memory and disk agree"
        journal.append("verdict", {"last": True})
        assert journal.events == read(path).events
        assert [event.seq for event in journal.events] == list(range(len(journal.events)))


def test_a_long_journal_takes_little_memory_to_read(tmp_path: Path) -> None:
    made = 150
    path = Jobs(tmp_path).find(write_long_job(tmp_path, made, seed=1)).journal
    launches(read(path).events)  # what is loaded once does not count
    tracemalloc.start()
    try:
        events = read(path).events
        records = launches(events)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / made < 16_000
    lines = path.read_bytes().splitlines()
    data = [json.loads(line)["data"] for line in lines]
    assert [event.data for event in events] == data
    attempts = [to_dict(launch.attempt) for launch in records if launch.attempt is not None]
    written = [to_dict(from_dict(each["attempt"])) for each in data if isinstance(each.get("attempt"), dict)]
    assert len(attempts) == made and attempts == written
