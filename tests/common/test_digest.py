"""One spelling for a value."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.common.digests import canonical, canonical_json, digest

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_the_canonical_form_is_its_own_canonical_form(value: object) -> None:
    assert canonical(canonical(value)) == canonical(value)
    assert canonical(json.loads(canonical_json(value))) == canonical(value)


def test_the_digest_is_the_hash_of_sorted_json_without_spaces() -> None:
    expected = hashlib.sha256('{"a":[1,"é",null],"b":"inf"}'.encode()).hexdigest()
    assert digest({"b": math.inf, "a": (1.0, "é", None)}) == expected


def test_true_is_not_one() -> None:
    assert len({digest(True), digest(1), digest("1"), digest([1]), digest(None)}) == 5
    assert digest(1) == digest(1.0)
    assert digest(-0.0) == digest(0)


@pytest.mark.parametrize("value", [math.nan, {"a": [math.nan]}, object(), {1, 2}, b"x"])
def test_what_has_no_digest(value: object) -> None:
    with pytest.raises(ValueError, match="no digest"):
        digest(value)
