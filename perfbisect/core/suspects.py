"""Suspects of an alert: the commits of its window, ranked by a probability that multiplies evidence.

Every commit starts alike. Each factor is a likelihood ratio against a commit of which nothing is known, and
comes with its words: the night that the series points to, what kind of files it touches, how large it is,
whether the cells that were hit are those that run them, whether it moves what the engine is built on, and
what became of it later. One more candidate, ``elsewhere``, stands for everything that is no commit of the
window. No factor is 0: nothing is excluded for good. What a title says of itself counts nothing.
"""

from __future__ import annotations

from perfbisect.core.suspect_facts import Commit, Factor, Question, Ranking, Suspect
from perfbisect.core.suspect_reach import radius, reach, starts
from perfbisect.core.suspect_reference import REVERTED, later_evidence, read, undone
from perfbisect.core.suspect_table import Table

SHOWN = 0.99
"""No probability is told above this."""


def rank(question: Question, table: Table) -> Ranking:
    """The commits of a window by how likely each is behind the alert.

    The probabilities of all suspects and ``elsewhere`` add up to 1, but that none is told above 0.99.
    """
    votes = starts(question.cells)
    nights = _nights(question, table)
    window = [read(commit, table.is_code) for commit in question.commits]
    later = [(read(one.commit, table.is_code), one.phase) for one in question.later]
    order = {commit.sha: place for place, commit in enumerate(question.commits)}
    both = {one.commit.sha for one in question.later} & order.keys()
    gone = undone(window, but=both)
    judged = []
    for place, known in enumerate(window):
        commit = known.commit
        since = [one for one in later if order.get(one[0].commit.sha, len(order)) > place]
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
    elsewhere = table.weights.elsewhere * table.causes.get(question.cause, {}).get("elsewhere", 1.0)
    whole = sum(odds) + elsewhere
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
        elsewhere=min(SHOWN, elsewhere / whole),
        radius=radius(votes),
        attributed=_attributed(suspects[0], first, question, table),
    )


def _product(factors: tuple[Factor, ...]) -> float:
    whole = 1.0
    for factor in factors:
        whole *= factor.weight
    return whole


def _undone(other: str | None, table: Table) -> Factor | None:
    if other is None:
        return None
    words = f"with {other[:12]} of the same window nothing of it is left: one takes the other out"
    return Factor("undone", table.weights.undone_in_window, words)


def _nights(question: Question, table: Table) -> dict[str, Factor]:
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


def _kind(commit: Commit, question: Question, table: Table) -> Factor | None:
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
    more = sum(1 for one in found if one[1] == name) - 1
    what = f"{name} ({path}" + (f" and {more} more)" if more else ")")
    return Factor("kind", weight, f"changes {what}" if table.is_code(path) else f"no code: {what}")


def _size(commit: Commit, table: Table) -> Factor | None:
    """By the lines of code; nothing where they are not known, or there is no code."""
    counts = [file.lines for file in commit.files if table.is_code(file.path)]
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None
    lines = sum(known)
    rows = table.weights.size
    factor = next((weight for most, weight in rows if lines <= most), rows[-1][1] if rows else 1.0)
    return Factor("size", factor, f"{lines} lines of code")


def _pins(commit: Commit, table: Table) -> Factor | None:
    if commit.pins is None:
        return None
    before, after = commit.pins
    return Factor("pins", table.weights.pins, f"moves what it is built on: {before} to {after}")


def _attributed(first: Suspect, p: float, question: Question, table: Table) -> Factor | None:
    """The revert that settles it: one commit holds nearly all, it was taken out, and the series came back."""
    if not question.recovered or p < table.weights.attribute:
        return None
    return next((factor for factor in first.evidence if factor.name == REVERTED), None)
