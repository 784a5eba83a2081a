"""YAML with lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfbisect.common import yaml_source
from perfbisect.common.yaml_source import load, parse
from perfbisect.errors import LocatedError, UsageError

FILE = Path("a.yaml")


def test_every_key_knows_its_line() -> None:
    found = parse("# a comment\na: 1\n\nb:\n  c: [x,\n      y]\n  d:\n    - 1\n    - e: 2\n", FILE)
    assert found.data == {"a": 1, "b": {"c": ["x", "y"], "d": [1, {"e": 2}]}}
    assert {
        place: found.line(place) for place in [("a",), ("b",), ("b", "c"), ("b", "c", 1), ("b", "d", 1, "e")]
    } == {("a",): 2, ("b",): 4, ("b", "c"): 5, ("b", "c", 1): 6, ("b", "d", 1, "e"): 9}
    assert found.line(("b", "c", 1, "deeper")) == 6
    assert found.line(("nothing",)) == 1


def test_words_are_those_of_yaml_1_2() -> None:
    text = "a: on\nb: yes\nc: 12:30\nd: 010\ne: 2026-11-01\nf: 1e3\ng: true\nh: 0x10\ni: 1_000"
    text += "\nj: .inf\nk: ~\nl:\nm: 0.5\nn: -3\no: 12e4567"
    assert parse(text, FILE).data == {
        "a": "on", "b": "yes", "c": "12:30", "d": "010", "e": "2026-11-01", "f": "1e3", "g": True, "h": 16,
        "i": 1000, "j": float("inf"), "k": None, "l": None, "m": 0.5, "n": -3, "o": "12e4567",
    }  # fmt: skip


def test_an_alias_is_the_same_value_at_its_own_place() -> None:
    found = parse("a: &x\n  b: 1\nc: *x\n", FILE)
    assert found.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert found.line(("c",)) == 3


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first in line 1"),
        ("x:\n  a: 1\n  a: 1\n", 3, "first in line 2"),
        ("a: [1, 2\nb: 3\n", 2, "no valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "no valid YAML"),
        ("a: 1\n---\nb: 1\n", 2, "no valid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", 1, "tag"),
        ("a: !!python/name:os.system x\n", 1, "no valid YAML"),
        ("a: !custom {b: 1}\n", 1, "tag"),
        ("a: &x [1, *x]\n", 1, "contains itself"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, "merge keys"),
        ("? [a, b]\n: 1\n", 1, "a key must be a word"),
        ("a: 1\nb: !!int x\n", 2, "'x' is no value of tag:yaml.org,2002:int"),
        ("a: 1\nb: !!timestamp soon\n", 2, "'soon' is no value of"),
        ('a: 1\nb: "\\0"\n', 2, "NUL character"),
        (f"a: 1\nb: {'9' * 5000}\n", 2, "a number has 5000 characters, at most 100"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(LocatedError, match=said) as caught:
        parse(text, FILE)
    assert caught.value.line == line
    assert caught.value.where == f"a.yaml:{line}"


def test_a_document_that_multiplies_itself_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    for foreign in (False, True):
        with pytest.raises(LocatedError, match="more than 100000 values"):
            parse("\n".join(lines), FILE, foreign=foreign)
        with pytest.raises(LocatedError, match="an alias contains itself"):
            parse("a: &x [*x]", FILE, foreign=foreign)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: " + "[" * 15_000 + "]" * 15_000,
        "a: 1\nb: " + "{a: " * 1000 + "}" * 1000,
        "a: 1\nb:\n  " + "- " * 5000,
        "a: 1\n" + "\n".join(f"{' ' * n}b:" for n in range(1000)),
        "a: 1\nb: [" + ", ".join(["&a0 [x]", *(f"&a{n} [*a{n - 1}]" for n in range(1, 3000))]) + "]",
    ],
)
def test_depth_is_limited_before_libyaml_recurses(text: str) -> None:
    """Libyaml ends the process at 15,000 levels, Python raises RecursionError at 1,000."""
    with pytest.raises(LocatedError, match="nested deeper than 100 levels") as caught:
        parse(text, FILE)
    assert caught.value.line is not None and caught.value.line >= 2
    if "&" not in text:
        with pytest.raises(LocatedError, match="nested deeper than 100 levels"):
            parse(text, FILE, foreign=True)


def test_yaml_is_read_in_one_place() -> None:
    root = Path(yaml_source.__file__).parent.parent
    readers = re.compile(r"\b(?:yaml\.(?:safe_load|load|compose)|get_single_(?:node|data))\b")
    found = [path.name for path in root.rglob("*.py") if readers.search(path.read_text())]
    assert found == ["yaml_source.py"]


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="it is larger than 16 MB"):
        load(path)
    with pytest.raises(LocatedError, match="more than 100000 values"):
        parse("- a\n" * 200_001, FILE)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ("- a\n", "is a list"), ("word\n", "is a str"), ("1: a\n", "1 is no key")],
)
def test_a_document_without_keys(text: str, said: str) -> None:
    with pytest.raises(LocatedError, match=said):
        parse(text, FILE).mapping()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*missing\.yaml"):
        load(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "binary.yaml")
