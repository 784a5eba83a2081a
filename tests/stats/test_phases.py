"""Differences of phases: known answers, equal sides, and launches without counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.model.counters import EngineCounters, RunCounters
from perfbisect.stats.phases import ERROR, PhaseDifference, compare_phases
from tests.long import mostly_long

REQUESTS, TOKENS = 20, 64


def launch(
    rng: np.random.Generator,
    *,
    noise: float = 0.02,
    decode_ms: float = 14.0,
    prefill_ms: float = 50.0,
    queue_ms: float = 0.3,
    outside_ms: float = 4.0,
    worker_ms: float = 900.0,
    stage: str = "",
    **more: float,
) -> RunCounters:
    """A launch whose phases have noise of their own beside that of the launch."""

    def seconds(ms: float, count: int) -> float:
        return float(ms * count / 1e3 * np.exp(noise * rng.standard_normal()))

    queue, prefill, outside = (seconds(ms, REQUESTS) for ms in (queue_ms, prefill_ms, outside_ms))
    decode = seconds(decode_ms, REQUESTS * (TOKENS - 1))
    counters = {
        "requests": REQUESTS,
        "queue_s": queue,
        "prefill_s": prefill,
        "decode_s": decode,
        "request_s": queue + prefill + decode + outside,
        "generation_tokens": REQUESTS * TOKENS,
        "iterations": REQUESTS * TOKENS / 2,
        "iteration_tokens": REQUESTS * TOKENS * 2,
        "preemptions": 0.0,
        **more,
    }
    cpu = {"api_server": seconds(60.0, REQUESTS), "worker": seconds(worker_ms, REQUESTS)}
    return RunCounters(EngineCounters({stage: counters}), cpu)


def side(seed: int, count: int = 4, **phases: Any) -> list[RunCounters]:
    rng = np.random.default_rng(seed)
    return [launch(rng, **phases) for _ in range(count)]


def named(differences: Sequence[PhaseDifference]) -> Mapping[str, PhaseDifference]:
    return {row.name: row for row in differences}


def test_a_slower_decode_is_decode_alone() -> None:
    rows = named(compare_phases(side(1), side(2, decode_ms=24.0)))
    decode = rows["decode"]
    assert decode.verdict == "moved"
    assert decode.low is not None and decode.high is not None
    assert 0 < decode.low < 10.0 < decode.high < 13.0
    assert (decode.a, decode.b) == (pytest.approx(14.0, rel=0.05), pytest.approx(24.0, rel=0.05))
    assert decode.unit == "ms a step"
    assert {row.name for row in rows.values() if row.verdict == "moved"} == {"decode"}
    assert rows["preemptions"].verdict == rows["iterations"].verdict == "unchanged"
    assert rows["iterations"].difference == 0.0
    assert rows["tokens"].a == 4.0


@pytest.mark.parametrize(
    ("phase", "change"),
    [
        ("prefill", {"prefill_ms": 70.0}),
        ("queue", {"queue_ms": 30.0}),
        ("outside the core", {"outside_ms": 40.0}),
        ("worker", {"worker_ms": 1300.0}),
        ("preemptions", {"preemptions": 40.0}),
    ],
)
def test_each_phase_is_told_from_the_others(phase: str, change: dict[str, float]) -> None:
    moved = [row for row in compare_phases(side(1), side(2, **change)) if row.verdict == "moved"]
    assert [row.name for row in moved] == [phase]
    assert moved[0].difference > 0


def test_accepted_drafts_are_tokens_of_the_same_step() -> None:
    """Half of the tokens are drafts: a step takes twice as long as a token, whatever is accepted."""
    drafts = {"drafts": 20.0 * 32, "draft_tokens": 20.0 * 64}
    few = side(1, accepted_tokens=20.0 * 31, **drafts)
    row = named(compare_phases(few, side(2, accepted_tokens=20.0 * 15, **drafts)))
    assert row["decode"].a == pytest.approx(14.0 * 63 / 32, rel=0.05)
    assert row["accepted drafts"].verdict == "moved"
    assert row["accepted drafts"].difference == pytest.approx(-16 / 64, abs=0.01)


def test_a_faster_side_is_the_negative_of_a_slower_one() -> None:
    a, b = side(1), side(2, decode_ms=20.0)
    there, back = named(compare_phases(a, b))["decode"], named(compare_phases(b, a))["decode"]
    assert back.difference == pytest.approx(-there.difference, rel=0.02)
    assert there.verdict == back.verdict == "moved"


@pytest.mark.parametrize(
    ("noise", "is_blocked"),
    mostly_long(product((0.01, 0.05, 0.2), (False, True)), short=[(0.05, True)]),
)
def test_equal_sides_differ_no_more_often_than_promised(noise: float, is_blocked: bool) -> None:
    count = 60
    moved = sum(
        any(
            row.verdict == "moved"
            for row in compare_phases(
                side(2 * seed, noise=noise), side(2 * seed + 1, noise=noise), is_blocked=is_blocked
            )
        )
        for seed in range(count)
    )
    # 99.9 % quantile of the binomial distribution with the promised probability.
    assert moved <= 9 if ERROR == 0.05 else pytest.fail("another quantile is needed")


def test_two_launches_a_side_see_little_and_more_are_seen_with_the_noise_of_others() -> None:
    a, b = side(3, 2, noise=0.05), side(4, 2, noise=0.05, decode_ms=20.0)
    alone = named(compare_phases(a, b))["decode"]
    others = [side(seed, 4, noise=0.05, decode_ms=ms) for seed, ms in ((5, 14.0), (6, 20.0))]
    assert (alone.verdict, named(compare_phases(a, b, others))["decode"].verdict) == ("open", "moved")


def test_drift_between_blocks_is_taken_off() -> None:
    rng = np.random.default_rng(5)
    levels = np.repeat(np.exp(0.2 * rng.standard_normal(4)), 2)
    a, b = (
        [launch(rng, noise=0.003, decode_ms=ms * float(level)) for level in levels] for ms in (14.0, 14.7)
    )
    loose, tight = (
        named(compare_phases(a, b, is_blocked=is_blocked))["decode"] for is_blocked in (False, True)
    )
    assert tight.low is not None and tight.high is not None and loose.low is not None
    assert loose.low < 0 < tight.low < 0.7 * float(np.median(levels)) < tight.high


def test_one_launch_a_side_has_no_interval() -> None:
    rows = compare_phases(side(1, 1), side(2, 1, decode_ms=30.0))
    assert {row.verdict for row in rows} == {"unknown"}
    assert all(row.low is None and row.high is None for row in rows)
    assert named(rows)["decode"].difference == pytest.approx(16.0, rel=0.1)


def test_launches_without_counters_have_no_phases() -> None:
    assert compare_phases([], side(1)) == ()
    assert compare_phases([RunCounters()] * 2, side(1, 2)) == ()
    only_cpu = [RunCounters(cpu_s={"worker": 1.0})] * 2
    assert compare_phases(only_cpu, only_cpu) == ()


def test_a_phase_that_one_launch_lacks_is_left_out() -> None:
    a = side(1)
    counters = dict(a[2].engine.stages[""])
    del counters["prefill_s"]
    a[2] = RunCounters(EngineCounters({"": counters}), a[2].cpu_s)
    names = named(compare_phases(a, side(2))).keys()
    assert "decode" in names and not names & {"prefill", "outside the core"}


def two_stages(seed: int, transfer_ms: float, **later: float) -> list[RunCounters]:
    """A talker, and a decoder that waits for its first chunk: 50 ms and what the chunk takes besides."""
    talker = side(seed, stage="0", queue_ms=0.0)
    waits_ms = 50.0 + transfer_ms
    more = {"first_packets": REQUESTS, "first_packet_s": (waits_ms + 30.0) * REQUESTS / 1e3, **later}
    decoder = side(seed + 100, stage="1", queue_ms=waits_ms, prefill_ms=30.0, **more)
    return [
        RunCounters(EngineCounters({**one.engine.stages, **two.engine.stages}), one.cpu_s)
        for one, two in zip(talker, decoder, strict=True)
    ]


def test_a_later_chunk_is_said_of_its_transfer() -> None:
    """A decoder whose first chunk has eight frames instead of one: neither stage is slower by itself."""
    rows = compare_phases(two_stages(1, 20.0), two_stages(2, 120.0))
    assert [(row.stage, row.name) for row in rows if row.verdict == "moved"] == [
        *(("1", "queue"), ("1", "chunk transfer"), ("1", "first packet"))
    ]
    (transfer,) = (row for row in rows if row.name == "chunk transfer")
    assert transfer.a == pytest.approx(20.0, abs=4.0) and transfer.b == pytest.approx(120.0, abs=8.0)


@pytest.mark.parametrize("later", [{"requests": REQUESTS + 1}, {"queue_s": 0.001}])
def test_a_stage_that_begins_later_waits_for_no_chunk(later: dict[str, float]) -> None:
    """It has other requests, or hardly a queue: the stage before had ended."""
    sides = two_stages(1, 20.0, **later), two_stages(2, 120.0, **later)
    assert not [row for row in compare_phases(*sides) if row.name == "chunk transfer"]


def test_stages_are_compared_each() -> None:
    def both(seed: int, talker_ms: float) -> list[RunCounters]:
        pairs = zip(
            side(seed, stage="thinker"),
            side(seed + 100, stage="talker", decode_ms=talker_ms),
            strict=True,
        )
        return [
            RunCounters(EngineCounters({**one.engine.stages, **two.engine.stages}), one.cpu_s)
            for one, two in pairs
        ]

    rows = compare_phases(both(1, 14.0), both(2, 20.0))
    assert [(row.stage, row.name) for row in rows if row.verdict == "moved"] == [("talker", "decode")]
    assert [row.stage for row in rows if row.name == "decode"] == ["thinker", "talker"]


AMOUNTS = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
ANY_LAUNCH = st.builds(
    lambda counters, cpu: RunCounters(EngineCounters({"": counters}), cpu),
    st.dictionaries(
        st.sampled_from(("requests", "decode_s", "generation_tokens", "queue_s", "prefill_s", "request_s")),
        AMOUNTS,
    ),
    st.dictionaries(st.sampled_from(("api_server", "worker")), AMOUNTS),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ANY_LAUNCH, max_size=3), st.lists(ANY_LAUNCH, max_size=3))
def test_any_counters_can_be_compared(a: list[RunCounters], b: list[RunCounters]) -> None:
    for row in compare_phases(a, b):
        assert np.isfinite([row.a, row.b, row.difference, row.smallest]).all()
        assert row.low is None or row.high is None or row.low <= row.difference <= row.high
