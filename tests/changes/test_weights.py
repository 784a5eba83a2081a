"""``--weights FILE``."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.changes.priors import Rule, load_weights
from perfbisect.errors import LocatedError, UsageError


def write(folder: Path, text: str) -> Path:
    path = folder / "weights.yaml"
    path.write_text(text)
    return path


def test_a_mapping_and_a_list_say_the_same(tmp_path: Path) -> None:
    rules = (Rule("vllm/v1/**", 5.0), Rule("*.cu", 5.0), Rule("docs/", 0.5))
    mapping = write(tmp_path, 'vllm/v1/**: 5\n"*.cu": 5.0\ndocs/: 0.5\n')
    assert load_weights(mapping) == rules
    listed = write(tmp_path, '- paths: ["vllm/v1/**", "*.cu"]\n  factor: 5\n- {paths: docs/, factor: 0.5}\n')
    assert load_weights(listed) == rules


def test_ten_to_one_is_allowed(tmp_path: Path) -> None:
    assert len(load_weights(write(tmp_path, "a/**: 2\nb/**: 0.2\nc/**: 1\n"))) == 3


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a/**: 2\nb/**: 11\n", 2, "b/**: the factor 11 is 11 : 1 from 1"),
        ("a/**: 5\nc/**: 1\nb/**: 0.4\n", 3, "b/**: the factor 0.4 is 12.5 : 1 from 5"),
        ("a/**: 0\n", 1, "a/**: the factor is 0"),
        ("a/**: -2\n", 1, "the factor is -2"),
        ("a/**: .inf\n", 1, "the factor is inf"),
        ("a/**: true\n", 1, "the factor is True"),
        ("a/**: much\n", 1, "the factor is 'much' (allowed: a number above 0"),
        ("a/**: 2\na/**: 3\n", 2, "duplicate key"),
        ("/: 2\n", 1, "a pattern names no path"),
        ("- paths: a\n  factor: 2\n- paths: b\n", 3, "1: is no rule (allowed: a mapping"),
        ("- paths: [1]\n  factor: 2\n", 1, "0.paths: is no pattern"),
        ("- paths: a/**\n  factor: 12\n", 2, "0.factor: the factor 12 is 12 : 1 from 1"),
        ("- a/**\n", 1, "0: is no rule"),
        ("7\n", 1, "expected a mapping"),
        ("", 1, "the document is empty"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(LocatedError) as caught:
        load_weights(path)
    assert caught.value.where == f"{path}:{line}"
    assert said in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_weights(tmp_path / "none.yaml")
