"""Job folders, and who works in them: real processes hold real locks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from perfbisect.errors import Interrupted, MachineError, UsageError
from perfbisect.jobs.folders import ExitRecord, Job, Jobs, LockHolder
from perfbisect.jobs.journal import Journal
from perfbisect.system.processes import process

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))

HOLD = """
import sys, time
from pathlib import Path
from perfbisect.jobs.folders import Job
with Job(Path(sys.argv[1])).held():
    try:
        print("held", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def made(jobs: Jobs, mark: str, kinds: tuple[str, ...] = ("plan",), later: int = 0) -> Job:
    job = jobs.new(MOMENT + timedelta(seconds=later), mark)
    with Journal(job.journal, clock=lambda: MOMENT) as journal:
        for kind in kinds:
            journal.append(kind, {})
    return job


@contextmanager
def holder(job: Job) -> Iterator[subprocess.Popen[str]]:
    """Another process that works on a job."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(job.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ids_sort_by_time_in_utc(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    second, first = made(jobs, "aaaa", later=1), made(jobs, "ffff")
    assert first.id == "20260102-020405-ffff"
    assert [job.id for job in jobs.all()] == [first.id, second.id]
    assert first.attempt(7) == first.path / "attempts" / "007"
    assert (first.path / "attempts").is_dir()


def test_a_job_is_found_by_its_id_or_by_how_it_begins(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    with pytest.raises(UsageError, match="there is none"):
        jobs.find("x")
    first, second = made(jobs, "aaaa"), made(jobs, "bbbb")
    assert jobs.find(first.id) == first
    assert jobs.find("20260102-020405-b") == second
    with pytest.raises(UsageError, match=f"names several jobs: {first.id}, {second.id}"):
        jobs.find("20260102")
    with pytest.raises(UsageError, match=f"no job 'zz'; there are: {first.id}, {second.id}"):
        jobs.find("zz")


def test_without_an_id_only_one_unfinished_job_will_do(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    assert jobs.all() == jobs.unfinished() == ()
    with pytest.raises(UsageError, match="no unfinished job"):
        jobs.chosen(None, "resume")
    made(jobs, "done", ("plan", "verdict"))
    one = made(jobs, "open", later=1)
    assert jobs.chosen(None, "resume") == one
    two = made(jobs, "more", ("plan", "verdict", "plan"), later=2)
    with pytest.raises(UsageError, match=f"several unfinished jobs: {one.id}, {two.id}") as caught:
        jobs.chosen(None, "status")
    assert caught.value.next_step == f"perfbisect status {two.id}"


def test_a_job_with_a_broken_journal_is_listed_as_unfinished(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    job = made(jobs, "aaaa", ("plan", "verdict"))
    job.journal.write_text("nonsense\n" + job.journal.read_text())
    assert jobs.unfinished() == (job,)


def test_a_second_process_is_told_who_holds_the_job(tmp_path: Path) -> None:
    job = made(Jobs(tmp_path), "aaaa")
    with holder(job) as other:
        assert job.holder is not None
        assert job.holder.pid == other.pid
        with (
            pytest.raises(MachineError, match=f"job {job.id} is in use by process {other.pid}") as caught,
            job.held(),
        ):
            pytest.fail("held twice")
        assert caught.value.exit_code == 5
        assert caught.value.next_step == f"wait for it, or: perfbisect stop {job.id}"
    with job.held():
        assert job.holder is not None
        assert job.holder.pid == os.getpid()
    assert job.holder is None


def test_a_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    job = made(Jobs(tmp_path), "aaaa")
    with holder(job) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (job.path / "holder.json").exists()
        assert job.holder is None, "its pid may be somebody else's by now"
        with job.held():
            pass


def test_a_pid_that_went_to_somebody_else_is_no_holder(tmp_path: Path) -> None:
    me = process(os.getpid())
    assert me is not None
    assert LockHolder(me.pid, me.created).alive
    assert not LockHolder(me.pid, me.created - 100).alive
    job = made(Jobs(tmp_path), "aaaa")
    (job.path / "holder.json").write_text(json.dumps({"pid": me.pid, "created": 1.0}))
    assert job.holder is None
    assert job.request_stop() is None, "and is sent no signal"
    (job.path / "holder.json").write_text("{")
    assert job.holder is None


def test_a_stop_interrupts_the_holder_and_is_forgotten_by_the_next(tmp_path: Path) -> None:
    job = made(Jobs(tmp_path), "aaaa")
    with holder(job) as other:
        asked = job.request_stop()
        assert asked is not None
        assert asked.pid == other.pid
        assert other.communicate(timeout=20)[0] == "interrupted\n"
    assert job.stop_requested
    with job.held():
        assert not job.stop_requested


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.read_exit() is None
    for record in (ExitRecord(5, "no memory", "MachineError", "/a/log", "perfbisect doctor"), ExitRecord(0)):
        job.write_exit(record)
        assert job.read_exit() == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"exit_code": "three"}', '{"exit_code": 0, "other": 1}'])
def test_what_somebody_else_wrote_is_no_ending(tmp_path: Path, text: str) -> None:
    (tmp_path / "ended.json").write_text(text)
    assert Job(tmp_path).read_exit() is None


def test_it_is_forgotten_once_somebody_works_on_the_job_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.write_exit(ExitRecord(130, "stopped", "Interrupted"))
    with job.held():
        assert job.read_exit() is None


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (MachineError("no disk", where="/x"), 5, "MachineError"),
        (Interrupted("stopped", next_step="perfbisect resume 1"), 130, "Interrupted"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (RuntimeError("a mistake"), 1, "PerfbisectError"),
    ],
)
def test_the_error_with_which_the_work_ends_is_kept(
    tmp_path: Path, error: BaseException, code: int, kind: str
) -> None:
    from perfbisect.commands.session import recording_error

    with pytest.raises(type(error)), recording_error(Job(tmp_path)):
        raise error
    kept = Job(tmp_path).read_exit()
    assert kept is not None
    assert (kept.exit_code, kept.kind) == (code, kind)
    assert kept.next_step
