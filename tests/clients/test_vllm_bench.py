"""The vLLM client: its command, and what is believed of its result."""

from __future__ import annotations

import math
import statistics
from pathlib import PurePosixPath
from typing import Any

import pytest

from perfbisect.clients.vllm_bench import CLIENT
from perfbisect.errors import ClientError, UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import parse_metric
from tests.serving.workloads import ENDPOINT, make_cell


def cell(**fields: Any) -> Cell:
    own: dict[str, Any] = {
        "model": "/m",
        "revision": {"model": "sha256:00"},
        "num_warmups": 2,
        "max_concurrency": 1,
        "dataset_args": {"random_input_len": 64, "random_output_len": 3},
        "metric_percentiles": [50, 99.5],
        "ignore_eos": True,
        "guards": ["failed"],
    }
    return make_cell({"family": "text", **own, **fields})


def option(args: tuple[str, ...], name: str) -> str:
    return args[args.index(name) + 1]


class TestCommand:
    def command(self, **fields: Any) -> tuple[str, ...]:
        return CLIENT.command(
            cell(**fields),
            ENDPOINT,
            seed=7,
            result=PurePosixPath("/tmp/run/r.json"),
            metadata={"attempt": "a1"},
        )

    def test_it_runs_the_cell_against_the_attempts_server(self) -> None:
        args = self.command()
        assert args[:4] == ("-m", "vllm.entrypoints.cli.main", "bench", "serve")
        for name, value in {
            "--base-url": "http://127.0.0.1:4321",
            "--endpoint": "/v1/completions",
            "--backend": "openai",
            "--model": "pb-1a2b",
            "--tokenizer": "/m",
            "--dataset-name": "random",
            "--random-input-len": "64",
            "--random-output-len": "3",
            "--num-prompts": "4",
            "--num-warmups": "2",
            "--max-concurrency": "1",
            "--request-rate": "inf",
            "--seed": "7",
            "--temperature": "0.0",
            "--percentile-metrics": "ttft,tpot,itl,e2el",
            "--metric-percentiles": "50,99.5",
            "--result-dir": "/tmp/run",
            "--result-filename": "r.json",
            "--ready-check-timeout-sec": "30",
        }.items():
            assert option(args, name) == value
        for flag in ("--save-result", "--save-detailed", "--disable-tqdm", "--ignore-eos"):
            assert args.count(flag) == 1
        assert not {"--dataset-path", "--extra-body", "--burstiness", "--top-p"} & set(args)
        metadata = args[args.index("--metadata") + 1 :]
        assert metadata == ("attempt=a1", "perfbisect_seed=7", f"perfbisect_cell={cell().digest}")

    def test_everything_a_cell_can_say_of_the_load_arrives(self) -> None:
        args = self.command(
            request_rate=2.5,
            max_concurrency=None,
            burstiness=0.5,
            ignore_eos=False,
            extra_body={"b": [1], "a": {"c": True}},
            sampling={"temperature": 0.7, "top_p": 0.9, "top_k": 5},
            tokenizer="org/tokenizer",
            dataset_name="hf",
            dataset_path="org/data",
            client={"args": {"goodput": ["ttft:200", "tpot:50"]}},
        )
        assert option(args, "--extra-body") == '{"a":{"c":true},"b":[1]}'
        given = "--request-rate 2.5 --burstiness 0.5 --temperature 0.7 --top-p 0.9 --top-k 5"
        given += " --tokenizer org/tokenizer --dataset-path org/data --goodput ttft:200 tpot:50"
        for words in given.split(" --"):
            name, *values = words.removeprefix("--").split()
            at = args.index(f"--{name}") + 1
            assert list(args[at : at + len(values)]) == values
        assert not {"--max-concurrency", "--ignore-eos"} & set(args)

    @pytest.mark.parametrize(
        "fields",
        [
            {"client": {"args": {"seed": 3}}},
            {"dataset_args": {"num_prompts": 3}},
            {"client": {"args": ["--host", "a"]}},
        ],
    )
    def test_what_belongs_to_the_attempt_cannot_be_set(self, fields: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match=r"cannot set (seed|num-prompts|host)"):
            self.command(**fields)

    def test_the_environment_avoids_proxies_and_hubs(self) -> None:
        env = CLIENT.env(cell(client={"env": {"EXTRA": "1", "DO_NOT_TRACK": "0"}}))
        assert env["NO_PROXY"] == env["no_proxy"] == "127.0.0.1,localhost"
        assert env["HF_HUB_OFFLINE"] == env["TRANSFORMERS_OFFLINE"] == "1"
        assert env["EXTRA"] == "1" and env["DO_NOT_TRACK"] == "0"


class TestMetrics:
    def test_statistics_of_what_is_asked_for(self) -> None:
        keys = CLIENT.metrics(
            cell(percentile_metrics=["ttft", "e2el", "client_queue_time"], metric_percentiles=[99, 99.9])
        )
        assert [key for key in keys if ":" in key] == [
            f"{name}:{statistic}"
            for name in ("ttft", "e2el")
            for statistic in ("median", "mean", "std", "p99", "p99.9")
        ]
        assert {
            "request_throughput",
            "output_throughput",
            "total_token_throughput",
            "failed",
            "output_tokens",
        } <= set(keys)
        assert not {"request_goodput", "spec_decode_acceptance_rate"} & set(keys)

    def test_goodput_and_acceptance_where_the_cell_makes_them(self) -> None:
        assert "request_goodput" in CLIENT.metrics(cell(client={"args": {"goodput": "ttft:200"}}))
        assert "spec_decode_acceptance_rate" in CLIENT.metrics(
            cell(serve_args={"speculative_config": {"method": "ngram"}})
        )
        assert "spec_decode_acceptance_length" in CLIENT.metrics(
            cell(variants={"spec": {"serve_args": {"spec-method": "ngram"}}})
        )

    @pytest.mark.parametrize("asked", ["ttft:p98", "audio_rtf", "request_goodput"])
    def test_what_is_not_names_what_is(self, asked: str) -> None:
        with pytest.raises(
            UsageError, match=r"does not report .*; it reports: ttft:median, .*output_throughput"
        ):
            CLIENT.check_metric(cell(), parse_metric(asked))


def document(**fields: Any) -> dict[str, Any]:
    """Four requests of three tokens: TTFT 10, 20, 30, 40 ms, two gaps of 5 ms; the last has 5 and 7 ms."""
    ttfts = [0.010, 0.020, 0.030, 0.040]
    itls = [[0.005, 0.005], [0.005, 0.005], [0.005, 0.005], [0.005, 0.007]]
    latencies = [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    summary: dict[str, Any] = {}
    for name, raw in (
        ("ttft", ttfts),
        ("tpot", [sum(gaps) / 2 for gaps in itls]),
        ("itl", [gap for gaps in itls for gap in gaps]),
        ("e2el", latencies),
    ):
        summary |= {
            f"mean_{name}_ms": statistics.mean(raw) * 1000,
            f"median_{name}_ms": statistics.median(raw) * 1000,
            f"std_{name}_ms": statistics.pstdev(raw) * 1000,
            f"p50_{name}_ms": statistics.median(raw) * 1000,
            f"p99.5_{name}_ms": max(raw) * 1000,
        }
    return {
        "date": "20260101-000000",
        "backend": "openai",
        "model_id": "pb-1a2b",
        "num_prompts": 4,
        "request_rate": "inf",
        "max_concurrency": 1,
        "duration": 0.2,
        "completed": 4,
        "failed": 0,
        "total_input_tokens": 256,
        "total_output_tokens": 12,
        "request_throughput": 20.0,
        "request_goodput": None,
        "output_throughput": 60.0,
        "total_token_throughput": 1340.0,
        "ttfts": ttfts,
        "itls": itls,
        "latencies": latencies,
        "output_lens": [3, 3, 3, 3],
        "errors": ["", "", "", ""],
        "generated_texts": ["a", "b", "c", "d"],
        **summary,
        **fields,
    }


def parse(found: dict[str, Any], of: Cell | None = None, **expected: Any) -> Any:
    return CLIENT.parse(of or cell(), found, index=2, seed=7, expected=expected)


class TestParse:
    def test_the_numbers_of_a_good_run(self) -> None:
        run = parse(document(), model_id="pb-1a2b")
        assert (run.index, run.seed, run.seconds, run.warnings) == (2, 7, 0.2, ())
        assert set(run.values) == set(CLIENT.metrics(cell()))
        assert run.values["ttft:median"] == pytest.approx(25.0)
        assert run.values["ttft:mean"] == pytest.approx(25.0)
        assert run.values["tpot:median"] == pytest.approx(5.0)
        assert run.values["tpot:p99.5"] == pytest.approx(6.0)
        assert run.values["e2el:median"] == pytest.approx(35.0)
        assert run.values["output_throughput"] == 60.0
        assert run.values["failed"] == 0.0
        assert run.values["output_tokens"] == 3.0
        assert run.values["input_tokens"] == 64.0
        assert run.values["e2el_per_token"] == pytest.approx(35.0 / 3)

    def test_a_run_without_one_good_request_counts_half_of_one(self) -> None:
        asked = cell(client={"args": {"goodput": "ttft:1"}})
        assert parse(document(request_goodput=5.0), asked).values["request_goodput"] == 5.0
        assert parse(document(request_goodput=0.0), asked).values["request_goodput"] == 0.5 / 0.2

    def test_the_spread_between_requests_is_robust(self) -> None:
        run = parse(document())
        # Deviations of 10, 20, 30, 40 from their median 25 are 15, 5, 5, 15: their median is 10.
        assert run.spread["ttft:median"] == pytest.approx(1.4826 * 10 / 25)
        assert run.spread["tpot:median"] == pytest.approx(0.0, abs=1e-9)
        assert set(run.spread) == {"ttft:median", "tpot:median", "itl:median", "e2el:median"}

    def test_medians_are_recomputed_from_the_requests(self) -> None:
        found = document()
        assert parse(found).facts["medians_of_requests"]["tpot:median"] == pytest.approx(5.0)
        del found["latencies"]  # then TTFT and gaps are added
        assert parse(found).facts["medians_of_requests"]["e2el:median"] == pytest.approx(35.0)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            (
                {"completed": 0, "failed": 4, "errors": ["Traceback\nConnectionRefusedError: no"] * 4},
                "0 of 4 .*ConnectionRefused",
            ),
            ({"completed": 0, "failed": 4, "errors": []}, "0 of 4 .*no error was recorded"),
            ({"median_tpot_ms": math.nan}, "median_tpot_ms is nan"),
            ({"output_throughput": math.inf}, "output_throughput is inf"),
            ({"median_ttft_ms": 0.0}, "median_ttft_ms is 0: no measurement"),
            ({"p99.5_e2el_ms": 0.0}, "p99.5_e2el_ms is 0"),
            ({"output_throughput": 0.0}, "output_throughput is 0"),
            ({"request_throughput": -1.0}, "request_throughput is -1"),
            ({"total_output_tokens": 0}, "without one output token"),
            ({"duration": 0.0}, "duration is 0"),
            (
                {"errors": ["", "", "", "engine died"]},
                "1 requests have an error in the stream, but 0 count as failed: engine died",
            ),
            ({"completed": "4"}, "completed is '4', not a number"),
            ({"completed": 3.5}, "not a count"),
            ({"median_tpot_ms": None}, "median_tpot_ms is None"),
            ({"median_tpot_ms": True}, "median_tpot_ms is True"),
            ({"ttfts": [0.01, math.nan, 0.03, 0.04]}, r"ttfts\[1\] is nan, not a number"),
            ({"median_ttft_ms": 26.0}, "contradicts itself: median_ttft_ms is 26, its requests have 25"),
            ({"median_e2el_ms": 3.5}, "contradicts itself"),
            ({"num_prompts": 5}, "of another run: num_prompts is 5, expected 4"),
            ({"max_concurrency": 8}, "of another run: max_concurrency is 8, expected 1"),
            ({"perfbisect_seed": "8"}, "of another run: perfbisect_seed is '8', expected '7'"),
            ({"perfbisect_cell": "ff"}, "of another run: perfbisect_cell"),
        ],
    )
    def test_a_gate_is_no_measurement(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(ClientError, match=f"(?s){said}"):
            parse(document(**fields))

    @pytest.mark.parametrize("name", ["completed", "p99.5_ttft_ms", "total_output_tokens"])
    def test_a_missing_key_is_named(self, name: str) -> None:
        found = document()
        del found[name]
        with pytest.raises(ClientError, match=name):
            parse(found)

    def test_failed_requests_are_a_warning_and_no_part_of_the_medians(self) -> None:
        found = document(completed=3, failed=1, total_output_tokens=9)
        lost = {"errors": "gone", "output_lens": 0, "ttfts": 0.0, "latencies": 0.0, "itls": []}
        for name, value in lost.items():
            found[name][3] = value
        found |= {"median_ttft_ms": 20.0, "median_e2el_ms": 30.0}
        run = parse(found)
        assert run.warnings == ("1 of 4 requests failed: gone",)
        assert run.values["failed"] == 0.25
        assert run.values["output_tokens"] == 3.0
        assert run.spread["ttft:median"] == pytest.approx(1.4826 * 10 / 20)

    def test_requests_that_were_never_sent_are_a_warning(self) -> None:
        found = document(completed=3)
        for name in ("ttfts", "itls", "latencies", "output_lens", "errors"):
            found[name] = found[name][:3]
        found |= {"median_ttft_ms": 20.0, "median_e2el_ms": 30.0, "total_output_tokens": 9}
        assert parse(found).warnings == ("3 of 4 requests were sent",)

    @pytest.mark.parametrize("detail", [{}, {"output_lens": None, "ttfts": None, "itls": None}])
    def test_short_outputs_are_a_warning(self, detail: dict[str, Any]) -> None:
        found = document(**{"total_output_tokens": 11, "output_lens": [3, 3, 3, 2], **detail})
        assert parse(found).warnings == ("outputs are shorter than requested: 2.8 of 3 tokens per request",)
        ranged = {"random_output_len": 3, "random_range_ratio": 0.5}
        assert parse(found, cell(dataset_args=ranged)).warnings == ()
        assert parse(found, cell(dataset_args={})).warnings == ()

    def test_one_token_a_request_has_no_time_between_tokens(self) -> None:
        found = document(
            total_output_tokens=4, output_lens=[1] * 4, itls=[[]] * 4, latencies=[0.01, 0.02, 0.03, 0.04]
        )
        found |= {
            f"{part}_{name}_ms": 0.0
            for name in ("tpot", "itl")
            for part in ("mean", "median", "std", "p50", "p99.5")
        }
        found["median_e2el_ms"] = 25.0
        run = parse(found, cell(dataset_args={"random_output_len": 1}))
        assert not [key for key in run.values if key.startswith(("tpot", "itl"))]
        assert run.values["ttft:median"] == pytest.approx(25.0)

    def test_a_guard_that_is_not_reported_is_a_warning(self) -> None:
        spec = cell(
            serve_args={"speculative-config": {"method": "ngram"}}, guards=["spec_decode_acceptance_rate"]
        )
        run = parse(document(), spec)
        assert run.warnings == ("spec_decode_acceptance_rate is a guard but was not reported",)
