"""The numbers of the package's code, on small packages of which they are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts import house
from scripts.house import SLACK, Count, Limit, count_all, excesses, main, read_package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "package"


def counted(folder: Path, files: Mapping[str, str]) -> dict[str, Count]:
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return count_all(read_package(folder))


def fields(head: str, names: str) -> str:
    return f"class {head}:\n" + "".join(f"    {name}: int\n" for name in names)


def test_a_mirror_shares_four_fields_and_most_of_the_smaller_class(folder: Path) -> None:
    text = (
        fields("One", "abcdefgh") + fields("Same", "abcd") + fields("Few", "abc") + fields("Far", "abcdxyz")
    )
    assert counted(folder, {"model": text})["mirror pairs"].what == ["One = Same (4)", "Same = Far (4)"]


def test_inherited_fields_are_declared_once(folder: Path) -> None:
    text = fields("Base", "abcd") + fields("One(Base)", "x") + fields("Other(Base)", "y")
    counts = counted(folder, {"model": text})
    assert counts["mirror pairs"].what == []
    assert counts["sharing pairs"].what == ["One = Other (4)"]


def test_a_field_inherited_and_declared_again_elsewhere_is_a_mirror(folder: Path) -> None:
    text = fields("Base", "abcd") + fields("One(Base[int])", "x") + fields("Other", "abcd")
    assert counted(folder, {"model": text})["mirror pairs"].what == ["Base = Other (4)", "One = Other (4)"]


def test_a_constant_of_a_class_is_no_field(folder: Path) -> None:
    constants = "".join(f"    {name}: ClassVar[int] = 1\n" for name in "abcd")
    text = f"class One:\n{constants}class Other:\n{constants}"
    assert counted(folder, {"model": text})["sharing pairs"].value == 0


def test_a_name_is_used_once_outside_of_its_definition_and_imports(folder: Path) -> None:
    files = {
        "a": "def once(): ...\ndef twice(): ...\ndef never(): ...\nclass Member: ...\nCONSTANT = 1\n",
        "b": "from package import a\nfrom package.a import once, twice\nprint(once(), twice, a.Member)\n",
        "c": "def use(value: twice): ...\n",
    }
    assert counted(folder, files)["used once"].what == ["package.a.once", "package.a.Member"]


def test_nested_classes_count(folder: Path) -> None:
    text = "class One:\n    class Inner: ...\ndef make():\n    class Local: ...\n"
    assert counted(folder, {"a": text})["classes"].value == 3


def test_imports_of_the_package_count_once_a_module(folder: Path) -> None:
    files = {
        "__init__": "",
        "low/__init__": "",
        "low/a": "X = Y = 1\n",
        "high": "import os\nfrom package.low import a\ndef later():\n    from package.low.a import X, Y\n",
        "top": "from package.low.a import X\nfrom package.high import later\n",
    }
    count = counted(folder, files)["own imports"]
    assert count.value == 0.6
    assert count.what[0] == "2 package.top"


CHAIN = {
    "__init__": "",
    "cli/run": "from package.request import build\ndef run():\n    build()\ndef other():\n    run()\n",
    "request": "from package import parts\ndef build():\n    make\ndef make():\n    return parts.TABLE\n",
    "parts": "from package.plan import RunPlan\nfrom package.far import X\nTABLE = [X, RunPlan]\n",
    "plan": "from package.deep import Deep\nclass RunPlan(Deep): ...\n",
    "deep": "class Deep: ...\n",
    "far": "from package.plan import RunPlan\nX = 1\n",
}


def test_the_chain_ends_at_the_plan(folder: Path) -> None:
    count = counted(folder, CHAIN)["chain"]
    assert count.value == 4
    assert count.what == ["package.cli.run > package.request > package.parts > package.plan"]


def test_definitions_that_name_each_other_are_one_link(folder: Path) -> None:
    ring = "from package import request\nfrom package.plan import RunPlan\nTABLE = [RunPlan, request.build]\n"
    assert counted(folder, {**CHAIN, "parts": ring})["chain"].value == 3


def test_an_annotation_is_no_link(folder: Path) -> None:
    text = "from package.plan import RunPlan\ndef run(plan: RunPlan) -> RunPlan: ...\n"
    assert counted(folder, {**CHAIN, "cli/run": text})["chain"].value == 0


def test_comments_are_lines_of_their_own(folder: Path) -> None:
    text = '# why\nx = 1  # beside\ny = """\n# text\n"""\n# noqa: E1\n#: what\nz = 2\nz = 3\n\n'
    assert counted(folder, {"a": text})["comments"].value == 20


def counts(classes: float, comments: float) -> dict[str, Count]:
    return {"classes": Count(classes, []), "comments": Count(comments, [])}


LIMITS = {"classes": Limit(100, 50), "comments": Limit(1.0, 1.5, rises=True)}


@pytest.mark.parametrize(
    ("classes", "comments", "worse"),
    [
        (100, 1.0, []),
        (100 * (1 + SLACK), 1 - SLACK, []),
        (104, 1.0, ["classes: 104 is above 100"]),
        (1, 0.9, ["comments: 0.9 is below 1"]),
        (1, 4.2, ["comments: 4.2 % is above 4 %"]),
    ],
)
def test_a_limit_has_a_little_slack(classes: float, comments: float, worse: list[str]) -> None:
    assert excesses(counts(classes, comments), LIMITS) == worse


def test_the_command_prints_each_number_with_limit_and_goal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted(folder, {"model": "# why\n" * 3 + "x = 1\n" * 97})
    monkeypatch.setattr(house, "PACKAGE", folder)
    assert main(["--list"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| number | now | limit | goal |"
    assert [row.split(" | ")[0] for row in rows[:3]] == ["| mirror pairs", "| sharing pairs", "| used once"]
    assert rows[1].endswith(" | - | - |")
