"""Commands that go on from a job can be typed as they are told."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfbisect.jobs.commands import commands_document, follow_up_command, repeat_command
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.requests import NO_REQUEST, RequestRecord
from perfbisect.model.attempt import Attempt, Provenance
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from tests.fakes.gitwriter import HistoryWriter

CELL = {"name": "chat", "headline": "tpot"}


def setting(request: RequestRecord = NO_REQUEST, **known: str) -> MeasurementConfig:
    return MeasurementConfig(environment="wheel:cu129", request=request, **known)


def test_another_verb_has_all_that_the_first_one_had() -> None:
    whole = setting(
        RequestRecord("compare", {"cell": ("my",)}, {"a": ("x",), "b": ("y",)}),
        repository="/home/me/my vllm",
        client="release:vllm==0.32.0",
        constraints="/pins.txt",
        exclude_newer="2026-11-01",
        machine="two.yaml",
    )
    words = shlex.split(follow_up_command(whole, "bisect", CELL, ("ttft", "itl"), good="x", bad="y"))
    assert words[:7] == ["perfbisect", "bisect", "my", "--repo", "/home/me/my vllm", "--good", "x"]
    assert words[-4:] == ["--metric", "ttft", "--metric", "itl"]
    options = dict(zip(words[3:-4:2], words[4:-4:2], strict=True))
    assert options == {
        "--repo": "/home/me/my vllm",
        "--good": "x",
        "--bad": "y",
        "--env": "wheel:cu129",
        "--client": "release:vllm==0.32.0",
        "--constraints": "/pins.txt",
        "--exclude-newer": "2026-11-01",
        "--machine": "two.yaml",
    }
    assert "--metric" not in follow_up_command(whole, "compare", CELL, ("tpot",))


def test_a_cell_is_told_as_it_was_typed() -> None:
    mine = {"cell": ("mine/chat.yaml",)}
    for request, cell in (
        (RequestRecord("compare", mine), "mine/chat.yaml"),
        (RequestRecord("track reproduce", {"alert": ("20260101-product",)}, mine), "mine/chat.yaml"),
        (RequestRecord("verify", {"claim": ("claim.yaml",)}), "chat"),
        (RequestRecord("nightly", {"config": ("nightly.yaml",)}), "chat"),
    ):
        assert shlex.split(follow_up_command(setting(request), "bisect", CELL, ("tpot",)))[2] == cell


def test_a_longer_answer_to_the_same_question() -> None:
    options = {"a": ("x",), "b": ("y z",), "metric": ("ttft", "itl")}
    once = {
        "blocks": ("2",),
        "expect_workload": ("vllm bench\nserve",),
        "json": (),
        "detach": (),
        "quiet": (),
    }
    request = RequestRecord("compare", {"cell": ("chat",)}, options)
    for asked in (request, RequestRecord(request.verb, request.arguments, once | options)):
        told = repeat_command(setting(asked), "blocks", "9")
        assert told == "perfbisect compare chat --a x --b 'y z' --metric ttft --metric itl --blocks 9"
    for verb in ("", "nightly", "explain"):
        assert repeat_command(setting(RequestRecord(verb)), "blocks", "9") is None


def test_the_line_of_a_request() -> None:
    asked = RequestRecord("track reproduce", {"alert": ("a b",)}, {"exclude_newer": ("none",), "json": ()})
    assert asked.line == "perfbisect track reproduce 'a b' --exclude-newer none --json"
    assert NO_REQUEST.line == ""


STAGES = 'stages:\n  - {stage_id: 0, note: it\'s "quoted" and costs $5}\n'
MAIN = "import sys\nprint(open(sys.argv[sys.argv.index('--deploy-config') + 1]).read(), end='')\n"
PATH = "vllm_omni/deploy/one.yaml"


def speech(deploy: dict[str, Any]) -> Cell:
    workload = {"model": "org/m", "num_prompts": 1, "endpoint": "/v1/audio/speech", "client": "omni_bench"}
    own = {"name": "c", "family": "tts", "backend": "openai-audio-speech", "deploy_yaml": deploy}
    return Cell.model_validate({**workload, **own})


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A repository with an engine that prints its deploy YAML, and is on the path."""
    writer = HistoryWriter(tmp_path / "engine folder")
    main = {"vllm_omni/entrypoints/cli/main.py": MAIN.encode()}
    writer.commit("Speak", {"vllm_omni/__init__.py": b"", PATH: STAGES.encode(), **main})
    writer.finish()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return writer.path


@pytest.mark.parametrize("form", ["by path", "file", "at", "text"])
def test_the_command_of_a_plan_finds_its_deploy_yaml_where_it_is_pasted(
    form: str, engine: Path, tmp_path: Path
) -> None:
    (tmp_path / "my stages.yaml").write_text(STAGES)
    cells = {
        "by path": {"from": "change", "path": PATH},
        "file": {"file": str(tmp_path / "my stages.yaml"), "text": STAGES},
        "at": {"at": "HEAD", "path": PATH, "text": STAGES},
        "text": {"text": STAGES},
    }
    planned = commands_document(speech(cells[form]), setting(repository=str(engine)), Change("a" * 40), None)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(engine)}
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        ["bash", "-c", planned.serve],
        env=env,
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == STAGES


def test_the_command_of_an_attempt_names_the_deploy_yaml_in_its_folder() -> None:
    argv = ["/venv/bin/python", "-m", "vllm_omni.entrypoints.cli.main", "--deploy-config", "./deploy.yaml"]
    facts = {"server": {"argv": argv, "env": {}}}
    attempt = Attempt("a1", "c", "run", Provenance("d", "m", "c", facts=facts), folder="/state/attempts/1")
    told = commands_document(speech({"text": STAGES}), setting(), Change("a" * 40), attempt)
    assert shlex.split(told.serve)[-1] == "/state/attempts/1/deploy.yaml"
