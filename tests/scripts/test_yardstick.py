"""The adapter to the shared simulator: a launch is told once; the simulator itself is optional."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scripts import yardstick
from scripts.simulation import SHARED

SIM = SHARED / "tools" / "bisect_sim.py"


def drive(told, skip=(), step=1.3, n=12, with_info=True):
    strategy = yardstick.Strategy(n, costs={"build": 4.0, "launch": 3.0, "run": 1.5})
    spent, at, built = 0.0, None, set()
    while (asked := strategy.next()) is not None:
        index, fresh = asked
        told.append((index, fresh))
        spent += 0 if index in built else 4.0
        built.add(index)
        if index in skip:
            value, at = "skip", None
        else:
            spent += 1.5 + (3.0 if fresh or at != index else 0.0)
            value, at = 100.0 * (step if index >= 5 else 1.0) + 0.1 * (len(told) % 3), index
        strategy.update(index, value, *([{"cost": spent, "minute": spent, "launch": 0}] if with_info else []))
    return strategy, spent


@pytest.mark.parametrize("with_info", [True, False])
def test_it_names_the_step_and_tells_every_minute(with_info):
    told = []
    strategy, spent = drive(told, with_info=with_info)
    culprit, confidence, extra = strategy.result()
    assert (culprit, confidence, extra["why"], extra["set"]) == (5, 0.99, "found", [5])
    assert sum(e.build + e.launch + e.run for e in strategy.events) == pytest.approx(spent)
    assert sum(len(e.values) for e in strategy.events) == len(told)
    assert sum(fresh for _, fresh in told) == len(strategy.events)


def test_skips_make_a_set():
    strategy, _ = drive([], skip={5, 6})
    culprit, _, extra = strategy.result()
    assert culprit == 7
    assert extra["set"] == [5, 6, 7]


def test_nothing_found_names_nobody():
    strategy, _ = drive([], step=1.0)
    culprit, _, extra = strategy.result()
    assert culprit is None
    assert extra["why"] == "not reproduced"
    assert yardstick.Strategy(4).result()[2]["why"] == "unfinished"


def test_without_the_simulator_it_says_so(tmp_path):
    with pytest.raises(SystemExit, match=r"name .* with --sim"):
        yardstick.main(["--sim", str(tmp_path / "none.py")])


@pytest.mark.processes
@pytest.mark.skipif(not SIM.is_file(), reason="the shared simulator is not beside this checkout")
def test_a_row_of_the_table(tmp_path):
    rows = tmp_path / "rows.jsonl"
    scenario = json.dumps({"n": 16, "d": 0.2, "sigma": 0.01, "tau": 0.01})
    argv = [sys.executable, "-m", "scripts.yardstick", "--sim", str(SIM), "--seeds", "2"]
    argv += ["--cell", scenario, "--rows", str(rows)]
    got = subprocess.run(argv, capture_output=True, text=True, check=True)
    lines = got.stdout.splitlines()
    assert lines[0].startswith("| cell | strategy | right %")
    assert lines[3].startswith(f"| {scenario} | perfbisect | 100 | 0 | 0 |")
    assert lines[-1].startswith("Minutes / reference, geometric mean over the cells: ")
    sessions = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {(s["strategy"], s["seed"]) for s in sessions} == {
        (w, s) for w in ("perfbisect", "reference") for s in (0, 1)
    }
    assert all(len(s["sets"]) == 3 and "step" in s and "whole" in s for s in sessions if "sets" in s)
    again = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert again.stdout == got.stdout
    assert len(rows.read_text().splitlines()) == len(sessions)
    with pytest.raises(SystemExit, match="no such world; known: N32"):
        yardstick.main(["--sim", str(SIM), "--worlds", "nowhere"])
