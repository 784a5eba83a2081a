"""Small worlds of commits and cells for the tests of suspects: a table of our own, one commit a letter."""

from __future__ import annotations

from typing import Any

from perfbisect.model.commit_details import (
    ChangedFile,
    Commit,
    LaterCommit,
    MeasuredCell,
    OnsetNight,
    Phase,
    Ranking,
    SuspectQuestion,
)
from perfbisect.series.suspects.ranking import rank_suspects
from perfbisect.series.suspects.table import SuspectTable

TABLE = SuspectTable.model_validate(
    {
        "weights": {
            "outside_window": 0.5,
            "outside": 0.02,
            "hit": 0.8,
            "leak": 0.1,
            "votes": 6,
            "size": [[10, 0.5], [100, 1.0], [1000, 2.0]],
            "spread": [[2, 1.0], [99, 1.5]],
            "titles": {"hardware": [4, 0.1], "feature": [3, 0.5]},
            "phases": {"decode": 3, "queue": 1.5},
            "pins": 3,
            "revert_recovered": 100,
            "fix_recovered": 20,
            "same_files_recovered": 3,
            "revert_unmeasured": 5,
            "revert_still_slow": 0.05,
            "undone_in_window": 0.1,
            "attribute": 0.95,
        },
        "kinds": [
            {"kind": "documentation", "weight": 0.01, "paths": ["docs/", "*.md"]},
            {"kind": "benchmark", "weight": 0.1, "paths": ["bench/"]},
            {"kind": "start-up code", "weight": 0.4, "code": True, "paths": ["src/start.py"]},
        ],
        "parts": [
            {"part": "the engine", "sure": 0.2, "paths": ["src/**"]},
            {"part": "streams", "of": ["stream"], "sure": 0.5, "paths": ["src/stream/**"]},
            {"part": "pictures", "of": ["image"], "sure": 0.9, "paths": ["src/image/**"]},
            {"part": "a model", "sure": 0.9, "paths": ["src/models/{model}/**", "deploy/{model}.yaml"]},
        ],
        "features": [
            {"feature": "rocm", "words": "mi300"},
            {"feature": "moe", "words": "a3b"},
            {"feature": "mla", "words": "deepseek"},
        ],
        "titles": [
            {"title": "speed", "weight": 2, "words": "perf"},
            {"title": "ROCm", "about": "hardware", "of": ["rocm"], "words": "rocm"},
            {"title": "TPU", "about": "hardware", "of": ["tpu"], "words": "tpu"},
            {"title": "experts", "about": "feature", "of": ["moe"], "words": "moe"},
            {"title": "latent attention", "about": "feature", "of": ["mla"], "words": "mla"},
        ],
        "phases": [
            {"phases": ["prefill", "decode"], "paths": ["src/**"]},
            {"phases": ["queue", "decode"], "paths": ["src/core/**"]},
            {"phases": ["outside"], "paths": ["src/front/**"]},
        ],
        "causes": {"instrument": {"benchmark": 100, "code": 0.2}, "night": {"outside_window": 50}},
        "cells": [
            {"cells": ["*_stream*"], "traits": ["stream", "speech"]},
            {"cells": ["*speech*"], "traits": ["speech"]},
        ],
    }
)

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


def later(phase: Phase, *paths: str, **more: Any) -> LaterCommit:
    return LaterCommit(commit("f", *paths, **more), phase)
