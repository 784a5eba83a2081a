"""How a job's process ended, for whoever asks later."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.errors import Interrupted, MachineError
from perfbisect.jobs.folders import ExitRecord, Job


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
