"""The store that tests of series fill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.series.store import SeriesStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SeriesStore]:
    with SeriesStore.of(tmp_path / "state") as opened:
        yield opened
