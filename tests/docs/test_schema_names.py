"""Documents name schemas with the number that the tool prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"perfbisect\.[a-z-]+/\d+")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".claude").rglob("*.md")),
]


def known() -> set[str]:
    """The names that stand as values in the package."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "perfbisect").rglob("*.py"))
    return {found[1:-1] for text in sources for found in re.findall(rf'"{NAME.pattern}"', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_schemas_have_their_number(page: Path) -> None:
    assert set(NAME.findall(page.read_text(encoding="utf-8"))) <= known()
