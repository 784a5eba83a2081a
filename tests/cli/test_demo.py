"""``perfbisect demo``, as it is typed."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from tests.command_line import isolate, type_command, type_json


@pytest.mark.processes
def test_the_demo_names_the_slow_commit_and_opens_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(tmp_path, monkeypatch)
    monkeypatch.delenv("PERFBISECT_STATE")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)))
    ended = type_command(["demo", "--open"])
    assert ended.code == 0, ended
    (page,) = (tmp_path / "perfbisect-demo" / "state" / "jobs").glob("*/report.html")
    assert opened == [page.as_uri()]
    assert f"no browser was found: open {page.as_uri()}" in ended.out
    assert "numbers are those of a pretend server" in ended.out
    assert "perfbisect init" in ended.out
    # The folder is a repository like any other: its own jobs, settings and cell.
    monkeypatch.chdir(tmp_path / "perfbisect-demo")
    (job,) = type_json("status")["jobs"]
    assert (job["verb"], job["cell"]) == ("bisect", "pretend")


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)
    ended = type_json("demo", str(tmp_path), code=2)
    assert ended["where"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
