"""`make bench` runs and counts right; how long anything takes is asserted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.jobs.events import JobNote, LaunchStarted, PhaseStarted
from perfbisect.jobs.journal import JournalEvent
from perfbisect.jobs.replay import LaunchRequest
from perfbisect.model.change import Change
from scripts import bench, bench_omni
from scripts.bench import Cost, Marks, journal, main, table


def cost(value: float, limit: float = 3.0) -> Cost:
    return Cost("something", value, limit, "ms", "so and so")


def test_only_what_is_above_its_limit_is_over() -> None:
    assert not cost(2.99).over
    assert not cost(3.0).over
    assert cost(3.01).over
    assert cost(float("nan")).over


def test_the_table_names_what_is_over() -> None:
    head, good, bad = table([cost(1.25), cost(1234.5, 50.0)])
    assert head.split() == ["measured", "limit"]
    assert good.split() == ["something", "1.25", "ms", "3", "ms", "so", "and", "so"]
    assert bad.startswith("OVER: something")
    assert head.index("measured") + len("measured") == good.index("1.25 ms") + len("1.25 ms")


def test_a_launch_is_compared_pair_by_pair() -> None:
    """A pair that other work slows down moves the medians of both sides, and not their ratio."""
    slowed = {"before": (100.0, 300.0, 110.0), "after": (60.0, 180.0, 66.0)}
    names = (*bench_omni.PHASES, *bench_omni.VALUES)
    launches = {side: [dict.fromkeys(names, each) for each in wholes] for side, wholes in slowed.items()}
    assert bench_omni.table(launches)[-4].split() == ["whole", "110", "66", "0.60"]


def test_marks_tell_ours_from_what_an_attempt_needs() -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 127.0, 255.0])
    marks = Marks(lambda: next(clock))
    marks(JobNote("a decision was made"))  # 0 to 1: ours
    request = LaunchRequest(0, Change("a"), "end", 1, "why")
    marks(LaunchStarted(1, request, 1))  # 1 to 3: ours, the journal; now it builds
    marks(PhaseStarted("fetch", {}))  # 3 to 7: the build's
    marks(PhaseStarted("build", {}))  # 7 to 15: the build's
    marks(PhaseStarted("launch", {}))  # 15 to 31: ours, commands and provenance; now the engine starts
    marks(PhaseStarted("ready", {}))  # 31 to 63: the engine's start
    marks(PhaseStarted("bench", {}))  # 63 to 127: the runs'
    marks(PhaseStarted("stop", {}))  # 127 to 255: the runs', and the engine's end; from here on ours
    assert marks.spent == {"ours": 1 + 2 + 16, "start": 4 + 8 + 32, "runs": 64 + 128}


def test_a_long_journal_is_one(tmp_path: Path) -> None:
    job, _ = bench.bisected(tmp_path, 8)
    lines = journal(bench.read(job.journal).events[0], 31)
    assert len(lines) == 31
    assert [line.seq for line in lines] == list(range(31))
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"".join(line.line() for line in lines))
    events = bench.read(path).events
    assert all(isinstance(event, JournalEvent) for event in events)
    seen = bench.launches(events)
    assert [x.outcome for x in seen] == ["measured"] * 10
    assert {x.position for x in seen} == set(range(8))


@pytest.mark.processes
def test_it_runs_and_its_exit_code_says_whether_a_limit_is_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def elsewhere(*arguments: str) -> Cost:
        asked.append(arguments)
        return cost(1.0)

    monkeypatch.setattr(bench, "elsewhere", elsewhere)
    monkeypatch.setattr(bench, "start", lambda _: cost(1.0))
    monkeypatch.setattr(bench, "decision", lambda _: cost(1.0))
    # What is measured here may take any time: only the given costs can pass a limit.
    monkeypatch.setattr(Cost, "over", property(lambda shown: shown.what == "something" and shown.value > 3.0))
    assert main(["--quick"]) == 0
    assert asked == [("--share", "1"), ("--peak", "20")]
    told = capsys.readouterr().out
    assert "a journal folded" in told
    assert "ingested again, unchanged" in told
    monkeypatch.setattr(bench, "start", lambda _: cost(9.0))
    monkeypatch.setattr(bench, "agent", lambda _: cost(1.0))
    monkeypatch.setattr(bench, "fold", lambda _: cost(1.0))
    monkeypatch.setattr(bench, "ingested", lambda _: [])
    assert main(["--quick", "--real", "python"]) == 1
    assert asked[2:] == [("--share", "1", "--real", "python"), ("--peak", "20")]


@pytest.mark.processes
def test_each_cost_can_be_measured() -> None:
    assert bench.start(1).value > 0
    assert len(bench.decided(12)) == len(bench.decided(12)) > 2
    assert bench.decision(12).value > 0
    assert bench.peak(12).value > 10
    shared = bench.elsewhere("--share", "1")
    assert shared.value > 0
    assert "1 attempts" in shared.how
