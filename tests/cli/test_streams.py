"""Standard streams that are closed or full, and a disk without room: an error for the user, nothing lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfbisect.commands.output import print_progress
from perfbisect.commands.session import recording_error
from perfbisect.errors import MachineError
from tests.fixtures.jobs import Start
from tests.jobs import world

MAIN = "from perfbisect.cli import main; main()"


def typed(state: Path, words: str, redirected: str) -> subprocess.CompletedProcess[str]:
    """Type a command with its streams redirected by a shell; a state folder that is empty is enough."""
    script = f'exec "$@" {redirected}'
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-c", MAIN, *words.split()],
        capture_output=True,
        text=True,
        env=os.environ | {"PERFBISECT_STATE": str(state), "TMPDIR": str(state)},
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "redirected", "code", "err"),
    [
        ("status", ">/dev/full", 5, "error: standard output cannot be written: No space left on device"),
        ("status --json", ">/dev/full", 5, "error: standard output cannot be written"),
        ("status nope --json", ">/dev/full", 2, "error: no job 'nope'"),
        ("status nope", "2>/dev/full", 2, ""),
        ("status nope", "2>&-", 2, ""),
        ("status", "<&- >&- 2>&-", 0, ""),
    ],
)
def test_streams_that_cannot_be_written(
    words: str, redirected: str, code: int, err: str, tmp_path: Path
) -> None:
    done = typed(tmp_path, words, redirected)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(err) if err else done.stderr == ""
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("*.log")) == [], "no traceback was saved"


def test_a_closed_stream_is_the_number_of_no_other_file(tmp_path: Path) -> None:
    code = (
        "import os; from perfbisect.cli import _open_streams; _open_streams();"
        f"file = os.open({str(tmp_path / 'journal')!r}, os.O_CREAT | os.O_WRONLY); os.write(1, b'%d' % file)"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", code], capture_output=True, check=True
    )
    assert int(done.stdout) > 2


def test_progress_that_cannot_be_printed_ends_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", full)
        print_progress("launch 3 ended")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_no_inode_for_a_launch_ends_the_job_with_its_measurements_kept(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, real = start(world.World(world.history(12).changes, slow=7)), Path.mkdir

    def mkdir(self: Path, *arguments: object, **named: object) -> None:
        if self.name == "003":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        real(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(MachineError, match="no folder for launch 3: No space left on device") as caught:
        begun.run()
    assert caught.value.exit_code == 5
    assert str(caught.value.next_step).endswith(f"perfbisect resume {begun.job.id}")
    assert [launch.outcome for launch in begun.records] == ["measured"] * 2
    monkeypatch.undo()
    assert world.named(begun.run()) == begun.world.changes[7].id


def test_a_disk_that_is_full_anywhere_in_a_job_is_no_fault_of_ours(start: Start) -> None:
    job = start(world.World(world.history(8).changes, slow=5)).job
    with (
        pytest.raises(MachineError, match="the machine failed: No space left on device"),
        recording_error(job),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/file")
    ending = job.read_exit()
    assert ending is not None
    assert (ending.exit_code, ending.where) == (5, "/a/file")
