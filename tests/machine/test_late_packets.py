"""Runs whose first packets the client got late, and those in which the change itself is late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.clients.base import request_statistics
from perfbisect.machine.interference import InterferenceLimits, parse_limits
from perfbisect.machine.late_packets import late_packets_reason
from perfbisect.model.attempt import RunResult, relative_spread
from perfbisect.serving.first_chunks import FIRST_CHUNK, LEAST_PERCENT

LIMITS = InterferenceLimits()
SPREAD = 22.0
"""Of a server's first sounds, ms: 20 of one launch lay between 43 and 125 ms."""

TIMES = st.lists(st.floats(20.0, 500.0), min_size=1, max_size=30)


def run(client: list[float], server: list[float], waited: float | None = 0.9) -> RunResult:
    """A run whose requests got their first packet at these times, by both accounts."""
    values = request_statistics("audio_ttfp", client, [LEAST_PERCENT])
    values |= request_statistics(FIRST_CHUNK, server, [LEAST_PERCENT])
    spread = {"audio_first_chunk:median": relative_spread(server)} if server else {}
    pressure = {} if waited is None else {"cpu.some": {"mean": waited}}
    return RunResult(1, 1, values, spread, facts={"sampled": {"pressure": pressure}})


def launch(median: float, least: float, server: float) -> RunResult:
    """A launch of which only these are known."""
    values = {"audio_ttfp:median": median, "audio_ttfp:p0.01": least, "audio_first_chunk:median": server}
    values["audio_first_chunk:p0.01"] = server - SPREAD
    return RunResult(1, 1, values, {"audio_first_chunk:median": SPREAD / server})


@pytest.mark.parametrize(
    ("client", "least", "server", "is_late"),
    [
        (195.5, 79.7, 70.0, True),
        (109.4, 73.1, 66.0, False),
        (240.9, 208.0, 222.0, False),
        (258.0, 230.2, 218.0, False),
        (667.9, 262.8, 238.0, True),
        (283.7, 220.8, 247.0, False),
    ],
)
def test_launches_on_two_busy_processors(client: float, least: float, server: float, is_late: bool) -> None:
    """Of a bisection with vLLM-Omni 0.30.0, whose fifth launch here had led to a wrong commit for a while."""
    reason = late_packets_reason(launch(client, least, server), LIMITS)
    assert (reason is not None) is is_late
    if reason:
        assert f"{client:.1f} ms for the client and {server:.1f} ms for the server" in reason


@given(TIMES, st.floats(0.0, 1000.0))
def test_a_delay_of_every_answer_is_the_changes(server: list[float], delay: float) -> None:
    assert late_packets_reason(run([time + delay for time in server], server), LIMITS) is None


@given(TIMES, st.data())
def test_less_than_half_of_the_packets_may_be_late(server: list[float], data: st.DataObject) -> None:
    """The median moves by the spread of the server at most where its requests are alike."""
    alike = [100.0] * len(server)
    late = data.draw(st.integers(0, (len(server) - 1) // 2))
    assert late_packets_reason(run([1000.0] * late + alike[late:], alike), LIMITS) is None


@given(TIMES.filter(lambda times: len(times) > 4))
def test_more_than_half_are_discarded(server: list[float]) -> None:
    most = len(server) // 2 + 1
    client = [time + (5000.0 + 100 * at if at < most else 0.0) for at, time in enumerate(server)]
    assert late_packets_reason(run(client, server), LIMITS) is not None


STARVED = run([80.0, 600.0, 700.0, 800.0], [70.0, 71.0, 72.0, 75.0])


def without(name: str) -> RunResult:
    return replace(STARVED, values={key: v for key, v in STARVED.values.items() if name not in key})


@pytest.mark.parametrize(
    "valid",
    [
        replace(without("first_chunk"), spread={}),
        without("ttfp"),
        RunResult(1, 1, {"tpot:median": 4.0}),
        replace(STARVED, facts={"sampled": {"pressure": {"cpu.some": {"mean": 0.05}}}}),
    ],
    ids=["a server without an account", "a client without one", "text", "free processors"],
)
def test_what_says_nothing_of_starving_is_valid(valid: RunResult) -> None:
    assert late_packets_reason(STARVED, LIMITS) is not None
    assert late_packets_reason(valid, LIMITS) is None


@pytest.mark.parametrize("facts", [{}, {"sampled": {}}, {"sampled": {"pressure": {}}}])
def test_a_kernel_without_pressure_leaves_it_to_the_times(facts: dict[str, Any]) -> None:
    assert late_packets_reason(replace(STARVED, facts=facts), LIMITS) is not None


@pytest.mark.parametrize("text", ["off", "late_packets=off", "late_packets=20"])
def test_the_limit_can_be_set(text: str) -> None:
    assert late_packets_reason(STARVED, parse_limits(text)) is None
