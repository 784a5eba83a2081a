"""Decisions use one thread, and none of that reaches a server."""

from __future__ import annotations

import os
import subprocess
import sys

from perfbisect.cli import BLAS
from perfbisect.system import environ

_COUNT = """
import os, perfbisect.cli, perfbisect.cli.app as app
def run(arguments):
    import numpy as np
    a = np.random.default_rng(1).random((400, 400))
    np.linalg.inv(a) @ a
    return len(os.listdir("/proc/self/task"))
app.run = run
perfbisect.cli.main([])
"""


def test_the_decisions_process_has_one_thread_whatever_the_shell_asks_for() -> None:
    shell = {**os.environ, **{f"{library}_NUM_THREADS": "4" for library in BLAS}}
    assert subprocess.run([sys.executable, "-c", _COUNT], env=shell, check=False).returncode == 1


def test_the_threads_of_decisions_are_not_those_of_a_server() -> None:
    own = {f"{library}_NUM_THREADS": "1" for library in BLAS} | {"PATH": "/usr/bin"}
    assert not [name for name in environ.allowed(own) if name.endswith("_NUM_THREADS")]
