"""Increase of counters over a run, and sums over runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.model.attempt import RunResult
from perfbisect.model.counters import EngineCounters, RunCounters

NAMES = ("requests", "decode_s", "prefill_s", "iterations")
AMOUNTS = st.floats(0.0, 1e9)
READINGS = st.builds(
    EngineCounters,
    st.dictionaries(
        st.sampled_from(("", "thinker", "talker")),
        st.dictionaries(st.sampled_from(NAMES), AMOUNTS, min_size=1),
        max_size=3,
    ),
)


def run(before: EngineCounters, after: EngineCounters, **cpu_s: float) -> RunResult:
    readings = {"before": before.stages, "after": after.stages}
    return RunResult(1, 1, {}, facts={"engine_counters": readings, "cpu_seconds": cpu_s})


@given(READINGS, READINGS)
def test_an_increase_is_of_what_both_readings_have_and_never_negative(
    before: EngineCounters, more: EngineCounters
) -> None:
    after = EngineCounters(
        {
            stage: {name: value + before.stages.get(stage, {}).get(name, 0.0) for name, value in own.items()}
            for stage, own in more.stages.items()
        }
    )
    increase = after.since(before)
    for stage, own in increase.stages.items():
        assert own.keys() == more.stages[stage].keys() & before.stages[stage].keys()
        for name, value in own.items():
            assert value == pytest.approx(more.stages[stage][name], abs=1e-6, rel=1e-6)
            assert value >= 0


@given(READINGS)
def test_json_brings_a_reading_back(reading: EngineCounters) -> None:
    assert EngineCounters.from_json(json.loads(json.dumps(reading.stages))) == reading
    assert reading.since(EngineCounters()).stages == {}
    assert all(value == 0 for own in reading.since(reading).stages.values() for value in own.values())


def test_a_counter_that_fell_is_left_out() -> None:
    before = EngineCounters({"": {"requests": 10.0, "decode_s": 5.0}})
    after = EngineCounters({"": {"requests": 12.0, "decode_s": 1.0}})
    assert after.since(before).stages == {"": {"requests": 2.0}}


def test_totals_are_over_stages() -> None:
    reading = EngineCounters({"thinker": {"requests": 2.0, "decode_s": 1.0}, "talker": {"requests": 3.0}})
    assert reading.total("requests") == 5.0
    assert reading.total("decode_s") == 1.0
    assert reading.total("prefill_s") is None


def test_runs_are_summed_over_what_all_of_them_have() -> None:
    start = EngineCounters({"": {"requests": 1.0, "decode_s": 1.0}})
    first = run(start, EngineCounters({"": {"requests": 3.0, "decode_s": 2.5}}), worker=4.0, engine_core=1.0)
    second = run(start, EngineCounters({"": {"requests": 4.0}}), worker=2.0)
    summed = RunCounters.of_runs([first, second])
    assert summed.engine.stages == {"": {"requests": 5.0}}
    assert summed.cpu_s == {"worker": 6.0}
    assert RunCounters.of_runs([]) == RunCounters()


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"engine_counters": None, "cpu_seconds": None},
        {"engine_counters": {"before": {}, "after": {}}, "cpu_seconds": {}},
        {"engine_counters": {"after": {"": {"requests": 3.0}}}},
        {"engine_counters": {"before": {"": 5}, "after": [1]}},
        {"cpu_seconds": {"worker": "much", "other": True}},
        {"engine_counters": {"before": {"": {"requests": "NaN"}}, "after": {"": {"requests": 2.0}}}},
    ],
)
def test_a_run_without_counters_has_none(facts: dict[str, Any]) -> None:
    assert RunCounters.of_run(RunResult(1, 1, {}, facts=facts)) == RunCounters()


@pytest.mark.parametrize(
    "stages",
    [
        {},
        {"": {"requests": 2.0, "queue_s": 1.0}},
        {"0": {"requests": 0.0, "queue_s": 0.0}},
        {"0": {"requests": 2.0}},
        {"0": {"queue_s": 2.0}},
    ],
)
def test_an_engine_without_stages_or_requests_has_no_queue_of_a_stage(stages: dict[str, Any]) -> None:
    assert EngineCounters(stages).queue_values() == {}
