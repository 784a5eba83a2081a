"""What a checkout says of a cell, from a small repository made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cells.lint import Checkout, lint
from perfbisect.changes.git import Repository
from perfbisect.errors import RevisionError
from perfbisect.model.cell import Cell
from tests.changes.repositories import commit, git
from tests.fakes.gitwriter import HistoryWriter

BENCH = 'DATASETS = {"seed-tts": 1}\nif args.backend == "openai-audio-speech":\n    pass\n'
SERVE = 'parser.add_argument("--deploy-config")\nclass Args:\n    max_num_seqs: int = 1\n'


def cell(**changed: object) -> Cell:
    fields: dict[str, object] = {
        "name": "tts",
        "family": "text",
        "model": "Qwen/Qwen3-TTS",
        "backend": "openai-audio-speech",
        "endpoint": "/v1/audio/speech",
        "dataset_name": "seed-tts",
        "num_prompts": 8,
        "max_concurrency": 1,
    }
    return Cell.model_validate(fields | changed)


Commits = tuple[Checkout, ...]


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> Commits:
    writer = HistoryWriter(tmp_path_factory.mktemp("omni") / "repo")
    writer.commit(
        "Begin",
        {
            "vllm_omni/benchmarks/patch.py": BENCH.encode(),
            "vllm_omni/benchmarks/broken.py": b"def (:\n",
            "vllm_omni/serve.py": SERVE.encode(),
        },
    )
    deploy = b"stages:\n- stage_id: 0\nconnectors:\n  extra:\n    zmq_port: 50051\n"
    writer.commit("Add a deploy YAML", {"vllm_omni/deploy/tts.yaml": deploy})
    writer.commit("[Bugfix] Reject speech for omni models (#2763)", {"vllm_omni/serve2.py": b"\n"})
    shas = writer.finish()
    return tuple(Checkout(Repository.open(writer.path), sha) for sha in shas)


def test_a_cell_that_makes_sense(commits: Commits) -> None:
    assert lint(cell(serve_args={"max-num-seqs": 4}), commits[2]) == ()
    assert commits[0].engine == "vllm_omni"


def test_a_data_set_that_the_client_does_not_know(commits: Commits) -> None:
    (found,) = lint(cell(dataset_name="geneval"), commits[0])
    assert (found.level, found.field) == ("error", "dataset_name")
    assert "'geneval' occurs nowhere in the benchmarks of vllm_omni" in found.message


def test_a_deploy_yaml_of_later(commits: Commits) -> None:
    served = cell(deploy_yaml="vllm_omni/deploy/tts.yaml")
    (found,) = lint(served, commits[0])
    assert (found.level, found.field) == ("error", "deploy_yaml")
    assert f"it is there since {commits[1].sha[:7]} of 2025-01-01" in found.message
    (port,) = lint(served, commits[1])
    assert (port.level, port.message[:27]) == ("warning", "zmq_port is fixed at 50051:")
    (never,) = lint(cell(deploy_yaml="vllm_omni/deploy/no.yaml"), commits[1])
    assert "it never was" in never.message


def test_an_endpoint_that_refuses_the_model(commits: Commits) -> None:
    served = cell(model="Qwen/Qwen3-Omni-30B")
    assert lint(served, commits[1]) == ()
    (found,) = lint(served, commits[2])
    assert (found.level, found.field) == ("error", "endpoint")
    assert "since #2763" in found.message


def test_a_client_that_sends_a_temperature_of_its_own(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("Begin", {"vllm/benchmarks/serve.py": b"NAMES = ['random', 'openai']"})
    writer.commit("[Benchmark] Send no temperature (#32723)", {"vllm/a.py": b""})
    first, second = (Checkout(Repository.open(writer.path), sha) for sha in writer.finish())
    text = {"family": "text", "backend": "openai", "endpoint": "/v1/completions", "dataset_name": "random"}
    silent, greedy = cell(**text, sampling="server"), cell(**text)

    def told(one: Cell, at: Checkout) -> list[str]:
        return [finding.level for finding in lint(one, at) if finding.field == "sampling"]

    assert [told(silent, first), told(silent, second), told(greedy, first)] == [["warning"], [], []]


def test_an_option_that_the_server_does_not_take(commits: Commits) -> None:
    (found,) = lint(cell(serve_args={"deploy-config": "x", "max-num-seq": 4}), commits[0])
    assert (found.level, found.field) == ("error", "serve_args.max-num-seq")


def test_an_option_that_the_client_of_the_commit_does_not_take(tmp_path: Path) -> None:
    options = "base-url disable-tqdm max-concurrency model dataset num-prompts output-file seed task"
    known = [f"--{name}" for name in (*options.split(), "request-rate", "warmup-requests")]
    script = "benchmarks/diffusion/diffusion_benchmark_serving.py"
    writer = HistoryWriter(tmp_path / "repo")
    elsewhere = {"benchmarks/other.py": b'"--bot-task"', "vllm_omni/a.py": b""}
    writer.commit("Begin", {script: repr([*known, "random"]).encode(), **elsewhere})
    writer.commit("Add an option", {script: repr([*known, "random", "--bot-task"]).encode()})
    first, second = writer.finish()
    fields = {"family": "diffusion", "client": "diffusion_bench", "backend": "random", "task": "t2i"}
    served = cell(
        **fields, endpoint="/v1/images/generations", dataset_name="random", dataset_args={"bot-task": "x"}
    )
    (found,) = lint(served, Checkout(Repository.open(writer.path), first))
    assert (found.level, found.field) == ("error", "client")
    assert found.message == f"client diffusion_bench at {first[:12]} does not have --bot-task"
    assert lint(served, Checkout(Repository.open(writer.path), second)) == ()


def test_what_is_fetched_while_it_is_measured(commits: Commits) -> None:
    (found,) = lint(cell(dataset_args={"image-url": "https://example.invalid/a.png"}), commits[0])
    assert (found.level, found.field) == ("warning", "image-url")


def test_a_checkout_without_benchmarks_says_so(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("Begin", {"src/main.py": b"pass\n"})
    (sha,) = writer.finish()
    checkout = Checkout(Repository.open(writer.path), sha)
    (found,) = lint(cell(), checkout)
    assert (found.level, checkout.engine) == ("warning", "repo")
    assert "are not checked" in found.message


def test_sources_that_the_clone_lacks_are_no_finding(tmp_path: Path) -> None:
    """A partial clone: git stops at a file that it cannot read, which is not the same as no match."""
    path = tmp_path / "repo"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repo")
    sha = commit(path, "Begin", **{"serve.py": SERVE})
    blob = git(path, "rev-parse", "HEAD:serve.py")
    checkout = Checkout(Repository.open(path), sha)
    assert checkout.occurring(["max_num_seqs", "absent"]) == {"max_num_seqs"}
    (path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(RevisionError, match="cannot be searched"):
        checkout.occurring(["max_num_seqs"])
