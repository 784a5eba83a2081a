"""The adapters that a scorer of detectors calls, and the script that prints the tables."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from perfbisect.series.detection.model import SeriesValues
from scripts import yardstick
from scripts.detection import (
    KINDS,
    change_sets,
    detect_indices,
    errors,
    in_ticks,
    main,
    noise,
    of_commits,
    on_machines,
    realised,
    reported,
    series_of,
    told,
)
from scripts.informed import informed, ratios
from tests.shared import data

SCORER = """
def match(predicted, truth, tolerance, may=()):
    near = lambda p, places: any(abs(p - t) <= tolerance for t in places)
    hits = [p for p in predicted if near(p, truth)]
    false = [p for p in predicted if p not in hits and not near(p, may)]
    return len(hits), len(false), len(truth) - len(hits), []

def prf(tp, fp, fn):
    return tp / max(1, tp + fp), tp / max(1, tp + fn), 2 * tp / max(1, 2 * tp + fp + fn)

def s_null(detect, tolerance):
    return {f"gauss,{n}": (float(len(detect([1.0] * n)) > 0), 0.0) for n in (30, 100, 300)}

def latency(detect, nser):
    told = len(detect([100.0, 101.0] * 15 + [150.0, 151.0] * 15)) / nser
    return {"10%": dict(median_points_after_change=2.0, p90=4.0, missed=told, null_ever_alarmed=0.025)}

def scale(detect, sizes, limit):
    return {100: (0.01, 1), 1000: ("error", "no"), 10000: None}
"""


def values(n: int, at: int = 0, step: float = 0.0, seed: int = 1) -> list[float]:
    noise = 0.02 * np.random.default_rng([n, seed]).normal(size=n)
    return list(100 * np.exp(noise) * np.where((np.arange(n) >= at) & (at > 0), 1 + step, 1.0))


@pytest.fixture
def scorer(tmp_path: Path) -> Path:
    path = tmp_path / "scorer.py"
    path.write_text(SCORER)
    return path


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "series" / "injected"
    folder.mkdir(parents=True)
    rows = [{"values": values(60, 30, 0.2), "truth": [30], "sizes": [0.2]}]
    rows.append({"values": values(60, seed=2), "truth": [], "sizes": []})
    for name in ("shuffled", "contiguous"):
        (folder / f"{name}.json").write_text(json.dumps({"series": rows}))
    return tmp_path / "data"


def test_the_first_point_of_each_new_level_and_its_places() -> None:
    given = values(90, 40, 0.2)
    assert detect_indices(given) == [40]
    (places,) = change_sets(given)
    assert 40 in places
    assert detect_indices(values(60)) == change_sets(values(60)) == []


def test_only_levels_that_last_are_told() -> None:
    given = values(60)
    given[30] *= 5
    assert detect_indices(given) == []


def test_the_yardstick_has_the_scorers_way_in() -> None:
    assert (yardstick.detect_indices, yardstick.change_sets) == (detect_indices, change_sets)


def test_the_tables(planted: Path, scorer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--data", str(planted), "--scorer", str(scorer)]
    assert main([*argv, "--only", "labelled", "--only", "fdr", "--only", "null", "--only", "latency"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("| shuffled | 1.000")]
    assert row.startswith(
        "| shuffled | 1.000 | 1.000 | 1.000 | 0 of 0 | 1.000 | 0 of 0 | 0 of 1 = 0.0 % | 100.0 % of 1 | "
    )
    assert "| contiguous | 0.05 | 1 | 0 = 0.0 % | 1 of 1 |" in lines
    assert "| gauss | 0.0 % | 0.0 % | 0.0 % |" in lines
    for name in ("perfbisect", "given the noise"):
        assert f"| 60 | {name} | 10% | 2 | 4 | 1.7 % | 2.5 % |" in lines
        assert f"| 300 | {name} | 10% | 2 | 4 | 0.3 % | 2.5 % |" in lines


def test_a_change_that_the_window_held_before_is_told_apart(
    planted: Path, scorer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = np.array(values(90, 20, 0.2))
    given[60:] *= 1.3
    path = planted / "series" / "injected" / "contiguous.json"
    path.write_text(json.dumps({"series": [{"values": given.tolist(), "truth": [60], "sizes": [0.3]}]}))
    assert main(["--data", str(planted), "--scorer", str(scorer), "--only", "labelled"]) == 0
    assert "| contiguous | 0.500 | 1.000 | 0.667 | 1 of 1 | 1.000 |" in capsys.readouterr().out


def test_standard_errors_of_a_planted_step() -> None:
    given = np.array([100.0, 103.0] * 50)
    given[10:] *= 1.05
    given[50:] *= 0.98
    row = {"values": given.tolist(), "truth": [10, 50], "sizes": [0.05, -0.02]}
    scale = math.log(1.03) / 0.9539
    assert errors(row, 10) == pytest.approx(math.log(1.05) / (scale * math.sqrt(1 / 10 + 1 / 40)))
    assert errors(row, 50) == pytest.approx(-math.log(0.98) / (scale * math.sqrt(1 / 40 + 1 / 50)))


def test_the_informed_detector_alarms_at_the_rate_it_is_given() -> None:
    detect = informed(0.2)
    rng = np.random.default_rng(5)
    ever = 0
    for _ in range(400):
        given = 100 * (1 + 0.025 * rng.normal(size=60))
        ever += any(detect(given[:n]) for n in range(12, 61))
    assert ever / 400 == pytest.approx(0.2, abs=0.06)
    given = np.exp(np.array([0, 1] * 15 + [50, 51] * 15) / 100)
    assert detect(given) == [30]
    # Two levels 50 apart, each of variance 1/4, against one of variance 1/4 + 25².
    assert ratios(np.log(given)).max() == pytest.approx(0.5 * 58 * math.log((0.25 + 25**2) / 0.25))


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_noise_has_the_scale_and_the_memory_it_says(kind: str) -> None:
    given = noise(kind, 20000, np.random.default_rng(1))
    half = given[:10000]
    assert np.median(np.abs(half)) == pytest.approx(0.02 * 0.6745, rel=0.45)
    memory = float(kind[2:]) if kind.startswith("ar") else 0.0
    assert np.corrcoef(half[1:], half[:-1])[0, 1] == pytest.approx(memory, abs=0.04)


@pytest.mark.processes
def test_of_simulated_series_few_are_told_and_large_steps_are_found() -> None:
    one, five = told("gauss", 30, 20)
    assert 0 <= one <= five <= 0.1
    false, found = realised("gauss", 40, 0.05, 0.05, repeats=1)
    assert false <= 0.25 and found > 0.4


def test_a_world_is_counted_unchanged_and_with_its_steps() -> None:
    assert reported(partial(in_ticks, 0.005, 30), range(3)) == [0.0, 0.0, 1.0, 1.0]

    def wild(*_: object) -> SeriesValues:
        given = np.array(values(30, 9, 0.3))
        given[20] *= 3
        return series_of(given)

    assert reported(wild, range(1)) == [1.0, 1.0, 0.0, 0.0]


def test_a_change_of_machine_is_counted_for_no_commit() -> None:
    given = replace(series_of(values(30, 20, 0.3)), machines=tuple("a" * 20 + "b" * 10))
    assert of_commits(given) == []
    assert len(of_commits(replace(given, machines=()))) == 1
    assert reported(partial(on_machines, 0.0, 0.01, True, 30), range(2)) == [0.0, 0.0, 1.0, 1.0]


def test_it_says_what_is_missing(scorer: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no scorer at .* with --scorer"):
        main(["--scorer", str(tmp_path / "none.py")])
    with pytest.raises(SystemExit, match=r"no series at .* with --data"):
        main(["--data", str(tmp_path), "--scorer", str(scorer), "--only", "labelled"])


@pytest.mark.processes
def test_measured_noise_with_planted_steps() -> None:
    """A part of the shared series: of what is told nearly all was planted, and within two nights."""
    rows = json.loads(data("series", "injected", "shuffled.json").read_text())["series"][:100]
    told = [(detect_indices(row["values"]), row["truth"]) for row in rows]
    right = sum(any(abs(p - t) <= 2 for t in truth) for found, truth in told for p in found)
    count = sum(len(found) for found, _ in told)
    planted = sum(len(truth) for _, truth in told)
    assert right / count > 0.9
    assert right / planted > 0.65
