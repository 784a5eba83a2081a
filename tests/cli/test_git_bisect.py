"""``git bisect run perfbisect check``: what git hears, and a whole bisection by git itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfbisect.cli import app
from tests.command_line import type_command
from tests.fakes.history import CALM, ENVIRONMENT, MEASURED_WITH, PretendHistory, make_history
from tests.jobs.test_kill9 import CELL

STEP = ["check", "cell", "--git-bisect"]
PACE = {"STEP_MS": 2.0, **CALM}


@pytest.mark.parametrize(
    ("code", "told"), [(0, 0), (3, 1), (125, 125), (1, 128), (2, 128), (4, 128), (5, 128), (130, 128)]
)
def test_nothing_but_a_verdict_is_good_or_bad(code: int, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.app, "main", lambda **_: code)
    assert app.run(STEP) == told
    assert app.run(["check", "cell"]) == code
    assert app.run(["bisect", "cell", "--git-bisect"]) == code


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--dry-run"], "--dry-run measures nothing"),
        (["--detach"], "--detach measures nothing"),
        (["--save-baseline=x.json"], "--save-baseline=x.json measures nothing"),
        (["-h"], "-h measures nothing"),
        (["--no-such-option"], "No such option"),
        (["--against", "main"], "--against and --max-regression require each other"),
        (["--at", "HEAD~1", "--against", "main", "--max-regression", "5%"], "cannot be combined with --at"),
        ([], "a check takes one of --against REV"),
    ],
)
def test_git_stops_where_there_is_no_answer(more: list[str], why: str, home: Path) -> None:
    history = make_history(home / "repo", commits=2, slow=None)
    here = ["--repo", str(history.path), "--env", ENVIRONMENT]
    outcome = type_command(["check", str(CELL), "--git-bisect", *here, *more])
    assert outcome.code == 128
    assert why in outcome.err


def test_who_wants_to_leave_leaves_git_behind() -> None:
    for option, advice in (("--detach", "nohup git bisect run"), ("--dry-run", "without --dry-run")):
        outcome = type_command([*STEP, option])
        assert outcome.code == 128 and advice in outcome.err


def git(
    history: PretendHistory, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Git as a user has it, in the repository."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    if folder is not None:
        environment |= {
            "PERFBISECT_STATE": str(folder / "state"),
            "PERFBISECT_CACHE": str(folder / "cache"),
            "PERFBISECT_LOCKS": str(folder / "locks"),
            "PERFBISECT_BACKOFF": "0.1,0.1",
            "PERFBISECT_LIMITS": "off",
            "OMP_NUM_THREADS": "1",
        }
    return subprocess.run(
        ["git", *arguments], cwd=history.path, env=environment, capture_output=True, text=True, check=False
    )


def step(*more: str) -> tuple[str, ...]:
    """What git runs for every commit."""
    return (
        *(sys.executable, "-c", "from perfbisect.cli import main; main()"),
        *("check", str(CELL), "--git-bisect", *MEASURED_WITH, "--quiet", *more),
    )


@pytest.mark.processes
def test_git_finds_the_commit_and_skips_the_broken_one(tmp_path: Path) -> None:
    history = make_history(tmp_path / "repo", commits=6, slow=4, factor=3.0, broken=2, pace=PACE)
    started = git(history, "bisect", "start", history.bad, history.good)
    assert started.returncode == 0, started.stderr
    against = ("--against", history.good, "--max-regression", "50%", "--launches", "4")
    done = git(history, "bisect", "run", *step(*against), folder=tmp_path)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert f"{history.culprit} is the first bad commit" in told
    log = git(history, "bisect", "log").stdout
    assert f"git bisect skip {history.commits[2]}" in log
    assert f"git bisect good {history.commits[3]}" in log
    assert git(history, "status", "--porcelain").stdout == ""
