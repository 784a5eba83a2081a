"""What is refused before anything starts: another workload than the report's; and what a dry run needs."""

from __future__ import annotations

import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from perfbisect.measure.local import LocalExecutor
from perfbisect.resources import cells_folder
from perfbisect.serving.server import Server
from tests.command_line import type_command, type_json
from tests.fakes.history import PretendHistory, make_history
from tests.skill.worlds import omni

REPORTED = cells_folder() / "tts_default_voice_high_c.yaml"

REPORT = """
vllm serve Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice --omni --port 8091 \\
    --deploy-config vllm_omni/deploy/qwen3_tts_high_concurrency.yaml
vllm bench serve --omni --model Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice --port 8091 \\
    --backend openai-audio-speech --endpoint /v1/audio/speech \\
    --dataset-name seed-tts-text --seed-tts-locale en --num-prompts 512 --max-concurrency 64 \\
    --num-warmups 8 --extra-body '{"voice": "Vivian", "language": "English", "task_type": "CustomVoice"}'
"""

INSTEAD = {
    "model": ("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "Qwen/Qwen3-TTS-12Hz-1.7B-Base"),
    "dataset_name": ("seed-tts-text", "seed-tts"),
    "num_prompts": ("512", "128"),
    "deploy_yaml": ("vllm_omni/deploy/qwen3_tts_high_concurrency.yaml", "vllm_omni/deploy/qwen3_tts.yaml"),
}
"""What was benched instead of what the report spoke of."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> PretendHistory:
    return make_history(tmp_path_factory.mktemp("history") / "repo", commits=3, slow=1, factor=2.0)


@pytest.fixture
def benched(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cell file that differs from the report's in four fields, and a machine on which nothing may start."""
    text = REPORTED.read_text()
    for there, here in INSTEAD.values():
        assert there in text
        text = text.replace(f" {there}\n", f" {here}\n")
    path = home / "benched.yaml"
    path.write_text(text.replace("./data", str(cells_folder() / "data")))
    for kind in (Server, LocalExecutor):
        monkeypatch.setattr(kind, "__init__", Mock(side_effect=AssertionError("something was started")))
    return path


def typed(verb: str, cell: Path, history: PretendHistory) -> list[str]:
    common = [str(cell), "--repo", str(history.path), "--env", "release:vllm"]
    ends = {
        "run": ["--at", history.good],
        "bisect": ["--good", history.good, "--bad", history.bad],
        "compare": ["--a", history.good, "--b", history.bad],
    }
    return [verb, *common, *ends[verb]]


@pytest.mark.parametrize("verb", ["run", "bisect", "compare"])
def test_the_wrong_cell_is_refused_before_a_server_starts(
    verb: str, benched: Path, history: PretendHistory
) -> None:
    error = type_json(*typed(verb, benched, history), "--expect-workload", REPORT, code=2)["error"]
    assert "benched is not the one that the report speaks of, 4 fields differ" in error
    for field, (there, here) in INSTEAD.items():
        assert f"{field}: {there} there, {here} here" in error
    assert not (benched.parent / "state" / "jobs").exists()


CELL = "tts_default_voice_high_c"
"""A shipped cell of two devices."""

CLAIM = f"""claim: it is faster
source: a pull request
cells: [{CELL}, tts_voice_clone_nightly]
a: v0.21.0rc1
b: main
expect: {{metric: audio_ttfp, change: ">= 5 %", guards: [failed]}}
"""


@pytest.fixture
def repo(home: Path) -> str:
    return omni(home)["REPO"]


@pytest.mark.parametrize(
    "asked", ["bisect {cell} --good v0.21.0rc1 --bad main", "compare {cell} --a v0.21.0rc1 --b main"]
)
def test_a_dry_run_needs_no_devices(asked: str, repo: str, tmp_path: Path) -> None:
    words = [*shlex.split(asked.format(cell=CELL)), "--repo", repo, "--machine", "cpu"]
    plan = type_json(*words, "--dry-run")
    (told,) = [text for text in plan["notes"] if "nothing can start on this machine" in text]
    assert "need 2 devices of one kind; there is none visible" in told
    assert "--dry-run needs none" in type_json(*words, code=2)["next"]
    assert not list((tmp_path / "state").glob("jobs/*"))


def test_a_dry_run_of_a_claim_has_the_commands_of_each_cell_and_what_all_of_them_take(
    repo: str, tmp_path: Path
) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM)
    words = ["verify", str(tmp_path / "claim.yaml"), "--repo", repo, "--machine", "cpu", "--budget", "2h"]
    shown = type_command([*words, "--dry-run"]).out
    for command in (
        "-m vllm_omni.entrypoints.cli.main serve",
        "-m vllm_omni.entrypoints.cli.main bench serve",
    ):
        assert shown.count(command) == 5, "once a cell, since both sides are served alike"
    assert "All 5 comparisons: " in shown
    plan = type_json(*words, "--dry-run")
    all_of_them = [plan, *plan["others"]]
    assert plan["all_minutes"] == [
        sum(one["minutes_low"] for one in all_of_them),
        sum(one["minutes_high"] for one in all_of_them),
    ]
    type_json(*words, code=5)  # this machine cannot run it
