"""The break of 2026-04-12 in vLLM-Omni's nightlies: the cells it hit and the revert name the commit.

Every cell that streams chunks from stage to stage was two to seventy times slower for one night, and no other
was. A logging commit was behind it, as its authors found, who took it out the day after.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import yaml

from perfbisect.changes.git import Repository
from perfbisect.changes.history import commits_between
from perfbisect.model.commit_details import (
    BlastRadius,
    ChangedFile,
    Commit,
    MeasuredCell,
    OnsetNight,
    Ranking,
    SuspectQuestion,
)
from perfbisect.series.suspects.ranking import find_answer, parse_commit, rank_suspects
from perfbisect.series.suspects.table import SHIPPED, SuspectTable, load_suspect_table
from tests.history_repo import HistoryRepository, history_repository
from tests.shared import data

CULPRIT, REVERT = "5d58abb1", "2b70e895"
BEFORE, LAST, RECOVERED = "eccee21c", "2dce0285", "bc4a659f"
"""The last commit before 2026-04-11 14:00 UTC, and those that the nights of 04-12 and 04-14 may have run."""

NIGHT = "2026-04-12"
MODELS = {
    "test_qwen3_omni": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
    "test_qwen3_omni_chunk": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
    "test_qwen3_tts": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "test_qwen_image": "Qwen/Qwen-Image",
}
TABLE = load_suspect_table()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> HistoryRepository:
    return history_repository(tmp_path_factory.mktemp("history") / "repo", newest="2026-04-16")


def ran(test: str) -> MeasuredCell:
    hit = test in ("test_qwen3_omni_chunk", "test_qwen3_tts")
    return MeasuredCell(test, hit, test, TABLE.traits_of(test), MODELS[test])


def question(history: HistoryRepository, *, blank: bool = False, reverted: bool = True) -> SuspectQuestion:
    """``blank``: no subject or body says anything, but the revert's, which names a number."""
    repository = Repository.open(history.path)
    onset = commits_between(repository, history.sha(BEFORE), history.sha(LAST))
    later = commits_between(repository, history.sha(LAST), history.sha(RECOVERED))
    if blank:
        onset, later = (tuple(muted(c) for c in side) for side in (onset, later))
        answer = f"Reverts #{next(c.pull for c in onset if c.sha == history.sha(CULPRIT))}"
        later = tuple(replace(c, body=answer) if c.sha == history.sha(REVERT) else c for c in later)
    if not reverted:
        later = tuple(c for c in later if c.sha != history.sha(REVERT))
    return SuspectQuestion(
        commits=onset,
        places=(OnsetNight(NIGHT, 1.0, frozenset(c.sha for c in onset)),),
        cells=tuple(map(ran, MODELS)),
        later=tuple((c, "recovery") for c in later),
        recovered=True,
        cause="product",
    )


def muted(commit: Commit) -> Commit:
    return replace(commit, subject="", body="", number=commit.pull)


def order(ranking: Ranking) -> list[str]:
    return [suspect.sha for suspect in ranking.suspects]


def test_the_window_holds_it_and_few_others(history: HistoryRepository) -> None:
    commits = [commit.sha for commit in question(history).commits]
    assert history.sha(CULPRIT) in commits
    assert len(commits) == 10


def test_it_is_named_by_its_revert(history: HistoryRepository) -> None:
    found = rank_suspects(question(history), TABLE)
    assert order(found)[0] == history.sha(CULPRIT)
    assert found.suspects[0].p >= 0.95
    assert found.attributed is not None
    assert (found.attributed.values["by"], found.attributed.values["sign"]) == (history.sha(REVERT), "title")
    assert found.blast_radius == BlastRadius(("async_chunk",), 2, 2)


def test_not_by_its_words(history: HistoryRepository) -> None:
    found = rank_suspects(question(history, blank=True), TABLE)
    assert {s.subject for s in found.suspects} == {""}
    assert order(found)[0] == history.sha(CULPRIT)
    assert found.suspects[0].p >= 0.95
    assert found.attributed is not None and found.attributed.values["pull"] == 2551


def test_without_the_revert_the_cells_alone_put_it_first(history: HistoryRepository) -> None:
    found = rank_suspects(question(history, blank=True, reverted=False), TABLE)
    assert order(found)[0] == history.sha(CULPRIT)
    assert found.attributed is None
    assert found.suspects[0].p > 2 * found.suspects[1].p


def test_without_cells_to_tell_apart_the_revert_is_enough(history: HistoryRepository) -> None:
    asked = question(history, blank=True)
    assert order(rank_suspects(replace(asked, cells=()), TABLE))[0] == history.sha(CULPRIT)


def test_the_other_cells_name_other_commits(history: HistoryRepository) -> None:
    """Had only the pictures become slow, what touches the diffusion engine would be looked at first."""
    asked = question(history, blank=True, reverted=False)
    cells = tuple(replace(cell, hit="image" in cell.cell) for cell in asked.cells)
    found = rank_suspects(replace(asked, cells=cells), TABLE)
    first = next(commit for commit in asked.commits if commit.sha == found.suspects[0].sha)
    assert any(file.path.startswith("vllm_omni/diffusion/") for file in first.files)
    assert order(found).index(history.sha(CULPRIT)) > 1


def test_a_table_that_knows_nothing_of_chunks_puts_it_first_too(history: HistoryRepository) -> None:
    """The rows that say what chunks run were written when the case was known: it does not hang on them."""
    table = yaml.safe_load(SHIPPED.read_text())
    parts = [part for part in table["parts"] if "async_chunk" not in part.get("of", [])]
    assert len(parts) == len(table["parts"]) - 2
    ignorant = SuspectTable.model_validate(table | {"parts": parts})
    named, alone = (rank_suspects(question(history, blank=True, reverted=r), ignorant) for r in (True, False))
    assert order(named)[0] == order(alone)[0] == history.sha(CULPRIT)
    assert named.attributed is not None


@pytest.mark.processes
def test_the_weights_may_be_twice_or_half_of_what_they_are(history: HistoryRepository) -> None:
    """No figure of the table decides: with all of them off by up to a factor of two at once, at random."""
    draw = random.Random(12)
    asked = question(history, blank=True), question(history, blank=True, reverted=False)
    for _ in range(20):
        table = doubtful(draw)
        named, alone = (rank_suspects(one, table) for one in asked)
        assert order(named)[0] == order(alone)[0] == history.sha(CULPRIT)
        assert named.suspects[0].p >= 0.95


def doubtful(draw: random.Random) -> SuspectTable:
    """The table with every weight that is read here times 1/2 to 2, and every share's odds."""

    def off(value: float, share: bool) -> float:
        factor = 2 ** draw.uniform(-1, 1)
        odds = value / (1 - value) * factor if share else 0.0
        return odds / (1 + odds) if share else value * factor

    table = yaml.safe_load(SHIPPED.read_text())
    fixed = ("size", "spread", "titles", "votes", "attribute", "phases")
    weights = {k: v if k in fixed else off(v, k in ("hit", "leak")) for k, v in table["weights"].items()}
    kinds = [kind | {"weight": off(kind["weight"], False)} for kind in table["kinds"]]
    parts = [part | {"sure": off(part["sure"], True)} for part in table["parts"]]
    return SuspectTable.model_validate(table | {"weights": weights, "kinds": kinds, "parts": parts})


REVERTS = {
    "074af30a": "b7fcc9d0",
    "4027534d": "7a560492",
    "a52867ab": "3306fa66",
    "60a8c01a": "2ee4a07a",
    "18d2d082": "5466ed41",
    "2b70e895": "5d58abb1",
    "c2859e9c": "3079e943",
    "9de131e6": "335e2eb9",
    "7a8b428b": "1069a144",
    "7fc528f7": "ac662827",
    "704b6bb6": "01ebc0cd",
    "963ba1ab": "b63b36de",
    "c582805e": "d8edf0c9",
}
"""Every commit of the history whose title says that it reverts one of the history, and that one: as people
read them. By number, by title, by a title that was cut off."""


def test_every_revert_of_the_history_finds_what_it_reverts() -> None:
    rows = [json.loads(line) for line in data("vllm_omni", "history.jsonl").read_text().splitlines()]
    commits = [
        parse_commit(
            Commit(row["sha"], row["subject"], files=tuple(map(ChangedFile, row["files"]))), TABLE.is_code
        )
        for row in reversed(rows)
    ]
    found = {}
    for index, late in enumerate(commits):
        if late.commit.sha[:8] in REVERTS:
            named = [c for c in commits[:index] if (find_answer(late, c) or [""])[0] == "revert"]
            found[late.commit.sha[:8]] = [one.commit.sha[:8] for one in named]
    assert found == {late: [early] for late, early in REVERTS.items()}
