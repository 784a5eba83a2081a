"""The phase of a running launch on disk."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perfbisect.jobs.phases import FILE, PhaseRecord, phase_text, read_phase, write_phase

RECORDS = st.builds(
    PhaseRecord,
    phase=st.text(),
    detail=st.dictionaries(st.text(), st.integers() | st.booleans() | st.text()),
    at=st.text(),
)


@given(RECORDS)
def test_a_phase_comes_back_as_it_was_written(record: PhaseRecord) -> None:
    assert read_phase(phase_text(record)) == record


def test_a_phase_that_is_half_written_is_none() -> None:
    text = phase_text(PhaseRecord(phase="bench", detail={"run": 2}))
    assert [read_phase(text[:end]) for end in range(len(text) - 2)] == [None] * (len(text) - 2)


def test_what_json_does_not_know_is_text(tmp_path: Path) -> None:
    write_phase(tmp_path, PhaseRecord(phase="build", detail={"log": Path("build.log")}))
    record = read_phase((tmp_path / FILE).read_bytes())
    assert record is not None and record.detail == {"log": "build.log"}


def test_a_folder_that_is_gone_fails_no_launch(tmp_path: Path) -> None:
    write_phase(tmp_path / "gone", PhaseRecord(phase="build"))
    assert not (tmp_path / "gone").exists()
