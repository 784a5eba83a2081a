"""The check of an engine's repository, on small ones that have what perfbisect relies on, or lack a part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from perfbisect.cells.lint import Checkout
from perfbisect.changes.git import Repository
from perfbisect.environments.packages import engine
from scripts import check_upstream
from scripts.check_upstream import Row, Upstream, main
from tests.fakes.gitwriter import FIRST_SECOND, HistoryWriter, run_git

SETUP = """
import os
switches = ("VLLM_USE_PRECOMPILED", "VLLM_PRECOMPILED_WHEEL_COMMIT", "VLLM_PRECOMPILED_WHEEL_LOCATION")
rust_build = load("tools", "build_rust.py")
addresses = (
    f"https://wheels.vllm.ai/{commit}/{variant_dir}vllm/",
    f"https://wheels.vllm.ai/rocm/{commit}/{variant_dir}",
)
supported = {12: "cu129", 13: "cu130"}
if VLLM_TARGET_DEVICE == "cuda":
    ext_modules = [CMakeExtension(name="vllm._C")]
"""
SPECIFICATION: list[dict[str, object]] = [
    {
        "test_name": "serving_llama8B",
        "server_parameters": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
        "client_parameters": {"model": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 200},
        "qps_list": [1],
    },
    {"test_name": "latency_llama8B", "parameters": {"model": "meta-llama/Llama-3.1-8B-Instruct"}},
]
TREE = {
    "setup.py": SETUP,
    "tools/build_rust.py": 'RustExtension(target="vllm._rust_tool_parser")',
    "CMakeLists.txt": "add(csrc/activation.cu $ENV{CMAKE_ARGS})\n# like csrc/attention.py\n",
    "csrc/activation.cu": "//",
    "csrc/attention.py": "#",
    "requirements/common.txt": "torch",
    "requirements/cuda.txt": "-r common.txt",
    "vllm/envs.py": 'VLLM_MAIN_CUDA_VERSION: str = "13.0"',
    "vllm/benchmarks/serve.py": '"openai"',
    "nightly.json": json.dumps([SPECIFICATION[0]]),
    "latency.json": json.dumps([SPECIFICATION[1]]),
}


WORDS = (check_upstream.check_cells, check_upstream.check_results, check_upstream.check_server)
Tree = dict[str, str]


def repository(folder: Path, *commits: Tree, first: int = FIRST_SECOND) -> Path:
    writer = HistoryWriter(folder, first=first)
    for tree in commits:
        writer.commit("commit", {path: text.encode() for path, text in tree.items()})
    writer.finish(checkout=False)
    return folder


def upstream(path: Path) -> Upstream:
    git = Repository.open(path)
    checkout = Checkout(git, git.head().id)
    return Upstream(checkout, engine(checkout.engine))


def unknown(rows: Iterable[Row]) -> dict[str, list[str]]:
    return {row.about: found for row in rows if (found := sorted(row.unknown))}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What an engine without any of the words lacks, by row."""
    up = upstream(repository(tmp_path_factory.mktemp("bare") / "vllm", TREE))
    return {about: found for check in WORDS for about, found in unknown(check(up)).items()}


def with_words(words: dict[str, list[str]], left_out: str = "") -> Tree:
    listed = {word.strip('"') for about, found in words.items() if about != "shipped cells" for word in found}
    listed |= {option for message in words["shipped cells"] for option in re.findall(r"--[\w-]+", message)}
    listed |= {"openai", "random", "hf", "prefix_repetition", "vllm"}
    named = listed | {f"--{word}" for word in words["options of serve"]}
    text = "".join(
        f"    {word!r},\n".replace("'", '"') for word in sorted(named - {left_out, f"--{left_out}"})
    )
    return {**TREE, "vllm/benchmarks/serve.py": f"words = (\n{text})\n"}


def test_an_engine_that_has_everything_is_understood(
    tmp_path: Path, words: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(repository(tmp_path / "vllm", with_words(words)))]) == 0
    out = capsys.readouterr().out
    assert "everything is understood" in out
    assert "| cells import latency.json | 0 cells, 1 workload left out |  |" in out
    assert "| cells import nightly.json | 1 cell |  |" in out


def test_an_option_of_the_client_that_is_gone_is_named_with_its_cell(
    tmp_path: Path, words: dict[str, list[str]]
) -> None:
    up = upstream(repository(tmp_path / "vllm", with_words(words, left_out="--hf-output-len")))
    (found,) = unknown(check_upstream.check_cells(up)).values()
    assert len(found) == 4 and all("does not have --hf-output-len" in message for message in found)


@pytest.mark.parametrize(
    ("about", "word"),
    [
        ("options of serve", "max-num-seqs"),
        ("keys of results", "spec_decode_draft_tokens"),
        ("paths of the server", "/reset_prefix_cache"),
        ("counters of /metrics", "vllm:prefix_cache_hits"),
        ("environment variables", "VLLM_SERVER_DEV_MODE"),
    ],
)
def test_a_word_that_is_gone_is_named(
    tmp_path: Path, words: dict[str, list[str]], about: str, word: str
) -> None:
    up = upstream(repository(tmp_path / "vllm", with_words(words, left_out=word)))
    found = {name: rows for check in WORDS for name, rows in unknown(check(up)).items()}
    assert [name.strip('"') for name in found.pop(about)] == [word]
    assert found.keys() <= {"shipped cells"}, "a cell that needs the option does not lint clean"


@pytest.mark.parametrize(
    ("path", "text", "about", "named"),
    [
        ("tools/vendor.cmake", "", "files of a build", ["tools/vendor.cmake"]),
        ("CMakeLists.txt", "include(extra/rules.txt)", "files of a build", ["extra/rules.txt"]),
        ("setup.py", f"{SETUP}read('rules.txt')", "files of a build", ["extra/rules.txt"]),
        ("requirements/abacus.txt", "torch", "requirements", ["requirements/abacus.txt"]),
        ("CMakeLists.txt", "$ENV{ABACUS_DIR}", "variables of a build", ["ABACUS_DIR"]),
        ("setup.py", SETUP.replace("WHEEL_COMMIT", "WHEEL_SHA"), "variables of a build",
         ["VLLM_PRECOMPILED_WHEEL_COMMIT"]),
        ("setup.py", SETUP.replace('"cuda"', '"abacus"'), "devices", ["abacus"]),
        ("setup.py", SETUP.replace("vllm._C", "abacus._C"), "compiled modules", ["abacus._C"]),
        ("tools/build_rust.py", 'RustExtension(target="vllm.server")', "compiled modules", ["vllm.server"]),
        ("setup.py", SETUP.replace("/{commit}/{v", "/main/{commit}/{v", 1), "addresses of wheels",
         ["https://wheels.vllm.ai/main/{commit}/{variant_dir}vllm/"]),
        ("setup.py", SETUP.replace("cu130", "cu999"), "variants of wheels", ["cu999"]),
        ("vllm/envs.py", "", "CUDA of a wheel", [r'VLLM_MAIN_CUDA_VERSION: str = "(\d+)']),
        ("nightly.json", json.dumps([{**SPECIFICATION[0], "tempo": 1}]), "cells import nightly.json", None),
    ],
)  # fmt: skip
def test_what_is_new_in_a_tree_is_named(
    tmp_path: Path, path: str, text: str, about: str, named: list[str] | None
) -> None:
    up = upstream(repository(tmp_path / "vllm", {**TREE, "extra/rules.txt": "", path: text}))
    rows = [row for check in check_upstream.CHECKS if check not in WORDS for row in check(up)]
    found = unknown(rows)
    assert found.keys() == {about}
    assert named is None or found[about] == named


def test_commits_that_share_a_wheel_are_counted(tmp_path: Path) -> None:
    trees = (TREE, {"vllm/a.py": "1"}, {"csrc/cpu/a.cpp": "1"}, {"vllm/a.py": "2"})
    up = upstream(repository(tmp_path / "vllm", *trees))
    shares = {row.about: row.understood for row in check_upstream.check_history(up)}
    assert shares["first-parent commits, by date"] == 4
    assert shares["latest overlays, cuda"] == "1 wheels for 4 commits, one for 4"
    assert shares["latest overlays, cpu"] == "2 wheels for 4 commits, one for 2"


def test_an_older_commit_on_top_and_a_shallow_clone_are_named(tmp_path: Path) -> None:
    folder = repository(tmp_path / "vllm", TREE, {"vllm/a.py": "1"})
    tree, head = (run_git(folder, "rev-parse", name).strip() for name in ("main^{tree}", "main"))
    late = f"tree {tree}\nparent {head}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nlate\n"
    sha = run_git(folder, "hash-object", "-t", "commit", "-w", "--stdin", data=late.encode()).strip()
    run_git(folder, "update-ref", "refs/heads/main", sha)
    (folder / ".git" / "shallow").write_text(f"{head}\n")
    assert unknown(check_upstream.check_history(upstream(folder))) == {
        "first-parent commits, by date": sorted([head[:12], "a shallow clone"])
    }


def test_eras_and_pins_of_vllm_omni(tmp_path: Path) -> None:
    tree = {"setup.py": "", "vllm_omni/a.py": "", "requirements/cuda.txt": "torch"}
    pinned = {
        **tree,
        "docker/Dockerfile.ci": "ARG VLLM_BASE_TAG=v0.25.0\nFROM vllm/vllm-openai:${VLLM_BASE_TAG}\n",
    }
    after = int(datetime(2026, 12, 1, tzinfo=timezone.utc).timestamp())
    up = upstream(repository(tmp_path / "vllm-omni", tree, pinned, first=after))
    eras = unknown(check_upstream.check_eras(up))["eras of measurements"]
    assert "d8978522, #4461: no commit" in eras
    (row,) = (row for row in check_upstream.check_history(up) if row.about == "latest pins")
    assert len(row.unknown) == 1, "the commit without a pin"


@pytest.mark.parametrize("engine_name", [None, "vllm-omni"])
def test_another_repository_is_bad_input(
    tmp_path: Path, engine_name: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = "other" if engine_name is None else "vllm"
    path = repository(tmp_path / folder, {f"{folder}/a.py": ""})
    assert main([str(path), *(["--engine", engine_name] if engine_name else [])]) == 2
    assert "is no clone of" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2
