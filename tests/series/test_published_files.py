"""Runs of ours as result files: names and content; what is read of them is what was written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.cells.match import parse_result_name
from perfbisect.model.attempt import Attempt, Provenance, RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.metric import METRICS
from perfbisect.series.points import Build
from perfbisect.series.publish import file_name, result_document, run_start
from perfbisect.series.sources.published import BLOCK, name_of
from perfbisect.series.sources.results import (
    ParsedResult,
    UnusableResultError,
    key_of,
    parse_result,
    result_records,
)

DRAWN = ("latency", "peak_memory_mb", "image_distance")
FACTS = {"completed": 8, "failed": 0, "input_tokens": 801, "output_tokens": 77, "duration": 9.5}


def cell(client: str = "vllm_bench", **changed: Any) -> Cell:
    fields: dict[str, Any] = {
        "name": "text_cpu@c2-n8",
        "family": "text",
        "model": "acme/tiny",
        "num_prompts": 8,
        "max_concurrency": 2,
        "dataset_args": {"random-input-len": 64, "random-output-len": 8},
        "client": client,
    }
    return Cell.model_validate(fields | changed)


def attempt(*values: dict[str, float], facts: dict[str, Any] | None = None) -> Attempt:
    machine = {"host": "box", "gpus": [{"name": "H20"}, {"name": "H20"}]}
    return Attempt(
        "job-001",
        "c" * 40,
        "run",
        Provenance(
            "d" * 64, "H20 x 2, driver 550", "vllm_bench 0.32.0 ab", "0.32.0", facts={"machine": machine}
        ),
        tuple(
            RunResult(k, k, told, seconds=10.0, facts=facts or FACTS)
            for k, told in enumerate(values, start=1)
        ),
        seconds={"launch": 30.0, "warm": 5.0, "bench": 21.0, "stop": 2.0},
        started_at="2026-04-12T21:00:00+02:00",
    )


def written(of: Cell, made: Attempt, place: int = 0, raw: dict[str, Any] | None = None) -> Any:
    build = Build("journal", "perfbisect", "job", commit="c" * 40, fixed="2026-04-12T18:59:00Z")
    return json.loads(json.dumps(result_document(of, made, place, build, raw or {}), allow_nan=False))


def read(document: Any) -> ParsedResult:
    (record,) = result_records(document)
    return parse_result(record)


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.parametrize("statistic", ["median", "mean", "p99", "p99.9"])
def test_a_name_is_read_as_what_it_was_written_for(name: str, statistic: str) -> None:
    key = f"{name}:{statistic}" if METRICS[name].per_request else name
    assert key_of(name_of(key, diffusion=name in DRAWN and METRICS[name].per_request)) == (key, 1.0)


def test_the_clients_own_names() -> None:
    assert name_of("ttft:median") == "median_ttft_ms"
    assert name_of("audio_duration:p99") == "p99_audio_duration_s"
    assert name_of("audio_rtf:mean") == "mean_audio_rtf"
    assert name_of("request_throughput") == "request_throughput"
    assert name_of("latency:median", diffusion=True) == "latency_median"


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}(@[A-Za-z0-9._-]{1,8})?", fullmatch=True),
    data=st.sampled_from(["random", "prefix_repetition", "seed-tts", "random-mm"]),
    concurrency=st.none() | st.integers(1, 512),
    rate=st.just(math.inf) | st.floats(0.001, 500).map(lambda rate: round(rate, 6)),
    prompts=st.integers(1, 5000),
    lengths=st.booleans(),
)
def test_a_file_is_named_as_the_kanban_names_it(
    name: str, data: str, concurrency: int | None, rate: float, prompts: int, lengths: bool
) -> None:
    args = {"random-input-len": 12, "random-output-len": 34} if lengths else {}
    made = cell(
        name=name, dataset_name=data, max_concurrency=concurrency, request_rate=rate, num_prompts=prompts,
        dataset_args=args,
    )  # fmt: skip
    told = file_name(made, run_start(attempt({"failed": 0.0}), 0))
    assert "/" not in told
    assert told.startswith("result_test_")
    found = parse_result_name(told)
    assert found.time == "20260412-190035", "in UTC, after the phases before the runs"
    assert found.fields["num_prompts"] == prompts
    assert found.fields["dataset_name"] == data.replace("_", "-")
    assert found.fields["max_concurrency"] == concurrency
    if concurrency is None:
        assert found.fields["request_rate"] == rate
    assert found.arguments == args


def test_the_layout_of_the_newest_era() -> None:
    when = run_start(attempt({"failed": 0.0}), 0)
    assert file_name(cell(), when) == "result_test_text_cpu_random_2_8_in64_out8_20260412-190035.json"
    chat = cell(max_concurrency=None, request_rate=2.0, dataset_args={}, dataset_name="random-mm")
    assert file_name(chat, when) == "result_test_text_cpu_random-mm_2.0_8_inna_outna_20260412-190035.json"
    drawn = cell("diffusion_bench", name="qwen_image")
    assert file_name(drawn, when) == "diffusion_result_test_qwen_image_20260412-190035.json"


SERVED = sorted(
    f"{name}:{part}" if row.per_request else name
    for name, row in METRICS.items()
    for part in (("median", "mean", "p99") if row.per_request else ("",))
    if name not in DRAWN
    and "_per_" not in name
    and name not in ("failed", "images", "image_pixels", "input_tokens", "output_tokens")
)


@given(
    values=st.dictionaries(
        st.sampled_from([*SERVED, "stage.diffuse:mean", "stage.vae_ms:p99"]), st.floats(1e-6, 1e9), min_size=1
    ),
    nothing=st.booleans(),
)
def test_what_is_read_is_what_was_written(values: dict[str, float], nothing: bool) -> None:
    told = values | {"failed": 0.0, "output_tokens": 77 / 8, "ttft:std": 3.0}
    if nothing:
        told["request_goodput"] = 0.0  # Believed of a run of ours, and no point elsewhere.
    found = read(written(cell(), attempt(told))).published
    assert found is not None
    expected = {name: value for name, value in told.items() if name != "ttft:std"}
    assert found.run.values == pytest.approx(expected, rel=1e-12)
    exact = {name for name in expected if name != "spec_decode_acceptance_rate"}
    assert {name: found.run.values[name] for name in exact} == {name: expected[name] for name in exact}
    assert found.run.facts["output_tokens"] == 77
    assert (found.commit, found.engine, found.origin.host) == ("c" * 40, "0.32.0", "box")


def test_a_result_of_the_client_keeps_what_else_it_says() -> None:
    raw = {
        "date": "20260412-210102", "model_id": "pb-0ba5", "rtfx": 0.0, "label": None, "vllm_bench_extra": "x",
        "std_ttft_ms": 3.0, "median_ttft_ms": 80.5, "spec_decode_acceptance_rate": 37.1, "ttfts": [0.1, 0.2],
        "errors": ["", ""], "odd": math.nan, "p0.01_audio_duration_s": 0.5,
    }  # fmt: skip
    values = {"ttft:median": 80.5, "spec_decode_acceptance_rate": 0.371, "failed": 0.0}
    document = written(cell(), attempt(values), raw=raw)
    assert {"rtfx", "vllm_bench_extra", "std_ttft_ms"} <= set(document)
    assert not {"ttfts", "errors", "odd"} & set(document)
    assert document["model_id"] == "acme/tiny", "not the name that one server had"
    assert document["date"] == "20260412-190045", "the end, in UTC, not by the clock of the machine"
    assert document["spec_decode_acceptance_rate"] == 37.1
    assert (document["commit"], document["engine_version"], document["gpu"]) == (
        "c" * 40,
        "0.32.0",
        "H20, H20",
    )
    assert document["hardware"] == "H20 x 2, driver 550"
    found = read(document)
    assert found.published is not None
    assert set(found.published.run.values) == set(values), "what the run does not report is not read of it"
    assert found.values["audio_duration:p0.01"] == 0.5, "though others find it"


def test_a_record_of_the_diffusion_benchmark() -> None:
    values = {
        "latency:median": 2.5, "latency:p99": 2.9, "throughput_qps": 0.38, "failed": 0.0,
        "peak_memory_mb:mean": 56342.0, "stage.Pipeline.diffuse:median": 2.4, "image_distance:median": 0.0,
    }  # fmt: skip
    facts = {"completed": 8, "failed": 0, "duration": 26.0}
    drawn = cell("diffusion_bench", name="qwen_image", dataset_args={"width": 512})
    document = written(drawn, attempt(values, facts=facts), raw={"latency_p95": 2.8, "task": "t2i"})
    assert isinstance(document, list)
    (record,) = document
    assert record["result"]["latency_median"] == 2.5
    assert record["result"]["stage_durations_p50"] == {"Pipeline.diffuse": 2.4}
    assert record["benchmark_params"]["width"] == 512
    found = read(document)
    assert found.published is not None
    assert found.published.run.values == values
    assert found.began == "20260412-190035"


def test_each_run_of_a_launch_says_which_it_is() -> None:
    made = attempt({"ttft:median": 1.0}, {"ttft:median": 1.0})
    first, second = (written(cell(), made, place) for place in (0, 1))
    assert [d[BLOCK]["run"] for d in (first, second)] == [1, 2]
    assert {d[BLOCK]["runs"] for d in (first, second)} == {2}
    assert (first["date"], second["date"]) == ("20260412-190045", "20260412-190055")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schema": "perfbisect.published/2"}, "schema: Input should be 'perfbisect.published/1'"),
        ({"run": "first"}, "run: Input should be a valid integer"),
        ({"metrics": ["ttft:median", "tpot:median"]}, "median_tpot_ms is None, not a number"),
    ],
)
def test_a_block_that_was_changed(changed: dict[str, Any], message: str) -> None:
    document = written(cell(), attempt({"ttft:median": 1.0}))
    with pytest.raises(UnusableResultError) as caught:
        parse_result(document | {BLOCK: document[BLOCK] | changed})
    assert caught.value.kind == "broken"
    assert message in str(caught.value)
