"""What git's own bisection says of its ends and of the commit it asks about."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.changes.history import bisect_ends, under_test
from perfbisect.errors import RevisionError
from tests.cli.test_git_bisect import git
from tests.fakes.history import PretendHistory, make_history


@pytest.fixture
def history(tmp_path: Path) -> PretendHistory:
    return make_history(tmp_path / "repo", commits=8, slow=4)


def test_the_ends_are_those_it_began_with(history: PretendHistory) -> None:
    git(history, "bisect", "start", history.bad, history.good)
    repository = Repository.open(history.path)
    asked = under_test(repository).id
    assert asked in history.commits[1:-1]
    git(history, "bisect", "good")
    ends = bisect_ends(repository)
    assert (ends.good.id, ends.bad.id) == (history.good, history.bad)
    assert under_test(repository).id != asked


def test_words_of_ones_own_for_good_and_bad(history: PretendHistory) -> None:
    git(history, "bisect", "start", "--term-old", "fast", "--term-new", "slow")
    git(history, "bisect", "slow", history.bad)
    repository = Repository.open(history.path)
    with pytest.raises(RevisionError, match="has no fast end yet"):
        bisect_ends(repository)
    git(history, "bisect", "fast", history.good)
    ends = bisect_ends(repository)
    assert (ends.good.id, ends.bad.id) == (history.good, history.bad)


def test_without_a_checkout_it_is_not_the_head(history: PretendHistory) -> None:
    repository = Repository.open(history.path)
    head = repository.head().id
    git(history, "bisect", "start", "--no-checkout", history.bad, history.good)
    assert repository.head().id == head
    assert under_test(repository).id in history.commits[1:-1]


def test_no_bisection_under_way(history: PretendHistory) -> None:
    with pytest.raises(RevisionError, match="no git bisect is under way"):
        bisect_ends(Repository.open(history.path))
