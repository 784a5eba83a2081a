"""Suspects of an alert: the commits of its window, ranked by a probability that multiplies evidence.

Every commit starts alike. Each factor is a likelihood ratio against a commit of which nothing is known, and
comes with its words: the night that the series points to, what kind of files it touches, how large it is,
whether the cells that were hit are those that run them, whether it moves what the engine is built on, and
what became of it later. One more candidate, ``outside_window``, stands for everything that is no commit
of the window. No factor is 0: nothing is excluded for good. What a title says of itself counts nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from perfbisect.model.commit_details import (
    ChangedFile,
    Commit,
    Factor,
    MeasuredCell,
    Phase,
    Ranking,
    Suspect,
    SuspectQuestion,
)
from perfbisect.series.suspects.table import EnginePart, EvidenceWeights, SuspectTable

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
class CommitText:
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


def read(commit: Commit, code: Callable[[str], bool]) -> CommitText:
    """A commit, read once. ``code``: whether a path is of the product."""
    text = commit.text
    return CommitText(
        commit=commit,
        title=_title(commit.subject),
        reverts=_REVERTS.search(text) is not None,
        hashes=frozenset(_HASH.findall(text)),
        numbers=frozenset(_NUMBERS.findall(text)),
        quotes=tuple(_QUOTED.findall(text)),
        product={file.path: (file.added, file.removed) for file in commit.files if code(file.path)},
    )


def answers(later: CommitText, earlier: CommitText) -> tuple[Answer, str] | None:
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


def _named(later: CommitText, earlier: CommitText) -> str:
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


def _mirrored(later: CommitText, earlier: CommitText) -> bool:
    """Every file of the product, with its added and removed lines the other way round. As many of one as of
    the other are lines that were edited: they look alike in both directions."""
    undone = {path: (removed, added) for path, (added, removed) in later.product.items()}
    told = sum(abs(a - r) for a, r in undone.values() if a is not None and r is not None)
    return told > 3 and undone == earlier.product


def later_evidence(
    commit: CommitText, later: Sequence[tuple[CommitText, Phase]], weights: EvidenceWeights
) -> Factor | None:
    """What the commits after the window say of one of it: the piece that weighs most, either way; of equal
    ones the last."""
    found = [
        factor
        for one, phase in reversed(later)
        if (answer := answers(one, commit)) and (factor := _weighed(one.commit, phase, *answer, weights))
    ]
    return max(found, key=lambda factor: max(factor.weight, 1 / factor.weight), default=None)


def _weighed(one: Commit, phase: Phase, answer: Answer, how: str, weights: EvidenceWeights) -> Factor | None:
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


def undone(commits: Sequence[CommitText], but: Set[str] = frozenset()) -> dict[str, str]:
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


_UNKNOWN = 0.5


@dataclass(frozen=True)
class ServerVote:
    """A server start and its cells: one vote. Hit where any of its cells was: load may decide which."""

    hit: bool
    cells: tuple[MeasuredCell, ...]

    @property
    def traits(self) -> frozenset[str]:
        """What its cells run."""
        return frozenset().union(*(cell.traits for cell in self.cells))


def starts(cells: Iterable[MeasuredCell]) -> tuple[ServerVote, ...]:
    """The votes; of a start that was hit, its cells that were."""
    groups: dict[str, list[MeasuredCell]] = {}
    for cell in cells:
        groups.setdefault(cell.start, []).append(cell)
    return tuple(
        ServerVote(any(c.hit for c in group), tuple(c for c in group if c.hit) or tuple(group))
        for group in groups.values()
    )


def blast_radius(votes: Sequence[ServerVote]) -> str:
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


def reach(commit: Commit, votes: Sequence[ServerVote], table: SuspectTable) -> Factor | None:
    """The factor of what a commit touched; None where it tells nothing: no cells to tell apart, no code."""
    carrying = [(touched, _carries(touched, table)) for touched in commit.files]
    whole = sum(weight for _, weight in carrying)
    if not votes or whole == 0:
        return None
    told = [(share / whole, _told(touched.path, votes, table)) for touched, share in carrying]
    factor = sum(share * ratio for share, (ratio, _) in told)
    share, (ratio, words) = max(told, key=lambda one: abs(one[0] * (one[1][0] - 1)))
    return Factor("cells", factor, words) if words and abs(share * (ratio - 1)) > 1e-6 else None


def _carries(touched: ChangedFile, table: SuspectTable) -> float:
    """How likely, among the files of its commit, one is to carry the change: by its kind and its lines."""
    kind = table.kind_of(touched.path)
    return (kind.weight if kind else 1.0) * math.sqrt(1 + (touched.lines or 0))


def _told(path: str, votes: Sequence[ServerVote], table: SuspectTable) -> tuple[float, str]:
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


def _chance(runs: bool, hit: bool, weights: EvidenceWeights) -> float:
    chance = weights.hit if runs else weights.leak
    return chance if hit else 1 - chance


def _runs(part: EnginePart, path: str, vote: ServerVote) -> bool | None:
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


SHOWN = 0.99
"""No probability is told above this."""


def rank_suspects(question: SuspectQuestion, table: SuspectTable) -> Ranking:
    """The commits of a window by how likely each is behind the alert.

    The probabilities of all suspects and ``p_outside_window`` add up to 1; each is capped at 0.99.
    """
    votes = starts(question.cells)
    nights = _nights(question, table)
    window = [read(commit, table.is_code) for commit in question.commits]
    later = [(read(item.commit, table.is_code), item.phase) for item in question.later]
    order = {commit.sha: place for place, commit in enumerate(question.commits)}
    both = {item.commit.sha for item in question.later} & order.keys()
    gone = undone(window, but=both)
    judged = []
    for place, known in enumerate(window):
        commit = known.commit
        since = [item for item in later if order.get(item[0].commit.sha, len(order)) > place]
        found = [
            nights[commit.sha],
            _kind(commit, question, table),
            _size(commit, table),
            reach(commit, votes, table),
            _pins(commit, table),
            later_evidence(known, since, table.weights),
            _undone(gone.get(commit.sha), table),
        ]
        judged.append((commit, tuple(factor for factor in found if factor is not None)))
    odds = [_product(factors) for _, factors in judged]
    causes = table.causes.get(question.cause, {})
    outside = table.weights.outside_window * causes.get("outside_window", 1.0)
    whole = sum(odds) + outside
    newest_first = sorted(range(len(judged)), key=lambda i: (-odds[i], -i))
    suspects = tuple(
        Suspect(
            judged[i][0],
            min(SHOWN, odds[i] / whole),
            tuple(sorted(judged[i][1], key=lambda f: -max(f.weight, 1 / f.weight))),
        )
        for i in newest_first
    )
    first = odds[newest_first[0]] / whole
    return Ranking(
        suspects=suspects,
        p_outside_window=min(SHOWN, outside / whole),
        blast_radius=blast_radius(votes),
        attributed=_attributed(suspects[0], first, question, table),
    )


def _product(factors: tuple[Factor, ...]) -> float:
    whole = 1.0
    for factor in factors:
        whole *= factor.weight
    return whole


def _undone(other: str | None, table: SuspectTable) -> Factor | None:
    if other is None:
        return None
    words = f"with {other[:12]} of the same window nothing of it is left: one takes the other out"
    return Factor("undone", table.weights.undone_in_window, words)


def _nights(question: SuspectQuestion, table: SuspectTable) -> dict[str, Factor]:
    """By the night from which on each commit ran: against the likeliest commit. A commit that several nights
    may have been the first to run counts with the mean of theirs."""
    shares: dict[str, float] = {}
    words: dict[str, str] = {}
    for commit in question.commits:
        found = [place for place in question.places if commit.sha in place.commits]
        shares[commit.sha] = sum(place.p for place in found) / len(found) if found else 0.0
        names = " or ".join(place.night for place in found)
        words[commit.sha] = (
            f"first run on the night of {names}: {shares[commit.sha] * 100:.0f} % of the place of the change"
            if found
            else "in no window of the place of the change"
        )
    most = max(shares.values())
    return {
        sha: Factor("place", max(share / most, table.weights.outside), words[sha])
        for sha, share in shares.items()
    }


def _kind(commit: Commit, question: SuspectQuestion, table: SuspectTable) -> Factor | None:
    """What it touches at the most: as likely as its likeliest file. Of one without files nothing is known."""
    changed = table.causes.get(question.cause, {})
    found = []
    for file in commit.files:
        kind = table.kind_of(file.path)
        name, weight = (kind.kind, kind.weight) if kind else ("code", 1.0)
        found.append((weight * changed.get(name, 1.0), name, file.path))
    if not found:
        return None
    weight, name, path = max(found, key=lambda one: one[0])
    more = sum(1 for item in found if item[1] == name) - 1
    what = f"{name} ({path}" + (f" and {more} more)" if more else ")")
    return Factor("kind", weight, f"changes {what}" if table.is_code(path) else f"no code: {what}")


def _size(commit: Commit, table: SuspectTable) -> Factor | None:
    """By the lines of code; nothing where they are not known, or there is no code."""
    counts = [file.lines for file in commit.files if table.is_code(file.path)]
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    lines = sum(known)
    rows = table.weights.size
    factor = next((weight for most, weight in rows if lines <= most), rows[-1][1] if rows else 1.0)
    return Factor("size", factor, f"{lines} lines of code")


def _pins(commit: Commit, table: SuspectTable) -> Factor | None:
    if commit.pins is None:
        return None
    before, after = commit.pins
    return Factor("pins", table.weights.pins, f"moves what it is built on: {before} to {after}")


def _attributed(first: Suspect, p: float, question: SuspectQuestion, table: SuspectTable) -> Factor | None:
    """The revert that settles it: one commit holds nearly all, it was taken out, and the series came back."""
    if not question.recovered or p < table.weights.attribute:
        return None
    return next((factor for factor in first.evidence if factor.name == REVERTED), None)
