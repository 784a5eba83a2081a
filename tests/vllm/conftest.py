"""The real vLLM on the CPU: installed by perfbisect's own builder, under build/, once.

Nothing here skips: where vLLM cannot be installed, the tests fail.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfbisect.environments.base import Environment
from scripts import demo_history
from scripts.demo import CACHE, CELL, DAY, PACKAGE, PROGRAM, ROOT, VERSION, install_release

RELEASE = f"{PACKAGE}=={VERSION}"


def write_short(folder: Path, **fields: object) -> str:
    """The shipped cell with fewer prompts and ``fields``: that it is measured is asked, not how well."""
    cell = yaml.safe_load((ROOT / "cells" / f"{CELL}.yaml").read_text())
    del cell["variants"]
    own = {"model": str(ROOT / "cells" / "models" / "llama_100m"), "num_prompts": 6, "discard_prompts": 2}
    path = folder / "short.yaml"
    path.write_text(yaml.safe_dump(cell | own | fields))
    return str(path)


@dataclass(frozen=True)
class Answer:
    """What a command line came back with."""

    code: int
    document: dict[str, Any]
    folder: Path


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment of the release."""
    return install_release(tmp_path_factory.mktemp("install") / "build.log")


@pytest.fixture(scope="session")
def history(released: Environment, tmp_path_factory: pytest.TempPathFactory) -> demo_history.Demo:
    """Four commits of vLLM's own Python tree; the third more than doubles the time of a step."""
    return demo_history.make(
        Path(released.engine_file).parent.parent,
        tmp_path_factory.mktemp("history") / "repo",
        commits=3,
        places=demo_history.Places(planted=2, docs=1),
        share=1.2,
    )


@pytest.fixture
def typed(tmp_path: Path) -> Callable[..., Answer]:
    """The command line as a user types it; its progress goes to the terminal."""

    def call(verb: str, *arguments: str) -> Answer:
        command = [
            *(PROGRAM, verb, *arguments, "--json", "--full"),
            *("--state", str(tmp_path / "state")),
        ]
        environment = os.environ | {"PERFBISECT_CACHE": str(CACHE)}
        done = subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE, env=environment, text=True, check=False
        )
        return Answer(done.returncode, json.loads(done.stdout), tmp_path)

    return call


@pytest.fixture
def perfbisect(typed: Callable[..., Answer], history: demo_history.Demo) -> Callable[..., Answer]:
    """Commands that measure, on that history."""

    def call(verb: str, *arguments: str, cell: str = CELL) -> Answer:
        where = ("--repo", str(history.path), "--env", f"overlay:{RELEASE},base={history.commits[0]}")
        return typed(verb, cell, *where, "--exclude-newer", DAY, *arguments)

    return call
