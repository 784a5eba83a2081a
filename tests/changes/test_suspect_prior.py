"""From a ranking to what a bisection is given."""

from __future__ import annotations

import shlex

import pytest

from perfbisect.changes.priors import BisectionRange, bisect_command, commit_weights, position_weights
from tests.series.suspect_worlds import STREAMS, commit, later, ranked, sha

ENDS = BisectionRange("cell@c4", "audio_rtf", "g00d", "bad0", "path of/repo")


def test_weights_are_probabilities_against_the_likeliest_and_bounded() -> None:
    commits = commit("a", "src/stream/x.py"), commit("b"), commit("c", "docs/x.md")
    found = ranked(*commits, cells=STREAMS)
    weights = commit_weights(found)
    p = {s.sha: s.p for s in found.suspects}
    assert weights[sha("a")] == 10
    assert weights[sha("b")] == pytest.approx(10 * p[sha("b")] / p[sha("a")], abs=1e-3)
    assert weights[sha("c")] == 1, "nothing is excluded"


def test_also_a_certain_answer_is_a_hint_of_ten_to_one() -> None:
    revert = later("recovery", body="Reverts #7")
    weights = commit_weights(ranked(commit("a", number=7), commit("b"), later=(revert,), recovered=True))
    assert weights == {sha("a"): 10, sha("b"): 1}


def test_a_position_weighs_as_its_likeliest_commit() -> None:
    weights = {sha("a"): 10.0, sha("b"): 4.0}
    positions = [[sha("e")], [sha("b"), sha("a")], [sha("b")], []]
    assert position_weights(positions, weights) == (1.0, 10.0, 4.0, 1.0)


def test_the_command_to_copy() -> None:
    assert shlex.split(bisect_command(ENDS)) == [
        "perfbisect", "bisect", "cell@c4", "--repo", "path of/repo", "--good", "g00d", "--bad", "bad0",
        "--metric", "audio_rtf",
    ]  # fmt: skip


def test_the_command_for_what_got_better_and_for_a_cell_that_is_not_ours() -> None:
    better = BisectionRange(
        "", "", "g00d", "bad0", "r", weights="w.yaml", environment="existing:python", better=True
    )
    assert bisect_command(better) == (
        "perfbisect bisect CELL --repo r --good bad0 --bad g00d --direction improvement "
        "--env existing:python "
        "--weights w.yaml"
    )
