"""``perfbisect cells lint``: the commit is asked what a client must know only where its own measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfbisect.clients.base import RESERVED
from tests.command_line import type_command
from tests.fakes.gitwriter import HistoryWriter

CELL = "family: text\nmodel: acme/tiny\ndataset_name: new-set\nnum_prompts: 8\nmax_concurrency: 1\n"
OTHER = "existing:/somewhere/bin/python,package=vllm"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """An engine whose benchmarks know the backend of the cell and not its data set."""
    options = [f"--{name}" for name in (*RESERVED, "ready-check-timeout-sec")]
    source = f'BACKENDS = ["openai"]\nDATASETS = ["random"]\nOPTIONS = {options}\n'
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit("Begin", {"vllm/benchmarks/serve.py": source.encode()})
    writer.finish()
    (tmp_path / "cell.yaml").write_text(CELL)
    return writer.path


def linted(repo: Path, *typed: str) -> tuple[int, list[str], str]:
    """Exit code, the fields that were found fault with, and the client that is not the commit's."""
    words = ("cells", "lint", str(repo.parent / "cell.yaml"), "--repo", str(repo), "--json", *typed)
    outcome = type_command(words)
    told = json.loads(outcome.out)
    return outcome.code, [one["field"] for one in told["cells"][0]["findings"]], told["client"]


def test_the_client_of_the_commit_must_know_the_data_set(repo: Path) -> None:
    own = (2, ["dataset_name"], "")
    assert linted(repo) == own
    assert linted(repo, "--client", "change") == own
    assert linted(repo, "--env", "source,package=vllm") == own


def test_another_client_knows_its_own(repo: Path) -> None:
    assert linted(repo, "--client", OTHER) == (0, [], OTHER)
    assert linted(repo, "--env", OTHER) == (0, [], OTHER)
    pinned = "wheel:https://wheels.example.invalid/{sha},client=v1"
    assert linted(repo, "--env", pinned) == (0, [], pinned)
    (repo / "perfbisect.yaml").write_text(f"client: {OTHER}\n")
    assert linted(repo) == (0, [], OTHER)
    assert linted(repo, "--client", "change")[0] == 2
    shown = type_command(["cells", "lint", str(repo.parent / "cell.yaml"), "--repo", str(repo)])
    assert shown.code == 0
    assert "data set, backend and options of the client are not checked" in shown.out


def test_a_broken_file_is_a_warning_where_all_are_checked(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.parent / "cells").mkdir()
    (repo.parent / "cells" / "broken.yaml").write_text("family: nix\n")
    monkeypatch.chdir(repo.parent)
    told = json.loads(type_command(["cells", "lint", "--repo", str(repo), "--json"]).out)
    assert len(told["cells"]) > 3
    assert "broken.yaml:1" in told["warnings"][0]
    assert type_command(["cells", "lint", "broken", "--repo", str(repo)]).code == 2


def test_cells_of_the_other_engine_are_skipped_and_said(repo: Path) -> None:
    (repo.parent / "speech.yaml").write_text(
        "family: tts\nmodel: acme/voice\nclient: omni_bench\nbackend: openai-audio-speech\n"
        "endpoint: /v1/audio/speech\ndataset_name: seed-tts\nnum_prompts: 8\nmax_concurrency: 1\n"
        "percentile_metrics: [audio_ttfp, audio_duration]\n"
    )
    (repo.parent / "cell.yaml").write_text(CELL.replace("new-set", "random"))
    files = [str(repo.parent / name) for name in ("cell.yaml", "speech.yaml")]
    shown = type_command(["cells", "lint", *files, "--repo", str(repo)])
    assert shown.code == 0
    assert "1 cell skipped: their engine is vLLM-Omni, give its repository: --repo" in shown.out
    assert "1 cell checked against vllm at " in shown.out
    nothing = type_command(["cells", "lint", files[1], "--repo", str(repo)])
    assert nothing.code == 2, "nothing was checked"
