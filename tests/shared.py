"""The real data that a checkout may have beside it; tests skip, with the reason, where it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


def data(*parts: str) -> Path:
    """A file or folder of the shared data. Skips the test where it is not there."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs the shared data, which is not beside this checkout: {path}")
    return path
