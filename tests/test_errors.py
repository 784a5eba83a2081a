"""Errors tell what comes next, whoever raised them."""

from __future__ import annotations

import pytest

from perfbisect import errors
from perfbisect.errors import LocatedError, PerfbisectError


def kinds() -> list[type[PerfbisectError]]:
    found = [PerfbisectError]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


def made(kind: type[PerfbisectError], next_step: str | None, where: str | None) -> PerfbisectError:
    if kind is LocatedError:
        return LocatedError("x", file=where or "f", next_step=next_step)
    return kind("x", where=where, next_step=next_step)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_kind_has_a_usual_next_step_and_a_better_one_wins(kind: type[PerfbisectError]) -> None:
    for where in (None, "/a/place.log"):
        usual = made(kind, None, where)
        assert usual.next_step is None
        assert len(usual.next) > 5
        assert "None" not in usual.next
        assert made(kind, "perfbisect doctor --online", where).next == "perfbisect doctor --online"


def test_a_wrong_file_is_to_be_mended_where_it_is_wrong() -> None:
    error = LocatedError("unknown key", file="cell.yaml", line=3, field="modle")
    assert error.next == "fix cell.yaml:3, then run the command again"
