"""Attempts as JSON and as the file in their folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.common.checked import LARGEST
from perfbisect.errors import FaultCode
from perfbisect.measure.attempt import FILE, from_dict, plain, read_attempt, to_dict, write_attempt
from perfbisect.model.attempt import Attempt, Failure, Provenance, RunResult

TEXT = st.text(max_size=20)
FINITE = st.floats(-LARGEST, LARGEST)
NUMBERS = st.dictionaries(TEXT, FINITE, max_size=4)
FACTS = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers() | FINITE | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
RUNS = st.builds(
    RunResult,
    index=st.integers(0, 99),
    seed=st.integers(),
    values=NUMBERS,
    spread=NUMBERS,
    warnings=st.lists(TEXT, max_size=2).map(tuple),
    seconds=FINITE,
    raw=TEXT,
    facts=FACTS,
)
FAILURES = st.builds(
    Failure,
    phase=st.sampled_from(["build", "fetch", "launch", "first_request", "warm", "bench", "stop"]),
    fault=st.sampled_from(["change", "machine", "client"]),
    reason=TEXT,
    log=TEXT,
    code=st.none() | st.sampled_from(get_args(FaultCode)),
)
ATTEMPTS = st.builds(
    Attempt,
    id=TEXT,
    change_id=TEXT,
    purpose=st.sampled_from(["run", "end", "search", "confirm"]),
    provenance=st.builds(Provenance, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, facts=FACTS),
    runs=st.lists(RUNS, max_size=3).map(tuple),
    failure=st.none() | FAILURES,
    seconds=st.dictionaries(TEXT, FINITE, max_size=3),
    folder=TEXT,
    cold=st.booleans(),
    started_at=TEXT,
)


@settings(max_examples=25)  # each is large
@given(ATTEMPTS)
def test_an_attempt_survives_json(attempt: Attempt) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(attempt), allow_nan=False))) == attempt


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * LARGEST])
def test_what_no_client_reports_is_no_attempt(value: float) -> None:
    run = RunResult(0, 0, {"tpot:median": value})
    attempt = Attempt("a", "c", "run", Provenance("d", "m", "x"), (run,))
    with pytest.raises(ValueError, match="is not finite, or beyond"):
        from_dict(json.loads(json.dumps(to_dict(attempt), allow_nan=False)))


def test_facts_of_any_kind_become_plain() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    value = {"path": Path("/x/y"), 3: {2, 1}, "nan": math.nan, "odd": Odd(), "tuple": (1, (2,))}
    assert plain(value) == {"path": "/x/y", "3": [1, 2], "nan": "NaN", "odd": "odd", "tuple": [1, [2]]}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"failure": None},
        {"runs": 3},
        {"provenance": None},
        {"runs": [{"index": 0, "seed": 0, "values": {"tpot": None}}]},
        {"runs": [{"index": 0, "seed": 0, "values": {"tpot": "many"}}]},
        {"runs": [{"index": 0, "seed": 0, "values": {"tpot": True}}]},
    ],
)
def test_what_is_no_attempt_is_a_value_error(wrong: dict[str, object]) -> None:
    whole = to_dict(Attempt("a", "c", "run", Provenance("d", "m", "x")))
    with pytest.raises(ValueError, match="not an attempt"):
        from_dict(whole | wrong if wrong and "failure" not in wrong else wrong)


def test_keys_of_a_later_version_are_ignored() -> None:
    attempt = Attempt("a", "c", "run", Provenance("d", "m", "x"), failure=Failure("build", "change", "no"))
    document = to_dict(attempt)
    document["later"] = document["provenance"]["later"] = document["failure"]["later"] = 1
    assert from_dict(document) == attempt


def test_the_file_is_whole_or_not_there(tmp_path: Path) -> None:
    attempt = Attempt("a", "c", "run", Provenance("d", "m", "x"))
    assert read_attempt(tmp_path) is None
    text = write_attempt(tmp_path, attempt).read_bytes()
    assert read_attempt(tmp_path) == attempt
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    for end in range(len(text.rstrip())):
        (tmp_path / FILE).write_bytes(text[:end])
        assert read_attempt(tmp_path) is None, end


@pytest.mark.parametrize("text", ["", "[]", '{"attempt": 1}', "[" * 100_000])
def test_a_file_of_something_else_is_no_attempt(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert read_attempt(tmp_path) is None


def test_a_disk_that_refuses_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()  # the name is taken: the rename fails as on a broken disk
    with pytest.raises(OSError, match="directory"):
        write_attempt(tmp_path, Attempt("a", "c", "run", Provenance("d", "m", "x")))
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
