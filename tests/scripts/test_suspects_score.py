"""The corpus of known culprits, and the scorer on a small history."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from perfbisect.common.quantities import moment, stamp
from perfbisect.common.yaml_source import load, validate
from perfbisect.model.change import Change
from perfbisect.series.suspects.window import MainLine
from scripts.suspects_score import (
    CORPUS,
    FACTORS,
    Corpus,
    Evidence,
    calibration,
    draw_window,
    fit_powers,
    fit_report,
    interval,
    main,
    score,
    summary,
)
from tests.fakes.gitwriter import HistoryWriter
from tests.series.suspect_worlds import commit, ranked, sha

CULPRITS = validate(load(CORPUS), Corpus).culprits


def test_the_corpus_has_twenty_culprits_a_half_and_each_half_is_by_the_rule() -> None:
    assert [culprit.half for culprit in CULPRITS] == [culprit.half_by_rule for culprit in CULPRITS]
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


def evidence(number: int, *kinds: float, half: str = "tune") -> Evidence:
    """A window whose first commit is the culprit; its commits differ in the factor ``kind`` alone."""
    logs = np.zeros((len(kinds), len(FACTORS)))
    logs[:, FACTORS.index("kind")] = np.log(kinds)
    return Evidence(
        CULPRITS[0].model_copy(update={"commit": sha("a")[:38] + f"{number:02}", "half": half}), 0, logs
    )


def test_a_fit_of_one_factor() -> None:
    """Where the factor says 4 : 1 and half of 80 culprits are the likelier of two, its power is near 0; where
    all are, above 1; where it is not free, 0. The other factors say nothing and stay as they are."""
    free = np.ones(len(FACTORS))
    kind = FACTORS.index("kind")
    even = [evidence(number, *((4, 1) if number % 2 else (1, 4))) for number in range(80)]
    powers = fit_powers(even, free)
    assert abs(powers[kind]) < 0.15
    assert np.delete(powers, kind) == pytest.approx(1)
    assert fit_powers([evidence(number, 4, 1) for number in range(80)], free)[kind] > 1.2
    free[kind] = 0
    assert fit_powers(even, free)[kind] == 0


def test_windows_of_one_culprit_are_one_observation() -> None:
    free = np.ones(len(FACTORS))
    one, many = [evidence(1, 4, 1)], [evidence(1, 4, 1)] * 9
    assert fit_powers(one, free) == pytest.approx(fit_powers(many, free), abs=1e-4)


@pytest.mark.parametrize(
    ("kinds", "rank"), [((4, 1), 1), ((1, 4), 2), ((2, 2), 2), ((2, 2, 2, 2, 2), 3), ((2, 4, 2, 2, 1), 3)]
)
def test_commits_that_are_alike_share_their_places(kinds: tuple[float, ...], rank: int) -> None:
    assert evidence(1, *kinds).score(np.ones(len(FACTORS))).rank == rank


def test_a_culprit_is_scored_by_a_fit_without_it() -> None:
    """A single one by the table, since nothing is left to fit; the half ``report`` is in no fit."""
    lines = list(fit_report([evidence(1, 4, 1), evidence(2, 4, 1, half="report")]))
    assert [line[:24].strip() for line in lines[1:]] == [
        *("tune, table", "tune, cross-validated", *(f"tune, without {name}" for name in FACTORS)),
        *("report, table", "report, fitted"),
    ]
    table, validated, *_, fitted = (line.rpartition("  ")[2] for line in lines[1:])
    assert table == validated == "+0.68 bits" and fitted > table
    assert lines[0].startswith("powers: kind 1.0")


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
    assert main([*arguments, "--fit"]) == 0
    assert "report, fitted            1 culprits" in capsys.readouterr().out
