"""Alerts in the store: told once, marked by people, found by the beginning of a name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.store.alerts import Told
from perfbisect.store.series import SeriesStore

ONE = Told("20260412-3f1a", "omni@c4", "e2el", 1, 20554, 20555, "open", "", False, "t1", "t1", "{}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path) as opened:
        yield opened


def test_kept_as_told(store: SeriesStore) -> None:
    store.alerts.keep([ONE], "t1")
    assert store.alerts.all() == (ONE,)


def test_found_again_its_state_and_first_telling_stay(store: SeriesStore) -> None:
    store.alerts.keep([ONE], "t1")
    store.alerts.mark(ONE.id, "closed", "fixed by #7")
    store.alerts.keep([replace(ONE, begun_after=20553, told="t2", document='{"a":1}')], "t2")
    (kept,) = store.alerts.all()
    assert kept == replace(
        ONE, state="closed", why="fixed by #7", begun_after=20553, seen="t2", document='{"a":1}'
    )


def test_who_set_the_state_is_kept(store: SeriesStore) -> None:
    store.alerts.keep([ONE], "t1")
    store.alerts.mark(ONE.id, "closed", "back", by_rule=True)
    assert store.alerts.get(ONE.id).by_rule is True
    store.alerts.mark(ONE.id, "closed", "by rule: of ours")
    assert store.alerts.get(ONE.id).by_rule is False, "the sentence says nothing of it"


def test_by_the_beginning_of_its_name(store: SeriesStore) -> None:
    store.alerts.keep([ONE, replace(ONE, id="20260412-3f1a9"), replace(ONE, id="20260413-0000")], "t1")
    assert store.alerts.get("20260413").id == "20260413-0000"
    assert store.alerts.get("20260412-3f1a") == ONE, "a whole name is that alert"
    with pytest.raises(UsageError, match="2 alerts begin with"):
        store.alerts.get("20260412")
    for nothing in ("2027", ""):
        with pytest.raises(UsageError, match="no alert") as caught:
            store.alerts.get(nothing)
        assert caught.value.next_step == "perfbisect track detect"
