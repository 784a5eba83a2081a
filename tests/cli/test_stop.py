"""``perfbisect stop`` without an ID."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timezone
from pathlib import Path

import pytest

from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Journal
from tests.command_line import type_json

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


def unfinished(home: Path, mark: str) -> Job:
    job = Jobs(home / "state").new(NOW, mark)
    with Journal(job.journal, clock=lambda: NOW) as journal:
        journal.append("note", {"text": "begun"})
    return job


def test_the_only_job_that_runs_is_stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[tuple[int, int]] = []
    unfinished(home, "old")
    running = unfinished(home, "new")
    assert "several unfinished jobs" in type_json("stop", code=2)["error"]
    with running.held():
        monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
        told = type_json("stop")
    assert (told["job"], told["asked"]) == (running.id, True)
    assert (os.getpid(), signal.SIGINT) in signals


def test_the_only_unfinished_job_needs_no_id(home: Path) -> None:
    assert "no unfinished job" in type_json("stop", code=2)["error"]
    job = unfinished(home, "one")
    told = type_json("stop")
    assert (told["job"], told["asked"], told["ended"]) == (job.id, False, True)
