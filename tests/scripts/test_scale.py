"""The scale script generates, measures each command, and says by its exit code whether a limit is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.jobs.folders import Jobs
from perfbisect.series.store import SeriesStore
from scripts import scale
from scripts.scale import Limits, Usage, main

SMALL = ("--cells", "3", "--nights", "4", "--metrics", "2", "--launches", "2")


@pytest.mark.parametrize(("memory", "code"), [(300.0, 0), (99.0, 1)])
def test_a_broken_limit_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], memory: float, code: int
) -> None:
    asked: list[str] = []

    def measure(state: Path, *arguments: str) -> Usage:
        asked.append(" ".join(arguments[:2]) if arguments[0] in ("track", "dashboard") else arguments[0])
        (state / scale.OUTPUT).write_text('{"first_page_bytes": 400000}')
        with SeriesStore.of(state) as store:
            assert len(store.cells()) == 3 and len(store.builds()) == 4
        assert len(Jobs(state).all()) == 1
        return Usage(100.0, 1.0 if asked.count("track detect") == 2 else 20.0)

    monkeypatch.setattr(scale, "measure", measure)
    assert main(SMALL, Limits(memory=memory)) == code
    assert asked == ["track detect", "track detect", "track export", "dashboard build", "status", "resume"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and sum(line.endswith("NO") for line in lines) == 4 * code
