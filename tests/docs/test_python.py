"""The examples of docs/python.md, run with their results."""

from __future__ import annotations

import doctest
import re
import shutil
from pathlib import Path

import pytest

from tests.command_line import isolate, type_command
from tests.docs.commands import ROOT
from tests.golden.worlds import FROZEN, JOURNAL
from tests.nightlies import make_nightlies

JOBS = {"20260102-030405-ab12": "bisect-found", "20260103-030405-cd34": "compare-regression"}
"""The jobs of the page -> frozen ones."""


def test_the_examples_have_their_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)
    for name, world in JOBS.items():
        folder = tmp_path / "state" / "jobs" / name
        folder.mkdir(parents=True)
        shutil.copyfile(FROZEN / world / JOURNAL, folder / JOURNAL)
    nights = make_nightlies(tmp_path / "nights").all
    assert type_command(["track", "ingest", str(nights), "--zone", "UTC"]).code == 0
    page = (ROOT / "docs" / "python.md").read_text()
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", page, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, "docs/python.md", None, 0)
    output: list[str] = []
    ran = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=output.append)
    assert ran.attempted > 15
    assert ran.failed == 0, "".join(output)
