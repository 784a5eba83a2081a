"""Files and folders that the documents for developers name exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.commands import ROOT, Document, documents

PATH = re.compile(r"`([a-z]\w*/[\w/.-]*(?:/|\.py)|[a-z_]+\.py)`")
"""A span of code that is nothing but a path below the repository or the package, or a module's name."""
DEVELOPERS = ("CONTRIBUTING.md", "docs/architecture.md", "docs/extending.md", "docs/method/")
PAGES = [page for page in documents() if page.name.startswith(DEVELOPERS)]
OF_A_JOB = {"attempts/ATTEMPT/"}
MODULES = {path.name for path in (ROOT / "perfbisect").rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_documents_exist(page: Document) -> None:
    missing = [
        path
        for path in sorted(set(PATH.findall(page.text)) - OF_A_JOB - MODULES)
        if not any((base / path).exists() for base in (ROOT, ROOT / "perfbisect"))
    ]
    assert missing == []


def test_paths_are_recognised() -> None:
    found = PATH.findall("`bisect/decision/`, `jobs/replay.py` (`kinds.py`), `STATE/jobs/`, `a/b`")
    assert found == ["bisect/decision/", "jobs/replay.py", "kinds.py"]
