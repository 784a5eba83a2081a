"""A planted crash at the start, one under load and a hang of the scheduler are found with the real vLLM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfbisect.environments.base import Environment
from scripts import demo_history
from scripts.demo import DAY
from tests.vllm.conftest import RELEASE, Answer, write_short
from tests.vllm.test_real import engines

pytestmark = [pytest.mark.vllm, pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("kind", "signature", "method"),
    [
        ("start", "start: ValueError: no room for # tables of # blocks at sched/scheduler.py", "__init__"),
        (
            "load",
            "under load: RuntimeError: step # has no place in the table at sched/scheduler.py",
            "schedule",
        ),
        ("hang", "first request: PATH: no answer within # s", ""),
    ],
)
def test_a_failure_is_found_and_explained(
    kind: str,
    signature: str,
    method: str,
    typed: Callable[..., Answer],
    released: Environment,
    tmp_path: Path,
) -> None:
    history = demo_history.make(
        Path(released.engine_file).parent.parent,
        tmp_path / "repo",
        commits=1,
        places=demo_history.Places(planted=1),
        failure=kind,
    )
    cell = write_short(tmp_path, random_output_len=16, ready_timeout=240)
    answer = typed(
        *("bisect", cell, "--find", "failure", "--repo", str(history.path)),
        *("--good", history.commits[0], "--bad", history.commits[-1], "--budget", "30m"),
        *("--env", f"overlay:{RELEASE},base={history.commits[0]}", "--exclude-newer", DAY),
    )
    assert (answer.code, answer.document["outcome"]) == (3, "found"), answer.document
    assert answer.document["culprit"]["id"] == history.planted
    assert answer.document["failure"]["signature"].startswith(signature)
    assert len(answer.document["launches"]) <= 4
    if method:  # A server that hangs logs no traceback.
        told = typed("explain", answer.document["job"]).document
        best = [(x["match"], x["hunk"]["function"].rpartition(".")[2]) for x in told["hunks"][:1]]
        assert best == [("line", method)]
        assert told["log_lines"]
    assert engines(answer.folder) == []
