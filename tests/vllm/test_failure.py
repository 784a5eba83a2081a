"""A planted crash at the start, one under load and a hang of the scheduler are found with the real vLLM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from perfbisect.environments.base import Environment
from scripts import demo_history
from scripts.demo import CELL, DAY
from scripts.simulation import ROOT
from tests.vllm.conftest import RELEASE, Answer
from tests.vllm.test_real import engines

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]
SHORT = {"num_prompts": 6, "random_output_len": 16, "discard_prompts": 2, "ready_timeout": 240}


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
        commits=3,
        places=demo_history.Places(planted=2),
        failure=kind,
    )
    cell = yaml.safe_load((ROOT / "cells" / f"{CELL}.yaml").read_text())
    del cell["variants"]
    cell |= {**SHORT, "model": str(ROOT / "cells" / "models" / "llama_100m")}
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(cell))
    answer = typed(
        *("bisect", str(tmp_path / "short.yaml"), "--find", "failure", "--repo", str(history.path)),
        *("--good", history.commits[0], "--bad", history.commits[-1], "--budget", "30m"),
        *("--env", f"overlay:{RELEASE},base={history.commits[0]}", "--exclude-newer", DAY),
    )
    assert (answer.code, answer.document["outcome"]) == (3, "found"), answer.document
    assert answer.document["culprit"]["id"] == history.planted
    assert answer.document["failure"]["signature"].startswith(signature)
    assert len(answer.document["launches"]) <= 6
    if method:  # A server that hangs logs no traceback.
        told = typed("explain", answer.document["job"]).document
        best = [(x["match"], x["hunk"]["function"].rpartition(".")[2]) for x in told["hunks"][:1]]
        assert best == [("line", method)]
        assert told["log_lines"]
    assert engines(answer.folder) == []
