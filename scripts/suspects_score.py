"""Where known culprits stand among the commits of their windows, before anything is measured.

    python -m scripts.suspects_score --repo ../vllm --repo ../sglang --repo ../vllm-omni

Of each culprit of ``scripts/data/culprits.yaml`` two windows: about one night (40 commits or more around it)
and about one release (600 or more). A window begins and ends at the commit of a nightly whose hour is drawn;
both sides grow by quarters of a day, and it ends before the commit from which on it was fast again. Ranks use
what was known on the day: the commits with their messages and files, and the cell that the report describes.
``report`` is the result; the table was written with the half ``tune`` in view.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta, timezone
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from scipy.stats import beta

from perfbisect.changes.git import Repository
from perfbisect.changes.history import commits_between
from perfbisect.common.quantities import moment
from perfbisect.common.yaml_source import load, validate
from perfbisect.model.commit_details import MeasuredCell, OnsetNight, Ranking, SuspectQuestion
from perfbisect.series.suspects.ranking import rank_suspects
from perfbisect.series.suspects.table import SuspectTable, load_suspect_table
from perfbisect.series.suspects.window import MainLine

CORPUS = Path(__file__).with_name("data") / "culprits.yaml"
SIZES = {"night": (40, 40), "release": (600, 900)}
"""Least commits of a window, drawn from this range."""

STEP = timedelta(hours=6)
TOP = (1, 3, 10)
BINS = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
"""Stated probabilities of the calibration table."""


class Culprit(BaseModel):
    """A commit known to have made an engine slower; the fields are explained in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    commit: str = Field(pattern="^[0-9a-f]{40}$")
    repository: Literal["vllm", "sglang", "vllm-omni"]
    pr: int
    landed: str
    half: Literal["tune", "report"]
    thread: str = Field(pattern=r"^https://github\.com/[\w-]+/[\w-]+/(issues|pull)/\d+$")
    known: Literal["bisected", "measured", "fixed"]
    metric: str
    mended: str = Field(default="", pattern="^([0-9a-f]{40})?$")
    change_percent: float | None = None
    model: str = ""
    hardware: str = ""
    options: str = ""
    workload: str = ""

    def cell(self, table: SuspectTable) -> MeasuredCell:
        """The cell of the report, which was hit."""
        features = table.features_of(self.model, self.hardware, self.options)
        return MeasuredCell(self.thread, True, self.thread, model=self.model, features=features)


class Corpus(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    culprits: tuple[Culprit, ...] = Field(strict=False)


@dataclass(frozen=True)
class Window:
    """The first-parent commits after ``good`` up to ``bad``, in which a culprit stands."""

    good: str
    bad: str


@dataclass(frozen=True)
class Score:
    """Where the culprit stands, from 1, among ``size`` commits, and the probability stated for it.

    ``stated``: that of every commit, each with whether it is the culprit.
    """

    culprit: Culprit
    rank: int
    p: float
    size: int
    stated: tuple[tuple[float, bool], ...]


def draw_window(line: MainLine, culprit: str, mended: str, least: int, rng: random.Random) -> Window:
    """A window of at least ``least`` commits, fewer where the history has no more.

    :raises ValueError: the culprit is not on the line, or nothing is before it.
    """
    place, end = line.place(culprit), line.place(mended) if mended else None
    if not place:
        raise ValueError(f"{culprit} has no place on the main line")
    last = len(line.commits) - 1 if end is None else end - 1
    landed = moment(line.commits[place].date)
    after = landed.astimezone(timezone.utc).replace(hour=0, minute=0, second=0) + timedelta(
        minutes=rng.randrange(24 * 60)
    )
    after += timedelta(days=after < landed)
    before = after - timedelta(days=1)
    while True:
        low = max(0, min(line.last_before(before, surely=True), place - 1))
        high = min(last, max(line.last_before(after, surely=False), place))
        if high - low >= least or (low == 0 and high == last):
            return Window(line.commits[low].id, line.commits[high].id)
        if high < last and (low == 0 or rng.random() < 0.5):
            after += STEP
        else:
            before -= STEP


def ask(repository: Repository, window: Window, cell: MeasuredCell) -> SuspectQuestion:
    """The question that an alert of the culprit's day asks; what became of its commits later is not in it."""
    commits = commits_between(repository, window.good, window.bad)
    night = OnsetNight("night", 1.0, frozenset(commit.sha for commit in commits))
    return SuspectQuestion(commits, (night,), (cell,))


def score(culprit: Culprit, ranking: Ranking) -> Score:
    stated = tuple((suspect.p, suspect.sha == culprit.commit) for suspect in ranking.suspects)
    rank = [is_culprit for _, is_culprit in stated].index(True)
    return Score(culprit, rank + 1, stated[rank][0], len(stated), stated)


def interval(share: float, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of 95 % of a share among n."""
    k = share * n
    low = float(beta.ppf(0.025, k, n - k + 1)) if k > 0 else 0.0
    return low, float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0


def percent(share: float, n: int) -> str:
    low, high = interval(share, n)
    return f"{100 * share:3.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def summary(name: str, scores: Sequence[Score]) -> Iterator[str]:
    """Shares of the first places and the mean log score in bits, against equal odds, with the median rank.

    Several windows of one culprit are one witness of the interval.
    """
    n = len({item.culprit.commit for item in scores})
    if not n:
        return
    shares = "  ".join(
        f"first {top}: {percent(sum(item.rank <= top for item in scores) / len(scores), n)}" for top in TOP
    )
    bits = sum(math.log2(item.p * item.size) for item in scores) / len(scores)
    ranks, sizes = (sorted(values) for values in zip(*((s.rank, s.size) for s in scores), strict=True))
    middle = len(scores) // 2
    yield (
        f"{name:<24} {n:>2} culprits, {sizes[0]} to {sizes[-1]} commits  {shares}  "
        f"median {ranks[middle]} of {sizes[middle]}  {bits:+.2f} bits"
    )


def calibration(scores: Sequence[Score]) -> Iterator[str]:
    """Of the commits of which a probability was stated, how many are culprits."""
    stated = [pair for item in scores for pair in item.stated]
    yield f"{'stated':<16} {'commits':>8} {'mean':>8} {'culprits':>9}  share"
    for low, high in itertools.pairwise(BINS):
        group = [(p, hit) for p, hit in stated if low <= p < high or p == high == 1]
        if group:
            hits, mean = sum(hit for _, hit in group), sum(p for p, _ in group) / len(group)
            bounds = "{:.1%} to {:.1%}".format(*interval(hits / len(group), len(group)))
            yield (
                f"{low:.1%} to {high:.1%}".ljust(16)
                + f" {len(group):>8} {mean:>8.2%} {hits:>9}  {hits / len(group):.2%} ({bounds})"
            )


Find = Callable[[Culprit], tuple[Repository, MainLine] | None]


def find_in(repositories: Sequence[Repository]) -> Find:
    """Which repository has a culprit on its main line."""
    lines = [(repository, MainLine.of(repository)) for repository in repositories]
    return lambda culprit: next((pair for pair in lines if pair[1].place(culprit.commit) is not None), None)


def rank_all(
    corpus: Sequence[Culprit], find: Find, table: SuspectTable, size: str, *, placements: int, seed: int
) -> Iterator[tuple[Culprit, Ranking]]:
    """The rankings of the culprits that a repository has, ``placements`` windows of each."""
    for culprit in corpus:
        found = find(culprit)
        for number in range(placements if found else 0):
            assert found is not None
            rng = random.Random(f"{seed} {number} {size} {culprit.commit}")
            least = rng.randint(*SIZES[size])
            window = draw_window(found[1], culprit.commit, culprit.mended, least, rng)
            question = ask(found[0], window, culprit.cell(table))
            yield culprit, rank_suspects(question, table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repo", action="append", required=True, type=Path, help="a clone; more than once")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--placements", type=int, default=1, help="windows of each culprit and size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", action="store_true", help="also a line for each culprit")
    options = parser.parse_args(arguments)
    corpus, table = validate(load(options.corpus), Corpus).culprits, load_suspect_table()
    find = find_in([Repository.open(path) for path in options.repo])
    drawn = {"placements": options.placements, "seed": options.seed}
    for size in SIZES:
        scores = [score(*each) for each in rank_all(corpus, find, table, size, **drawn)]
        for item in scores if options.each else ():
            culprit = item.culprit
            print(
                f"{size:<8} {culprit.half:<7} {item.rank:>4} of {item.size:<4} {item.p:7.2%}  "
                f"{culprit.repository}#{culprit.pr}"
            )
        for half in ("tune", "report"):
            for line in summary(f"{size}, {half}", [s for s in scores if s.culprit.half == half]):
                print(line)
        for repository in ("vllm", "sglang", "vllm-omni"):
            part = [s for s in scores if (s.culprit.half, s.culprit.repository) == ("report", repository)]
            for line in summary(f"  report, {repository}", part):
                print(line)
        for half in ("tune", "report"):
            print(f"{size}, {half}: probabilities as stated")
            for line in calibration([s for s in scores if s.culprit.half == half]):
                print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
