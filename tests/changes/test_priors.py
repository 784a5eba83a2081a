"""Prior weights: files of ``--weights``, weights of candidates, and the command that uses them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import beliefs
from perfbisect.bisect.decision.model import Plan
from perfbisect.changes.priors import (
    MAX_RATIO,
    Rule,
    bisect_command,
    commit_weights_text,
    load_weights,
    weights,
)
from perfbisect.errors import LocatedError
from perfbisect.model.commit_details import Ranking, Suspect
from tests.series.suspect_worlds import STREAMS, commit, ranked, sha

A, B = "a" * 40, "1234567890" * 4


def write(folder: Path, text: str) -> Path:
    path = folder / "weights.yaml"
    path.write_text(text)
    return path


def test_a_mapping_and_a_list_of_rules_are_equal(tmp_path: Path) -> None:
    rules = (Rule("vllm/v1/**", 5.0), Rule("*.cu", 5.0), Rule("docs/", 0.5))
    mapping = write(tmp_path, 'vllm/v1/**: 5\n"*.cu": 5.0\ndocs/: 0.5\n')
    assert load_weights(mapping) == rules
    listed = write(tmp_path, '- paths: ["vllm/v1/**", "*.cu"]\n  factor: 5\n- {paths: docs/, factor: 0.5}\n')
    assert load_weights(listed) == rules


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a/**: 2\nb/**: 11\n", 2, "b/**: the factor 11 is 11 : 1 from 1"),
        ("a/**: 5\nc/**: 1\nb/**: 0.4\n", 3, "b/**: the factor 0.4 is 12.5 : 1 from 5"),
        ("a/**: 0\n", 1, "a/**: the factor is 0"),
        ("a/**: .inf\n", 1, "the factor is inf"),
        ("a/**: true\n", 1, "the factor is True"),
        ("commits: {}\nother: 1\n", 1, "the factor is {}"),
        ("a/**: much\n", 1, "the factor is 'much' (allowed: a number above 0"),
        ("/: 2\n", 1, "a pattern names no path"),
        ("- paths: a\n  factor: 2\n- paths: b\n", 3, "1: is no rule (allowed: a mapping"),
        ("- paths: [1]\n  factor: 2\n", 1, "0.paths: is no pattern"),
        ("- paths: a/**\n  factor: 12\n", 2, "0.factor: the factor 12 is 12 : 1 from 1"),
    ],
)
def test_invalid_rules_are_located(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(LocatedError) as caught:
        load_weights(path)
    assert caught.value.where == f"{path}:{line}"
    assert said in caught.value.message


def test_commit_weights_are_read_as_written(tmp_path: Path) -> None:
    """A hash of digits alone stays text, and the line for readers stays a comment."""
    suspects = (Suspect(A, "", "", 0.8, ()), Suspect(B, "", "", 0.1, ()))
    text = commit_weights_text(Ranking(suspects, 0.1), "of alert a1:\nevil: 1")
    assert load_weights(write(tmp_path, text)) == {A: 10.0, B: 1.25}
    assert text.startswith("# of alert a1: evil: 1\n")


@pytest.mark.parametrize("text", ["vllm/**: 5\n", "commits: 5\n", "- paths: x\n  factor: 2\n"])
def test_files_of_rules_have_no_commit_weights(tmp_path: Path, text: str) -> None:
    assert isinstance(load_weights(write(tmp_path, text)), tuple)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (f"commits:\n  {A}: 2\n  abc: 3\n", "'abc' is no commit", 3),
        (f"commits:\n  {B}: 2\n", "is no commit", 2),
        (f"commits:\n  {A}: 0\n", "the weight is 0", 2),
        (f"commits:\n  {A}: 20\n", "20 : 1 from 1", 2),
        (f'commits:\n  {A}: 5\n  "{B}": 0.2\n', "25 : 1 from 5", 3),
    ],
)
def test_invalid_commit_weights_are_located(tmp_path: Path, text: str, said: str, line: int) -> None:
    with pytest.raises(LocatedError) as raised:
        load_weights(write(tmp_path, text))
    assert said in str(raised.value)
    assert raised.value.line == line


@pytest.mark.parametrize(
    ("glob", "covered", "other"),
    [
        ("vllm/v1/**", ["vllm/v1/a.py", "vllm/v1/b/c.py"], ["vllm/v2/a.py", "vllm/v1", "x/vllm/v1/a.py"]),
        ("vllm/v1/", ["vllm/v1/a.py", "vllm/v1/b/c.py"], ["vllm/v1", "vllm/v10/a"]),
        ("vllm/*.py", ["vllm/a.py"], ["vllm/b/a.py", "vllm/a.pyc"]),
        ("/setup.py", ["setup.py"], ["vllm/setup.py"]),
        ("*.cu", ["a.cu", "csrc/x/a.cu"], ["a.cuh", "a.cu/x"]),
        ("a?c.py", ["abc.py", "x/abc.py"], ["ac.py", "a/c.py"]),
        ("vllm/**/ops.py", ["vllm/ops.py", "vllm/a/b/ops.py"], ["vllm/xops.py", "ops.py"]),
        ("a+b/[x].py", ["a+b/[x].py"], ["aab/x.py"]),
        ("**", ["a", "a/b"], []),
    ],
)
def test_patterns(glob: str, covered: list[str], other: list[str]) -> None:
    rule = Rule(glob, 2.0)
    assert [path for path in covered + other if rule.covers(path)] == covered


def test_a_candidate_weighs_as_its_heaviest_file_and_a_file_as_its_last_rule() -> None:
    rules = (Rule("vllm/**", 4.0), Rule("vllm/docs/**", 0.5), Rule("*.md", 0.5))
    files = [["vllm/a.py", "README.md"], ["vllm/docs/x.rst"], ["README.md"], ["setup.py", "README.md"], []]
    assert weights(files, rules) == (4.0, 0.5, 0.5, 1.0, 1.0)


def test_the_prior_of_a_plan() -> None:
    given_weights = weights([["csrc/a.cu"], ["docs/a.md"], []], [Rule("csrc/", 10.0)])
    belief = beliefs(Plan(n=3, prior=(0.0, *given_weights)), [])
    assert belief.p[1] / belief.p[2] == pytest.approx((0.9 * 10 / 12 + 0.1 / 3) / (0.9 / 12 + 0.1 / 3))


@given(
    factors=st.lists(st.floats(0.5, 5.0), max_size=5),
    files=st.lists(st.lists(st.sampled_from(["a/x", "b/y", "c.py", "d/e/f"]), max_size=3), max_size=6),
)
def test_weights_are_within_the_factors(factors: list[float], files: list[list[str]]) -> None:
    globs = ("a/**", "b/*", "*.py", "d/**", "**")
    found = weights(files, [Rule(glob, factor) for glob, factor in zip(globs, factors, strict=False)])
    assert len(found) == len(files)
    assert all(min([1.0, *factors]) <= weight <= max([1.0, *factors]) for weight in found)


def test_commit_weights_are_probabilities_against_the_likeliest_and_bounded(tmp_path: Path) -> None:
    commits = commit("a", "src/stream/x.py"), commit("b"), commit("c", "docs/x.md")
    found = ranked(*commits, cells=STREAMS)
    p = {s.sha: s.p for s in found.suspects}
    made = load_weights(write(tmp_path, commit_weights_text(found, "why")))
    assert isinstance(made, dict)
    assert made[sha("a")] == MAX_RATIO
    assert made[sha("b")] == pytest.approx(10 * p[sha("b")] / p[sha("a")], abs=1e-3)
    assert made[sha("c")] == 1, "nothing is excluded"


def test_the_command_to_copy() -> None:
    command = bisect_command("cell@c4", "audio_rtf", "g00d", "bad0", "path of/repo")
    assert shlex.split(command) == [
        "perfbisect", "bisect", "cell@c4", "--repo", "path of/repo", "--good", "g00d", "--bad", "bad0",
        "--metric", "audio_rtf",
    ]  # fmt: skip
    better = bisect_command(
        "", "", "g00d", "bad0", "r", weights="w.yaml", environment="existing:python", better=True
    )
    assert better == (
        "perfbisect bisect CELL --repo r --good bad0 --bad g00d --direction improvement "
        "--env existing:python --weights w.yaml"
    )
