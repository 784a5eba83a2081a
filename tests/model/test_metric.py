"""Names of metrics: what they resolve to, and what is said where they do not."""

from __future__ import annotations

import pytest

from perfbisect.errors import UsageError
from perfbisect.model.metric import METRICS, PER_UNIT, MetricRef, parse_metric, per_unit, row


@pytest.mark.parametrize(
    ("text", "name", "statistic", "shown"),
    [
        ("ttft", "ttft", "median", "ttft"),
        ("ttft:median", "ttft", "median", "ttft"),
        (" tpot:p99 ", "tpot", "p99", "tpot:p99"),
        ("e2el:p99.9", "e2el", "p99.9", "e2el:p99.9"),
        ("itl:mean", "itl", "mean", "itl:mean"),
        ("output_throughput", "output_throughput", "", "output_throughput"),
        ("failed", "failed", "", "failed"),
        ("stage.Pipe.text_encoder:mean", "stage.Pipe.text_encoder", "mean", "stage.Pipe.text_encoder:mean"),
        ("stage.queue_wait_ms", "stage.queue_wait_ms", "median", "stage.queue_wait_ms"),
        ("stage.1.queue_ms", "stage.1.queue_ms", "", "stage.1.queue_ms"),
    ],
)
def test_a_name_with_its_statistic(text: str, name: str, statistic: str, shown: str) -> None:
    found = parse_metric(text)
    assert (found.name, found.statistic, str(found)) == (name, statistic, shown)
    assert parse_metric(str(found)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tfft", "nearest: ttft"),
        ("output_thruput", "nearest: output_throughput"),
        ("zzz", "unknown metric 'zzz'; known: ttft"),
        ("ttft:p100", "unknown metric"),
        ("ttft:max", "unknown metric"),
        ("TTFT", "unknown metric"),
        ("", "unknown metric"),
        ("output_throughput:p99", "is one number a run and has no 'p99'; ask for 'output_throughput'"),
        ("failed:median", "is one number a run"),
        ("stage.", "unknown metric 'stage.'"),
        ("stage.a b", "unknown metric"),
    ],
)
def test_what_is_no_metric(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_metric(text)


@pytest.mark.parametrize("name", list(METRICS))
def test_every_row_is_complete(name: str) -> None:
    row = METRICS[name]
    assert row.name == name
    assert row.unit and row.display
    assert 0 < row.smallest_effect < 0.2
    assert not (row.neutral and not row.guard)
    assert MetricRef(name).metric is row


def test_a_stage_has_a_row_of_its_own() -> None:
    seconds, thousandths = row("stage.Pipe.diffuse"), row("stage.queue_wait_ms")
    assert (seconds.unit, thousandths.unit, seconds.sign) == ("s", "ms", 1)
    with pytest.raises(KeyError):
        row("nothing")


@pytest.mark.parametrize(("name", "of"), PER_UNIT.items())
def test_what_is_per_unit_counts_as_the_whole_does(name: str, of: tuple[str, str]) -> None:
    whole, length = (METRICS[part] for part in of)
    assert METRICS[name].direction == whole.direction
    assert not METRICS[name].guard and not whole.guard
    assert length.guard


def test_per_unit_follows_a_shorter_answer() -> None:
    whole = per_unit({"e2el:median": 600.0, "audio_ttfp:median": 100.0, "audio_duration:median": 2.0})
    short = per_unit({"e2el:median": 300.0, "audio_ttfp:median": 100.0, "audio_duration:median": 1.0})
    assert whole == {"e2el_per_audio_s": 300.0, "audio_ttfp_per_audio_s": 50.0}
    assert short["e2el_per_audio_s"] == whole["e2el_per_audio_s"]
    assert per_unit({"e2el:median": 640.0, "output_tokens": 32.0}) == {"e2el_per_token": 20.0}
    assert per_unit({"e2el:median": 600.0, "audio_duration:median": 0.0, "output_tokens": 0.0}) == {}
