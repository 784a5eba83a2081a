"""The comparison behind the interface that a scorer drives."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from scripts.comparison import (
    SKIPS,
    WORLDS,
    Comparison,
    guards_of_bisection,
    main,
    session,
    several_metrics,
)


def test_a_session_ends_with_a_verdict() -> None:
    word, held, launches = session(WORLDS["40 % slower, noise 0.7 %"], 1)
    assert (word, held) == ("regression", True)
    assert launches % 4 == 0


def test_a_launch_without_a_value_is_asked_for_again() -> None:
    comparison = Comparison({"build": 4.0}, 0.03, 5)
    first = comparison.next()
    assert first is not None
    comparison.update(first, "skip")
    assert comparison.next() == first


def test_a_side_that_never_gives_a_value_ends_it() -> None:
    comparison = Comparison(seed=5)
    for _ in range(SKIPS):
        side = comparison.next()
        assert side is not None
        comparison.update(side, "skip")
    assert comparison.next() is None
    assert comparison.result()[0] == "inconclusive"


@pytest.mark.processes
def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--worlds", "40 %", "--within", "2"]) == 0
    rows = capsys.readouterr().out.splitlines()[-2:]
    for row, world in zip(rows, ("", "noise known: "), strict=True):
        assert row.startswith(f"| {world}40 % slower, noise 0.7 % | 100.0 | 0.0 | 0.0 | 0.0 |")
        assert row.endswith(" | 100.0 |")
    with pytest.raises(SystemExit, match="no such world"):
        main(["--worlds", "nowhere"])


def test_guards_whose_ranges_are_apart_have_seldom_moved() -> None:
    rows = [guards_of_bisection(2, 0.2, 0.0, seed) for seed in range(100)]
    by_ranks, by_rule = (sum(column) for column in zip(*rows, strict=True))
    assert by_ranks > 50
    assert by_rule <= binom.ppf(0.999, 100, 0.01)


def test_several_metrics_of_equal_sides() -> None:
    alone, together, same, launches = several_metrics(2, 0.8, 1)
    assert alone >= together
    assert not (together and same)
    assert launches % 4 == 0


def test_an_interval_that_a_step_of_the_smallest_effect_passes_more_often_ends_sooner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--ideal"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    wrong, launches = ([float(row[k].strip(" |")) for row in rows] for k in (1, 2))
    assert wrong[1:] == [2.5, 5.0]
    assert launches == sorted(launches, reverse=True)
