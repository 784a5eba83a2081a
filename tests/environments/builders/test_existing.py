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
from tests.fakes.gitwriter import run_git


def ensure(builder: ExistingBuilder, change: Change | str, log: Path) -> Environment:
    change = Change(change) if isinstance(change, str) else change
    return builder.ensure(change, log=log, timeout=60)


def existing(
    cache: Path, interpreter: Path, repository: Repository | None = None, **options: str
) -> ExistingBuilder:
    rest = "".join(f",{key}={value}" for key, value in {"package": "tiny_engine", **options}.items())
    builder = plain_builder(f"existing:{interpreter}{rest}", repository=repository, cache=cache)
    assert isinstance(builder, ExistingBuilder)
    return builder


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
    built = builder.ensure(Change("tiny-engine==1.0", "release"), log=log, timeout=60)
    assert built.interpreter == installed.interpreter
    assert built.engine_version == "1.0"
    assert built.facts["identified_by"] == "version"
    assert "tiny-helper==5.1" in built.facts["packages"]
    assert not built.folder.is_relative_to(installed.folder)
    with pytest.raises(BuildError, match=r"says it is version 1\.0, not 1\.1"):
        builder.ensure(Change("tiny-engine==1.1", "release"), log=log, timeout=60)
    client = builder.client()
    assert client is not None
    assert (client.interpreter, client.engine_version) == (installed.interpreter, "1.0")


def test_a_clean_checkout_at_the_commit(checkout: TinyHistory, tmp_path: Path, log: Path) -> None:
    builder = existing(tmp_path / "c", Path(sys.executable), path=str(checkout.path))
    built = ensure(builder, checkout.slow_again, log)
    assert built.facts["identified_by"] == "checkout"
    assert (built.engine_commit, built.engine_version) == (checkout.slow_again, "1.0.dev5")
    assert built.env["PYTHONPATH"] == str(checkout.path)


def test_a_checkout_at_another_commit(checkout: TinyHistory, tmp_path: Path, log: Path) -> None:
    builder = existing(
        tmp_path / "c", Path(sys.executable), Repository.open(checkout.path), path=str(checkout.path)
    )
    with pytest.raises(BuildError) as raised:
        ensure(builder, checkout.base, log)
    assert f"a checkout at {checkout.slow_again[:12]}, not {checkout.base[:12]}" in raised.value.message
    assert f"checkout {checkout.base[:12]}" in (raised.value.next_step or "")


@pytest.mark.parametrize("dirt", ["changed", "added"])
def test_a_dirty_checkout(dirt: str, checkout: TinyHistory, tmp_path: Path, log: Path) -> None:
    name = {"changed": "core.py", "added": "new.py"}[dirt]
    (checkout.path / "tiny_engine" / name).write_text("def speed():\n    return 9\n")
    builder = existing(tmp_path / "c", Path(sys.executable), path=str(checkout.path))
    with pytest.raises(BuildError, match="with uncommitted changes"):
        ensure(builder, checkout.slow_again, log)


def test_an_environment_inside_a_checkout_is_no_checkout(
    checkout: TinyHistory, tmp_path: Path, log: Path
) -> None:
    run_git(checkout.path, "-c", "core.excludesFile=", "status")
    site = checkout.path / "venv" / "site"
    for name, data in package_files("1.0").items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    builder = existing(tmp_path / "c", Path(sys.executable), path=str(site))
    with pytest.raises(BuildError, match=r"is version 1\.0 of no known commit"):
        ensure(builder, checkout.slow_again, log)


@pytest.mark.parametrize(
    ("says", "right"), [("g{}", True), ("{}", True), ("gfedcba987", False), ("g12", False)]
)
def test_an_engine_that_knows_its_commit(
    says: str, right: bool, history: TinyHistory, tmp_path: Path, log: Path
) -> None:
    said = says.format(history.slow[:9])
    for name, data in package_files("1.0", said).items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_bytes(data)
    builder = existing(tmp_path / "c", Path(sys.executable), path=str(tmp_path / "site"))
    if right:
        built = ensure(builder, history.slow, log)
        assert (built.facts["identified_by"], built.engine_commit) == ("engine", history.slow)
    else:
        with pytest.raises(BuildError, match=f"is commit {said}, not {history.slow[:12]}"):
            ensure(builder, history.slow, log)


def test_what_nobody_can_tell_is_believed_only_when_told_to(
    installed: Environment, history: TinyHistory, tmp_path: Path, log: Path
) -> None:
    change = Change(history.slow)
    with pytest.raises(BuildError, match=r"is version 1\.0 of no known commit, not") as raised:
        existing(tmp_path, installed.interpreter).ensure(change, log=log, timeout=60)
    assert "trust=yes" in (raised.value.next_step or "")
    built = existing(tmp_path, installed.interpreter, trust="yes").ensure(change, log=log, timeout=60)
    assert built.facts["identified_by"] == "trusted, though it is version 1.0 of no known commit"
    assert built.engine_commit == history.slow


def test_no_engine_at_all(tmp_path: Path, log: Path) -> None:
    with pytest.raises(BuildError, match="No module named 'tiny_engine'"):
        existing(tmp_path, Path(sys.executable)).ensure(Change("a" * 40), log=log, timeout=60)


def test_what_is_found_now_counts_and_not_an_earlier_look(
    checkout: TinyHistory, tmp_path: Path, log: Path
) -> None:
    def look() -> Environment:
        builder = existing(tmp_path / "c", Path(sys.executable), path=str(checkout.path))
        return ensure(builder, checkout.slow_again, log)

    before = look()
    (checkout.path / "tiny_engine" / "_version.py").write_bytes(
        package_files("1.0.dev16")["tiny_engine/_version.py"]
    )
    after = look()
    assert (before.engine_version, after.engine_version) == ("1.0.dev5", "1.0.dev16")
    assert before.folder == after.folder
