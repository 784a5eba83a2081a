"""The histories that the tests and the demo bisect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.gitwriter import run_git
from tests.fakes.history import HOSTILE_SUBJECT, make_history, with_step


def value(repository: Path, commit: str, expression: str, tmp_path: Path) -> str:
    """``expression`` after importing the ``vllm`` of a commit; the error's last line if that fails."""
    tree = tmp_path / commit
    if not tree.exists():
        tree.mkdir()
        archive = subprocess.run(
            ["git", "archive", commit, "vllm"], cwd=repository, capture_output=True, check=True
        ).stdout
        subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
    code = f"import vllm, vllm.pace, vllm.faults; print({expression})"
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def test_what_is_planted_is_there(tmp_path: Path) -> None:
    history = make_history(
        tmp_path / "repo",
        commits=9,
        slow=6,
        broken=3,
        docs=(2,),
        compiled=(4,),
        hostile=1,
        faults={7: "exit1"},
        pace={"STEP_MS": 2.0},
    )
    assert run_git(history.path, "rev-list", "--reverse", "--first-parent", "main").split() == list(
        history.commits
    )
    assert run_git(history.path, "status", "--porcelain") == ""
    assert history.culprit == history.commits[6]
    steps = [value(history.path, commit, "vllm.pace.STEP_MS", tmp_path) for commit in history.commits]
    assert steps[:3] == ["2.0"] * 3
    assert "ModuleNotFoundError" in steps[3]
    assert steps[4:] == ["2.0", "2.0", "3.2", "3.2", "3.2"]
    assert value(history.path, history.commits[7], "vllm.faults.FAULT", tmp_path) == "exit1"
    assert value(history.path, history.commits[8], "repr(vllm.faults.FAULT)", tmp_path) == "''"
    assert run_git(
        history.path, "diff", "--name-only", f"{history.commits[1]}..{history.commits[2]}"
    ).split() == ["docs/notes.md"]
    trees = [run_git(history.path, "rev-parse", f"{c}:csrc").strip() for c in history.commits]
    assert len(set(trees)) == 2
    assert trees[4] not in trees[:4] + trees[5:]
    assert (
        run_git(history.path, "show", "-s", "--format=%s", history.commits[1]).strip("\n") == HOSTILE_SUBJECT
    )


def test_the_same_arguments_make_the_same_commits(tmp_path: Path) -> None:
    first = make_history(tmp_path / "a", commits=5, slow=2)
    second = make_history(tmp_path / "b", commits=5, slow=2, checkout=False)
    assert first.commits == second.commits
    assert make_history(tmp_path / "c", commits=5, slow=3).commits[:2] == first.commits[:2]


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no STEP_MS"):
        with_step(b"nothing", 2.0)
    with pytest.raises(ValueError, match="docs only"):
        make_history(tmp_path / "a", commits=5, slow=None, broken=2, docs=(3,))
    with pytest.raises(ValueError, match="no SUCH"):
        make_history(tmp_path / "b", commits=5, pace={"SUCH": 1.0})
