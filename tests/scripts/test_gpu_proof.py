"""The proof for a GPU with the pretend engine and a pretend driver, and what its steps make of results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perfbisect.machine.devices import Smi, list_devices
from scripts.gpu import proof, world
from scripts.gpu.proof import FAILS, HOLDS, OUT_OF_TIME, VISITS, Proof
from scripts.gpu.world import Kit, Pretend, StepFailedError
from tests.machine import fake_smi

SCRIPT = world.ROOT / "scripts" / "gpu_proof.sh"


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """The work folder; jobs that a failing test left in the background are stopped."""
    yield tmp_path
    for holder in tmp_path.glob("state/jobs/*/holder.json"):
        with suppress(OSError, ValueError):
            os.kill(json.loads(holder.read_text())["pid"], signal.SIGTERM)


_MOST_CALLS = 40
"""Of the script, until it has ended in time."""


def play(work: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and ``proof.json`` of the script over the pretend engine."""
    command = [str(SCRIPT), *arguments, "--pretend", "--commits", "6", "--work", str(work)]
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "OUT": str(work / "home")}
    for _ in range(_MOST_CALLS):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != OUT_OF_TIME:
            break
    document = json.loads((work / "home" / "proof.json").read_text())
    return done.returncode, done.stdout + done.stderr, document


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_first_visit_names_what_was_planted(work: Path) -> None:
    """In calls of half a minute, each of which goes on where the one before was cut off."""
    code, said, document = play(work, "install", "smoke", "history", "bisect", "--limit", "30")
    assert code == HOLDS, said
    found = document["steps"]["bisect"]
    assert found["culprit"] == json.loads((work / "home" / "repo.json").read_text())["planted"]
    with tarfile.open(work / "home" / "state.tar.gz") as archive:
        names = archive.getnames()
    assert f"state/jobs/{document['jobs']['bisect']}/journal.jsonl" in names
    assert "driver/idle/gpu.csv" in names
    recorded = Smi(fake_smi.install(work, work / "driver" / "idle"))
    live = Smi(fake_smi.install(work / "home", fake_smi.MACHINES / "live"))
    assert list_devices(recorded) == list_devices(live) != ()


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_second_visit(work: Path) -> None:
    code, said, document = play(work, "second")
    assert code == HOLDS, said
    steps = document["steps"]
    assert tuple(steps) == VISITS["second"]
    assert "1 x NVIDIA H200" in steps["doctor"]["checks"]["devices"]
    assert steps["tenant"]["code"] == "load_exceeded" and "computed on device" in steps["tenant"]["reason"]
    assert steps["kill"]["state"] == "unfinished" and steps["kill"]["server_ended"]


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_every_command_has_a_plan(work: Path) -> None:
    code, said, document = play(work, "first", "same", "second", "--dry-run")
    assert code == HOLDS, said
    plans = {step: facts["plan"]["schema"] for step, facts in document["steps"].items() if facts.get("plan")}
    assert plans.keys() == {"bisect", "same", "claim"}


@pytest.fixture
def pretend(tmp_path: Path) -> Proof:
    facts = {"repo": "r", "good": "a", "bad": "c", "planted": "b", "equal": "a"}
    (tmp_path / "repo.json").write_text(json.dumps(facts))
    return Proof(Pretend(tmp_path, 6), time.monotonic() + 3600)


@pytest.mark.parametrize(
    ("step", "exit_code", "document", "holds"),
    [
        (proof.bisect, 3, {"culprit": {"id": "b"}}, True),
        (proof.bisect, 3, {"culprit": {"id": "c"}}, False),
        (proof.bisect, 4, {"culprit": {"id": "b"}}, False),
        (proof.bisect, 0, {"culprit": None}, False),
        (proof.bisect, 5, None, False),
        (proof.same, 0, {"verdict": "same"}, True),
        (proof.same, 4, {"verdict": "inconclusive"}, True),
        (proof.same, 3, {"verdict": "regression"}, False),
        (proof.claim, 3, {"verdict": "refuted"}, True),
        (proof.claim, 5, None, False),
        (proof.launch, 0, {"launches": [{"value": 1.0}]}, True),
        (proof.launch, 5, None, False),
    ],
)
def test_what_a_result_proves(
    step: Any,
    exit_code: int,
    document: Mapping[str, Any] | None,
    holds: bool,
    pretend: Proof,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = pretend.work / "result.json"
    if document is not None:
        result.write_text(json.dumps(document))
    status = {"exit_code": exit_code, "result": str(result), "minutes": 1.0, "error": None}
    monkeypatch.setattr(Proof, "job", lambda *_: status)
    assert step(pretend)[0] is holds


def test_steps_in_order_until_one_fails(pretend: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def step(name: str, holds: bool) -> proof.Outcome:
        done.append(name)
        if name == "raises":
            raise StepFailedError("it cannot")
        return holds, {}

    steps = {"good": True, "bad": False, "raises": False, "never": True}
    named = {name: lambda _, name=name, holds=holds: step(name, holds) for name, holds in steps.items()}
    monkeypatch.setattr(proof, "STEPS", named)
    assert pretend.run(["good"]) == HOLDS
    assert pretend.run(["good", "bad", "never"]) == FAILS
    assert pretend.run(["good", "raises", "never"]) == FAILS
    assert done == ["good", "bad", "raises"], "what held is not done again"
    assert pretend.document["steps"]["raises"]["error"] == "it cannot"
    pretend.deadline = time.monotonic()
    assert pretend.run(["never"]) == OUT_OF_TIME


def test_cells_of_the_kit_are_those_of_this_version(tmp_path: Path) -> None:
    """Cells and claim are loaded as the commands do, with their models beside them."""
    from perfbisect.cells.loading import load_cells
    from perfbisect.commands.comparisons import find_claim

    here = Kit(tmp_path, 12, None, Path(sys.executable), share=0.1)
    here.write_cells()
    (latency,) = load_cells(str(tmp_path / "latency.yaml"))
    assert latency.gpus == 1 and latency.model == str(tmp_path / "models" / "llama_8b")
    _, claim = find_claim(str(tmp_path / "claim.yaml"))
    (throughput,) = load_cells(claim.cells_beside(tmp_path / "claim.yaml")[0])
    assert {claim.a.partition("+")[2], claim.b.partition("+")[2]} == set(throughput.variants)


def test_kit_of_another_python_is_refused(tmp_path: Path) -> None:
    files: dict[str, object] = {}
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"python": "2.7", "files": files}))
    with pytest.raises(StepFailedError, match=r"the kit is for Python 2\.7"):
        Kit(tmp_path / "work", 12, tmp_path, share=0.1).install(lambda _: None)
