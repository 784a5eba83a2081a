"""Ctrl-C while cells share a server, and a second one while that stops: none of its processes stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from tests.experiments.suite_world import cells, jobs_of

ROOT = Path(__file__).parents[2]

SECOND = {
    "before the server is told to stop": """
class Late(contextlib.closing):
    def __exit__(self, *error):
        interrupt()
        super().__exit__(*error)

def prepare():
    suite.closing = Late

def then():
    pass
""",
    "while it stops": """
def prepare():
    pass

def then():
    real = proc._signal
    def once(*member):
        real(*member)
        proc._signal = real
        interrupt()
    proc._signal = once
""",
}

SCRIPT = """
import contextlib, os, signal, sys
from pathlib import Path
from perfbisect.errors import Interrupted
from perfbisect.experiments import suite
from perfbisect.jobs.events import LaunchStarted
from perfbisect.system import processes as proc
from tests.experiments.suite_world import cells, go_on, jobs_of
from tests.jobs.test_kill9 import marked
from tests.jobs.world import Watch

def interrupt():
    print("Ctrl-C", flush=True)
    os.kill(os.getpid(), signal.SIGINT)

{second}

class Impatient(Watch):
    told = 0

    def tools(self, *arguments, **changed):
        return super().tools(*arguments, **{{"sink": self.sink, **changed}})

    def sink(self, notice):
        self.told += isinstance(notice, LaunchStarted)
        if isinstance(notice, LaunchStarted) and self.told == 2:
            then()
            interrupt()

folder = Path(sys.argv[1])
prepare()
try:
    go_on(folder, jobs_of(folder, cells()), watch=Impatient())
except (KeyboardInterrupt, Interrupted) as error:
    print("left:", *marked(folder))
    sys.exit(130)
"""


@pytest.mark.parametrize("second", SECOND)
def test_two_interruptions_leave_nothing(tmp_path: Path, second: str) -> None:
    """The first comes between two cells, while the server waits for the next one."""
    jobs = jobs_of(tmp_path, cells())
    script = SCRIPT.format(second=SECOND[second])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "Ctrl-C\nCtrl-C\nleft:\n", "")
    assert [[one.end for one in launches(read(job.journal).events)] for job in jobs] == [[None], [], []]
