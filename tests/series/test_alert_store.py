"""Alerts in the store: written once, marked by people, found by the beginning of a name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.errors import UsageError
from perfbisect.series.alerts import Alert, AlertPlace, AlertRecord
from perfbisect.series.store import SeriesStore

ALERT = Alert(
    id="20260412-3f1a", cell="omni@c4", metric="e2el", first="2026-04-12T01:20:00Z",
    last="2026-04-13T01:20:00Z", shape="step", cause="product", effect=0.2, interval=(0.1, 0.3),
    places=(AlertPlace(build="n#7", time="2026-04-12T01:20:00Z", p=0.95),), builds=("n#6", "n#7"),
    state="open", evidence=("it stayed",), event="20260412-product", p=1e-6, new=False, nights=2,
    now="still there",
)  # fmt: skip
RECORD = AlertRecord(ALERT, (20554, 20555), "2026-04-13T02:00:00Z")


def named(name: str) -> AlertRecord:
    return replace(RECORD, alert=replace(ALERT, id=name))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path) as opened:
        yield opened


def test_read_back_as_written(store: SeriesStore) -> None:
    store.alerts.keep([RECORD])
    assert store.alerts.all() == (RECORD,)


def test_an_alert_is_new_only_in_the_run_that_finds_it(store: SeriesStore) -> None:
    store.alerts.keep([replace(RECORD, alert=replace(ALERT, new=True))])
    assert store.alerts.all() == (RECORD,)


def test_found_again_its_state_stays(store: SeriesStore) -> None:
    store.alerts.keep([RECORD])
    store.alerts.mark(ALERT.id, "closed", "fixed by #7")
    later = AlertRecord(replace(ALERT, nights=3), (20553, 20555), "2026-04-14T02:00:00Z")
    store.alerts.keep([later])
    (kept,) = store.alerts.all()
    assert kept == replace(later, alert=replace(later.alert, state="closed", why="fixed by #7"))


def test_a_state_says_whether_a_rule_or_a_person_set_it(store: SeriesStore) -> None:
    store.alerts.keep([RECORD])
    store.alerts.mark(ALERT.id, "closed", "the series is back", by_rule=True)
    assert store.alerts.get(ALERT.id).by_rule
    store.alerts.mark(ALERT.id, "closed", "by rule: of mine")
    assert not store.alerts.get(ALERT.id).by_rule


def test_by_the_beginning_of_its_name(store: SeriesStore) -> None:
    store.alerts.keep([RECORD, named("20260412-3f1a9"), named("20260413-0000")])
    assert store.alerts.get("20260413").alert.id == "20260413-0000"
    assert store.alerts.get("20260412-3f1a") == RECORD, "a whole name is that alert"
    with pytest.raises(UsageError, match="2 alerts begin with"):
        store.alerts.get("20260412")
    for nothing in ("2027", ""):
        with pytest.raises(UsageError, match="no alert") as caught:
            store.alerts.get(nothing)
        assert caught.value.next_step == "perfbisect track detect"


def test_by_the_name_of_an_event(store: SeriesStore) -> None:
    store.alerts.keep([RECORD, named("20260413-0000")])
    assert [one.alert.id for one in store.alerts.of_name("20260412-product")] == [ALERT.id, "20260413-0000"]
    assert store.alerts.of_name(ALERT.id) == (RECORD,)
