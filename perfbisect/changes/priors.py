"""Prior weights of commits (``--weights FILE``): by path pattern, or by commit."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perfbisect.common.text import glob_pattern
from perfbisect.common.yaml_source import Located, Place, load
from perfbisect.errors import LocatedError
from perfbisect.model.commit_details import Ranking

MAX_RATIO = 10.0
"""Maximum ratio of two weights."""


@dataclass(frozen=True)
class Rule:
    """A commit that touches a path of this pattern is ``factor`` times as likely as others.

    ``*`` and ``?`` do not cross a slash, ``**`` does; a pattern without a slash is that of a file name in any
    folder, one that ends in a slash is all of that folder.
    """

    paths: str
    factor: float

    def covers(self, path: str) -> bool:
        """True if the pattern matches a path from the root of the repository."""
        return self._pattern.fullmatch(path) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return glob_pattern(self.paths)


def spread(rules: Iterable[Rule]) -> float:
    """Maximum ratio of the factors; a path without a rule has 1."""
    factors = [1.0, *(rule.factor for rule in rules)]
    return max(factors) / min(factors)


def weights(files_per_candidate: Sequence[Iterable[str]], rules: Sequence[Rule]) -> tuple[float, ...]:
    """A weight for each candidate, in order; for ``Plan.prior`` put position 0 before them (ignored there).

    A file counts with the last rule that covers it, as in git's own files of patterns, or 1; a candidate
    with the largest of its files, or 1 without any. Where several commits are one position (their
    environments do not differ), give the files of all: only the first of them can have changed anything, so
    their number makes the position no likelier.

    :raises ValueError: a factor is no number above 0, or the factors are further apart than
    :data:`MAX_RATIO`.
    """
    for rule in rules:
        if not 0 < rule.factor < float("inf"):
            raise ValueError(f"{rule.paths}: a factor is a number above 0, not {rule.factor}")
    if spread(rules) > MAX_RATIO * (1 + 1e-9):
        raise ValueError(f"the factors are {spread(rules):.4g} : 1 apart, and {MAX_RATIO:g} : 1 is the most")
    last_first = tuple(reversed(rules))
    return tuple(
        max((_factor_of_path(path, last_first) for path in files), default=1.0)
        for files in files_per_candidate
    )


def _factor_of_path(path: str, last_first: Sequence[Rule]) -> float:
    return next((rule.factor for rule in last_first if rule.covers(path)), 1.0)


def commit_weights(ranking: Ranking) -> dict[str, float]:
    """Each commit's weight for a bisection's prior, likeliest first: its probability against the likeliest
    one's, at most 10 : 1 apart.

    A bisection bounds what it is told before it measures (METHOD's path weights): a ranking that is wrong
    costs it minutes and no answer, and one that is right saves it most of them at 10 : 1 already.
    """
    most = max(suspect.p for suspect in ranking.suspects)
    return {s.sha: max(1.0, round(MAX_RATIO * s.p / most, 3)) for s in ranking.suspects}


def position_weights(positions: Sequence[Iterable[str]], weights: Mapping[str, float]) -> tuple[float, ...]:
    """A weight for each position, which is commits whose environments do not differ: that of its likeliest
    commit. One of which the ranking knows nothing weighs as its least likely one.
    """
    return tuple(max((weights.get(sha, 1.0) for sha in shas), default=1.0) for shas in positions)


@dataclass(frozen=True)
class BisectionRange:
    """Arguments of a bisection of an alert.

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
    """The alert is an improvement: search for the change that caused it."""


def bisect_command(ends: BisectionRange) -> str:
    """The bisect command to copy."""
    good, bad = (ends.bad, ends.good) if ends.better else (ends.good, ends.bad)
    words = ["perfbisect", "bisect", ends.cell or "CELL", "--repo", ends.repo, "--good", good, "--bad", bad]
    words += ["--direction", "improvement"] if ends.better else []
    words += ["--metric", ends.metric] if ends.metric else []
    words += ["--env", ends.environment] if ends.environment else []
    words += ["--weights", ends.weights] if ends.weights else []
    return shlex.join(words)


_ALLOWED = f"a number above 0; the largest and the smallest, and 1, at most {MAX_RATIO:g} : 1 apart"


def load_weights(path: Path) -> tuple[Rule, ...]:
    """The rules of a file, in its order, of which the last that covers a path counts.

    The file is YAML: a mapping of patterns to factors (``vllm/v1/attention/**: 5``), or a list of mappings
    with the keys ``paths`` (a pattern or a list of them) and ``factor``. Factors are refused, never cut off,
    where they are further apart than 10 : 1: what is used is what stands in the file.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: it is not such a file: line, field, what is allowed.
    """
    document = load(path)
    if isinstance(document.data, list):
        rules = [rule for index in range(len(document.data)) for rule in _entry(document, index)]
    else:
        mapping = document.mapping()
        rules = [(Rule(key, _factor(document, (key,), value)), (key,)) for key, value in mapping.items()]
    for rule, place in rules:
        if not rule.paths.strip("/ "):
            raise _error(document, place, "a pattern names no path", "vllm/v1/**, *.cu, docs/")
    _check_spread(document, rules)
    return tuple(rule for rule, _ in rules)


def _entry(document: Located, index: int) -> list[tuple[Rule, Place]]:
    assert isinstance(document.data, list)
    entry = document.data[index]
    if not isinstance(entry, dict) or set(entry) != {"paths", "factor"}:
        raise _error(document, (index,), "is no rule", "a mapping with the keys paths and factor")
    paths = entry["paths"] if isinstance(entry["paths"], list) else [entry["paths"]]
    if not paths or not all(isinstance(path, str) for path in paths):
        raise _error(document, (index, "paths"), "is no pattern", "text, or a list of texts")
    factor = _factor(document, (index, "factor"), entry["factor"])
    return [(Rule(path, factor), (index, "factor")) for path in paths]


def _factor(document: Located, place: Place, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _error(document, place, f"the factor is {value!r}", _ALLOWED)
    return float(value)


def _check_spread(document: Located, rules: list[tuple[Rule, Place]]) -> None:
    """:raises LocatedError: the factors, and 1 for what no rule covers, are too far apart."""
    low = high = 1.0
    for rule, place in rules:
        low, high = min(low, rule.factor), max(high, rule.factor)
        if high / low > MAX_RATIO * (1 + 1e-9):
            other = low if rule.factor == high else high
            message = f"the factor {rule.factor:g} is {high / low:.4g} : 1 from {other:g}"
            raise _error(document, place, message, _ALLOWED)


def _error(document: Located, place: Place, message: str, allowed: str) -> LocatedError:
    field = ".".join(str(part) for part in place)
    return LocatedError(
        message, file=document.file, line=document.line(place), field=field or None, allowed=allowed
    )


_KEY = "commits"
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def load_commit_weights(path: Path) -> dict[str, float] | None:
    """Commit -> weight, of a file whose only key is ``commits``; None of any other file.

    A commit that the file does not name weighs 1.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: a commit or weight that is none, or weights further apart than 10 : 1.
    """
    document = load(path)
    data = document.data
    if not isinstance(data, dict) or set(data) != {_KEY} or not isinstance(data[_KEY], dict):
        return None
    found = {sha: _weight(document, sha, value) for sha, value in data[_KEY].items()}
    least, most = min([1.0, *found.values()]), max([1.0, *found.values()])
    if most / least > MAX_RATIO * (1 + 1e-9):
        raise LocatedError(
            f"the weights are {most / least:.4g} : 1 apart",
            file=path,
            line=document.line((_KEY,)),
            field=_KEY,
            allowed=f"at most {MAX_RATIO:g} : 1, with 1 for commits that are not named",
        )
    return found


def commit_weights_text(weights: Mapping[str, float], why: str) -> str:
    """The file of these weights; ``why`` is one line for whoever reads it."""
    rows = "".join(f'  "{sha}": {weight:g}\n' for sha, weight in weights.items())
    return f"# {' '.join(why.split())}\n{_KEY}:\n{rows}"


def _weight(document: Located, sha: object, value: object) -> float:
    if not isinstance(sha, str) or not _SHA.fullmatch(sha):
        message, allowed = f"{sha!r} is no commit", "all digits of a commit's hash, quoted"
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        message, allowed = f"the weight is {value!r}", "a number above 0"
    else:
        return float(value)
    place = (_KEY, sha) if isinstance(sha, str | int) else (_KEY,)
    raise LocatedError(message, file=document.file, line=document.line(place), field=_KEY, allowed=allowed)
