"""Small worlds of commits and cells for the tests of suspects: a table of our own, one commit a letter."""

from __future__ import annotations

from typing import Any

from perfbisect.model.commit_details import (
    ChangedFile,
    Commit,
    MeasuredCell,
    OnsetNight,
    Phase,
    Ranking,
    SuspectQuestion,
)
from perfbisect.series.suspects.ranking import rank_suspects
from perfbisect.series.suspects.table import load_suspect_table
from tests.series.made import SAMPLES

TABLE = load_suspect_table(SAMPLES / "suspects.yaml")

STREAMS = (
    MeasuredCell("s1", True, "A", frozenset({"stream", "speech"}), "org/Talk-1-7B"),
    MeasuredCell("s2", True, "B", frozenset({"stream"}), "org/Other"),
    MeasuredCell("p1", False, "C", frozenset({"image"}), "org/Paint"),
    MeasuredCell("w1", False, "D", frozenset({"speech"}), "org/Talk-1-7B"),
)
"""Two servers that stream were hit, one that paints and one that speaks without streaming were not."""


def sha(letter: str) -> str:
    """The full name of the commit that a test calls by a letter (a to f)."""
    return letter * 40


def commit(letter: str, *paths: str, **more: Any) -> Commit:
    files = tuple(ChangedFile(path) for path in paths or ("src/engine.py",))
    return Commit(**({"sha": sha(letter), "files": files} | more))


def question(*commits: Commit, **more: Any) -> SuspectQuestion:
    """All in the window of one night, unless it is said."""
    place = OnsetNight("2026-04-12", 1.0, frozenset(c.sha for c in commits))
    return SuspectQuestion(**({"commits": commits, "places": (place,)} | more))


def ranked(*commits: Commit, **more: Any) -> Ranking:
    return rank_suspects(question(*commits, **more), TABLE)


def p_of(ranking: Ranking, letter: str) -> float:
    return next(s.p for s in ranking.suspects if s.sha == sha(letter))


def weight_of(ranking: Ranking, letter: str, name: str) -> float:
    """The weight of a piece of evidence; 1 where there is none of its name."""
    suspect = next(s for s in ranking.suspects if s.sha == sha(letter))
    return next((f.weight for f in suspect.evidence if f.name == name), 1.0)


def later(phase: Phase, *paths: str, **more: Any) -> tuple[Commit, Phase]:
    return (commit("f", *paths, **more), phase)
