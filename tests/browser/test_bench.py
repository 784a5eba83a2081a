"""The script that prints what a site costs: it runs, and prints each figure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent.parent


def test_it_prints_every_figure() -> None:
    sizes = ("--cells", "4", "--nights", "40", "--repeat", "1")
    command = (sys.executable, "-m", "scripts.bench_site", *sizes)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = dict(row.split("  ", 1) for row in done.stdout.splitlines())
    assert rows["site"].strip().startswith("12 series of 40 points")
    assert rows["first page"].strip().endswith("kB of 1000 kB allowed")
    for name in ("overview drawn", "all series drawn", "first cell drawn", "another cell"):
        assert float(rows[name].split()[0]) > 0
