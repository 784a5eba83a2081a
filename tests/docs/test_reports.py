"""The reports of docs/reports.md, taken through their two commands."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from perfbisect.machine import devices
from tests.command_line import isolate, type_command
from tests.docs.commands import ROOT
from tests.machine import fake_smi

_BLOCKS = re.compile(r"^```(?:text|sh)\n(.*?)^```$", re.M | re.S)
_, _PAGE = (ROOT / "docs" / "reports.md").read_text().split("## Three reports")
REPORTS = dict(part.split("\n", 1) for part in _PAGE.split("\n### ")[1:])


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_becomes_the_plan_that_the_page_shows(
    report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the page's third block is one that the commands print."""
    isolate(tmp_path, monkeypatch)
    (tmp_path / "bin").mkdir()
    fake_smi.install(tmp_path / "bin", fake_smi.MACHINES / "eight")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices.gpus.cache_clear()
    text, commands, shown = _BLOCKS.findall(REPORTS[report])
    Path("report.md").write_text(text)
    printed = []
    for line in commands.splitlines():
        outcome = type_command(shlex.split(line)[1:])
        assert outcome.code == 0, outcome
        printed += [text.strip() for text in (outcome.out + outcome.err).splitlines()]
    devices.gpus.cache_clear()
    assert [line for line in shown.splitlines() if line not in printed] == []
