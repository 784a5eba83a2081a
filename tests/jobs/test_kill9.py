"""kill -9 and signals at random moments of real bisections: real processes, real HTTP."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from scripts.kill_storm import CELL, storm

__all__ = ["CELL", "marked"]

KILLS = 20
SEED = 20_261


def marked(state: Path) -> list[psutil.Process]:
    """Living processes of this state folder's attempts: by their working folder, whoever their parent is."""
    found = []
    for process in psutil.process_iter():
        try:
            folder = process.cwd()
            living = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if living and folder.startswith(str(state)):
            found.append(process)
    return found


@pytest.mark.processes
@pytest.mark.timeout(1800)  # each strike waits for servers that start again: minutes beside other tests
def test_a_storm_of_kills(tmp_path: Path) -> None:
    made = storm(tmp_path / "scene", KILLS, SEED)
    assert made.violations == []
    assert made.made >= KILLS and made.scene.daemons
