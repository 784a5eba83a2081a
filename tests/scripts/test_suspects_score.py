"""The corpus of known culprits, and the scorer on a small history."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from perfbisect.common.quantities import moment, stamp
from perfbisect.common.yaml_source import load, validate
from perfbisect.model.change import Change
from perfbisect.series.suspects.window import MainLine
from scripts.suspects_score import (
    CORPUS,
    Corpus,
    calibration,
    draw_window,
    interval,
    main,
    score,
    summary,
)
from tests.fakes.gitwriter import HistoryWriter
from tests.series.suspect_worlds import commit, ranked, sha

CULPRITS = validate(load(CORPUS), Corpus).culprits


def test_the_corpus_has_twenty_culprits_a_half_and_each_half_is_by_the_rule() -> None:
    assert all((culprit.half == "report") == int(culprit.commit[-1], 16) % 2 for culprit in CULPRITS)
    assert min(Counter(culprit.half for culprit in CULPRITS).values()) >= 20
    assert {culprit.repository for culprit in CULPRITS} == {"vllm", "sglang", "vllm-omni"}
    assert len({culprit.commit for culprit in CULPRITS}) == len(CULPRITS)
    assert all(moment(culprit.landed) and culprit.mended != culprit.commit for culprit in CULPRITS)


def line(count: int, per_day: int) -> MainLine:
    first = moment("2026-01-01T00:00:00Z")
    dates = (stamp(first + timedelta(days=i / per_day)) for i in range(count))
    return MainLine(tuple(Change(f"{i:040x}", date=date) for i, date in enumerate(dates)))


@pytest.mark.parametrize(("least", "mended"), [(40, 505), (600, 505), (600, None), (2000, None)])
@pytest.mark.parametrize("seed", range(8))
def test_a_window_holds_its_culprit_and_ends_before_it_was_mended(
    least: int, mended: int | None, seed: int
) -> None:
    commits = line(1000, 48).commits
    end = "" if mended is None else commits[mended].id
    found = draw_window(MainLine(commits), commits[500].id, end, least, random.Random(seed))
    low, high = (next(i for i, c in enumerate(commits) if c.id == sha) for sha in (found.good, found.bad))
    assert low < 500 <= high < (mended or 1000)
    assert high - low >= min(least, (mended or 1000) - 1)
    assert high - low < least + 48 + 12, "a night, or steps of a quarter of a day"


def test_a_culprit_elsewhere_has_no_window() -> None:
    with pytest.raises(ValueError, match="no place"):
        draw_window(line(9, 3), "f" * 40, "", 2, random.Random(0))


@pytest.mark.parametrize(
    ("share", "n", "expected"),
    [(0.0, 10, (0.0, 0.3085)), (1.0, 10, (0.6915, 1.0)), (0.5, 10, (0.1871, 0.8129))],
)
def test_intervals(share: float, n: int, expected: tuple[float, float]) -> None:
    assert interval(share, n) == pytest.approx(expected, abs=1e-4)


def test_what_is_told_of_two_windows() -> None:
    """Equal odds of two commits and one half for what is outside: 0.4 each."""
    culprit = CULPRITS[0].model_copy(update={"commit": sha("a")})
    scores = [score(culprit, ranked(commit("a"), commit("b"))) for _ in range(2)]
    assert [(item.rank, item.size) for item in scores] == [(2, 2), (2, 2)]
    (text,) = summary("night", scores)
    assert "1 culprits, 2 to 2 commits" in text and "first 1:   0 % (0 to 98)" in text
    assert "first 3: 100 % (2 to 100)" in text and "-0.32 bits" in text
    (_, row) = calibration(scores)
    assert row.split()[:6] == ["40.0%", "to", "100.0%", "4", "40.00%", "2"]
    assert list(summary("nothing", [])) == []


def test_the_scorer_on_a_history_of_documents_and_one_change_of_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    for number in range(80):
        path = "vllm/v1/core/sched/scheduler.py" if number == 30 else f"docs/{number}.md"
        writer.commit(f"Commit {number} (#{number})", {path: b"1\n"})
    ids = writer.finish(checkout=False)
    corpus = tmp_path / "culprits.yaml"
    culprit = CULPRITS[0].model_copy(update={"commit": ids[30], "mended": ids[70], "half": "report"})
    rows = "\n".join(f"    {key}: {value!r}" for key, value in culprit.model_dump().items())
    corpus.write_text(f"culprits:\n  -\n{rows}\n".replace("None", "null"))
    arguments = ["--repo", str(tmp_path / "repo"), "--corpus", str(corpus), "--each", "--seed", "7"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == out, "the seed places the windows"
    nights = [text.split() for text in out.splitlines() if text.startswith("night ") and "#42988" in text]
    assert [(words[1], words[2]) for words in nights] == [("report", "1")]
    assert "night, report" in out and "release, report" in out
