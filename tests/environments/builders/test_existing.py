"""An interpreter as it is: what shows that its engine is the change, and what does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment
from perfbisect.environments.builders.existing import ExistingBuilder
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.environments.conftest import plain_builder
from tests.environments.tiny import TinyHistory, package_files, write_history


def ensure(builder: ExistingBuilder, change: Change | str, log: Path) -> Environment:
    change = Change(change) if isinstance(change, str) else change
    return builder.ensure(change, log=log, timeout=60)


def existing(
    cache: Path, interpreter: object = sys.executable, repository: Repository | None = None, **options: object
) -> ExistingBuilder:
    rest = "".join(f",{key}={value}" for key, value in {"package": "tiny_engine", **options}.items())
    builder = plain_builder(f"existing:{interpreter}{rest}", repository=repository, cache=cache)
    assert isinstance(builder, ExistingBuilder)
    return builder


def write_package(folder: Path, commit: str = "") -> Path:
    """A built engine in a folder, without a repository of its own."""
    for name, data in package_files("1.0", commit).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> TinyHistory:
    """A checkout of its own at its last commit, built in place: its generated files are there and ignored."""
    made = write_history(tmp_path / "checkout")
    (made.path / ".git" / "info" / "exclude").write_text("_version.py\n*.so\n__pycache__\n")
    for name, data in package_files("1.0.dev5").items():
        if name.endswith(("_version.py", ".so")):
            (made.path / name).write_bytes(data)
    return made


def test_a_release(installed: Environment, tmp_path: Path, log: Path) -> None:
    builder = existing(tmp_path, installed.interpreter)
    built = ensure(builder, Change("tiny-engine==1.0", "release"), log)
    assert built.interpreter == installed.interpreter
    assert (built.engine_version, built.facts["identified_by"]) == ("1.0", "version")
    assert "tiny-helper==5.1" in built.facts["packages"]
    assert not built.folder.is_relative_to(installed.folder)
    with pytest.raises(BuildError, match=r"says it is version 1\.0, not 1\.1"):
        ensure(builder, Change("tiny-engine==1.1", "release"), log)
    client = builder.client()
    assert client is not None
    assert (client.interpreter, client.engine_version) == (installed.interpreter, "1.0")


def test_a_clean_checkout_at_the_commit(checkout: TinyHistory, tmp_path: Path, log: Path) -> None:
    """What is found now counts, not an earlier look; another commit is refused."""
    path, repository = checkout.path, Repository.open(checkout.path)
    before = ensure(existing(tmp_path, path=path), checkout.slow_again, log)
    assert before.facts["identified_by"] == "checkout"
    assert (before.engine_commit, before.engine_version) == (checkout.slow_again, "1.0.dev5")
    assert before.env["PYTHONPATH"] == str(path)
    version = package_files("1.0.dev16")["tiny_engine/_version.py"]
    (path / "tiny_engine" / "_version.py").write_bytes(version)
    (path / "docs" / "a").write_text("dirty elsewhere")
    after = ensure(existing(tmp_path, path=path), checkout.slow_again, log)
    assert (after.engine_version, after.folder) == ("1.0.dev16", before.folder)
    with pytest.raises(BuildError) as raised:
        ensure(existing(tmp_path, repository=repository, path=path), checkout.base, log)
    assert f"a checkout at {checkout.slow_again[:12]}, not {checkout.base[:12]}" in raised.value.message
    assert f"checkout {checkout.base[:12]}" in (raised.value.next_step or "")


@pytest.mark.parametrize("name", ["core.py", "new.py"])
def test_a_dirty_checkout(name: str, checkout: TinyHistory, tmp_path: Path, log: Path) -> None:
    (checkout.path / "tiny_engine" / name).write_text("def speed():\n    return 9\n")
    with pytest.raises(BuildError, match="with uncommitted changes"):
        ensure(existing(tmp_path, path=checkout.path), checkout.slow_again, log)


def test_an_environment_inside_a_checkout_is_no_checkout(
    checkout: TinyHistory, tmp_path: Path, log: Path
) -> None:
    site = write_package(checkout.path / "venv" / "site")
    with pytest.raises(BuildError, match=r"is version 1\.0 of no known commit"):
        ensure(existing(tmp_path, path=site), checkout.slow_again, log)


@pytest.mark.parametrize(
    ("says", "right"), [("g{}", True), ("{}", True), ("gfedcba987", False), ("g12", False)]
)
def test_an_engine_that_knows_its_commit(
    says: str, right: bool, history: TinyHistory, tmp_path: Path, log: Path
) -> None:
    said = says.format(history.slow[:9])
    builder = existing(tmp_path, path=write_package(tmp_path / "site", said))
    if right:
        built = ensure(builder, history.slow, log)
        assert (built.facts["identified_by"], built.engine_commit) == ("engine", history.slow)
    else:
        with pytest.raises(BuildError, match=f"is commit {said}, not {history.slow[:12]}"):
            ensure(builder, history.slow, log)


def test_trust_and_no_engine(installed: Environment, history: TinyHistory, tmp_path: Path, log: Path) -> None:
    with pytest.raises(BuildError, match=r"is version 1\.0 of no known commit, not") as raised:
        ensure(existing(tmp_path, installed.interpreter), history.slow, log)
    assert "trust=yes" in (raised.value.next_step or "")
    built = ensure(existing(tmp_path, installed.interpreter, trust="yes"), history.slow, log)
    assert built.facts["identified_by"] == "trusted, though it is version 1.0 of no known commit"
    assert built.engine_commit == history.slow
    with pytest.raises(BuildError, match="No module named 'tiny_engine'"):
        ensure(existing(tmp_path), history.slow, log)
