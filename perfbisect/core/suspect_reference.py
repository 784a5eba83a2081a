"""Does a later commit undo or mend an earlier one? By hash, number, quoted title, or the lines themselves.

That somebody took a commit out again, and the series came back with that, says more than all paths. It is
read from references and from files, never from what a title says of its subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from perfbisect.core.suspect_facts import Commit, Factor, Phase
from perfbisect.core.suspect_table import Weights

REVERTED = "reverted"
"""The name of the factor: it was taken out, and with that the series came back."""

Answer = Literal["revert", "fix", "same files"]

_REVERTS = re.compile(r"\brevert(?:s|ed|ing)?\b|\broll(?:s|ed)?[ -]?back\b|\bback(?:s|ed)?[ -]?out\b", re.I)
_HASH = re.compile(r"\b[0-9a-f]{7,64}\b")
_NUMBERS = re.compile(r"(?:#|/pull/)(\d+)\b")
_QUOTED = re.compile(r"[\"“«](.+)$", re.MULTILINE)
_SHORTEST = 12
"""Characters of a quoted title that may be taken for one."""


@dataclass(frozen=True)
class Read:
    """A commit with all that answers are read from.

    ``product``: its files that are of the product, with their added and removed lines: tests and documents
    change in a revert as they must.
    """

    commit: Commit
    title: str
    reverts: bool
    hashes: frozenset[str]
    numbers: frozenset[str]
    quotes: tuple[str, ...]
    product: Mapping[str, tuple[int | None, int | None]]


def read(commit: Commit, code: Callable[[str], bool]) -> Read:
    """A commit, read once. ``code``: whether a path is of the product."""
    text = commit.text
    return Read(
        commit=commit,
        title=_title(commit.subject),
        reverts=_REVERTS.search(text) is not None,
        hashes=frozenset(_HASH.findall(text)),
        numbers=frozenset(_NUMBERS.findall(text)),
        quotes=tuple(_QUOTED.findall(text)),
        product={file.path: (file.added, file.removed) for file in commit.files if code(file.path)},
    )


def answers(later: Read, earlier: Read) -> tuple[Answer, str] | None:
    """How a later commit answers an earlier one, and by what that is seen; None if it does not."""
    how = _named(later, earlier)
    alike = len(later.product) > 1 and later.product.keys() == earlier.product.keys()
    exact = _mirrored(later, earlier)
    if how and (exact or alike or later.reverts):
        return "revert", how
    if exact:
        return "revert", "takes out the lines that it put in"
    if how:
        return "fix", how
    return ("same files", "changes the same files of the product, and no others") if alike else None


def _named(later: Read, earlier: Read) -> str:
    sha, pull = earlier.commit.sha, earlier.commit.pull
    if any(sha.startswith(word) for word in later.hashes):
        return f"names it by its hash {sha[:12]}"
    if pull is not None and str(pull) in later.numbers:
        return f"names it by its number #{pull}"
    return "quotes its title" if any(_quotes(text, earlier.title) for text in later.quotes) else ""


def _title(subject: str) -> str:
    return " ".join(re.sub(r"\(#\d+\)", " ", subject).split()).casefold()


def _quotes(text: str, title: str) -> bool:
    """Whether a quotation is of a title: whole, or its beginning where a forge cut it off."""
    said, cut, _ = re.sub(r"\.\.\.", "…", text).partition("…")
    said = _title(said)
    if not cut:
        said = re.split(r"[\"”»]\s*(?:$|\()", said)[0].rstrip('"”» ')
        return len(said) >= _SHORTEST and said == title
    return len(said) >= _SHORTEST and title.startswith(said)


def _mirrored(later: Read, earlier: Read) -> bool:
    """Every file of the product, with its added and removed lines the other way round. As many of one as of
    the other are lines that were edited: they look alike in both directions."""
    undone = {path: (removed, added) for path, (added, removed) in later.product.items()}
    told = sum(abs(a - r) for a, r in undone.values() if a is not None and r is not None)
    return told > 3 and undone == earlier.product


def later_evidence(commit: Read, later: Sequence[tuple[Read, Phase]], weights: Weights) -> Factor | None:
    """What the commits after the window say of one of it: the piece that weighs most, either way; of equal
    ones the last."""
    found = [
        factor
        for one, phase in reversed(later)
        if (answer := answers(one, commit)) and (factor := _weighed(one.commit, phase, *answer, weights))
    ]
    return max(found, key=lambda factor: max(factor.weight, 1 / factor.weight), default=None)


def _weighed(one: Commit, phase: Phase, answer: Answer, how: str, weights: Weights) -> Factor | None:
    who = one.sha[:12] + (f" (#{one.pull})" if one.pull is not None else "")
    if phase == "recovery":
        name, weight, verb = {
            "revert": (REVERTED, weights.revert_recovered, "reverts it"),
            "fix": ("mended", weights.fix_recovered, "answers it"),
            "same files": ("same files", weights.same_files_recovered, "may answer it"),
        }[answer]
        return Factor(name, weight, f"{who} {verb} in the window of the recovery: it {how}")
    if answer != "revert":
        return None
    if phase == "slow":
        words = f"{who} reverts it, and a night that ran it was still slow"
        return Factor("reverted in vain", weights.revert_still_slow, words)
    return Factor("reverted later", weights.revert_unmeasured, f"{who} reverts it later: it {how}")


def undone(commits: Sequence[Read], but: Set[str] = frozenset()) -> dict[str, str]:
    """Commits of the window that another of it takes out again, and the one that does: neither is left.

    ``but``: of these it is not sure that they came with the window.
    """
    found: dict[str, str] = {}
    for index, late in enumerate(commits):
        for early in commits[:index]:
            answer = answers(late, early) if late.commit.sha not in but else None
            if answer and answer[0] == "revert":
                found |= {early.commit.sha: late.commit.sha, late.commit.sha: early.commit.sha}
    return found
