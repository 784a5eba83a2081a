"""The command of ``vllm bench serve --omni``, and which of its results are measurements."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from perfbisect.clients.omni_bench import CLIENT
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import parse_metric
from tests.serving import workloads
from tests.serving.workloads import ENDPOINT, make_cell

OWN = {"client": "omni_bench", "metric_percentiles": "99"}
CHAT = {**workloads.CHAT, **OWN, "percentile_metrics": "ttft,tpot,audio_rtf"}
IMAGE = {"family": "diffusion", **OWN, **dict.fromkeys(("backend", "endpoint"), "/v1/images/generations")}


def cell(fields: dict[str, Any] | None = None, **more: Any) -> Cell:
    return make_cell(fields or {**workloads.SPEECH, **OWN}, **more)


def argv(one: Cell) -> tuple[str, ...]:
    return CLIENT.command(
        one, ENDPOINT, seed=17, result=PurePosixPath("/a/b/run-1.json"), metadata={"attempt": "a7"}
    )


def option(one: Cell, name: str) -> str:
    words = argv(one)
    return words[words.index(name) + 1]


class TestCommand:
    def test_the_whole_of_it(self) -> None:
        one = cell(max_concurrency=2, num_warmups=3, dataset_name="seed-tts", dataset_path="org/sentences")
        assert argv(one) == (
            *("-m", "vllm_omni.entrypoints.cli.main", "bench", "serve"),
            *("--backend", "openai-audio-speech", "--base-url", "http://127.0.0.1:4321"),
            *("--dataset-name", "seed-tts", "--dataset-path", "org/sentences", "--disable-tqdm"),
            *("--endpoint", "/v1/audio/speech", "--extra-body", '{"stream_format":"audio"}'),
            *("--max-concurrency", "2", "--metric-percentiles", "0.01,99", "--model", "pb-1a2b"),
            *("--num-prompts", "4", "--num-warmups", "3", "--omni"),
            *("--percentile-metrics", "audio_ttfp,audio_rtf,audio_duration,e2el"),
            *("--ready-check-timeout-sec", "60", "--request-rate", "inf", "--result-dir", "/a/b"),
            *("--result-filename", "run-1.json", "--save-detailed", "--save-result", "--seed", "17"),
            *("--tokenizer", "org/m", "--metadata", "attempt=a7", "perfbisect_seed=17"),
            f"perfbisect_cell={one.digest}",
        )

    def test_sampling_is_the_deploy_yamls_but_for_what_the_cell_sets(self) -> None:
        assert "--temperature" not in argv(cell())
        assert option(cell(sampling={"temperature": 0.9}), "--temperature") == "0.9"
        assert "--top-p" not in argv(cell(sampling={"temperature": 0.9}))

    def test_a_chat_is_not_asked_for_another_form(self) -> None:
        assert "--extra-body" not in argv(cell(CHAT))
        one = cell(CHAT, extra_body={"modalities": ["text", "audio"]})
        assert option(one, "--extra-body") == '{"modalities":["text","audio"]}'

    def test_the_tokenizer_of_a_local_pipeline_is_in_its_own_folder(self, tmp_path: Path) -> None:
        one = cell(IMAGE, model=str(tmp_path))
        (tmp_path / "tokenizer").mkdir()
        assert option(one, "--tokenizer") == str(tmp_path)
        (tmp_path / "model_index.json").touch()
        assert option(one, "--tokenizer") == f"{tmp_path}/tokenizer"
        assert option(cell(IMAGE, model=str(tmp_path), tokenizer="org/t"), "--tokenizer") == "org/t"
        assert option(cell(IMAGE, model="org/pipeline"), "--tokenizer") == "org/pipeline"

    def test_without_sound_no_shortest_answer_is_looked_for(self) -> None:
        silent = cell(CHAT, extra_body={"modalities": ["text"]})
        assert option(silent, "--metric-percentiles") == "99"
        assert option(silent, "--percentile-metrics") == "ttft,tpot,e2el"
        assert option(cell(CHAT), "--percentile-metrics") == "ttft,tpot,audio_rtf,audio_duration,e2el"

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"extra_body": {"stream_format": "sse"}}, "sets stream_format to 'sse'"),
            ({"extra_body": {"response_format": "wav"}}, "sets response_format to 'wav'"),
            ({"extra_body": {"stream": False}}, "sets stream to False"),
            ({"backend": "openai-realtime-tts"}, "no backend openai-realtime-tts: openai-audio-speech, "),
            (
                {"endpoint": "/v1/chat/completions"},
                "uses /v1/audio/speech, but the cell's endpoint is /v1/chat",
            ),
            ({"dataset_args": {"seed": 3}}, "cannot set seed"),
        ],
    )
    def test_what_it_could_not_count_is_refused(self, more: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            argv(cell(**more))


def document(one: Cell, **changed: Any) -> dict[str, Any]:
    """A result of four requests: 2 s of sound each, TTFP 100 ms, RTF 0.3, by one after the other."""
    spread = {
        "audio_ttfp_ms": 100.0, "audio_rtf": 0.3, "audio_duration_s": 2.0, "e2el_ms": 600.0,
        "ttft_ms": 20.0, "tpot_ms": 11.0,
    }  # fmt: skip
    told = {f"{part}_{name}": value for name, value in spread.items() for part in ("mean", "median", "p99")}
    return {
        "date": "20260701-120000", "model_id": "pb-1a2b", "num_prompts": 4, "max_concurrency": None,
        "perfbisect_seed": "17", "perfbisect_cell": one.digest, "attempt": "a7",
        "duration": 2.4, "completed": 4, "failed": 0, "errors": ["", "", "", ""],
        "total_input_tokens": 40, "total_output_tokens": 32, "request_throughput": 4 / 2.4,
        "output_throughput": 32 / 2.4, "total_token_throughput": 72 / 2.4,
        "total_audio_duration_s": 8.0, "audio_throughput": 8.0 / 2.4, "p0.01_audio_duration_s": 1.9,
        "total_images": 4, "image_throughput": 4 / 2.4, "average_pixels_per_image": 64.0,
        "mean_denoise_step_latency_ms": 0.0, "stage_durations_mean": {}, **told, **changed,
    }  # fmt: skip


def parse(one: Cell, **changed: Any) -> Any:
    expected = {"model_id": "pb-1a2b", "attempt": "a7"}
    return CLIENT.parse(one, document(one, **changed), index=2, seed=17, expected=expected)


class TestParse:
    def test_speech(self) -> None:
        run = parse(cell(), total_output_tokens=0)
        assert (run.index, run.seed, run.seconds, run.warnings) == (2, 17, 2.4, ())
        assert set(run.values) == set(CLIENT.metrics(cell()))
        assert run.values["audio_ttfp:median"] == 100.0
        assert run.values["audio_duration:p99"] == 2.0
        assert run.values["e2el_per_audio_s"] == 300.0
        assert run.values["audio_ttfp_per_audio_s"] == 50.0
        assert run.facts["audio_seconds"] == 8.0

    def test_a_chat(self) -> None:
        run = parse(cell(CHAT))
        assert set(run.values) == set(CLIENT.metrics(cell(CHAT)))
        assert run.values["output_tokens"] == 8.0
        assert run.values["e2el_per_token"] == 75.0

    def test_one_token_a_request_has_no_time_between_tokens(self) -> None:
        run = parse(cell(CHAT), total_output_tokens=4, median_tpot_ms=math.nan)
        assert not [key for key in run.values if key.startswith("tpot")]

    def test_images_and_what_their_server_tells(self) -> None:
        run = parse(
            cell(IMAGE),
            mean_denoise_step_latency_ms=70.0,
            mean_peak_memory_mb=0.0,
            stage_durations_mean={"Pipe.diffuse": 2.0, "queue_wait_ms": 3.0, "odd": None},
            stage_durations_p99={"Pipe.diffuse": 2.5},
        )
        assert run.values["images"] == 1.0
        assert run.values["image_pixels"] == 64.0
        assert run.values["denoise_step_latency:mean"] == 70.0
        assert "peak_memory_mb:mean" not in run.values
        assert run.values["stage.Pipe.diffuse:mean"] == 2.0
        assert run.values["stage.Pipe.diffuse:p99"] == 2.5
        assert run.values["stage.queue_wait_ms:mean"] == 3.0
        assert not [key for key in run.values if "odd" in key]

    def test_milliseconds_of_the_era_before(self) -> None:
        one = cell()
        old = document(one)
        for name in [name for name in old if name.endswith("audio_duration_s")]:
            old[name.removesuffix("_s") + "_ms"] = 1000 * old.pop(name)
        run = CLIENT.parse(one, old, index=1, seed=17)
        assert run.values["audio_duration:median"] == 2.0
        assert run.facts["audio_seconds"] == 8.0

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"date": None, "num_prompts": 0, "completed": 0}, "zero-filled form"),
            ({"total_audio_duration_s": 0.0, "audio_throughput": 0.0}, "without one second of sound"),
            ({"total_audio_duration_s": 16.0}, "contradicts itself: 16 s of sound"),
            ({"median_audio_rtf": math.nan}, "median_audio_rtf is nan"),
            ({"model_id": "pb-else"}, "of another run: model_id is 'pb-else'"),
        ],
    )
    def test_what_is_no_measurement(self, changed: dict[str, Any], said: str) -> None:
        with pytest.raises(ClientError, match=said):
            parse(cell(), **changed)

    def test_a_request_without_sound_is_a_warning(self) -> None:
        (warning,) = parse(cell(), **{"p0.01_audio_duration_s": 0.001}).warnings
        assert "at least one request has no sound: the shortest is 0.00 s" in warning

    def test_a_chat_that_was_cut_short(self) -> None:
        asked = {"dataset_args": {"random-output-len": 10}, "ignore_eos": True}
        assert "8.0 of 10 tokens per request" in parse(cell(CHAT, **asked)).warnings[0]
        assert parse(cell(CHAT, **{**asked, "ignore_eos": False})).warnings == ()


def test_stages_and_memory_may_be_judged_where_they_may_be_told() -> None:
    for name in (
        "stage.QwenImagePipeline.diffuse:mean",
        "denoise_step_latency:mean",
        "peak_memory_mb:median",
    ):
        CLIENT.check_metric(cell(IMAGE), parse_metric(name))
    with pytest.raises(UsageError, match="does not report"):
        CLIENT.check_metric(cell(IMAGE), parse_metric("stage.QwenImagePipeline.diffuse:p95"))
    with pytest.raises(UsageError, match="does not report ttft:median"):
        CLIENT.check_metric(cell(percentile_metrics="ttft,audio_ttfp"), parse_metric("ttft"))


def test_a_low_quantile_that_is_the_headline_is_asked_for() -> None:
    by_cell = cell(headline="audio_ttfp:p10"), cell(guards="audio_rtf:p10")
    for one in (*by_cell, cell().reporting(["e2el:p10"])):
        assert option(one, "--metric-percentiles") == "0.01,10,99"
        assert one.digest == cell().digest
        CLIENT.check_metric(one, parse_metric("audio_ttfp:p10"))
        assert "audio_first_chunk:p10" in CLIENT.may_report(one)
    assert cell().reporting(["e2el", "e2el:p99", "e2el:p0", "output_throughput"]) == cell()


def test_the_servers_own_account_can_be_judged() -> None:
    for name in ("audio_first_chunk", "audio_first_chunk:p0.01", "stage.1.queue_ms"):
        CLIENT.check_metric(cell(), parse_metric(name))
    with pytest.raises(UsageError, match="does not report audio_first_chunk:median"):
        CLIENT.check_metric(cell(CHAT), parse_metric("audio_first_chunk"))


def test_a_number_of_a_whole_run_is_no_percentile_that_could_be_asked_for() -> None:
    with pytest.raises(UsageError, match="does not report output_throughput") as caught:
        CLIENT.check_metric(cell(), parse_metric("output_throughput"))
    assert "audio_throughput" in str(caught.value.next_step)
    assert "percentile_metrics" not in str(caught.value.next_step)
    with pytest.raises(UsageError) as caught:
        CLIENT.check_metric(cell(), parse_metric("audio_ttfp:p77"))
    assert "extend percentile_metrics" in str(caught.value.next_step)
