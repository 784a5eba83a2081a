"""``--weights FILE`` that weighs commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.changes.priors import commit_weights_text, load_commit_weights
from perfbisect.errors import LocatedError

A, B = "a" * 40, "1234567890" * 4


def load(tmp_path: Path, text: str) -> dict[str, float] | None:
    path = tmp_path / "weights.yaml"
    path.write_text(text)
    return load_commit_weights(path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Also a hash of digits alone stays text, and the line for readers stays a comment."""
    text = commit_weights_text({A: 10.0, B: 1.25}, "of alert a1:\nevil: 1")
    assert load(tmp_path, text) == {A: 10.0, B: 1.25}
    assert text.startswith("# of alert a1: evil: 1\n")


@pytest.mark.parametrize(
    "text", ["vllm/**: 5\n", "commits: 5\n", "commits: {}\nother: 1\n", "- paths: x\n  factor: 2\n"]
)
def test_other_files_are_of_paths(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) is None


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (f"commits:\n  {A}: 2\n  abc: 3\n", "'abc' is no commit", 3),
        (f"commits:\n  {B}: 2\n", "is no commit", 2),
        (f"commits:\n  {A}: 0\n", "the weight is 0", 2),
        (f"commits:\n  {A}: true\n", "the weight is True", 2),
        (f"commits:\n  {A}: much\n", "the weight is 'much'", 2),
        (f"commits:\n  {A}: 20\n", "20 : 1 apart", 1),
        (f'commits:\n  {A}: 5\n  "{B}": 0.2\n', "25 : 1 apart", 1),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str, said: str, line: int) -> None:
    with pytest.raises(LocatedError) as raised:
        load(tmp_path, text)
    assert said in str(raised.value)
    assert raised.value.line == line
