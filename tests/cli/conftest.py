"""Commands typed away from the state of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import isolate


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands are typed, with state and cache of its own."""
    isolate(tmp_path, monkeypatch)
    return tmp_path
