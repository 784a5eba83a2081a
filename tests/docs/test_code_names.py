"""Names of code in the documents for developers exist where the documents say."""

from __future__ import annotations

import ast
import re

import pytest

from perfbisect.clients.base import Client
from perfbisect.environments.builders.cached import Recipe
from perfbisect.serving.families import Family
from tests.docs.commands import ROOT, Document, documents
from tests.docs.test_paths import DEVELOPERS

PAGES = [page for page in documents() if page.name.startswith(DEVELOPERS)]
IN_FILE = re.compile(r"((?:`\w+`(?:, | and )?)+) in `([\w/]+\.py)`")
"""``A`` and ``B`` in ``package/module.py``."""
NAME = re.compile(r"`(\w+)(?:\([\w, ]*\))?`")
EXTENDED: dict[str, type] = {"A family": Family, "A client": Client, "An environment builder": Recipe}


def defined(path: str) -> set[str]:
    """The names that a module of the package defines or imports at its top."""
    source = next(base / path for base in (ROOT / "perfbisect", ROOT) if (base / path).is_file())
    names: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_name_is_in_the_file_that_a_document_names(page: Document) -> None:
    wrong = [
        f"{name} in {path}"
        for names, path in IN_FILE.findall(page.text)
        for name in NAME.findall(names)
        if name not in defined(path)
    ]
    assert wrong == []


@pytest.mark.parametrize("title", EXTENDED)
def test_the_members_of_an_extension_point_exist(title: str) -> None:
    (page,) = (page for page in PAGES if page.name == "docs/extending.md")
    section = page.text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    table = section.partition("| member | meaning |")[2].partition("\n\n")[0]
    members = {name for row in table.splitlines()[2:] for name in NAME.findall(row.split("|")[1])}
    base = EXTENDED[title]
    known = {name for each in base.__mro__ for name in (*vars(each), *vars(each).get("__annotations__", ()))}
    assert members
    assert members - {"bench", "serve"} - known == set()


def test_what_is_wrong_is_found() -> None:
    assert IN_FILE.findall("| `RunPlan` and `gone` in `experiments/run.py` |") == [
        ("`RunPlan` and `gone`", "experiments/run.py")
    ]
    assert "RunPlan" in defined("experiments/run.py")
    assert "gone" not in defined("experiments/run.py")
