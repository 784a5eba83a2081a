"""``--weights FILE`` that weighs commits: what a ranking of suspects hands to a bisection."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from perfbisect.config.yaml_lines import Located, load
from perfbisect.core.weights import MOST
from perfbisect.errors import LocatedError

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
    if most / least > MOST * (1 + 1e-9):
        raise LocatedError(
            f"the weights are {most / least:.4g} : 1 apart",
            file=path,
            line=document.line((_KEY,)),
            field=_KEY,
            allowed=f"at most {MOST:g} : 1, with 1 for commits that are not named",
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
