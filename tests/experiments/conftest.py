"""New jobs of one state folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.jobs.folders import Job, Jobs
from tests.jobs.world import Clock


@pytest.fixture
def new_job(tmp_path: Path) -> Callable[[], Job]:
    clock, count = Clock(), iter(range(99))
    return lambda: Jobs(tmp_path).new(clock(), f"{next(count):04d}")


@pytest.fixture
def job(new_job: Callable[[], Job]) -> Job:
    return new_job()
