"""Prior weights of commits (``--weights FILE``): by path pattern, or by commit."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perfbisect.common.text import glob_pattern
from perfbisect.common.yaml_source import Located, Place, load
from perfbisect.model.commit_details import Ranking

MAX_RATIO = 10.0
"""Maximum ratio of two weights."""
_ALLOWED = f"a number above 0; the largest and the smallest, and 1, at most {MAX_RATIO:g} : 1 apart"


_KEY = "commits"
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True)
class Rule:
    """A commit that touches a path of this pattern is ``factor`` times as likely as others."""

    paths: str
    factor: float

    def covers(self, path: str) -> bool:
        return self._pattern.fullmatch(path) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return glob_pattern(self.paths)


def weights(files_per_candidate: Sequence[Iterable[str]], rules: Sequence[Rule]) -> tuple[float, ...]:
    """A weight for each candidate: that of its heaviest file; the last rule that covers a file counts."""

    def weight(path: str) -> float:
        return next((rule.factor for rule in reversed(rules) if rule.covers(path)), 1.0)

    return tuple(max(map(weight, files), default=1.0) for files in files_per_candidate)


def bisect_command(
    cell: str, metric: str, good: str, bad: str, repo: str, *,
    weights: str = "", environment: str = "", better: bool = False,
) -> str:  # fmt: skip
    """The bisect command of an alert; ``cell``: empty where the alert's cell is none of ours."""
    good, bad = (bad, good) if better else (good, bad)
    words = ["perfbisect", "bisect", cell or "CELL", "--repo", repo, "--good", good, "--bad", bad]
    words += ["--direction", "improvement"] if better else []
    words += ["--metric", metric] if metric else []
    words += ["--env", environment] if environment else []
    words += ["--weights", weights] if weights else []
    return shlex.join(words)


def load_weights(path: Path) -> tuple[Rule, ...] | dict[str, float]:
    """The rules of a YAML file, or commit -> weight where ``commits`` is its only key.

    Rules are a mapping of patterns to factors, or a list of ``paths`` and ``factor``.

    Raises:
        UsageError: the file cannot be read.
        LocatedError: it is not such a file, or the factors are further apart than 10 : 1.
    """
    document = load(path)
    data = document.data
    if isinstance(data, dict) and set(data) == {_KEY} and isinstance(data[_KEY], dict):
        for sha in data[_KEY]:
            # YAML reads a hash without quotes as a number if it has digits only.
            if not isinstance(sha, str) or not _SHA.fullmatch(sha):
                place: Place = (_KEY, sha) if isinstance(sha, str | int) else (_KEY,)
                raise document.error(place, f"{sha!r} is no commit", "all digits of a commit's hash, quoted")
        found = {sha: _weight(document, (_KEY, sha), value, "weight") for sha, value in data[_KEY].items()}
        _check_ratio(document, [(weight, (_KEY, sha)) for sha, weight in found.items()], "weight")
        return found
    rules: list[tuple[Rule, Place]] = []
    if isinstance(data, list):
        for index, entry in enumerate(data):
            if not isinstance(entry, dict) or set(entry) != {"paths", "factor"}:
                raise document.error((index,), "is no rule", "a mapping with the keys paths and factor")
            paths = entry["paths"] if isinstance(entry["paths"], list) else [entry["paths"]]
            if not paths or not all(isinstance(path, str) for path in paths):
                raise document.error((index, "paths"), "is no pattern", "text, or a list of texts")
            factor = _weight(document, (index, "factor"), entry["factor"])
            rules += [(Rule(pattern, factor), (index, "factor")) for pattern in paths]
    else:
        mapping = document.mapping()
        rules = [(Rule(key, _weight(document, (key,), value)), (key,)) for key, value in mapping.items()]
    for rule, place in rules:
        if not rule.paths.strip("/ "):
            raise document.error(place, "a pattern names no path", "vllm/v1/**, *.cu, docs/")
    _check_ratio(document, [(rule.factor, place) for rule, place in rules])
    return tuple(rule for rule, _ in rules)


def _weight(document: Located, place: Place, value: object, name: str = "factor") -> float:
    # A bool is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise document.error(place, f"the {name} is {value!r}", _ALLOWED)
    return float(value)


def _check_ratio(document: Located, factors: Iterable[tuple[float, Place]], name: str = "factor") -> None:
    """Reject factors that are too far apart; what is not named has 1."""
    low = high = 1.0
    for factor, place in factors:
        low, high = min(low, factor), max(high, factor)
        # Rounding must not reject a ratio of exactly 10.
        if high / low > MAX_RATIO * (1 + 1e-9):
            other = low if factor == high else high
            message = f"the {name} {factor:g} is {high / low:.4g} : 1 from {other:g}"
            raise document.error(place, message, _ALLOWED)


def commit_weights_text(ranking: Ranking, why: str) -> str:
    """A file of weights: probabilities against the likeliest commit's, at most 10 : 1 apart."""
    most = max(suspect.p for suspect in ranking.suspects)
    weights = {s.sha: max(1.0, round(MAX_RATIO * s.p / most, 3)) for s in ranking.suspects}
    rows = "".join(f'  "{sha}": {weight:g}\n' for sha, weight in weights.items())
    # A line feed in the text would end the comment.
    return f"# {' '.join(why.split())}\n{_KEY}:\n{rows}"
