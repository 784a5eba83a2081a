"""The file of a nightly: what it may say, and what is said of it where it is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfbisect.errors import LocatedError, UsageError
from perfbisect.nightly.config import find_cells, launches_of, load_nightly

GOOD = """\
name: mine
cells: [text_latency_c1]
budget: 6h
"""
CELL = """\
family: text
model: acme/tiny
num_prompts: 4
max_concurrency: {c}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "nightly.yaml"
    path.write_text(text)
    return path


def test_what_is_not_said_is_said_here(tmp_path: Path) -> None:
    rules = load_nightly(written(tmp_path, GOOD)).nightly
    assert (rules.budget, rules.launches, rules.runs) == (360.0, 2, 1)
    assert (rules.bisect.when, rules.bisect.budget, rules.bisect.smallest) == ("new", 180.0, 0.0)
    assert rules.alerts.causes == ("product", "unknown")
    assert rules.tell.webhook is None
    assert (rules.branch, rules.explain) == ("HEAD", True)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = load_nightly(written(tmp_path, GOOD + "repo: ../vllm\npublish: /there\n"))
    assert file.path(file.nightly.repo) == (tmp_path.parent / "vllm").resolve()
    assert file.path(file.nightly.publish) == Path("/there")
    assert file.path(None) is None


@pytest.mark.parametrize(
    ("more", "line", "told"),
    [
        ("budgt: 3h", 4, "budgt: unknown key; .*budget"),
        ("launches: 1", 4, "launches: must be greater than or equal to 2, not 1"),
        ("launches_of: {'x*': 1}", 4, "launches_of.x\\*: must be greater than or equal to 2, not 1"),
        ("exclude_newer: yesterday", 4, "exclude_newer: 'yesterday' is not a day"),
        ("alerts:\n  fdr: 1.5", 5, "alerts.fdr: must be less than 1, not 1.5"),
        ("alerts:\n  smallest: 5", 5, "alerts.smallest: expected text .quote it., not 5"),
        ("alerts:\n  smallest: five", 5, "alerts.smallest: 'five' is no share; write 5%"),
        ("alerts:\n  causes: [product, thing]", 5, "alerts.causes.1: 'thing' is not one of the words"),
        ("bisect:\n  when: often", 5, "bisect.when: 'often' is not one of the words"),
        ("bisect:\n  budget: long", 5, "bisect.budget: 'long' is not a duration"),
        ("bisect:\n  most: 0", 5, "bisect.most: must be greater than or equal to 1"),
        (
            "dashboard:\n  folder: site\n  commit_url: http://x",
            6,
            "dashboard.commit_url: is not a commit address",
        ),
        ("tell:\n  webhook:\n    when: never\n    url: X", 6, "tell.webhook.when: 'never' is not one of"),
        ("runs: 0", 4, "runs: must be greater"),
        ("repo: [a]", 4, "repo: expected text"),
        ("repository: x", 4, "repository: unknown key; .* now: repo"),
        ("environment: x", 4, "environment: unknown key; .* now: env"),
        ("explain: sometimes", 4, "explain: .*true or false"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, more: str, line: int, told: str) -> None:
    path = written(tmp_path, GOOD + more + "\n")
    with pytest.raises(LocatedError, match=told) as caught:
        load_nightly(path)
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cells: [a]\nbudget: 1h\n", "name: is missing"),
        ("name: a b\ncells: [a]\nbudget: 1h\n", "'a b' is not a name"),
        ("name: n\ncells: [a]\n", "budget: is missing"),
        ("name: n\ncells: []\nbudget: 1h\n", "cells: expected at least one item"),
        ("name: n\ncells: [a]\nbudget: 1\n", "budget: expected text"),
        ("[]\n", "expected a mapping"),
        ("", "expected a mapping"),
    ],
)
def test_a_file_that_is_no_nightly(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(LocatedError, match=told):
        load_nightly(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        load_nightly(tmp_path / "none.yaml")
    assert "perfbisect nightly --init" in str(caught.value.next_step)


@pytest.mark.parametrize(
    "told",
    [
        "webhook: https://hooks.example.com/s3cret",
        "webhook: {url: 'https://hooks.example.com/s3cret'}",
        "webhook: {url: s3cret}",
        "notify: slack://s3cret/b/c",
        "notify: ['slack://s3cret/b/c']",
    ],
)
def test_a_secret_is_refused_and_not_repeated(tmp_path: Path, told: str) -> None:
    with pytest.raises(LocatedError, match="NIGHTLY_WEBHOOK") as caught:
        load_nightly(written(tmp_path, GOOD + f"tell:\n  {told}\n"))
    assert "s3cret" not in str(caught.value)


def test_channels_need_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, GOOD + "tell:\n  notify: [NIGHTLY_CHAT]\n")
    assert load_nightly(path).nightly.tell.notify == ("NIGHTLY_CHAT",)
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(LocatedError, match=r"pip install 'perfbisect\[notify\]'") as caught:
        load_nightly(path)
    assert (caught.value.where, caught.value.exit_code) == (f"{path}:5", 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cells beside the file, in its folder ``cells`` and in that of the shell."""
    for name, c in {"beside": 1, "cells/own_a": 2, "cells/own_b": 3, "shell/cells/other": 4}.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CELL.format(c=c))
    ladder = "family: text\nmodel: acme/tiny\nnum_prompts: [4, 8]\nmax_concurrency: [1, 2]\n"
    (tmp_path / "cells/steps.yaml").write_text(ladder)
    monkeypatch.chdir(tmp_path / "shell")
    return tmp_path


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ("[own_a]", ["own_a"]),
        ("['own_*']", ["own_a", "own_b"]),
        ("[own_b, 'own_*']", ["own_b", "own_a"]),
        ("[beside.yaml, other]", ["beside", "other"]),
        ("[cells/own_a.yaml]", ["own_a"]),
        ("['cells/own*.yaml']", ["own_a", "own_b"]),
        ("[steps]", ["steps@c1-n4", "steps@c2-n8"]),
        ("['steps@c2-n8']", ["steps@c2-n8"]),
        ("['steps@c1*']", ["steps@c1-n4"]),
        ("[text_latency_c1]", ["text_latency_c1"]),
    ],
)
def test_cells_by_name_pattern_and_file(folder: Path, cells: str, names: list[str]) -> None:
    file = load_nightly(written(folder, f"name: n\ncells: {cells}\nbudget: 1h\n"))
    found = find_cells(file)
    assert [one.cell.name for one in found] == names
    again = f"name: n\ncells: [{', '.join(repr(one.source) for one in found)}]\nbudget: 1h\n"
    assert find_cells(load_nightly(written(folder, again))) == found, "a source names its cell alone"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ("[own_c]", r"cells.0: no cell 'own_c'; nearest: own_"),
        ("[own_a, 'nothing*']", r"cells.1: no cell 'nothing\*'"),
        ("[none.yaml]", "cells.0: no cell 'none.yaml'"),
        ("['none/*.yaml']", "cells.0: no cell"),
    ],
)
def test_a_cell_that_there_is_not(folder: Path, cells: str, told: str) -> None:
    path = written(folder, f"name: n\ncells: {cells}\nbudget: 1h\n")
    with pytest.raises(LocatedError, match=told) as caught:
        find_cells(load_nightly(path))
    assert caught.value.where == f"{path}:2"


def test_two_cells_of_one_name(folder: Path) -> None:
    (folder / "own_a.yaml").write_text(CELL.format(c=9))
    file = load_nightly(written(folder, "name: n\ncells: [own_a, own_a.yaml]\nbudget: 1h\n"))
    with pytest.raises(LocatedError, match="two cells have the name own_a"):
        find_cells(file)


def test_more_launches_for_some(folder: Path) -> None:
    text = "name: n\ncells: ['own_*']\nbudget: 1h\nlaunches: 3\nlaunches_of: {'*_b': 5, 'own_*': 4}\n"
    file = load_nightly(written(folder, text))
    find_cells(file)
    assert {name: launches_of(file, name) for name in ("own_a", "own_b")} == {"own_a": 4, "own_b": 5}
    wrong = load_nightly(written(folder, text.replace("*_b", "*_c")))
    with pytest.raises(LocatedError, match=r"launches_of.\*_c: matches no cell"):
        find_cells(wrong)
