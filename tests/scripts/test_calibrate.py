"""The calibration's own worlds: what they simulate is what they say, and the table is what was played."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from perfbisect.bisect.decision.model import Lost, Measured, NextLaunch, Plan, Reason, SearchOutcome
from perfbisect.model.attempt import Costs
from scripts import calibrate


def bench(culprit=5, drawn=None, **world):
    made = calibrate.World(n=8, sigma=0.0, tau=0.0, **world)
    levels = np.zeros(9) if drawn is None else drawn
    return calibrate.Bench(made, np.random.default_rng(1), culprit, levels, Costs())


def launched(made, index, runs=1, slot=0):
    return made.launch(NextLaunch(index, "search", runs, Reason("most informative")), slot, 10.0)


def test_a_launch_is_its_step_its_build_its_slot_and_its_place():
    drawn = np.linspace(0, 0.08, 9)
    made = bench(step=0.10, drawn=drawn, slots=(0.0, 1.0), place=(0.05, 0.02))
    plain, slow = launched(made, 4, 4), launched(made, 5, 1, 1)
    assert plain.values == pytest.approx([100 * math.exp(0.04) * f for f in (1, 1.05, 1.02, 1.02)])
    assert slow.values == pytest.approx([100 * math.exp(0.05) * 2.0 * 1.10])
    assert (plain.slot, slow.slot) == ("slot 0", "slot 1")
    assert (plain.build, plain.launch, plain.run, plain.at) == (4.0, 3.0, 6.0, 17.0)
    assert launched(made, 4).build == 0.0
    elsewhere = bench(step=0.10, elsewhere=0.30, slots=(0.0, 0.0))
    assert launched(elsewhere, 6, 1, 1).values == pytest.approx([130.0])


def test_a_lost_launch_costs_part_of_its_minutes_and_builds_nothing():
    made = bench(lost=1.0)
    lost = launched(made, 3)
    assert isinstance(lost, Lost) and 0 < lost.minutes < 8.5
    assert not made.built
    share = sum(isinstance(launched(bench(lost=0.0), 3), Measured) for _ in range(20))
    assert share == 20


def test_a_set_holds_the_culprit_from_the_level_at_which_it_is_reached(monkeypatch):
    class Told:
        p = (0.0, 0.45, 0.27, 0.09, 0.09)

    monkeypatch.setattr(calibrate, "beliefs", lambda *_: Told)
    held = [calibrate._held(Plan(n=4), [], culprit) for culprit in (1, 2, 3, 4)]
    assert held == [(True,) * 3, (False, True, True), (False, False, True), (False, False, True)]


@pytest.mark.parametrize(
    ("name", "found"), [("plain", True), ("no change", False), ("2 slots, half speed", True)]
)
def test_a_world_is_played_to_its_end(name, found):
    session = calibrate.play(calibrate.WORLDS[name], 3)
    assert session == calibrate.play(calibrate.WORLDS[name], 3)
    assert session.right
    assert (session.word == "found") == found
    assert (session.before is not None, session.step is not None) == (found, found)
    assert session.whole is not None
    assert session.wall < session.gpu if "slots" in name else session.wall == pytest.approx(session.gpu)


def test_a_row_counts_the_sessions():
    right = calibrate.Session(
        "found", True, 1, (False, True, True), [(False, False, True)], True, True, False, 10, 5
    )
    wrong = calibrate.Session(
        "found", False, 0, (True, True, True), [(True, True, True)], None, None, None, 30, 9
    )
    row = " | ".join(calibrate.row("w", [right, wrong]))
    assert row == "w | 50 | 1 of 2 | 0 of 0 | 0 | 50 / 100 / 100 | 50 / 50 / 100 | 100 | 100 | 0 | 20 | 7"


def test_a_narrowed_range_without_the_culprit_is_a_wrong_answer():
    words = (("narrowed", 2), ("narrowed", 0), ("not reproduced", 0), ("too small", 0))
    played = [calibrate.Session(word, False, held) for word, held in words]
    assert calibrate.row("w", played)[1:5] == ["0", "1 of 4", "1 of 2, 2", "25"]


@pytest.mark.parametrize(
    ("step", "culprits", "right", "held"),
    [(0.1, (4, 5), False, 2), (0.1, (4, 6), False, 0), (0.0, (4, 5), False, 0)],
)
def test_a_narrowed_range_is_no_name_and_blames_where_nothing_changed(step, culprits, right, held):
    session = calibrate._judge(
        calibrate.Session("", False), bench(step=step), SearchOutcome("narrowed", culprits, 0.96, None)
    )
    assert (session.right, session.held) == (right, held)


def test_what_was_told_of_commits_is_counted_by_outcome_and_probability():
    told = [("found", 0.99, True)] * 3 + [("found", 0.985, False), ("narrowed", 0.96, True)]
    played = [calibrate.Session(word, False, said=(p, is_true)) for word, p, is_true in told]
    rows = list(calibrate.reliability([*played, calibrate.Session("too small", False)]))
    assert rows == [
        ["found", "0.98 to 1", "4", "0.989", "0.750", "0.194 to 0.994"],
        ["narrowed", "0.95 to 0.97", "1", "0.960", "1.000", "0.025 to 1.000"],
    ]


@pytest.mark.parametrize(("step", "is_true"), [(0.1, True), (0.0, False)])
def test_a_leading_set_at_the_end_of_the_budget_counts_as_told(step, is_true):
    made, ended = bench(step=step), SearchOutcome("out of budget", (5,), 0.4, None)
    assert calibrate._judge(calibrate.Session("", False), made, ended).said == (0.4, is_true)


@pytest.mark.processes
def test_the_command():
    argv = [sys.executable, "-m", "scripts.calibrate", "--seeds", "1", "--worlds", "place -10 %; third of"]
    got = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert got[0].startswith("| world | right % | wrong | narrowed: holds it, median size |")
    assert [line.split(" | ")[0] for line in got[2:4]] == [
        "| place -10 %, -12 %, no change",
        "| a third of launches lost",
    ]
    assert got[5].startswith("| outcome | probability told |")
    assert got[7].startswith("| found | 0.98 to 1 | 1 | 0.990 | 1.000 |")
    with pytest.raises(SystemExit, match="no such world; known: plain;"):
        calibrate.main(["--worlds", "nowhere"])
