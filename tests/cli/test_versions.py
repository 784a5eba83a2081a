"""``perfbisect --version``: its own, and those of all that others read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import perfbisect
from perfbisect.cli.app import run

SCHEMAS = Path(perfbisect.__file__).parent / "cli" / "schemas"


def test_it_names_what_has_another_version_than_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"perfbisect, version {perfbisect.__version__}"
    told = dict(row.split(maxsplit=1) for row in rest)
    assert told["journal"].isdigit() and told["store"].isdigit()
    usual, *others = told["documents"].split(", ")
    found = [
        re.search(r'"\$id": "(perfbisect\.\S+/\d+)"', file.read_text()) for file in SCHEMAS.glob("*.json")
    ]
    written = {one[1] for one in found if one is not None}
    assert len(written) > 20
    assert {name for name in written if not name.endswith(f"/{usual}")} == set(others)
