"""The folders of nights, and the lock that one process holds."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from perfbisect.errors import MachineError
from perfbisect.nightly.journal import Nights

NOW = datetime(2026, 1, 5, 2, 0, tzinfo=timezone.utc)


def test_nights_are_in_order_of_time_and_know_their_commit(tmp_path: Path) -> None:
    nights = Nights(tmp_path, "n")
    assert nights.all() == ()
    later = nights.new(NOW.replace(day=6), "ab" * 20)
    first = nights.new(NOW, "cd" * 20)
    assert nights.all() == (), "a night begins with its journal"
    for one in (later, first):
        one.journal.touch()
    assert nights.all() == (first, later)
    assert first.id == "20260105-020000-cdcdcdcdcd"
    assert first.measures("cd" * 20)
    assert not first.measures("ab" * 20)
    assert first.events() == ()
    assert nights.new(NOW, "cd" * 20).id == "20260105-020001-cdcdcdcdcd", "no night has the folder of another"


def test_a_holder_that_did_not_write_itself_down(tmp_path: Path) -> None:
    with Nights(tmp_path, "n").held(NOW):
        record = tmp_path / "nightly/n/holder.json"
        record.write_text('{"pid": 1, "created": 1.0, "since": "2026-01-05T02:00:00+00:00"}')
        with pytest.raises(MachineError, match="an unrecorded process"):
            Nights(tmp_path, "n").held(NOW).__enter__()
        with Nights(tmp_path, "another").held(NOW):
            record.unlink()
        with pytest.raises(MachineError, match="an unrecorded process"):
            Nights(tmp_path, "n").held(NOW).__enter__()
