"""``perfbisect agent install``: a wheel of what runs here, in an environment of its own there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import perfbisect
from tests.fakes.ssh import PretendMachines
from tests.fleet.sites import MAIN


@pytest.mark.processes
def test_a_machine_without_perfbisect_gets_this_one(tmp_path: Path) -> None:
    machines = PretendMachines(tmp_path / "machines")
    home = machines.add("box")
    shutil.rmtree(home / ".perfbisect")
    (tmp_path / "hosts.yaml").write_text("hosts: [box]\n")
    env = os.environ | {
        "PATH": machines.path(os.environ["PATH"]),
        "PERFBISECT_STATE": str(tmp_path / "state"),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*MAIN, *words, "--fleet", "ssh:hosts.yaml"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)

    before = run("doctor")
    assert before.returncode == 5
    assert "perfbisect agent install box --fleet ssh:hosts.yaml" in before.stdout
    for _ in range(2):  # a second installation changes nothing
        done = run("agent", "install", "box")
        assert (done.returncode, done.stdout.strip()) == (0, f"box: perfbisect {perfbisect.__version__}"), (
            done.stderr
        )
    assert len(list((home / ".perfbisect" / "agents").iterdir())) == 1
    after = run("doctor")
    assert after.returncode == 0, after.stdout
    unknown = run("agent", "install", "bax")
    assert unknown.returncode == 2
    assert "'box'" in unknown.stderr or "box" in unknown.stderr
