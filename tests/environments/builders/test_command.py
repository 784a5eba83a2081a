"""The user's own command: what it is given, what it must leave, and whose fault its ends are."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.environments.conftest import World

LINES = """#!/bin/sh
set -e
"$2" -m venv --without-pip "$1"
site=$(echo "$1"/lib/python3*/site-packages)
cp -r "$3/tiny_engine" "$site/"
printf '__version__ = "9"\\n__commit_id__ = %s\\n' "$4" > "$site/tiny_engine/_version.py"
echo "day $UV_EXCLUDE_NEWER and $TINY_MODE"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "make env.sh"
    file.write_text(LINES)
    file.chmod(0o755)
    return file


def command(world: World, template: str, more: str = "") -> Builder:
    return world.builder(f"command:{template},package=tiny_engine{more}", day="2026-01-02")


def test_an_environment_of_its_making(script: Path, world: World) -> None:
    template = f"'{script}' {{env}} {{python}} {{tree}} None"
    builder = command(world, template, ",env=TINY_MODE=fast")
    built = world.ensure(builder, world.history.slow)
    assert built.interpreter == built.folder / "env" / "bin" / "python"
    assert (built.engine_version, built.engine_commit) == ("9", world.history.slow)
    assert built.facts["identified_by"] == "content"
    assert built.facts["command"] == template
    assert "day 2026-01-02 and fast" in world.log.read_text()
    assert builder.cached(Change(world.history.slow))
    assert world.ensure(builder, world.history.slow).seconds == 0.0
    assert builder.minutes(Change(world.history.slow)) == 0.0
    assert builder.disk([Change(world.history.slow)]) == 0
    assert builder.minutes(Change(world.history.base)) == pytest.approx(built.seconds / 60)


def test_it_is_checked_like_all_others(script: Path, world: World) -> None:
    says = "'\"" + world.history.base + "\"'"
    lying = command(world, f"'{script}' {{env}} {{python}} {{tree}} {says}")
    with pytest.raises(BuildError, match=f"says it is commit {world.history.base}"):
        world.ensure(lying, world.history.slow)
    of_checkout = command(world, f"'{script}' {{env}} {{python}} {world.history.path} None")
    with pytest.raises(BuildError, match="2 of its files are not those of"):
        world.ensure(of_checkout, world.history.removed)


@pytest.mark.parametrize(
    ("ending", "error", "told"),
    [
        ("echo wrong flags >&2; exit 3", BuildError, "ended with exit code 3: wrong flags"),
        ("exit 75", MachineError, "the machine failed, not the commit"),
        ("kill -TERM $$", MachineError, "killed from outside by signal 15"),
        ("kill -KILL $$", MachineError, "killed from outside by signal 9"),
        ("kill -SEGV $$", BuildError, "ended with signal 11: no output"),
        ("exit 0", BuildError, "left no interpreter at"),
        ("sleep 60", MachineError, "not done after"),
    ],
)
def test_how_it_may_end(ending: str, error: type[Exception], told: str, tmp_path: Path, world: World) -> None:
    script = tmp_path / "s.sh"
    script.write_text(f"#!/bin/sh\n{ending}\n")
    script.chmod(0o755)
    builder = command(world, f"{script} {{sha}} {{env}}")
    with pytest.raises(error, match=told):
        builder.ensure(Change(world.history.slow), log=world.log, timeout=5.0 if "60" not in ending else 0.3)
    assert not list((tmp_path / "environments").glob("[!.]*"))


def test_what_is_in_the_key(script: Path, world: World) -> None:
    slow, again = Change(world.history.slow), Change(world.history.slow_again)
    by_tree = command(world, f"'{script}' {{env}} {{tree}}")
    by_sha = command(world, f"'{script}' {{env}} {{sha}}")
    assert by_tree.key(slow) != by_tree.key(again)  # another file elsewhere in the tree
    assert by_sha.key(slow) != by_sha.key(again)
    before = by_sha.key(slow)
    script.write_text(LINES + "# changed\n")
    assert command(world, f"'{script}' {{env}} {{sha}}").key(slow) != before


def test_a_program_that_is_not_there(world: World) -> None:
    with pytest.raises(BuildError, match="cannot start"):
        command(world, "/nonexistent/x {env}").ensure(Change(world.history.slow), log=world.log, timeout=5)
