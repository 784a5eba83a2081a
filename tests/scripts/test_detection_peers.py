"""perfbisect's detector beside Apache Otava's: what is counted, and the tables."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from scripts import detection_peers
from scripts.detection_peers import (
    APART,
    DETECTORS,
    EDGE,
    Planted,
    delays,
    f1,
    main,
    matches,
    median,
    plant,
    with_interval,
)


def test_a_change_is_found_within_two_nights_and_once() -> None:
    series = Planted([1.0] * 60, [20, 40])
    for reported, counts in (
        ([22, 38], (2, 0, 0)),
        ([23], (0, 1, 2)),
        ([19, 20, 55], (1, 2, 1)),
        ([], (0, 0, 2)),
    ):
        assert matches(lambda _, places=tuple(reported): places, series) == counts


def test_f1_of_the_counts_and_its_interval() -> None:
    counts = np.array([[2, 1, 0], [1, 0, 3]])
    assert f1(counts) == 6 / 10
    assert f1(np.zeros((2, 3))) == 0
    assert with_interval(np.array([[1, 0, 0]] * 9), f1, 2) == "1.00 (1.00 to 1.00)"


def test_a_change_that_is_never_seen_is_late_without_end() -> None:
    assert median(np.array([2.0, np.inf, 3.0])) == 3
    assert with_interval(np.array([np.inf] * 3), median, 0) == "inf (inf to inf)"


def test_steps_are_planted_with_room_and_by_the_seed() -> None:
    made = [plant([100.0] * 30, np.random.default_rng(seed)) for seed in range(60)]
    assert {len(series.places) for series in made} == {0, 1, 2}
    for series in made:
        assert all(b - a >= APART for a, b in pairwise(series.places))
        assert all(EDGE <= place <= 30 - EDGE for place in series.places)
        assert np.flatnonzero(np.diff(series.values)).tolist() == [place - 1 for place in series.places]
    assert plant([100.0] * 30, np.random.default_rng(1)) == made[1]


def test_nights_are_those_until_the_step_is_among_the_places() -> None:
    def late(values: list[float]) -> list[int]:
        return [35] if len(values) >= 38 and values[35] > 103 else []

    quiet = [[100.0] * 60] * 4
    ever, *five = delays(late, quiet)
    assert ever.startswith("0.0 % (0.0 to ")
    assert [cell.split(" (")[0] for cell in five] == ["3", "0.0 %"] * 2


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    folder = tmp_path / "series" / "injected"
    folder.mkdir(parents=True)
    values = 100 * np.exp(0.01 * np.random.default_rng(3).normal(size=60))
    values[30:] *= 1.2
    document = {"series": [{"values": values.tolist(), "truth": [30], "sizes": [0.2]}]}
    for name in ("shuffled", "contiguous"):
        (folder / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def test_the_tables(
    measured: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, analysis = ModuleType("otava"), ModuleType("otava.analysis")
    analysis.__dict__["compute_change_points"] = lambda _: ([SimpleNamespace(index=50)], None)
    monkeypatch.setitem(sys.modules, "otava", package)
    monkeypatch.setitem(sys.modules, "otava.analysis", analysis)
    monkeypatch.setattr(detection_peers.importlib.util, "find_spec", lambda name: name)
    assert main(["--data", str(measured), "--series", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| shuffled | perfbisect | 1.00 | 1.00 | 1.00 (1.00 to 1.00) | 0.0 % (0.0 to 97.5) |" in lines
    assert "| shuffled | Apache Otava | 0.00 | 0.00 | 0.00 (0.00 to 0.00) | 100.0 % (2.5 to 100.0) |" in lines
    assert [sum(line.startswith(f"| {name}") for line in lines) for name in ("contiguous", "generated")] == [
        2 * len(DETECTORS),
        4 * len(DETECTORS),
    ]


def test_without_the_package_and_the_measured_series_the_rest_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection_peers.importlib.util, "find_spec", lambda _: None)
    assert main(["--data", str(tmp_path), "--series", "1"]) == 0
    told = capsys.readouterr()
    assert "Otava" not in told.out and "not installed" in told.err
    assert "| generated, ar0.5 | perfbisect |" in told.out and "| contiguous" not in told.out
