"""Suspects of an alert: the commits of its window, ranked by a probability that multiplies evidence.

Every commit starts alike. Each factor is a likelihood ratio against a commit of which nothing is known: the
night that the series points to, what kind of files it touches, how large it is, whether the cells that were
hit are those that run them, what its title says, whether it moves what the engine is built on, whether its
code runs in the phase of a request that was seen to move, and what became of it later. One more candidate,
``outside_window``, stands for everything that is no commit of the window. No factor is 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfbisect.model.commit_details import (
    BlastRadius,
    Commit,
    Factor,
    Phase,
    Ranking,
    RequestPhase,
    ServerVote,
    Suspect,
    SuspectQuestion,
    distinguishing_traits,
    server_votes,
)
from perfbisect.series.suspects.table import EnginePart, EvidenceWeights, SuspectTable

MAX_P = 0.99  # cap of every probability
REVERTED = "reverted"  # name of the factor of a commit with whose revert the series came back

Answer = Literal["revert", "fix", "same files"]

_REVERTS = re.compile(r"\brevert(?:s|ed|ing)?\b|\broll(?:s|ed)?[ -]?back\b|\bback(?:s|ed)?[ -]?out\b", re.I)
_HASH = re.compile(r"\b[0-9a-f]{7,64}\b")
_NUMBERS = re.compile(r"(?:#|/pull/)(\d+)\b")
# To the end of the line: a title may hold quotation marks itself, and GitHub cuts it off.
_QUOTED = re.compile(r"[\"“«](.+)$", re.MULTILINE)
# A sentence or a line, unless the next line begins with what this one names.
_CLAUSE = re.compile(
    r"[.;](?=\s|$)"
    r"|\n(?!\s{0,9}(?:[-*]\s{1,9}|and\s|PR\s){0,2}(?:[\w./-]{0,80}#\d|https?://|[0-9a-f]{7}))"
)
_MIN_TITLE = 12  # characters of a quoted title that may be taken for one
_UNKNOWN = 0.5  # probability that a server is hit if nothing is known of the commit


_References = tuple[Sequence[str], Sequence[str], Sequence[str]]
"""Hashes, numbers and quotations."""


@dataclass(frozen=True)
class CommitText:
    """A commit with what its message refers to.

    ``pull``: its number as text, empty without one. ``reverts``: what the clauses name that speak of a
    revert. ``product``: its files of the product, with added and removed lines; a revert may change other
    tests.
    """

    commit: Commit
    title: str
    pull: str
    refers: _References
    reverts: _References
    product: Mapping[str, tuple[int | None, int | None]]


def parse_commit(commit: Commit, is_code: Callable[[str], bool]) -> CommitText:
    """``is_code``: whether a path is of the product."""
    subject, _, body = commit.text.partition("\n")
    # A title may end a sentence in its middle.
    clauses = (subject, *_CLAUSE.split(body))
    return CommitText(
        commit=commit,
        title=_normalize(commit.subject),
        pull="" if commit.pull is None else str(commit.pull),
        refers=_references(commit.text),
        reverts=_references("\n".join(clause for clause in clauses if _REVERTS.search(clause))),
        product={file.path: (file.added, file.removed) for file in commit.files if is_code(file.path)},
    )


def _references(text: str) -> _References:
    return _HASH.findall(text), _NUMBERS.findall(text), _QUOTED.findall(text)


Sign = Literal["hash", "number", "title", "mirrored lines", "same files"]
"""By what a commit answers an earlier one: how it names it, or what it changes."""


def find_answer(later: CommitText, earlier: CommitText) -> tuple[Answer, Sign] | None:
    """How a later commit answers an earlier one, and the sign of it; None if it does not."""
    is_of_same_files = bool(later.product) and later.product.keys() == earlier.product.keys()
    if not any(later.refers) and not is_of_same_files:
        return None  # Nearly all pairs of a window of hundreds of commits.
    reverted, reference = _sign(later.reverts, earlier), _sign(later.refers, earlier)
    # Lines that were edited in place are as many added as removed: they look alike in both directions.
    undone = {path: (removed, added) for path, (added, removed) in later.product.items()}
    net = sum(abs(a - r) for a, r in undone.values() if a is not None and r is not None)
    # A few lines mirror each other by chance.
    is_mirrored = net > 3 and undone == earlier.product
    # One file that both change is the usual case of work on one part.
    same_files = len(later.product) > 1 and is_of_same_files
    if sign := reverted or (reference if is_mirrored or same_files else None):
        return "revert", sign
    if is_mirrored:
        return "revert", "mirrored lines"
    if reference:
        return "fix", reference
    return ("same files", "same files") if same_files else None


def _sign(references: _References, earlier: CommitText) -> Sign | None:
    hashes, numbers, quotes = references
    if any(earlier.commit.sha.startswith(word) for word in hashes):
        return "hash"
    if earlier.pull in numbers:
        return "number"
    return "title" if any(_quotes(text, earlier.title) for text in quotes) else None


def _normalize(subject: str) -> str:
    return " ".join(re.sub(r"\(#\d+\)", " ", subject).split()).casefold()


def _quotes(text: str, title: str) -> bool:
    """Whether a quotation is of a title: whole, or its beginning where a forge cut it off."""
    # Forges cut a long subject with an ellipsis, people with three dots.
    quoted, cut, _ = re.sub(r"\.\.\.", "…", text).partition("…")
    quoted = _normalize(quoted)
    if cut:
        return len(quoted) >= _MIN_TITLE and title.startswith(quoted)
    quoted = re.split(r"[\"”»]\s*(?:$|\()", quoted)[0].rstrip('"”» ')
    return len(quoted) >= _MIN_TITLE and quoted == title


def later_evidence(
    commit: CommitText, later: Sequence[tuple[CommitText, Phase]], weights: EvidenceWeights
) -> Factor | None:
    """The strongest evidence of later commits for or against one of the window; of equal ones the last."""
    recovered = {
        "revert": (REVERTED, weights.revert_recovered),
        "fix": ("mended", weights.fix_recovered),
        "same files": ("same files", weights.same_files_recovered),
    }
    factors = []
    for text, phase in reversed(later):
        if (found := find_answer(text, commit)) is None:
            continue
        answer, sign = found
        pulls = {"by_pull": text.commit.pull, "pull": commit.commit.pull}
        values = {"by": text.commit.sha, "sha": commit.commit.sha, "sign": sign, **pulls}
        if phase == "recovery":
            factors.append(Factor(*recovered[answer], values))
        elif answer == "revert" and phase == "slow":
            factors.append(Factor("reverted in vain", weights.revert_still_slow, values))
        elif answer == "revert":
            factors.append(Factor("reverted later", weights.revert_unmeasured, values))
    return max(factors, key=_strength, default=None)


def _strength(factor: Factor) -> float:
    return max(factor.weight, 1 / factor.weight)


def blast_radius(votes: Sequence[ServerVote]) -> BlastRadius | None:
    """What distinguishes the servers that were hit; None where nothing does."""
    traits, hit = distinguishing_traits(votes), sum(vote.hit for vote in votes)
    return BlastRadius(tuple(sorted(traits)), hit, len(votes) - hit) if traits else None


def cells_factor(commit: Commit, votes: Sequence[ServerVote], table: SuspectTable) -> Factor | None:
    """The factor of which servers run what a commit touched; None where they say nothing."""
    shares = []
    for file in commit.files:
        kind = table.kind_of(file.path)
        # The root of the lines: one of the files causes the change, and a long one is not likelier in
        # proportion.
        shares.append((kind.weight if kind else 1.0) * math.sqrt(1 + (file.lines or 0)))
    total = sum(shares)
    if not votes or total == 0:
        return None
    ratios = [_hit_ratio(file.path, votes, table) for file in commit.files]
    parts = [(share / total, ratio, values) for share, (ratio, values) in zip(shares, ratios, strict=True)]
    weight = sum(share * ratio for share, ratio, _ in parts)
    share, ratio, values = max(parts, key=lambda part: abs(part[0] * (part[1] - 1)))
    return Factor("cells", weight, values) if values and abs(share * (ratio - 1)) > 1e-6 else None


def _hit_ratio(
    path: str, votes: Sequence[ServerVote], table: SuspectTable
) -> tuple[float, Mapping[str, object]]:
    """How much likelier this pattern of hits is if a file is behind it, with the counts that say so."""
    part = table.part_of(path)
    if part is None:
        return 1.0, {}
    runs = [(is_run, vote.hit) for vote in votes if (is_run := _runs(part, path, vote)) is not None]
    if not runs:
        return 1.0, {}
    weights = table.weights
    log = 0.0
    for is_run, is_hit in runs:
        chance = weights.hit if is_run else weights.leak
        log += math.log((chance if is_hit else 1 - chance) / _UNKNOWN)
    # All servers together count as a few: they have more in common than the table knows.
    log *= min(1.0, weights.votes / len(runs))
    hit, spared = ([is_run for is_run, is_hit in runs if is_hit is side] for side in (True, False))
    counts = {"hit": len(hit), "hit_runs": sum(hit), "spared": len(spared), "spared_runs": sum(spared)}
    ratio = part.sure * math.exp(log) + (1 - part.sure)
    return ratio, {"path": path, "part": part.part, **counts}


def _runs(part: EnginePart, path: str, vote: ServerVote) -> bool | None:
    """Whether a server runs this file; None if unknown."""
    match = part.match(path)
    name = match.groupdict().get("model") if match else None
    if name is None:
        return not part.of or bool(vote.runs & set(part.of))
    # Cells that serve a model run its files, whatever their traits are. ``Qwen/Qwen3-TTS-12Hz-1.7B-Base`` is
    # of ``qwen3_tts`` by the first two words of the code's name: further ones are a size or a use.
    words = re.findall(r"[a-z][a-z0-9]*(?:[^a-z0-9]+[0-9]+)*", name.lower())
    start = _letters("".join(words[:2]))
    served = [_letters(cell.model.rsplit("/", 1)[-1]) for cell in vote.cells if cell.model]
    return any(bool(words) and model.startswith(start) for model in served) if served else None


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def phase_factor(commit: Commit, moved: RequestPhase, table: SuspectTable) -> Factor | None:
    """Whether code of a commit runs in the phase that moved; None where it is not known of any of its files.

    Code of a phase moves it ``ratio`` times as often as code of another phase, and code of which nothing is
    known as often as the mean of both. A commit counts as its likeliest file.
    """
    phases = {file.path: found for file in commit.files if (found := table.phases_of(file.path))}
    if not phases:
        return None
    ratio = table.weights.phases.get(moved, 1.0)
    inside = next((path for path, found in phases.items() if moved in found), "")
    path = inside or next(iter(phases))
    values = {"phase": moved, "path": path, "runs_in": [moved] if inside else list(phases[path])}
    return Factor("phase", (2 * ratio if inside else 2) / (1 + ratio), values)


def rank_suspects(question: SuspectQuestion, table: SuspectTable) -> Ranking:
    """The commits of a window by how likely each is behind the alert.

    The probabilities of all suspects and ``p_outside_window`` add up to 1; each is capped at 0.99.
    """
    commits, weights = question.commits, table.weights
    # A server start is one vote, however many cells it served.
    votes = server_votes(question.cells)
    nights, causes = _night_factors(question, table), table.causes.get(question.cause, {})
    window = [parse_commit(commit, table.is_code) for commit in commits]
    later = [(parse_commit(commit, table.is_code), phase) for commit, phase in question.later]
    order = {commit.sha: place for place, commit in enumerate(commits)}
    # Not those that may have come after the window: they belong to the recovery.
    uncertain = {commit.sha for commit, _ in question.later}
    pairs: dict[str, str] = {}
    for place, late in enumerate(window):
        for early in window[:place] if late.commit.sha not in uncertain else ():
            if (answer := find_answer(late, early)) and answer[0] == "revert":
                pairs |= {early.commit.sha: late.commit.sha, late.commit.sha: early.commit.sha}
    evidence = []
    for place, (commit, text) in enumerate(zip(commits, window, strict=True)):
        since = [item for item in later if order.get(item[0].commit.sha, len(order)) > place]
        factors = [
            nights[commit.sha],
            _kind_factor(commit, causes, table),
            _size_factor(commit, table),
            title_factor(commit, votes, table),
            cells_factor(commit, votes, table),
            phase_factor(commit, question.phase, table) if question.phase else None,
            later_evidence(text, since, weights),
        ]
        if commit.pins is not None:
            before, after = commit.pins
            factors.append(Factor("pins", weights.pins, {"before": before, "after": after}))
        if commit.sha in pairs:
            factors.append(Factor("undone", weights.undone_in_window, {"with": pairs[commit.sha]}))
        evidence.append([factor for factor in factors if factor is not None])
    odds = [math.prod(factor.weight for factor in factors) for factors in evidence]
    # A bad night or another client rarely comes from the commits of this repository.
    outside = weights.outside_window * causes.get("outside_window", 1.0)
    total = sum(odds) + outside
    newest_first = sorted(range(len(commits)), key=lambda i: (-odds[i], -i))
    suspects = tuple(
        Suspect(
            sha=commits[i].sha,
            subject=commits[i].subject,
            date=commits[i].date,
            # The weights of the table are estimates, which support no higher probability.
            p=min(MAX_P, odds[i] / total),
            evidence=tuple(sorted(evidence[i], key=lambda factor: -_strength(factor))),
        )
        for i in newest_first
    )
    # The revert that settles it: one commit holds nearly all, it was reverted, and the series came back.
    is_settled = question.recovered and max(odds) / total >= weights.attribute
    reverts = [factor for factor in suspects[0].evidence if factor.name == REVERTED]
    return Ranking(
        suspects=suspects,
        p_outside_window=min(MAX_P, outside / total),
        blast_radius=blast_radius(votes),
        attributed=reverts[0] if is_settled and reverts else None,
    )


def _night_factors(question: SuspectQuestion, table: SuspectTable) -> dict[str, Factor]:
    """By the night from which on each commit ran, against the likeliest commit.

    A commit that several nights may have been the first to run counts with the mean of theirs.
    """
    shares, nights = {}, {}
    for sha in (commit.sha for commit in question.commits):
        own = [night for night in question.places if sha in night.commits]
        shares[sha] = sum(night.p for night in own) / max(1, len(own))
        nights[sha] = [night.night for night in own]
    most, least = max(shares.values()), table.weights.outside
    return {
        sha: Factor("place", max(share / most, least), {"nights": nights[sha], "share": share})
        for sha, share in shares.items()
    }


def _kind_factor(commit: Commit, changed: Mapping[str, float], table: SuspectTable) -> Factor | None:
    """As likely as its likeliest file. ``changed``: what the cause multiplies the kinds by."""
    kinds = []
    for file in commit.files:
        kind = table.kind_of(file.path)
        name, weight = (kind.kind, kind.weight) if kind else ("code", 1.0)
        others = changed.get("code", 1.0) if table.is_code(file.path) else 1.0
        kinds.append((weight * changed.get(name, others), name, file.path))
    if not kinds:
        return None
    # One file of code makes a commit a change of code, whatever documents it brings.
    weight, name, path = max(kinds, key=lambda kind: kind[0])
    more = sum(kind[1] == name for kind in kinds) - 1
    return Factor("kind", weight, {"kind": name, "path": path, "more": more, "code": table.is_code(path)})


def _size_factor(commit: Commit, table: SuspectTable) -> Factor | None:
    """By the lines and files of code; None where they are not known, or there is no code."""
    counts = [file.lines for file in commit.files if table.is_code(file.path)]
    known = [count for count in counts if count is not None]
    # A partial clone lacks the content of files: a size of the others would be too small.
    if not known or len(known) < len(counts):
        return None
    weight = _step(table.weights.size, sum(known)) * _step(table.weights.spread, len(known))
    return Factor("size", weight, {"lines": sum(known), "files": len(known)})


def _step(rows: Sequence[tuple[float, float]], number: int) -> float:
    return next((weight for most, weight in rows if number <= most), rows[-1][1] if rows else 1.0)


def title_factor(commit: Commit, votes: Sequence[ServerVote], table: SuspectTable) -> Factor | None:
    """What the title says: the kind of change, and whether the servers that were hit run what it names.

    Of several things of one kind that it names, one that they run counts. None where it says nothing.
    """
    runs = [vote.runs for vote in votes if vote.hit]
    rows = [row for row in table.titles if row.pattern.search(commit.subject)]
    weights = {(row.title, True): row.weight for row in rows if row.weight is not None}
    for about, (with_it, without) in table.weights.titles.items() if runs else ():
        named = {row.title: any(run & set(row.of) for run in runs) for row in rows if row.about == about}
        if named:
            # A title that names two models is about both: that one of them is hit is enough.
            title = next((title for title, is_run in named.items() if is_run), next(iter(named)))
            weights[title, named[title]] = with_it if named[title] else without
    about_it = [{"title": title, "is_run": is_run} for title, is_run in weights]
    return Factor("title", math.prod(weights.values()), {"about": about_it}) if weights else None
