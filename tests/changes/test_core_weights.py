"""Weights of the positions by the paths that were touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.bisect.decision.decide import beliefs
from perfbisect.bisect.decision.model import Plan
from perfbisect.changes.priors import MAX_RATIO, Rule, spread, weights


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
def test_patterns(glob, covered, other):
    rule = Rule(glob, 2.0)
    assert [path for path in covered + other if rule.covers(path)] == covered


def test_a_candidate_weighs_as_its_heaviest_file_and_a_file_as_its_last_rule():
    rules = (Rule("vllm/**", 4.0), Rule("vllm/docs/**", 0.5), Rule("*.md", 0.5))
    files = [["vllm/a.py", "README.md"], ["vllm/docs/x.rst"], ["README.md"], ["setup.py", "README.md"], []]
    assert weights(files, rules) == (4.0, 0.5, 0.5, 1.0, 1.0)


def test_the_prior_of_a_plan():
    given_weights = weights([["csrc/a.cu"], ["docs/a.md"], []], [Rule("csrc/", 10.0)])
    told = beliefs(Plan(n=3, prior=(0.0, *given_weights)), [])
    assert told.p[1] / told.p[2] == pytest.approx((0.9 * 10 / 12 + 0.1 / 3) / (0.9 / 12 + 0.1 / 3))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([Rule("a", 11.0)], "11 : 1 apart"),
        ([Rule("a", 5.0), Rule("b", 0.4)], "12.5 : 1 apart"),
        ([Rule("a", 0.0)], "a number above 0"),
        ([Rule("a", float("nan"))], "a number above 0"),
    ],
)
def test_rules_that_go_too_far(rules, said):
    with pytest.raises(ValueError, match=said):
        weights([["a"]], rules)


@given(
    factors=st.lists(st.floats(0.5, 5.0), max_size=5),
    files=st.lists(st.lists(st.sampled_from(["a/x", "b/y", "c.py", "d/e/f"]), max_size=3), max_size=6),
)
def test_no_weight_is_beyond_the_bound(factors, files):
    globs = ("a/**", "b/*", "*.py", "d/**", "**")
    rules = [Rule(glob, factor) for glob, factor in zip(globs, factors, strict=False)]
    found = weights(files, rules)
    assert len(found) == len(files)
    assert spread(rules) <= MAX_RATIO
    assert all(1 / MAX_RATIO <= w <= MAX_RATIO for w in found)
    assert not found or max(found) / min(found) <= spread(rules) + 1e-9
