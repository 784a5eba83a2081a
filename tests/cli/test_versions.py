"""``perfbisect --version``: its own, and those of all that others read."""

from __future__ import annotations

import json

import pytest

import perfbisect
from perfbisect.cli.app import run
from scripts.schema_digests import TARGET


def test_it_names_what_has_another_version_than_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"perfbisect, version {perfbisect.__version__}"
    told = dict(row.split(maxsplit=1) for row in rest)
    assert told["journal"].isdigit() and told["store"].isdigit()
    usual, *others = told["documents"].split(", ")
    written = set(json.loads(TARGET.read_text()))
    assert len(written) > 20
    assert {name for name in written if not name.endswith(f"/{usual}")} == set(others)
