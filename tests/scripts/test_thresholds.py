"""The table of thresholds: which constants it has, how they are moved, and that a moved one decides."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from scripts import thresholds
from scripts.thresholds import DOMAINS, MovedFinder, Threshold, files

TEXT = '''\
import math

FIRST = 0.2
"""What it is."""
SECOND: int = 3  # in a comment
THIRD = math.log(20.0)
_UNSAID = -1.5
NAMES = ("a",)
IS_ON = True
lower = 4
'''


def test_numbers_in_capitals_are_found_with_what_is_said_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(TEXT)
    found = list(thresholds.thresholds(tmp_path / "a.py"))
    assert [(one.module, one.name, one.means) for one in found] == [
        ("a", "FIRST", "What it is."),
        ("a", "SECOND", "in a comment"),
        ("a", "THIRD", ""),
        ("a", "_UNSAID", ""),
    ]
    assert [one.value for one in found] == pytest.approx([0.2, 3, 2.9957, -1.5], abs=1e-4)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(10, 8, 12), (2, 1, 3), (10.0, 8.0, 12.0), (0.1, 0.08, 0.12), (0.95, 0.94, 0.96), (0.5, 0.4, 0.6)],
)
def test_a_fifth_down_and_up(value: float, low: float, high: float) -> None:
    one = Threshold("module", "NAME", value, "")
    assert [one.moved(-1), one.moved(1)] == pytest.approx([low, high])


def test_a_moved_constant_is_moved_wherever_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "moved_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "low.py").write_text("LIMIT = 0.2\nTWICE = 2 * LIMIT\n")
    (package / "high.py").write_text(
        "from moved_package.low import LIMIT, TWICE\ndef ask(x=LIMIT): return x, TWICE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [MovedFinder("moved_package.low", "LIMIT", 0.3), *sys.meta_path])
    assert importlib.import_module("moved_package.high").ask() == (0.3, 0.6)
    for name in [name for name in sys.modules if name.startswith("moved_package")]:
        monkeypatch.delitem(sys.modules, name)


def test_every_domain_has_files_with_constants() -> None:
    for domain in DOMAINS:
        assert any(list(thresholds.thresholds(path)) for path in files(domain)), domain.title
