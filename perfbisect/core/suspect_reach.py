"""How well the cells that were hit, and those that were not, fit what a commit touched: the blast radius.

The difference between cells names the radius. If code that only some cells run became slow, the servers that
run it are hit (``hit`` of the time, since load decides too) and the others are not (but for ``leak``). Code
of which nothing is known explains any pattern alike: one half for each server. A commit's factor is the ratio
of the two, averaged over its files, since one of them would carry it: a commit of many files is no likelier
than each of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfbisect.core.suspect_facts import Commit, Factor, Ran, Touched
from perfbisect.core.suspect_table import Part, Table, Weights

_UNKNOWN = 0.5


@dataclass(frozen=True)
class Start:
    """A server start and its cells: one vote. Hit where any of its cells was: load may decide which."""

    hit: bool
    cells: tuple[Ran, ...]

    @property
    def traits(self) -> frozenset[str]:
        """What its cells run."""
        return frozenset().union(*(cell.traits for cell in self.cells))


def starts(cells: Iterable[Ran]) -> tuple[Start, ...]:
    """The votes; of a start that was hit, its cells that were."""
    groups: dict[str, list[Ran]] = {}
    for cell in cells:
        groups.setdefault(cell.start, []).append(cell)
    return tuple(
        Start(any(c.hit for c in group), tuple(c for c in group if c.hit) or tuple(group))
        for group in groups.values()
    )


def radius(votes: Sequence[Start]) -> str:
    """What every server that was hit runs and no other does, in words; empty where there is nothing."""
    hit, spared = [v for v in votes if v.hit], [v for v in votes if not v.hit]
    if not hit or not spared:
        return ""
    shared = frozenset.intersection(*(v.traits for v in hit))
    alone = shared - frozenset().union(*(v.traits for v in spared))
    if not alone:
        return ""
    words = " and ".join(sorted(alone))
    return f"{_count(len(hit))} that were hit run {words}, none of the {len(spared)} others does"


def reach(commit: Commit, votes: Sequence[Start], table: Table) -> Factor | None:
    """The factor of what a commit touched; None where it tells nothing: no cells to tell apart, no code."""
    carrying = [(touched, _carries(touched, table)) for touched in commit.files]
    whole = sum(weight for _, weight in carrying)
    if not votes or whole == 0:
        return None
    told = [(share / whole, _told(touched.path, votes, table)) for touched, share in carrying]
    factor = sum(share * ratio for share, (ratio, _) in told)
    share, (ratio, words) = max(told, key=lambda one: abs(one[0] * (one[1][0] - 1)))
    return Factor("cells", factor, words) if words and abs(share * (ratio - 1)) > 1e-6 else None


def _carries(touched: Touched, table: Table) -> float:
    """How likely, among the files of its commit, one is to carry the change: by its kind and its lines."""
    kind = table.kind_of(touched.path)
    return (kind.weight if kind else 1.0) * math.sqrt(1 + (touched.lines or 0))


def _told(path: str, votes: Sequence[Start], table: Table) -> tuple[float, str]:
    """By how much a pattern of hits is likelier if this file is behind it, and why, in words."""
    part = table.part_of(path)
    if part is None:
        return 1.0, ""
    runs = [_runs(part, path, vote) for vote in votes]
    known = [(r, vote.hit) for r, vote in zip(runs, votes, strict=True) if r is not None]
    if not known:
        return 1.0, ""
    log = sum(math.log(_chance(r, hit, table.weights) / _UNKNOWN) for r, hit in known)
    log *= min(1.0, table.weights.votes / len(known))
    hit = [r for r, was in known if was]
    spared = [r for r, was in known if not was]
    words = f"{path} ({part.part}) is run by {sum(hit)} of {_count(len(hit))} that were hit"
    if spared:
        words += f", and by {sum(spared)} of {len(spared)} that were not"
    return part.sure * math.exp(log) + (1 - part.sure), words


def _chance(runs: bool, hit: bool, weights: Weights) -> float:
    chance = weights.hit if runs else weights.leak
    return chance if hit else 1 - chance


def _runs(part: Part, path: str, vote: Start) -> bool | None:
    """Whether a server runs this file; None where that cannot be told."""
    found = part.match(path)
    name = found.groupdict().get("model") if found else None
    if name is not None:
        models = [cell.model for cell in vote.cells if cell.model]
        return any(_serves(model, name) for model in models) if models else None
    return not part.of or bool(vote.traits & set(part.of))


def _serves(model: str, name: str) -> bool:
    """Whether a model as it is served (``Qwen/Qwen3-TTS-12Hz-1.7B-Base``) is of the code called ``name``
    (``qwen3_tts``): by the first two words of the code's name, since further ones say a size or a use."""
    words = re.findall(r"[a-z][a-z0-9]*(?:[^a-z0-9]+[0-9]+)*", name.lower())
    return bool(words) and _plain(model.rsplit("/", 1)[-1]).startswith(_plain("".join(words[:2])))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _count(number: int) -> str:
    return f"{number} server{'' if number == 1 else 's'}"
