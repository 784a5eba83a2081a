"""The wheel: it builds, holds what perfbisect ships, and works where there is nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def call(*command: str | Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of what git would commit: not of build leftovers in the checkout."""
    source = tmp_path_factory.mktemp("source")
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", folder=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir")
    call(sys.executable, "-m", "pip", "wheel", *options, out, source, folder=out)
    (built,) = out.glob("perfbisect-*.whl")
    return built


def test_the_wheel_holds_what_is_shipped_and_nothing_of_the_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    cells = {path.name for path in (ROOT / "cells").glob("*.yaml")}
    assert cells
    assert {Path(name).name for name in names if name.endswith(".yaml")} >= cells
    assert any(name.endswith("models/llama_100m/tokenizer.json") for name in names)
    pages = {path.relative_to(ROOT / "dashboards") for path in (ROOT / "dashboards").rglob("*.*")}
    assert {f"perfbisect/_dashboards/{path.as_posix()}" for path in pages} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "perfbisect").rglob("*.py")}
    assert modules - set(names) == set()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"perfbisect"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", folder=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    locked = ROOT / "requirements" / "runtime.txt"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    call(*pip, "--require-hashes", "-r", locked, folder=tmp_path)
    call(*pip, "--no-deps", wheel, folder=tmp_path)
    command = python.with_name("perfbisect")
    assert "bisect" in call(command, "--help", folder=tmp_path)
    shipped = call(command, "cells", "list", "--json", folder=tmp_path)
    for path in (ROOT / "cells").glob("*.yaml"):
        assert path.stem in shipped
    where = call(python, "-c", "import perfbisect; print(perfbisect.__file__)", folder=tmp_path)
    assert where.startswith(str(tmp_path))
