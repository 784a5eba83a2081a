"""The planted commits of the explanation, over a small tree with the same files, classes and functions."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.demo_history import TARGETS
from scripts.explain_plants import (
    DECOYS,
    DETOKENIZER,
    DRAWN,
    HOT,
    KINDS,
    OUTPUT,
    STEP_MS,
    Place,
    Planted,
    insert,
    make,
    make_equal,
)

PLACES = (
    *HOT,
    Place(DETOKENIZER, "BaseIncrementalDetokenizer", "update"),
    Place(OUTPUT, "OutputProcessor", "process_outputs"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name in {*TARGETS, *(place.file for place in PLACES)}:
        owners = dict.fromkeys(place.owner for place in PLACES if place.file == name)
        text = '"""A module."""\n\nimport time\n'
        for owner in owners:
            text += f"\n\nclass {owner}:\n"
            text += "".join(
                f'    def {place.function}(self):\n        """What it does."""\n        return 1\n\n'
                for place in PLACES
                if (place.file, place.owner) == (name, owner)
            )
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def changed(planted: Planted) -> dict[str, list[str]]:
    """The added lines of the culprit by file."""
    command = ["git", "-C", str(planted.repository), "diff", "-U0", planted.parent, planted.culprit]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    added: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("+++ b/"):
            added[line[6:]] = current = []
        elif line.startswith("+"):
            current.append(line[1:])
    return added


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_planted_among_decoys(site: Path, tmp_path: Path, kind: str) -> None:
    planted = make(site, tmp_path / "repo", kind, 3)
    added = changed(planted)
    assert set(planted.decoys) | {planted.guilty} == set(added)
    assert STEP_MS[0] <= planted.milliseconds <= STEP_MS[1]
    if kind == "a changed default":
        assert len(added[planted.guilty]) == 1, "only a value: the code was there before"


@pytest.mark.parametrize("kind", DRAWN)
def test_the_seed_draws_file_size_and_decoys(site: Path, tmp_path: Path, kind: str) -> None:
    made = [make(site, tmp_path / str(seed), kind, seed) for seed in range(6)]
    assert len({len(changed(planted)) for planted in made}) > 1
    assert len({planted.milliseconds for planted in made}) == 6
    again = make(site, tmp_path / "again", kind, 5)
    assert (again.culprit, again.decoys) == (made[5].culprit, made[5].decoys)
    if kind not in ("a lost cache", "a slower dependency"):  # of a file of their own: who asks is drawn
        assert len({planted.hot for planted in made}) > 1


def test_statements_stand_before_the_body_and_after_the_docstring() -> None:
    place = Place("f.py", "A", "g")
    other = "class B:\n    def g(self):\n        pass\n\n\n"
    source = f'{other}class A:\n    def g(self):\n        """Doc."""\n        return 1\n'
    assert insert(source, place, "x = 1\nif x:\n    y = 2") == source.replace(
        "        return 1\n", "        x = 1\n        if x:\n            y = 2\n        return 1\n"
    )
    with pytest.raises(SystemExit, match=r"f\.py is not the one that is known here: no A\.h"):
        insert(source, Place("f.py", "A", "h"), "pass")


def test_what_is_planted_runs(site: Path, tmp_path: Path) -> None:
    planted = make(site, tmp_path / "repo", "a spin", 1)
    text = (planted.repository / planted.hot).read_text()
    places = [x for x in HOT if x.file == planted.hot]
    space: dict[str, type] = {}
    exec(compile(text, planted.hot, "exec"), space)
    assert text.count("_until = ") == 1
    assert {getattr(space[place.owner](), place.function)() for place in places} == {1}


def test_equal_commits_differ_in_harmless_edits_alone(site: Path, tmp_path: Path) -> None:
    commits = make_equal(site, tmp_path / "repo", 4, 1)
    assert len(set(commits)) == 4
    for parent, commit in pairwise(commits):
        command = ["git", "-C", str(tmp_path / "repo"), "diff", "--name-only", parent, commit]
        files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert DECOYS[0] <= len(files) <= DECOYS[1]
        assert set(files) <= set(TARGETS)
    assert make_equal(site, tmp_path / "again", 4, 1) == commits
    assert make_equal(site, tmp_path / "other", 4, 2) != commits
