"""Hunks of a commit: any set of them can be taken back, and groups import by themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfbisect.changes.git import Repository
from perfbisect.changes.hunk_groups import HunkGroup, LeftOutFile, group_hunks, left_out_texts
from perfbisect.changes.hunks import hunk_patch, read_diff, revert_hunks
from perfbisect.changes.revert import ConflictError, apply_patch
from tests.changes.repositories import Files, commit_files, everything, git, repository_of


def grouped(tmp_path: Path, before: Files, after: Files) -> tuple[list[str], list[LeftOutFile]]:
    groups, left_out = group_hunks(repository_of(tmp_path, before, after)[2])
    return [group.label for group in groups], list(left_out)


SCHEDULER = '''"""Schedules."""
import time

LIMIT = 3


class Scheduler:
    """It."""

    size = 1

    def schedule(self):
        first = 1
        return first

    def free(self):
        return None
'''


def test_hunks_have_their_lines_and_functions(tmp_path: Path) -> None:
    after = SCHEDULER.replace("first = 1", "first = 2").replace("LIMIT = 3\n", "LIMIT = 3\nMORE = 4\n")
    after = after.replace("\n    def free(self):\n        return None\n", "")
    _, _, diff = repository_of(tmp_path, {"s.py": SCHEDULER}, {"s.py": after})
    assert [(hunk.lines, hunk.function) for hunk in diff.hunks] == [
        ("5", ""),
        ("14", "Scheduler.schedule"),
        ("after 15", ""),
    ]
    file = diff.by_path["s.py"]
    assert file.new_lines(diff.hunks[0]) == [b"MORE = 4\n"]
    assert file.old_lines(diff.hunks[1]) == [b"        first = 1\n"]
    assert file.new_lines(diff.hunks[2]) == []


def test_a_part_is_taken_back_and_the_repository_is_not_written(tmp_path: Path) -> None:
    before = "".join(f"line {i}\n" for i in range(30))
    after = before.replace("line 3\n", "line three\nand more\n").replace("line 20\n", "")
    repository, head, diff = repository_of(tmp_path, {"a.txt": before}, {"a.txt": after})
    there = everything(repository.path)
    change = revert_hunks(repository, head, diff, [("a.txt", 1)])
    assert repository.read(change.id, "a.txt").decode() == before.replace(
        "line 3\n", "line three\nand more\n"
    )
    assert revert_hunks(repository, head, diff, [("a.txt", 1)]) == change
    assert change.subject == "a change + 1 hunk taken back"
    again = apply_patch(repository, head, hunk_patch(repository, head, change).encode(), "x.patch")
    assert repository.tree_id(again.id, "") == repository.tree_id(change.id, "")
    assert everything(repository.path) == there


def test_swapped_packages_stay_swapped(tmp_path: Path) -> None:
    repository, head, diff = repository_of(tmp_path, {"a.txt": "1\n"}, {"a.txt": "2\n"})
    change = revert_hunks(repository, head.swapped(["torch==2.6"]), diff, [("a.txt", 0)])
    assert change.pips == ("torch==2.6",)
    assert repository.read(change.source, "a.txt") == b"1\n"


def test_all_hunks_taken_back_are_the_parent(tmp_path: Path) -> None:
    before: Files = {
        "a.py": SCHEDULER,
        "gone.py": "x = 1\n",
        "b.bin": b"\0\1",
        "old.json": "{}\n",
        "e.txt": "",
    }
    after: Files = {
        "a.py": SCHEDULER.replace("first", "second").rstrip("\n"),
        "gone.py": None,
        "b.bin": b"\0\2",
        "old.json": '{"a": 1}\n',
        "new.py": "y = 1\n",
        "e.txt": "no end of line",
    }
    repository, head, diff = repository_of(tmp_path, before, after)
    change = revert_hunks(repository, head, diff, [hunk.id for hunk in diff.hunks])
    assert repository.tree_id(change.id, "") == repository.tree_id(diff.parent, "")


def test_a_renamed_file_keeps_its_new_name(tmp_path: Path) -> None:
    repository, head, diff = repository_of(
        tmp_path,
        {"s.py": SCHEDULER},
        {"s.py": None, "core/s.py": SCHEDULER.replace("first = 1", "first = 2")},
    )
    assert [hunk.id for hunk in diff.hunks] == [("core/s.py", 0)]
    change = revert_hunks(repository, head, diff, [("core/s.py", 0)])
    assert repository.read(change.id, "core/s.py").decode() == SCHEDULER
    assert repository.tree_id(change.id, "s.py") is None


def test_a_file_that_took_the_place_of_a_folder_is_taken_back(tmp_path: Path) -> None:
    repository, head, diff = repository_of(
        tmp_path, {"a/b.py": "x = 1\n"}, {"a/b.py": None, "a.py": "y = 2\n"}
    )
    change = revert_hunks(repository, head, diff, [hunk.id for hunk in diff.hunks])
    assert repository.tree_id(change.id, "") == repository.tree_id(diff.parent, "")


def test_links_have_lines_and_carry_no_step(tmp_path: Path) -> None:
    repository, head, _ = repository_of(tmp_path, {"a.py": "x = 1\n"}, {"b.py": "y = 1\n"})
    git(repository.path, "update-index", "--add", "--cacheinfo", f"160000,{head.id},sub")
    (repository.path / "b.py").unlink()
    (repository.path / "b.py").symlink_to("a.py")
    git(repository.path, "add", "b.py")
    git(repository.path, "commit", "--quiet", "-m", "links")
    diff = read_diff(repository, repository.head())
    lines = [(file.old_lines(*file.hunks), file.new_lines(*file.hunks)) for file in diff.files]
    assert lines == [([b"y = 1\n"], [b"a.py"]), ([], [b"Subproject commit %s\n" % head.id.encode()])]
    assert group_hunks(diff) == ((), (LeftOutFile("b.py", "link"), LeftOutFile("sub", "link")))


def test_a_binary_file_has_one_hunk_without_lines(tmp_path: Path) -> None:
    _, _, diff = repository_of(tmp_path, {"a": b"text\n", "b": b"\0"}, {"a": b"\0\n", "b": b"\1"})
    assert [(hunk.id, hunk.lines) for hunk in diff.hunks] == [(("a", 0), "after 0"), (("b", 0), "after 0")]


def test_a_first_commit_has_no_hunks(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit_files(tmp_path, {"a.py": "x = 1\n"})
    repository = Repository(tmp_path)
    with pytest.raises(ConflictError, match="is the first commit"):
        read_diff(repository, repository.head())


def test_what_changes_nothing_is_refused(tmp_path: Path) -> None:
    repository, head, diff = repository_of(tmp_path, {"a.txt": "1\n"}, {"a.txt": "2\n"})
    with pytest.raises(ConflictError, match="changes nothing"):
        revert_hunks(repository, head, diff, [])


def test_the_users_configuration_moves_no_hunk(tmp_path: Path) -> None:
    before = "".join(f"{i}\n" for i in range(40))
    after = before.replace("5\n", "five\n", 1).replace("9\n", "nine\n", 1)
    repository, head, diff = repository_of(tmp_path, {"a.txt": before}, {"a.txt": after})
    for name, value in (("interHunkContext", "20"), ("algorithm", "patience"), ("context", "9")):
        git(repository.path, "config", f"diff.{name}", value)
    assert read_diff(repository, head) == diff
    assert len(diff.hunks) == 2


def test_functions_are_groups(tmp_path: Path) -> None:
    after = SCHEDULER.replace(
        "first = 1\n        return first", "first = 2\n        one = 1\n        return first + 1"
    )
    after = after.replace("return None", "return 0").replace("LIMIT = 3", "LIMIT = 4")
    assert grouped(tmp_path, {"s.py": SCHEDULER}, {"s.py": after}) == (
        ["s.py: line 4", "s.py: Scheduler.schedule", "s.py: Scheduler.free"],
        [],
    )


def test_a_new_name_is_grouped_with_what_uses_it(tmp_path: Path) -> None:
    a, b = "def a():\n    return {}\n\n\n", "def b():\n    x = {}\n    return x\n"
    t = "import s\n\n\ndef c():\n    return s.{}()\n\n\ndef d():\n    return {}\n"
    fresh = "\n\ndef fresh():\n    return 4\n"
    before: Files = {"s.py": f"import os\n\n\n{a.format(1)}{b.format(2)}", "t.py": t.format("a", 1)}
    after: Files = {
        "s.py": f"import os\nimport time\n\n\n{a.format('time.time()')}{b.format(3)}{fresh}",
        "t.py": t.format("fresh", 5),
    }
    labels, _ = grouped(tmp_path, before, after)
    assert labels == ["s.py: line 2, a", "s.py: b", "s.py: line 12-15; t.py: c", "t.py: d"]


def test_a_removed_name_is_grouped_with_its_last_use(tmp_path: Path) -> None:
    before = "def old():\n    return 1\n\n\ndef a():\n    return old()\n\n\ndef b():\n    return 2\n"
    after = "def a():\n    return 3\n\n\ndef b():\n    return 4\n"
    assert grouped(tmp_path, {"s.py": before}, {"s.py": after})[0] == ["s.py: line after 0, a", "s.py: b"]


def test_a_new_keyword_is_grouped_with_its_callers(tmp_path: Path) -> None:
    before = "class P:\n    def __init__(self, a):\n        self.a = a\n\n\ndef f():\n    return P(a=1)\n"
    after = (
        "class P:\n    def __init__(self, a, extra):\n        self.a = a\n        self.more = extra\n\n\n"
        "def f():\n    return P(a=1, extra=2)\n"
    )
    assert grouped(tmp_path, {"s.py": before}, {"s.py": after})[0] == ["s.py: P.__init__, f"]


def test_a_new_module_is_grouped_with_its_import(tmp_path: Path) -> None:
    before: Files = {
        "pkg/__init__.py": "",
        "pkg/a.py": "def f():\n    return 1\n\n\ndef g():\n    return 1\n",
    }
    after: Files = {
        "pkg/fast.py": "def go():\n    return 2\n",
        "pkg/a.py": "def f():\n    from . import fast\n\n    return fast.go()\n\n\ndef g():\n    return 2\n",
    }
    assert grouped(tmp_path, before, after)[0] == ["pkg/a.py: f; pkg/fast.py: line 1-2", "pkg/a.py: g"]


def test_hunks_that_compile_only_together_are_one_group(tmp_path: Path) -> None:
    before = "x = [\n    1,\n    2,\n    3,\n    4,\n]\ny = 1\n"
    after = "x = tuple((\n    1,\n    2,\n    3,\n    4,\n))\ny = 2\n"
    labels, _ = grouped(tmp_path, {"s.py": before}, {"s.py": after})
    assert labels == ["s.py: line 1, line 6-7"]


def test_other_files_are_groups_of_their_own_and_some_cannot_carry_a_step(tmp_path: Path) -> None:
    before: Files = {
        "s.py": SCHEDULER,
        "k.json": '{"a": 1,\n "b": 2,\n "c": 3}\n',
        "requirements.txt": "torch==1\n",
        "README.md": "a\n",
        "tests/test_s.py": "x = 1\n",
    }
    after: Files = {
        "s.py": SCHEDULER.replace('"""It."""', '"""Other."""').replace(
            "    size = 1", "    # one\n    size = 1"
        ),
        "k.json": '{"a": 2,\n "b": 2,\n "c": 4}\n',
        "requirements.txt": "torch==2\n",
        "README.md": "b\n",
        "tests/test_s.py": "x = 2\n",
        "csrc/a.cu": "int x;\n",
    }
    labels, left_out = grouped(tmp_path, before, after)
    assert labels == ["csrc/a.cu: line 1", "k.json: line 1, line 3", "requirements.txt: line 1"]
    assert {(file.path, file.reason) for file in left_out} == {
        ("README.md", "documentation"),
        ("s.py", "comments"),
        ("tests/test_s.py", "test"),
    }
    assert left_out_texts(left_out) == (
        "documentation and examples: README.md",
        "comments and docstrings: s.py",
        "tests: tests/test_s.py",
    )


def test_a_file_that_does_not_parse_is_split_all_the_same(tmp_path: Path) -> None:
    groups = grouped(tmp_path, {"s.py": "print 'a'\nx = 1\n"}, {"s.py": "print 'b'\nx = 1\n"})[0]
    assert groups == ["s.py: line 1"]


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n", "\n"]), max_size=12)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=LINES, after=LINES, data=st.data())
def test_any_set_of_hunks_and_its_rest_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str], data: st.DataObject
) -> None:
    """Taking a set back changes the lines of the set alone: what is left differs by the other hunks."""
    texts = ("".join(before), "".join(after))
    repository, head, diff = repository_of(
        tmp_path_factory.mktemp("r"), {"a.txt": texts[0], "z": "1"}, {"a.txt": texts[1], "z": "2"}
    )
    file = diff.by_path.get("a.txt")
    if file is None:
        assert texts[0] == texts[1]
        return
    indices = [hunk.index for hunk in file.hunks]
    taken = data.draw(st.sets(st.sampled_from(indices)))
    assert file.without(set(indices)) == texts[0].encode()
    assert file.without(set()) == texts[1].encode()
    removed = sum(len(file.old_lines(h)) - len(file.new_lines(h)) for h in file.hunks if h.index in taken)
    left = file.without(taken)
    assert left is not None
    assert left.count(b"\n") == len(after) + removed
    git_says = repository.run("diff", "--numstat", diff.parent, head.id, "--", "a.txt").stdout.split()
    assert sum(len(file.new_lines(h)) for h in file.hunks) >= int(git_says[0])


FUNCTIONS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")), min_size=1, max_size=5)


def module_of(functions: list[tuple[str, str]]) -> str:
    """Functions that each use another's name."""
    known = {name for name, _ in functions}
    return "".join(
        f"def {name}():\n    return {used if used in known else 1}\n\n\n" for name, used in functions
    )


@settings(max_examples=25, deadline=None)
@given(before=FUNCTIONS, after=FUNCTIONS)
def test_every_group_taken_back_by_itself_leaves_a_module_that_imports(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[str, str]],
    after: list[tuple[str, str]],
) -> None:
    texts = module_of(before), module_of(after)
    if texts[0] == texts[1]:
        return
    _, _, diff = repository_of(tmp_path_factory.mktemp("r"), {"m.py": texts[0]}, {"m.py": texts[1]})
    groups, _ = group_hunks(diff)
    assert sorted(hunk.id for group in groups for hunk in group.hunks) == sorted(h.id for h in diff.hunks)
    for group in groups:
        content = diff.without(group.ids)["m.py"]
        assert content is not None
        tree = ast.parse(content)
        bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert used <= bound


def test_groups_are_the_same_each_time(tmp_path: Path) -> None:
    after = SCHEDULER.replace("first", "second").replace("return None", "return LIMIT")
    repository, head, diff = repository_of(tmp_path, {"s.py": SCHEDULER}, {"s.py": after, "t.py": "x = 1\n"})
    first: tuple[HunkGroup, ...] = group_hunks(diff)[0]
    assert group_hunks(read_diff(repository, head))[0] == first
