"""From a ranking to a bisection: where it looks first, and the command that settles it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.core.suspect_facts import Ranking
from perfbisect.core.weights import MOST


def commit_weights(ranking: Ranking) -> dict[str, float]:
    """Each commit's weight for a bisection's prior, likeliest first: its probability against the likeliest
    one's, at most 10 : 1 apart.

    A bisection bounds what it is told before it measures (METHOD's path weights): a ranking that is wrong
    costs it minutes and no answer, and one that is right saves it most of them at 10 : 1 already.
    """
    most = max(suspect.p for suspect in ranking.suspects)
    return {s.commit.sha: max(1.0, round(MOST * s.p / most, 3)) for s in ranking.suspects}


def position_weights(positions: Sequence[Iterable[str]], weights: Mapping[str, float]) -> tuple[float, ...]:
    """A weight for each position, which is commits whose environments do not differ: that of its likeliest
    commit. One of which the ranking knows nothing weighs as its least likely one.
    """
    return tuple(max((weights.get(sha, 1.0) for sha in shas), default=1.0) for shas in positions)


@dataclass(frozen=True)
class Ends:
    """What a bisection of an alert is given.

    ``good``: the commit before the window, ``bad``: its last one; ``cell``: empty where the alert's cell is
    none of ours; ``weights``: the file of :func:`commit_weights`, empty for none; ``environment``: ``--env``,
    empty where the project's settings say it.
    """

    cell: str
    metric: str
    good: str
    bad: str
    repo: str
    weights: str = ""
    environment: str = ""
    better: bool = False
    """The alert is an improvement: the change that made it better is asked for."""


def bisect_command(ends: Ends) -> str:
    """The command to copy."""
    good, bad = (ends.bad, ends.good) if ends.better else (ends.good, ends.bad)
    words = ["perfbisect", "bisect", ends.cell or "CELL", "--repo", ends.repo, "--good", good, "--bad", bad]
    words += ["--find", "fix"] if ends.better else []
    words += ["--metric", ends.metric] if ends.metric else []
    words += ["--env", ends.environment] if ends.environment else []
    words += ["--weights", ends.weights] if ends.weights else []
    return shlex.join(words)
