"""An interpreter as it is: what shows that its engine is the change, and what does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.environments.conftest import World
from tests.environments.tiny import TinyHistory, package_files, write_history


def existing(world: World, interpreter: object = sys.executable, **options: object) -> Builder:
    rest = "".join(f",{key}={value}" for key, value in {"package": "tiny_engine", **options}.items())
    return world.builder(f"existing:{interpreter}{rest}")


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


def test_a_release(world: World) -> None:
    builder = existing(world, world.installed.interpreter)
    built = world.ensure(builder, Change("tiny-engine==1.0", "release"))
    assert built.interpreter == world.installed.interpreter
    assert (built.engine_version, built.facts["identified_by"]) == ("1.0", "version")
    assert "tiny-helper==5.1" in built.facts["packages"]
    assert not built.folder.is_relative_to(world.installed.folder)
    with pytest.raises(BuildError, match=r"says it is version 1\.0, not 1\.1"):
        world.ensure(builder, Change("tiny-engine==1.1", "release"))
    client = builder.client()
    assert client is not None
    assert (client.interpreter, client.engine_version) == (world.installed.interpreter, "1.0")


def test_a_clean_checkout_at_the_commit(checkout: TinyHistory, world: World) -> None:
    """What is found now counts, not an earlier look; another commit is refused."""
    path = checkout.path
    before = world.ensure(existing(world, path=path), checkout.slow_again)
    assert before.facts["identified_by"] == "checkout"
    assert (before.engine_commit, before.engine_version) == (checkout.slow_again, "1.0.dev5")
    assert before.env["PYTHONPATH"] == str(path)
    version = package_files("1.0.dev16")["tiny_engine/_version.py"]
    (path / "tiny_engine" / "_version.py").write_bytes(version)
    (path / "docs" / "a").write_text("dirty elsewhere")
    after = world.ensure(existing(world, path=path), checkout.slow_again)
    assert (after.engine_version, after.folder) == ("1.0.dev16", before.folder)
    with pytest.raises(BuildError) as raised:
        world.ensure(existing(world, path=path), checkout.base)
    assert f"a checkout at {checkout.slow_again[:12]}, not {checkout.base[:12]}" in raised.value.message
    assert f"checkout {checkout.base[:12]}" in (raised.value.next_step or "")


@pytest.mark.parametrize("name", ["core.py", "new.py"])
def test_a_dirty_checkout(name: str, checkout: TinyHistory, world: World) -> None:
    (checkout.path / "tiny_engine" / name).write_text("def speed():\n    return 9\n")
    with pytest.raises(BuildError, match="with uncommitted changes"):
        world.ensure(existing(world, path=checkout.path), checkout.slow_again)


def test_an_environment_inside_a_checkout_is_no_checkout(checkout: TinyHistory, world: World) -> None:
    site = write_package(checkout.path / "venv" / "site")
    with pytest.raises(BuildError, match=r"is version 1\.0 of no known commit"):
        world.ensure(existing(world, path=site), checkout.slow_again)


@pytest.mark.parametrize(
    ("says", "right"), [("g{}", True), ("{}", True), ("gfedcba987", False), ("g12", False)]
)
def test_an_engine_that_knows_its_commit(says: str, right: bool, world: World) -> None:
    said = says.format(world.history.slow[:9])
    builder = existing(world, path=write_package(world.cache / "site", said))
    if right:
        built = world.ensure(builder, world.history.slow)
        assert (built.facts["identified_by"], built.engine_commit) == ("engine", world.history.slow)
    else:
        with pytest.raises(BuildError, match=f"is commit {said}, not {world.history.slow[:12]}"):
            world.ensure(builder, world.history.slow)


def test_trust_and_no_engine(world: World) -> None:
    with pytest.raises(BuildError, match=r"is version 1\.0 of no known commit, not") as raised:
        world.ensure(existing(world, world.installed.interpreter), world.history.slow)
    assert "trust=yes" in (raised.value.next_step or "")
    built = world.ensure(existing(world, world.installed.interpreter, trust="yes"), world.history.slow)
    assert built.facts["identified_by"] == "trusted, though it is version 1.0 of no known commit"
    assert built.engine_commit == world.history.slow
    with pytest.raises(BuildError, match="No module named 'tiny_engine'"):
        world.ensure(existing(world), world.history.slow)
