"""Eras of a program: commits at which its interface or measurements changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Era:
    """A change of behaviour at a commit.

    ``date``: of the commit, UTC to the second (``2026-04-19T02:36:00``); ``version``: first release with it;
    ``touches``: patterns of metrics whose meaning changed (``audio_*``, ``tpot``).
    """

    date: str
    version: tuple[int, ...]
    change: str
    what: str
    touches: tuple[str, ...] = ("*",)

    def touched(self, metric: str) -> bool:
        """Whether the metric (``ttft``, without statistic) changed its meaning."""
        return any(fnmatchcase(metric, pattern) for pattern in self.touches)

    def reached(self, date: str = "", version: str = "") -> bool | None:
        """Whether a commit date (ISO 8601, UTC) or version is in the era; None if both are unknown.

        The date takes precedence: versions between releases are less precise.
        """
        if date:
            return date[:19] >= self.date
        found = re.match(r"\d+(\.\d+)*", version)
        return None if found is None else tuple(map(int, found[0].split("."))) >= self.version


def latest(eras: Sequence[Era], date: str = "", version: str = "") -> Era | None:
    """The last era reached, of eras in order of time; None if unknown or before all."""
    return next((era for era in reversed(eras) if era.reached(date, version)), None)
