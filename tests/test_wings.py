"""The core works without wings: its tests pass in a copy that lacks their folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfbisect.commands.wings import WINGS

ROOT = Path(__file__).resolve().parent.parent
CORE = (
    "tests/bisect/test_bisect.py",
    "tests/bisect/test_replicate.py",
    "tests/experiments/test_check.py",
    "tests/experiments/test_run.py",
    "tests/commands/test_experiments.py",
    "tests/commands/test_status.py",
    "tests/cli/test_plans.py",
    "tests/series/test_detect.py",
)
"""Tests of the core that reach from a policy to the command line."""


@pytest.mark.processes
def test_the_core_passes_its_tests_without_any_wing(tmp_path: Path) -> None:
    """What one wing may use of another is a contract of imports."""
    for folder in ("perfbisect", "tests", "scripts", "cells", "pretend"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in WINGS:
        shutil.rmtree(tmp_path / "perfbisect" / name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not processes", *CORE]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:]


def test_a_missing_wing_is_told_where_it_is_asked_for() -> None:
    """A command of it is unknown, and the rest of the help is there."""
    code = (
        "import sys\n"
        "from perfbisect.commands import wings\n"
        "wings.WINGS = ()\n"
        "from perfbisect.cli.app import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )

    def ended(*words: str) -> tuple[int, str]:
        found = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        return found.returncode, found.stdout + found.stderr

    assert ended("explain", "x")[0] == 2
    status, text = ended("--help")
    assert status == 0
    assert "bisect" in text
    assert "\n  nightly " not in text
