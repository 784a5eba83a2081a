"""Eras of a program: from which commit on it speaks or measures in another way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Era:
    """What is so from a commit on.

    ``date``: that commit's, in UTC to the second (``2026-04-19T02:36:00``); ``version``: the first release
    that has it; ``change``: commit and pull request; ``what``: in words; ``touches``: the metrics that mean
    something else since, as patterns (``audio_*``, ``tpot``).
    """

    date: str
    version: tuple[int, ...]
    change: str
    what: str
    touches: tuple[str, ...] = ("*",)

    def touched(self, metric: str) -> bool:
        """True if the metric (``ttft``, without its statistic) means something else since."""
        return any(fnmatchcase(metric, pattern) for pattern in self.touches)

    def reached(self, date: str = "", version: str = "") -> bool | None:
        """True at that commit and after it; None where neither date (ISO 8601, UTC) nor version is known.

        The date decides where it is known: the versions between two releases say less.
        """
        if date:
            return date[:19] >= self.date
        found = re.match(r"\d+(\.\d+)*", version)
        return None if found is None else tuple(map(int, found[0].split("."))) >= self.version


def latest(eras: Sequence[Era], date: str = "", version: str = "") -> Era | None:
    """The last era (of a table in order of time) that was reached; None: before all of them, or not known."""
    return next((era for era in reversed(eras) if era.reached(date, version)), None)
