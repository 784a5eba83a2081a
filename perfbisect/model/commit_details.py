"""Commits in detail, and the input and result of ranking them as suspects of an alert."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

CauseWord = Literal["product", "instrument", "workload", "night", "unknown"]

Phase = Literal["slow", "recovery", "after"]
"""Of a later commit: ``slow``, a night that ran it was still slow; ``recovery``, between the last slow night
and the first good one; ``after``, later, or run by no night."""

RequestPhase = Literal["queue", "prefill", "decode", "outside"]
"""A phase of a request; ``outside``: of the engine core."""

_NUMBER = re.compile(r"\(#(\d+)\)\s*$")


@dataclass(frozen=True)
class ChangedFile:
    """A changed file with its added and removed lines; None if unknown (binary, or no diff)."""

    path: str
    added: int | None = None
    removed: int | None = None

    @property
    def lines(self) -> int | None:
        return None if self.added is None or self.removed is None else self.added + self.removed


@dataclass(frozen=True)
class Commit:
    """A commit of the repository under test, against its first parent.

    ``number``: of its pull request, by default read from the subject; ``pins``: the pinned dependency before
    and after, if it changes one.
    """

    sha: str
    subject: str = ""
    date: str = ""
    body: str = ""
    files: tuple[ChangedFile, ...] = ()
    pins: tuple[str, str] | None = None
    number: int | None = None

    @property
    def pull(self) -> int | None:
        found = _NUMBER.search(self.subject)
        return self.number if self.number is not None else int(found[1]) if found else None

    @property
    def text(self) -> str:
        """The message without the pull request's number."""
        return f"{_NUMBER.sub('', self.subject)}\n{self.body}"


@dataclass(frozen=True)
class OnsetNight:
    """A night at which the series may have moved first, with its probability.

    ``commits``: those that this night may have run first. Windows overlap if a night's commit is uncertain; a
    commit then counts in parts.
    """

    night: str
    p: float
    commits: frozenset[str]


@dataclass(frozen=True)
class MeasuredCell:
    """A cell that was measured on both sides of the change.

    ``hit``: it moved as the change did. ``start``: the server start that served it: cells of one start are
    one vote. ``traits``: its family, and the knobs that choose what code runs (``async_chunk``);
    ``features``: what its model and device imply (``moe``, ``rocm``); ``model``: as it is served. ``shift``:
    log of after / before, above 0 worse. ``control``: little but the machine moves it. ``machine``: of a
    fleet, empty where there was none.
    """

    cell: str
    hit: bool
    start: str
    traits: frozenset[str] = frozenset()
    model: str = ""
    shift: float = 0.0
    control: bool = False
    features: frozenset[str] = frozenset()
    machine: str = ""


@dataclass(frozen=True)
class ServerVote:
    """A server start and its cells: one vote. It is hit if any of its cells is: load may decide which."""

    hit: bool
    cells: tuple[MeasuredCell, ...]

    @property
    def traits(self) -> frozenset[str]:
        return frozenset().union(*(cell.traits for cell in self.cells))

    @property
    def runs(self) -> frozenset[str]:
        """The traits of its cells, and what their models and devices imply."""
        return self.traits.union(*(cell.features for cell in self.cells))


def server_votes(cells: Iterable[MeasuredCell]) -> tuple[ServerVote, ...]:
    """The votes; of a start that was hit, the cells that were."""
    starts: dict[str, list[MeasuredCell]] = {}
    for cell in cells:
        starts.setdefault(cell.start, []).append(cell)
    votes = []
    for group in starts.values():
        hit = tuple(cell for cell in group if cell.hit)
        votes.append(ServerVote(bool(hit), hit or tuple(group)))
    return tuple(votes)


def distinguishing_traits(votes: Sequence[ServerVote]) -> frozenset[str]:
    """What every server that was hit runs and no other does; empty where all or none were hit."""
    hit, spared = [v.traits for v in votes if v.hit], [v.traits for v in votes if not v.hit]
    if not hit or not spared:
        return frozenset()
    return frozenset.intersection(*hit) - frozenset().union(*spared)


@dataclass(frozen=True)
class SuspectQuestion:
    """Which of ``commits`` (first parents, oldest first) caused an alert?

    ``later``: those that may belong to the recovery rather than to the onset. ``recovered``: the series
    returned to its former level. ``phase``: the one that was seen to move, if any.
    """

    commits: tuple[Commit, ...]
    places: tuple[OnsetNight, ...]
    cells: tuple[MeasuredCell, ...] = ()
    later: tuple[tuple[Commit, Phase], ...] = ()
    recovered: bool = False
    cause: CauseWord = "unknown"
    phase: RequestPhase | None = None

    def __post_init__(self) -> None:
        known = {commit.sha for commit in self.commits}
        if len(known) < len(self.commits):
            raise ValueError("a window names each commit once")
        if any(not 0 <= place.p <= 1 for place in self.places):
            raise ValueError("the probability of a place is between 0 and 1")
        if not any(place.p > 0 and place.commits & known for place in self.places):
            raise ValueError("no place of the change holds a commit of the window")


_JSON = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


@dataclass(frozen=True)
class Evidence:
    """One observation: ``values`` are the numbers and names behind it.

    The templates of series have a sentence for each ``kind``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Factor:
    """One piece of evidence for or against a commit: by how much it multiplies its odds."""

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    name: str
    weight: Annotated[float, Field(allow_inf_nan=False)]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suspect:
    """A commit of an alert's window. ``evidence``: what its probability is a product of."""

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    sha: str
    subject: str
    date: str
    p: Annotated[float, Field(ge=0, le=1)]
    evidence: tuple[Factor, ...]


@dataclass(frozen=True)
class BlastRadius:
    """The traits that all servers that were ``hit`` run, and none of the ``spared`` ones."""

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    traits: tuple[str, ...]
    hit: int
    spared: int


@dataclass(frozen=True)
class Ranking:
    """Suspects by descending probability, then newest first.

    ``p_outside_window``: the probability that none of them is the cause. ``blast_radius``: what only the
    affected cells have in common. ``attributed``: the revert by which the series recovered.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    suspects: tuple[Suspect, ...]
    p_outside_window: Annotated[float, Field(ge=0, le=1)]
    blast_radius: BlastRadius | None = None
    attributed: Factor | None = None
