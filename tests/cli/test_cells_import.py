"""``cells import`` and ``cells match``: from a checkout, at a commit, and what is told besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfbisect.cells.loading import load_cells
from tests.changes.repositories import git
from tests.command_line import type_command, type_json

FOLDER = "tests/dfx/perf/tests"
SPEECH = {
    "dataset_name": "seed-tts-text",
    "dataset_path": "benchmarks/build_dataset/smoke",
    "backend": "openai-audio-speech",
    "endpoint": "/v1/audio/speech",
    "num_prompts": [80, 128],
    "max_concurrency": [8, 64],
}
CHAT = {
    "dataset_name": "random",
    "backend": "openai-chat-omni",
    "endpoint": "/v1/chat/completions",
    "num_prompts": [10, 40, 100],
    "max_concurrency": [1, 4, 10],
    "percentile-metrics": "ttft,e2el,audio_rtf,audio_ttfp,audio_duration",
}


def servers(*workloads: dict[str, Any], name: str = "test_talk", **params: Any) -> str:
    return json.dumps(
        [
            {
                "test_name": name,
                "server_params": {"model": "org/model", **params},
                "benchmark_params": list(workloads),
            }
        ]
    )


def told(*typed: str, code: int = 0) -> str:
    shown = type_command(typed)
    assert shown.code == code, shown
    return shown.err if code else shown.out


def test_what_must_be_brought_is_told_until_it_is_there(home: Path) -> None:
    (home / "spec.json").write_text(servers(SPEECH))
    first = told("cells", "import", "spec.json", "-o", "out")
    assert "to bring: out/benchmarks/build_dataset/smoke: a folder of vLLM-Omni's repository" in first
    (home / "out" / SPEECH["dataset_path"]).mkdir(parents=True)  # type: ignore[operator]
    (home / "out" / SPEECH["dataset_path"] / "meta.lst").write_text("a|b\n")  # type: ignore[operator]
    second = told("cells", "import", "spec.json", "-o", "out")
    assert "to bring" not in second
    cell, _ = load_cells(home / "out" / "talk-seed-tts-text.yaml")
    assert cell.revision.dataset is not None


def test_a_workload_that_is_left_out_is_told_and_counted_in_the_document(home: Path) -> None:
    socket = CHAT | {"backend": "openai-realtime"}
    (home / "spec.json").write_text(servers(CHAT, socket, CHAT | {"enabled": False}))
    document = type_json("cells", "import", "spec.json", "-o", "out")
    (file,) = document["files"]
    assert (file["cells"], file["switched_off"]) == (3, 1)
    assert file["left_out"] == [
        "spec.json:1: [0].benchmark_params[1]: client omni_bench has no backend openai-realtime"
    ]


def test_cells_of_one_name_have_that_of_their_file_in_front(home: Path) -> None:
    for name in ("a.json", "b.json"):
        (home / name).write_text(servers(CHAT, *([SPEECH] if name == "a.json" else [])))
    told("cells", "import", "a.json", "b.json", "-o", "out")
    names = ["a-talk-random.yaml", "b-talk-random.yaml", "talk-seed-tts-text.yaml"]
    assert sorted(path.name for path in (home / "out").iterdir()) == names


def test_two_files_of_one_name_that_make_one_cell_are_refused_before_anything_is_written(home: Path) -> None:
    for name in ("a", "b"):
        (home / name).mkdir()
        (home / name / "x.json").write_text(servers(CHAT))
    error = told("cells", "import", "a/x.json", "b/x.json", "-o", "out", code=2)
    assert "a/x.json and b/x.json both make x-talk-random.yaml" in error
    assert not (home / "out").exists()


def test_what_can_be_imported_is_and_no_broken_file_is_left(home: Path) -> None:
    bad = CHAT | {"dataset_name": "random-mm", "port": 1}  # an option that belongs to the attempt
    (home / "spec.json").write_text(servers(CHAT, bad))
    (home / "other.json").write_text('{"a": 1}')
    (home / "out").mkdir()
    kept = home / "out" / "talk-random-mm.yaml"
    kept.write_text("of before")
    spec, other = type_json("cells", "import", "spec.json", "other.json", "-o", "out", code=2)["files"]
    assert spec["cells"] == 3
    (error,) = spec["errors"]
    assert error.startswith("spec.json:1: [0].benchmark_params[1]: makes no cell: ")
    assert "port" in error
    assert "of no form that is known" in other["errors"][0]
    assert kept.read_text() == "of before"
    assert sorted(path.name for path in (home / "out").iterdir()) == [kept.name, "talk-random.yaml"]


def test_a_folder_that_cannot_be_made_is_named(home: Path) -> None:
    (home / "spec.json").write_text(servers(CHAT))
    document = type_json("cells", "import", "spec.json", "-o", "spec.json", code=2)
    assert document["error"] == "spec.json cannot be written: [Errno 17] File exists: 'spec.json'"
    assert (document["where"], document["next"]) == ("spec.json", "choose another -o")


def test_a_specification_as_it_was_at_a_commit(home: Path) -> None:
    repo = home / "omni"
    spec = repo / FOLDER / "test_talk.json"
    spec.parent.mkdir(parents=True)
    git(home, "init", "--quiet", str(repo))
    spec.write_text(servers(CHAT))
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "then")
    then = git(repo, "rev-parse", "HEAD")
    spec.write_text(servers(CHAT, name="test_else", model=None))
    git(repo, "commit", "--quiet", "-a", "-m", "spoilt")
    asked = ("cells", "import", f"{FOLDER}/test_talk.json", "--repo", str(repo), "-o", "out")
    assert "1 file" in told(*asked, "--at", then)
    cells = load_cells(home / "out" / "talk-random.yaml")
    assert [cell.num_prompts for cell in cells] == [10, 40, 100]
    assert cells[0].description == f"test_talk of test_talk.json at {then[:12]}"
    error = type_command([*asked, "--at", "HEAD"]).out
    assert "server_params.model: is missing" in error
    assert f"{FOLDER}/test_talk.json at " in error
    git(repo, "rm", "--quiet", "-r", "tests")
    git(repo, "commit", "--quiet", "-m", "gone")
    assert "has no file" in told(*asked, "--at", "HEAD", code=2)


RECIPE = """\
name: talker-h200
gpu: H200
vllm: {model: org/talker}
vllm_bench:
  configs:
    - {name: short, input_len: 8, output_len: 8, num_prompts: 4, max_concurrency: 1}
"""


def test_a_recipe_at_a_commit_has_the_variables_of_its_gpu(home: Path) -> None:
    repo = home / "perf-eval"
    for name, text in (("workloads/talker.yaml", RECIPE), ("lib/gpu_profiles.yaml", "H200: {env: {A: b}}")):
        (repo / name).parent.mkdir(parents=True)
        (repo / name).write_text(text)
    git(home, "init", "--quiet", str(repo))
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "first")
    first = git(repo, "rev-parse", "HEAD")
    git(repo, "rm", "--quiet", "lib/gpu_profiles.yaml")
    git(repo, "commit", "--quiet", "-m", "gone")
    asked = ("cells", "import", str(repo / "workloads/talker.yaml"), "--repo", str(repo), "-o", "out")
    assert "left out" not in told(*asked, "--at", first)
    (cell,) = load_cells(home / "out" / "talker-h200-short.yaml")
    assert cell.env["A"] == "b"
    assert "talker.yaml at " in cell.description
    assert ":2: gpu: lib/gpu_profiles.yaml" in told(*asked, "--at", "HEAD")
