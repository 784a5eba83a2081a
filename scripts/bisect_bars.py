"""The published bars of the bisection (docs/method/calibration.md), for :mod:`scripts.bars`."""

from __future__ import annotations

from functools import partial

from scripts.bars import Bar, Experiment
from scripts.calibrate import CLAIMS, WORLDS, play

_MOST = 3
"""Commits of a narrowed range that are few."""

WRONG = Bar("wrong name or set", "at most", 0.02)
HOLDS = Bar("narrowed range holds the culprit", "at least", 0.95)
FEW = Bar(f"narrowed range of at most {_MOST} commits", "at least", 0.75)
NAMED = {
    "compiled: plain, 5 %, sigma 3 %": 0.92,
    "compiled: environment 0.5 %, 5 %": 0.90,
    "compiled: builds, sd 1 %, step 5 %": 0.70,
}
"""Worlds with a step, and the share of its culprits that are named."""

NOT_REPRODUCED = Bar("not reproduced", "at least", 0.7)


def step(world: str, seed: int) -> tuple[bool, bool | None, bool | None, bool]:
    """Whether the answer is wrong; of a narrowed range whether it holds the culprit, and in few commits;
    whether the culprit is named."""
    session = play(WORLDS[world], seed)
    wrong = session.word in CLAIMS and not session.held
    if session.word != "narrowed":
        return wrong, None, None, session.right
    return wrong, session.held > 0, session.held <= _MOST if session.held else None, False


def unchanged(world: str, seed: int) -> tuple[bool, bool]:
    """Whether a commit is blamed, and whether the range is said to be unchanged."""
    session = play(WORLDS[world], seed)
    return session.word in CLAIMS, session.word == "not reproduced"


EXPERIMENTS = (
    *(
        Experiment(world, 120, partial(step, world), (WRONG, HOLDS, FEW, Bar("named", "at least", share)))
        for world, share in NAMED.items()
    ),
    Experiment("no change", 120, partial(unchanged, "no change"), (WRONG, NOT_REPRODUCED)),
    Experiment(
        "compiled: environment 1 %, no change",
        120,
        partial(unchanged, "compiled: environment 1 %, no change"),
        (WRONG, Bar("not reproduced", "at least", 0.25)),
    ),
)
