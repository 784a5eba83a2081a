"""The vLLM client: its command, and what is believed of its result."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from perfbisect.clients.vllm_bench import CLIENT
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from perfbisect.model.metric import parse_metric
from perfbisect.serving.families import Endpoint

ENDPOINT = Endpoint(port=4321, model_name="pb-1a2b")


def cell(**fields: Any) -> Cell:
    return Cell.model_validate(
        {
            "name": "one",
            "family": "text",
            "model": "/m",
            "revision": {"model": "sha256:00"},
            "num_prompts": 4,
            "num_warmups": 2,
            "max_concurrency": 1,
            "dataset_args": {"random_input_len": 64, "random_output_len": 3},
            "metric_percentiles": [50, 99.5],
            "ignore_eos": True,
            "guards": ["failed"],
            **fields,
        }
    )


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
        assert option(args, "--request-rate") == "2.5"
        assert option(args, "--burstiness") == "0.5"
        assert option(args, "--extra-body") == '{"a":{"c":true},"b":[1]}'
        assert option(args, "--temperature") == "0.7"
        assert option(args, "--top-p") == "0.9"
        assert option(args, "--top-k") == "5"
        assert option(args, "--tokenizer") == "org/tokenizer"
        assert option(args, "--dataset-path") == "org/data"
        at = args.index("--goodput")
        assert args[at + 1 : at + 3] == ("ttft:200", "tpot:50")
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

    @pytest.mark.parametrize(
        "asked", ["ttft:p98", "audio_rtf", "request_goodput", "spec_decode_acceptance_rate"]
    )
    def test_what_is_not_names_what_is(self, asked: str) -> None:
        with pytest.raises(
            UsageError, match=r"does not report .*; it reports: ttft:median, .*output_throughput"
        ):
            CLIENT.check_metric(cell(), parse_metric(asked))
