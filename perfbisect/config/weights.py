"""``--weights FILE``: where the user thinks a slow commit is likelier, as paths and factors."""

from __future__ import annotations

import math
from pathlib import Path

from perfbisect.config.yaml_lines import Located, Place, load
from perfbisect.core.weights import MOST, Rule
from perfbisect.errors import LocatedError

_ALLOWED = f"a number above 0; the largest and the smallest, and 1, at most {MOST:g} : 1 apart"


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
        if high / low > MOST * (1 + 1e-9):
            other = low if rule.factor == high else high
            message = f"the factor {rule.factor:g} is {high / low:.4g} : 1 from {other:g}"
            raise _error(document, place, message, _ALLOWED)


def _error(document: Located, place: Place, message: str, allowed: str) -> LocatedError:
    field = ".".join(str(part) for part in place)
    return LocatedError(
        message, file=document.file, line=document.line(place), field=field or None, allowed=allowed
    )
