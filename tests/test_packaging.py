"""Wheel and sdist: they build, hold what perfbisect ships, and work where there is nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.docs.tutorial import half
from tests.fakes import checkouts

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
BESIDE = {
    "cells": "_cells",
    "dashboards": "_dashboards",
    "pretend": "_pretend",
    ".claude/skills/perf-bisect": "_skill",
}
"""A folder of the checkout -> its name in the installed package."""

FIT = {"doctor": (0, 5), "cells": (0, 4)}
"""Exit codes that the reader of the tutorial may see, by verb: an unfit machine, no cell that agrees."""


def called(
    *command: str | Path, folder: Path, fit: Collection[int] = (0,), **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE") and not name.startswith("PERFBISECT_")
    }
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment | more, check=False
    )
    assert done.returncode in fit, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def call(*command: str | Path, folder: Path) -> str:
    return called(*command, folder=folder).stdout


def shipped() -> set[str]:
    """Every file of the folders beside the package, as it is named in an installation."""
    return {
        f"perfbisect/{name}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, name in BESIDE.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what git would commit: not of build leftovers in the checkout."""
    source = tmp_path_factory.mktemp("source")
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", folder=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("sdist")
    call(sys.executable, "-c", BUILD, out, folder=source)
    (built,) = out.glob("perfbisect-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist alone, so that it shows that one complete as well."""
    out = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir")
    call(sys.executable, "-m", "pip", "wheel", *options, out, sdist, folder=out)
    (built,) = out.glob("perfbisect-*.whl")
    return built


def test_they_hold_what_is_shipped_and_nothing_of_the_tests(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "setup.py"} <= sources
    names = set(zipfile.ZipFile(wheel).namelist())
    assert shipped() - names == set()
    for part in (
        "_cells/claims/async_scheduling.yaml",
        "_cells/machines/cuda.yaml",
        "_cells/models/llama_100m/tokenizer.json",
        "_dashboards/index.html.jinja",
        "_pretend/cells/pretend.yaml",
        "_pretend/engine/vllm/entrypoints/cli/main.py",
        "_skill/SKILL.md",
        "series/suspects/suspects.yaml",
        "report/templates/page.html.jinja",
    ):
        assert f"perfbisect/{part}" in names
    listed = call("git", "ls-files", "perfbisect", folder=ROOT).split()
    assert {name for name in listed if (ROOT / name).is_file()} - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "perfbisect").rglob("*.py")}
    assert modules - names == set()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"perfbisect"}


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """One with the locked dependencies and nothing else, not even pip: one test, since it takes minutes."""
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", folder=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python)
    locked = ROOT / "requirements" / "runtime.txt"
    call(*pip, "--require-hashes", "-r", locked, folder=tmp_path)
    call(*pip, "--no-deps", wheel, folder=tmp_path)
    where = call(python, "-c", "import perfbisect; print(perfbisect.__file__)", folder=tmp_path)
    assert where.startswith(str(tmp_path))
    program = python.with_name("perfbisect")
    tells_what_it_is(program, tmp_path)
    plays_the_first_half_of_the_tutorial(program, tmp_path)


def tells_what_it_is(program: Path, folder: Path) -> None:
    assert "bisect" in call(program, "--help", folder=folder)
    told = call(program, "--version", folder=folder).splitlines()
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert told[0] == f"perfbisect, version {version[1]}"
    assert told[1:] == []
    found = json.loads(call(program, "cells", "list", "--json", folder=folder))
    files = {path.stem for path in (ROOT / "cells").glob("*.yaml")}
    assert {file["name"] for file in found["cells"] if not file["error"]} == files
    assert '"$schema"' in call(program, "schema", "bisect", folder=folder)


def plays_the_first_half_of_the_tutorial(program: Path, folder: Path) -> None:
    """What prepares the shell was done; the clone of vLLM is a small one of our own."""
    here = folder
    own = {name: str(folder) for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    ran = []
    for line in half(0):
        first, *words = line.words
        if first == "cd":
            here = here / words[0]
        elif first == "git":
            checkouts.vllm(here / Path(words[-1]).name)
        elif first == "perfbisect":
            called(program, *words, folder=here, fit=FIT.get(words[0], (0,)), **own)
            ran.append(words[0])
        else:
            assert first in ("python3", ".", "pip"), line.text
    assert ran[-2:] == ["init", "bisect"]
    assert (folder / "vllm" / "perfbisect.yaml").is_file()
