"""What a traceback names of a diff, and what is shown of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.bisect.failure.job import FAILURE
from perfbisect.bisect.failure.result import FailureResult
from perfbisect.changes.hunks import CommitDiff, read_files
from perfbisect.engine.experiment import run_experiment
from perfbisect.explain.failure import FailureExplanation, TracedHunk, explain_failure
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.plans import write_plan
from perfbisect.model.trace import TraceLine
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from tests.bisect.failures import crashes, failure_plan
from tests.changes.repositories import write_commits
from tests.jobs.world import Clock, Watch, World, history

BEFORE = b"def first():\n    return 1\n\n\ndef second():\n    a = 1\n    b = 2\n    return a\n"
AFTER = b"def first():\n    return 2\n\n\ndef second():\n    a = 1\n    b = 3\n    return a / 0\n"


@pytest.fixture
def diff(tmp_path: Path) -> CommitDiff:
    repository, (before, after) = write_commits(
        tmp_path / "repo",
        {"python/eng/a.py": BEFORE, "other.py": BEFORE},
        {"python/eng/a.py": AFTER, "other.py": AFTER},
    )
    return CommitDiff(after, before, read_files(repository, before, after))


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ((TraceLine("eng/a.py", 8, "second"),), [("7-8", "line"), ("2", "file")]),
        ((TraceLine("eng/a.py", 6, "second"),), [("7-8", "function"), ("2", "file")]),
        ((TraceLine("eng/a.py", 2, "first"), TraceLine("lib.py", 1, "f")), [("2", "line"), ("7-8", "file")]),
        ((TraceLine("/src/repo/python/eng/a.py", 99, "third"),), [("2", "file"), ("7-8", "file")]),
        ((TraceLine("eng/b.py", 8, "second"), TraceLine("x/other.py", 8, "second")), []),
        ((), []),
    ],
)
def test_frames_name_hunks_the_closest_first(
    diff: CommitDiff, frames: tuple[TraceLine, ...], found: list[tuple[str, str]]
) -> None:
    assert [(x.hunk.lines, x.match) for x in TracedHunk.find(diff, frames)] == found


def explained(folder: Path, log: str) -> tuple[FailureResult, FailureExplanation]:
    (folder / "server.log").write_text(log)
    world = World(history(6).changes, None, fault=crashes(3))
    job = Jobs(folder).new(Clock()(), "abcd")
    write_plan(job, failure_plan(world), Clock())
    with job.held():
        result = run_experiment(FAILURE, job, Watch().tools(world))
    assert result.failure is not None
    failure = result.failure.model_copy(update={"log": str(folder / "server.log")})
    result = result.model_copy(update={"failure": failure})
    return result, explain_failure(result)


def test_the_log_is_shown_up_to_its_error_without_secrets_and_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "abcdefgh123")
    lines = [
        *(f"line {n}" for n in range(90)),
        "\x1b[31mkey abcdefgh123\x07</pre>`",
        "ValueError: no block 17",
    ]
    result, told = explained(tmp_path, "\n".join([*lines, "after it"]))
    assert len(told.log_lines) == 40
    assert told.log_lines[-2:] == ("key (redacted)\\x07</pre>`", "ValueError: no block 17")
    assert told.serves == result.parent
    assert told.fails == result.culprit
    page = report_html(told.report())
    assert "</pre>`" not in page
    assert "&lt;/pre&gt;`" in page
    assert "ValueError: no block 17" in report_markdown(told.report())


def test_a_log_that_is_gone_is_no_error(tmp_path: Path) -> None:
    result, _ = explained(tmp_path, "")
    assert explain_failure(result).log_lines == ()
