"""Shipped files, from a checkout and from an installation."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from perfbisect import resources
from perfbisect.errors import PerfbisectError


def test_a_checkout_has_them_beside_the_package() -> None:
    assert (resources.cells_folder() / "text_cpu_llama100m.yaml").is_file()


def test_an_installation_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "perfbisect" / "_cells").mkdir(parents=True)
    (tmp_path / "cells").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "perfbisect")
    assert resources.cells_folder() == tmp_path / "perfbisect" / "_cells"


@pytest.mark.parametrize("name", ["cells", "dashboards", ".claude/skills/perf-bisect"])
def test_what_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Literal["cells", "dashboards"]
) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "perfbisect")
    with pytest.raises(PerfbisectError, match="this installation has no"):
        resources.shipped_folder(name)
