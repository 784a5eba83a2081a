"""What is refused before anything starts: another workload than the report's; and what a dry run needs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from perfbisect.measure.local import LocalExecutor
from perfbisect.resources import cells_folder
from perfbisect.serving.server import Server
from tests.command_line import type_command, type_json
from tests.fakes.gitwriter import HistoryWriter
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

ENDS = {
    "run": "--at {bad}",
    "bisect": "--good {good} --bad {bad}",
    "compare": "--a {good} --b {bad}",
    "check": "--at {bad} --against {good} --max-regression 5%",
}


def engine(folder: Path, package: str) -> dict[str, str]:
    """Two commits of an engine whose benchmarks know one data set and one backend, and no deploy YAML."""
    writer = HistoryWriter(folder / package)
    source = b'DATASETS = ["random"]\nBACKENDS = ["openai"]\n'
    writer.commit("Begin", {f"{package}/benchmarks/serve.py": source, f"{package}/a.py": b""})
    writer.commit("Step", {f"{package}/a.py": b"STEP = 1\n"})
    good, bad = writer.finish()
    return {"repo": str(writer.path), "good": good, "bad": bad}


@pytest.mark.parametrize("more", [("--dry-run",), ()], ids=["plan", "start"])
@pytest.mark.parametrize("verb", ENDS)
def test_a_cell_that_the_commits_cannot_run_is_refused(verb: str, more: tuple[str, ...], home: Path) -> None:
    names = engine(home, "vllm_omni")
    words = [verb, CELL, *ENDS[verb].format(**names).split(), "--repo", names["repo"], *more]
    told = type_json(*words, "--env", "source,package=vllm_omni", code=2)
    for field in ("deploy_yaml", "dataset_name", "backend"):
        assert f"{field}: " in told["error"]
    assert (f"(and at {names['bad'][:12]})" in told["error"]) == (verb != "run")
    assert "perfbisect cells lint" in told["next"]
    assert not (home / "state" / "jobs").exists()
    assert not (home / "cache" / "environments").exists()


def test_a_plan_says_what_of_the_cell_is_not_checked(home: Path) -> None:
    omni, other = engine(home, "vllm_omni"), engine(home, "vllm")
    (home / "tiny.yaml").write_text(
        "family: text\nmodel: acme/tiny\ndataset_name: random\nnum_prompts: 8\nmax_concurrency: 1\n"
    )
    compare = ["compare", str(home / "tiny.yaml"), "--dry-run", "--machine", "cpu"]

    def notes(names: dict[str, str], *more: str) -> str:
        ends = ["--a", names["good"], "--b", names["bad"], "--repo", names["repo"]]
        return "\n".join(type_json(*compare, *ends, *more)["notes"])

    assert "vllm_omni does not have them" in notes(omni, "--env", "source,package=vllm_omni")
    pinned = ("--env", "source", "--client", "existing:/somewhere/python")
    assert "options of the client are not checked: it comes from existing:/somewhere" in notes(other, *pinned)
    releases = ["--a", "vllm==0.1.0", "--b", "vllm==0.2.0", "--exclude-newer", "2026-01-01"]
    told = type_json(*compare, *releases, "--env", "release:vllm")
    assert any("those of a release are not here" in note for note in told["notes"])


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
    "asked",
    [
        "bisect {cell} --good v0.21.0rc1 --bad main",
        "compare {cell} --a v0.21.0rc1 --b main",
        "check {cell} --at main --against v0.21.0rc1 --max-regression 5%",
        "check {cell} --at main --good-value 1 --bad-value 2",
        "run {cell} --at main",
    ],
)
def test_a_plan_that_cannot_start_here_is_shown_and_ends_with_5(
    asked: str, repo: str, tmp_path: Path
) -> None:
    words = [*shlex.split(asked.format(cell=CELL)), "--repo", repo, "--machine", "cpu"]
    plan = type_json(*words, "--dry-run", code=5)
    (told,) = [text for text in plan["notes"] if "nothing can start on this machine" in text]
    assert "need 2 devices of one kind; there is none visible" in told
    shown = type_command([*words, "--dry-run"])
    assert shown.code == 5 and "without --dry-run" not in shown.out
    assert "--dry-run shows the plan" in type_json(*words, code=5)["next"]
    assert not list((tmp_path / "state").glob("jobs/*"))


@pytest.mark.processes
def test_a_dry_run_of_a_claim_has_the_commands_of_each_cell_and_what_all_of_them_take(
    repo: str, tmp_path: Path
) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM)
    words = ["verify", str(tmp_path / "claim.yaml"), "--repo", repo, "--machine", "cpu", "--budget", "2h"]
    outcome = type_command([*words, "--dry-run"])
    assert outcome.code == 5, "this machine has no devices"
    shown = outcome.out
    for command in (
        "-m vllm_omni.entrypoints.cli.main serve",
        "-m vllm_omni.entrypoints.cli.main bench serve",
    ):
        assert shown.count(command) == 5, "once a cell, since both sides are served alike"
    assert "All 5 comparisons: " in shown
    plan = type_json(*words, "--dry-run", code=5)
    all_of_them = [plan, *plan["others"]]
    layers = 4 * 2 * 0.2  # two layers of 0.2 minutes, which the first comparison builds for the four others
    assert plan["all_minutes"] == [
        pytest.approx(sum(one["minutes_low"] for one in all_of_them) - layers),
        pytest.approx(sum(one["minutes_high"] for one in all_of_them) - layers),
    ]
    type_json(*words, code=5)  # this machine cannot run it


NIGHTLY = """\
name: n
cells: [{cells}]
repo: {repo}
branch: HEAD
env: source,package={package}
client: existing:/somewhere/python
exclude_newer: "2026-01-01"
machine: cpu
budget: 10h
"""

TINY = "family: text\nmodel: acme/tiny\nnum_prompts: 8\nmax_concurrency: 1\n"


def planned_night(code: int, **names: str) -> dict[str, Any]:
    Path("nightly.yaml").write_text(NIGHTLY.format(**names))
    return type_json("nightly", "nightly.yaml", "--dry-run", code=code)


def test_a_night_plans_no_cell_that_its_commit_cannot_run(home: Path) -> None:
    names = engine(home, "vllm")
    Path("tiny.yaml").write_text(TINY)
    Path("odd.yaml").write_text(f"{TINY}serve_args: {{no-such-option: 1}}\n")
    night = planned_night(2, cells="tiny.yaml, odd.yaml", package="vllm", **names)
    tiny, odd = night["cells"]
    assert (tiny["state"], odd["state"], odd["expected"]) == ("planned", "failed", 0)
    assert "--no-such-option is mentioned nowhere in the sources of vllm" in odd["reason"]
    assert night["minutes"] == tiny["expected"] > 0 and night["order"] == ["tiny"]
    assert "perfbisect cells lint" in night["next"]
    shown = type_command(["nightly", "nightly.yaml", "--dry-run"]).out
    assert "dry run, nothing was started; 1 cell cannot be measured" in shown
    night = planned_night(0, cells="tiny.yaml", package="vllm_omni", **engine(home, "vllm_omni"))
    assert any("vllm_omni does not have them" in note for note in night["notes"])


def test_a_dry_run_of_a_night_that_cannot_start_here_ends_with_5(repo: str) -> None:
    night = planned_night(5, cells=CELL, repo=repo, package="vllm_omni")
    (cell,) = night["cells"]
    assert cell["state"] == "failed" and cell["reason"].startswith("nothing can start on this machine: ")
    assert night["next"].startswith("perfbisect doctor")
