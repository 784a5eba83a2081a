"""What the demonstration plants, on a tree with the few lines of vLLM that its edits hold on to."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.common.text import line
from scripts import demo, demo_compare, demo_history
from scripts.demo_history import BROKEN, SCHEDULER, TARGETS, Places, draw_places, make, slow
from tests.fakes.gitwriter import run_git

STUB = '''"""A module."""

logger = init_logger(__name__)


def first(a):
    return a
'''
STUB_SCHEDULER = '''"""A scheduler."""

import time


class Scheduler:
    def __init__(self):
        self.running = []

    def _update_after_schedule(self, scheduler_output):
        scheduled = scheduler_output
        # Clear the finished and preempted request IDs.
        self.finished = scheduled

    def _update_request_as_session(
        self, session
    ):
        return session

    def update_from_output(self, output):
        return output
'''


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    for name in (*TARGETS, BROKEN, "vllm/__init__.py", "vllm/_version.py", "vllm/_C.abi3.so"):
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB_SCHEDULER if name == SCHEDULER else STUB)
    return tmp_path / "site"


def test_each_commit_is_what_it_says(site_packages: Path, tmp_path: Path) -> None:
    places = Places(planted=5, broken=2, docs=7)
    made = make(site_packages, tmp_path / "repo", commits=9, places=places)
    assert len(made.commits) == 10
    first = run_git(made.path, "ls-tree", "-r", "--name-only", made.commits[0]).split()
    assert SCHEDULER in first
    assert not {"vllm/_version.py", "vllm/_C.abi3.so"} & set(first)
    touched = [
        run_git(made.path, "diff", "--name-only", before, after).split()
        for before, after in zip(made.commits, made.commits[1:], strict=False)
    ]
    assert touched[places.planted - 1] == [SCHEDULER]
    assert touched[places.docs - 1] == ["docs/usage.md"]
    assert touched[places.broken - 1] == [BROKEN]
    assert touched[places.broken].count(BROKEN) == 1
    assert "_check_block_accounting" in run_git(made.path, "show", f"{made.planted}:{SCHEDULER}")
    broken = [
        commit
        for commit in made.commits
        if "environment_compat" in run_git(made.path, "show", f"{commit}:{BROKEN}")
    ]
    assert broken == [made.commits[places.broken]]
    others = [at for at in range(1, 10) if at not in (places.planted, places.broken, places.docs)]
    for at in others:
        code = [path for path in touched[at - 1] if path != BROKEN]
        assert len(code) == 1
        compile(run_git(made.path, "show", f"{made.commits[at]}:{code[0]}"), code[0], "exec")


def test_the_titles_of_a_demo_are_harmless(site_packages: Path, tmp_path: Path) -> None:
    """A newcomer's first live view lists them; titles that attack a terminal belong to the tests."""
    places = Places(planted=5, broken=7, docs=2)
    make(site_packages, tmp_path / "real", commits=9, places=places)
    for path in (tmp_path / "real", demo.prepare_fast(tmp_path, 1, 0.5).repository):
        titles = run_git(path, "log", "--format=%s").splitlines()
        assert len(titles) > 5
        assert [title for title in titles if line(title) != title or not title.isascii()] == []


def test_the_planted_check_takes_its_share_of_a_step() -> None:
    space: dict[str, type] = {}
    exec(compile(slow(STUB_SCHEDULER, 0.5), "scheduler", "exec"), space)
    scheduler, clock = space["Scheduler"](), Clock()
    space["time"] = clock  # type: ignore[assignment]
    scheduler._update_after_schedule(None)
    clock.now += 0.020
    before = clock.now
    scheduler.update_from_output(None)
    assert clock.now - before == pytest.approx(0.010, abs=0.002)


class Clock:
    """Goes on by a hundred microseconds whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-4
        return self.now


@pytest.mark.parametrize("commits", [20, 24, 40])
def test_the_culprit_can_be_told_from_its_neighbours(commits: int) -> None:
    for seed in range(200):
        places = draw_places(commits, seed)
        assert 1 <= places.planted <= commits
        assert {places.broken, places.docs} <= set(range(2, commits - 1))
        assert min(abs(places.planted - places.broken), abs(places.planted - places.docs)) > 1
        assert abs(places.broken - places.docs) > 1
    drawn = {draw_places(commits, seed).planted for seed in range(400)}
    assert {1, commits} <= drawn
    assert len(drawn) > 0.9 * commits


def test_a_tree_that_is_not_known_is_refused(site_packages: Path, tmp_path: Path) -> None:
    (site_packages / SCHEDULER).write_text(STUB)
    with pytest.raises(SystemExit, match="not the one"):
        make(site_packages, tmp_path / "repo", commits=3, places=Places(2))
    with pytest.raises(SystemExit, match="holds no vLLM"):
        demo_history.package_files(tmp_path)


@pytest.mark.parametrize(
    ("text", "culprit"), [('{"culprit": {"id": "abc"}, "launches": [1, 2]}', "abc"), ("", None), ("{}", None)]
)
def test_the_verdict_beside_what_was_planted(text: str, culprit: str | None, tmp_path: Path) -> None:
    result = tmp_path / "report.json"
    result.write_text(text)
    prepared = demo.Prepared(tmp_path, "g", "b", "abc", ())
    verdict = demo.judge(prepared, 3, result, 1.5)
    assert verdict["effect"] is None
    assert (verdict["culprit"], verdict["planted"], verdict["minutes"]) == (culprit, "abc", 1.5)


@pytest.mark.parametrize(
    ("word", "result", "code"),
    [("same", "as it must be", 0), ("inconclusive", "open", 4), ("regression", "wrong", 1)],
)
def test_equal_commits_that_are_undecided_are_no_pass(word: str, result: str, code: int) -> None:
    first, *_ = demo_compare.cases(("a", "b", "c"), 5)
    row = {"name": "tpot", "verdict": word, "low": -0.01, "high": 0.01}
    judged = demo_compare.judge(first, {"verdict": word, "metrics": [row]})
    assert judged["result"] == result
    assert demo_compare.exit_code(["as it must be", result]) == code
