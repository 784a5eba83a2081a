"""The user's own command: what it is given, what it must leave, and whose fault its ends are."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.builders.command import CommandBuilder
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.environments.conftest import plain_builder
from tests.environments.tiny import TinyHistory

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


def command(cache: Path, repository: Repository, template: str, more: str = "") -> CommandBuilder:
    builder = plain_builder(
        f"command:{template},package=tiny_engine{more}", repository=repository, cache=cache,
        exclude_newer="2026-01-02",
    )  # fmt: skip
    assert isinstance(builder, CommandBuilder)
    return builder


def test_an_environment_of_its_making(
    script: Path, history: TinyHistory, repository: Repository, tmp_path: Path, log: Path
) -> None:
    template = f"'{script}' {{env}} {{python}} {{tree}} None"
    builder = command(tmp_path, repository, template, ",env=TINY_MODE=fast")
    built = builder.ensure(Change(history.slow), log=log, timeout=60)
    assert built.interpreter == built.folder / "env" / "bin" / "python"
    assert (built.engine_version, built.engine_commit) == ("9", history.slow)
    assert built.facts["identified_by"] == "content"
    assert built.facts["command"] == template
    assert "day 2026-01-02 and fast" in log.read_text()
    assert builder.cached(Change(history.slow))
    assert builder.ensure(Change(history.slow), log=log, timeout=60).seconds == 0.0
    assert builder.minutes(Change(history.slow)) == 0.0
    assert builder.disk([Change(history.slow)]) == 0
    assert builder.minutes(Change(history.base)) == pytest.approx(built.seconds / 60)


def test_it_is_checked_like_all_others(
    script: Path, history: TinyHistory, repository: Repository, tmp_path: Path, log: Path
) -> None:
    says = "'\"" + history.base + "\"'"
    lying = command(tmp_path, repository, f"'{script}' {{env}} {{python}} {{tree}} {says}")
    with pytest.raises(BuildError, match=f"says it is commit {history.base}"):
        lying.ensure(Change(history.slow), log=log, timeout=60)
    of_checkout = command(tmp_path, repository, f"'{script}' {{env}} {{python}} {history.path} None")
    with pytest.raises(BuildError, match="2 of its files are not those of"):
        of_checkout.ensure(Change(history.removed), log=log, timeout=60)


@pytest.mark.parametrize(
    ("ending", "error", "told"),
    [
        ("echo wrong flags >&2; exit 3", BuildError, "ended with exit code 3: wrong flags"),
        ("exit 75", MachineError, "the machine failed, not the commit"),
        ("kill -TERM $$", BuildError, "ended with signal 15: no output"),
        ("exit 0", BuildError, "left no interpreter at"),
        ("sleep 60", MachineError, "not done after"),
    ],
)
def test_how_it_may_end(
    ending: str, error: type[Exception], told: str, history: TinyHistory, repository: Repository,
    tmp_path: Path, log: Path,
) -> None:  # fmt: skip
    script = tmp_path / "s.sh"
    script.write_text(f"#!/bin/sh\n{ending}\n")
    script.chmod(0o755)
    builder = command(tmp_path, repository, f"{script} {{sha}} {{env}}")
    with pytest.raises(error, match=told):
        builder.ensure(Change(history.slow), log=log, timeout=5.0 if "60" not in ending else 0.3)
    assert not list((tmp_path / "environments").glob("[!.]*"))


def test_what_is_in_the_key(
    script: Path, history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    slow, again = Change(history.slow), Change(history.slow_again)
    by_tree = command(tmp_path, repository, f"'{script}' {{env}} {{tree}}")
    by_sha = command(tmp_path, repository, f"'{script}' {{env}} {{sha}}")
    assert by_tree.key(slow) != by_tree.key(again)  # another file elsewhere in the tree
    assert by_sha.key(slow) != by_sha.key(again)
    before = by_sha.key(slow)
    script.write_text(LINES + "# changed\n")
    assert command(tmp_path, repository, f"'{script}' {{env}} {{sha}}").key(slow) != before


def test_a_program_that_is_not_there(
    history: TinyHistory, repository: Repository, tmp_path: Path, log: Path
) -> None:
    with pytest.raises(BuildError, match="cannot start"):
        command(tmp_path, repository, "/nonexistent/x {env}").ensure(Change(history.slow), log=log, timeout=5)
