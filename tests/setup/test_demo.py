"""The repository of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.common.text import line
from perfbisect.errors import UsageError
from perfbisect.setup.demo import COMMITS, write_demo
from tests.fakes.gitwriter import run_git


def test_one_commit_is_slow_and_the_history_does_not_show_it(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    planted = write_demo(folder)
    assert run_git(folder, "show", "--name-only", "--format=", planted).split() == ["vllm/pace.py"]
    assert "+STEP_MS = 8.0" in run_git(folder, "show", planted)
    commits = run_git(folder, "rev-list", "--reverse", "main").split()
    assert len(commits) == COMMITS
    assert 2 < commits.index(planted) < COMMITS - 2
    assert run_git(folder, "rev-parse", "first").strip() == commits[0]
    assert run_git(folder, "for-each-ref", f"--contains={planted}", "--format=%(refname:short)").split() == [
        "main"
    ]
    assert run_git(folder, "status", "--porcelain") == ""
    titles = run_git(folder, "log", "--format=%s").splitlines()
    assert [title for title in titles if line(title) != title] == []


def test_a_demo_is_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    planted = write_demo(tmp_path / "demo")
    (tmp_path / "demo" / "state").mkdir()
    assert write_demo(tmp_path / "demo") == planted
    assert (tmp_path / "demo" / "state").is_dir()
    with pytest.raises(UsageError) as error:
        write_demo(tmp_path)
    assert error.value.where == str(tmp_path)
    assert error.value.next_step == f"perfbisect demo {tmp_path}-2, or another folder"
