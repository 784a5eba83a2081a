"""Where a slow commit is likelier, by the paths it touches: weights of the positions before anything is
measured.

A hint, never an exclusion: at most 10 : 1, and mixed with a tenth of uniform where it is used
(:func:`perfbisect.core.posterior.prior_weights`), so a hint that is wrong costs a few minutes and no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from perfbisect.core.globs import glob_pattern

MOST = 10.0
"""How many times likelier the likeliest position may be than the least likely one."""


@dataclass(frozen=True)
class Rule:
    """A commit that touches a path of this pattern is ``factor`` times as likely as one of which nothing is
    known.

    ``*`` and ``?`` do not cross a slash, ``**`` does; a pattern without a slash is that of a file name in any
    folder, one that ends in a slash is all of that folder.
    """

    paths: str
    factor: float

    def covers(self, path: str) -> bool:
        """Whether a path from the root of the repository is meant."""
        return self._pattern.fullmatch(path) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return glob_pattern(self.paths)


def spread(rules: Iterable[Rule]) -> float:
    """How many times likelier the rules may make one commit than another; what no rule covers counts 1."""
    factors = [1.0, *(rule.factor for rule in rules)]
    return max(factors) / min(factors)


def weights(files_per_candidate: Sequence[Iterable[str]], rules: Sequence[Rule]) -> tuple[float, ...]:
    """A weight for each candidate, in order; for ``Plan.prior`` put position 0 before them (ignored there).

    A file counts with the last rule that covers it, as in git's own files of patterns, or 1; a candidate with
    the largest of its files, or 1 without any. Where several commits are one position (their environments do
    not differ), give the files of all: only the first of them can have changed anything, so their number
    makes the position no likelier.

    :raises ValueError: a factor is no number above 0, or the factors are further apart than :data:`MOST`.
    """
    for rule in rules:
        if not 0 < rule.factor < float("inf"):
            raise ValueError(f"{rule.paths}: a factor is a number above 0, not {rule.factor}")
    if spread(rules) > MOST * (1 + 1e-9):
        raise ValueError(f"the factors are {spread(rules):.4g} : 1 apart, and {MOST:g} : 1 is the most")
    turned = tuple(reversed(rules))
    return tuple(max((_factor(path, turned) for path in files), default=1.0) for files in files_per_candidate)


def _factor(path: str, last_first: Sequence[Rule]) -> float:
    return next((rule.factor for rule in last_first if rule.covers(path)), 1.0)
