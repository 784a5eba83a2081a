"""Cells that are made of reports: they load, agree with the report, and say what it does not."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfbisect.cells.drafts import CellDraft, bisect_ends, notes_of
from perfbisect.cells.loading import load_cells
from perfbisect.cells.match import differing
from perfbisect.cells.reports import parse_report
from perfbisect.clients import CLIENTS
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell
from tests.serving.workloads import ENDPOINT

BENCH = "vllm bench serve --model org/m --dataset-name random --random-input-len 8 --num-prompts 8 "
SERVE = "vllm serve org/m\n"


def drafted(folder: Path, text: str, model: str = "") -> tuple[Cell, str]:
    """The cell of a report as it loads, and its file."""
    report = parse_report(text)
    draft = CellDraft.of(report, model)
    written = draft.text(tuple(notes_of(report, draft)))
    (folder / "cell.yaml").write_text(written, encoding="utf-8")
    (cell,) = load_cells(folder / "cell.yaml", incomplete=bool(draft.needs))
    assert differing(report, cell) == () or model
    return cell, written


OPTIONS = st.lists(
    st.sampled_from(
        [
            *(
                "--max-concurrency 4",
                "--request-rate 2.5",
                "--request-rate Inf",
                "--ignore-eos",
                "--temperature 0",
                "--top-p 0.9",
            ),
            *("--output-len 4", "--random-range-ratio 0.5", "--num-warmups 2", "--seed 3", "--burstiness 2"),
            *("--seed $(date)", "--max-concurrency $N", '--extra-body \'{"a": {"b": 1}}\'', "--backend vllm"),
            *(
                "--backend openai-chat",
                "--metric-percentiles 50,99",
                "--tokenizer org/t",
                "--temperature 0.70",
            ),
        ]
    ),
    unique_by=lambda option: option.split()[0],
)
SERVED = st.lists(
    st.sampled_from(
        [
            *("-tp 2", "--gpu-memory-utilization 0.90", "--enforce-eager", "--no-enable-prefix-caching"),
            *('--speculative-config \'{"method": "ngram"}\'', "--served-model-name x", "--seed 4", "-O3"),
            *(
                "--revision abc",
                "--tokenizer org/t",
                "--dtype $D",
                "--rope-theta 1.0e6",
                "--port 8000",
                "--kv-cache-dtype fp8",
            ),
        ]
    ),
    unique=True,
)
VARIABLES = st.sampled_from(["", "VLLM_USE_V1=0 ", "env NCCL_ALGO=Ring VLLM_X='a b' ", "HF_HOME=/x "])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(client=st.none() | OPTIONS, server=st.none() | SERVED, variables=VARIABLES)
def test_the_cell_of_a_report_agrees_with_it(
    tmp_path: Path, client: list[str] | None, server: list[str] | None, variables: str
) -> None:
    text = "" if server is None else f"{variables}vllm serve org/m {' '.join(server)}\n"
    text += "" if client is None else f"{BENCH}{' '.join(client)}\n"
    if text:
        cell, _ = drafted(tmp_path, f"Since v0.14.0:\n{text}")
        assert cell.model == "org/m"
        # A draft of what was drafted is the same file.
        assert drafted(tmp_path, f"Since v0.14.0:\n{text}")[0].digest == cell.digest


HEAD = "| model | input len | output len | "


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (f"{HEAD}concurrency |\n|---|\n| org/m | 1024 | 16 | 64 |", {"max_concurrency": 64}),
        (
            f"{HEAD}concurrency | prompts |\n|---|\n| org/m | 1024 | 16 | 64 | 8 |",
            {"max_concurrency": 64, "num_prompts": 8},
        ),
        (
            f"{HEAD}concurrency | dataset |\n|---|\n| org/m | 1024 | 16 | 64 | random |",
            {"max_concurrency": 64},
        ),
        (f"{HEAD}qps |\n|---|\n| org/m | 1024 | 16 | 4 |", {"max_concurrency": None, "request_rate": 4}),
        (
            f"{BENCH.replace('random --random-input-len 8', '$DS --random-input-len 1024')}"
            "--random-output-len 16",
            {"max_concurrency": None, "num_prompts": 8},
        ),
    ],
)
def test_the_load_of_a_report_is_that_of_its_cell(
    tmp_path: Path, report: str, said: dict[str, object]
) -> None:
    cell, written = drafted(tmp_path, report)
    assert {name: getattr(cell, name) for name in said} == said
    assert (cell.dataset_name, cell.dataset_args) == (
        "random",
        {"random-input-len": 1024, "random-output-len": 16},
    )
    assert ("dataset_name: random  # not said: taken here" in written) is ("| random |" not in report)


def test_the_file_of_a_data_set_without_a_name_is_none_of_random() -> None:
    named = BENCH.replace("random --random-input-len 8", "$DS --dataset-path ./x.json")
    draft = CellDraft.of(parse_report(f"{SERVE}{named}"))
    assert (draft.document["dataset_name"], draft.needs) == ("random", [])
    assert "dataset_path" not in draft.document


def test_what_is_not_said_stands_beside_the_default(tmp_path: Path) -> None:
    cell, written = drafted(tmp_path, f"{SERVE}{BENCH}--seed $(date)")
    assert "# not said, since a shell computes it: seed" in written
    assert "num_warmups: 0  # not said: the client's default" in written
    assert (cell.sampling.temperature, cell.num_prompts, cell.gpus) == ("server", 8, 1)
    alone, written = drafted(tmp_path, SERVE)
    assert (alone.num_prompts, alone.max_concurrency, alone.sampling.temperature) == (32, 1, 0)
    assert "num_prompts: 32  # not said: taken here" in written


@pytest.mark.parametrize(
    ("named", "temperature"),
    [("", "server"), ("v0.14.1", 0), ("v0.15.0", "server"), ("v0.14.0 -> v0.15.0", "server")],
)
def test_a_silent_client_means_what_its_release_does(tmp_path: Path, named: str, temperature: object) -> None:
    cell, written = drafted(tmp_path, f"{named}\n{SERVE}{BENCH}")
    assert cell.sampling.temperature == temperature
    assert ("sent 0" in written) is (named != "v0.15.0")


def test_a_secret_is_named_and_not_written() -> None:
    report = parse_report(f"MY_API_TOKEN=hf_abcdefghijklmnop {SERVE}{BENCH}")
    draft = CellDraft.of(report)
    written = draft.text(tuple(notes_of(report, draft)))
    assert "hf_abc" not in written and "MY_API_TOKEN: ${MY_API_TOKEN}" in written


def test_a_data_set_in_a_file_is_to_be_brought() -> None:
    for text, path in {
        f"{SERVE}{BENCH.replace('random --random-input-len 8', 'sonnet --dataset-path x/s.txt')}": "x/s.txt",
        "python benchmark_serving.py --model org/m": "sharegpt.json",
        "python benchmark_serving.py --model org/m --dataset /there/s.json": "s.json",
        "vllm bench throughput --model org/m --dataset-path x.json": "x.json",
        "vllm bench throughput --model org/m --dataset-name sharegpt --dataset-path x.json": "x.json",
    }.items():
        draft = CellDraft.of(parse_report(text))
        assert draft.document["dataset_name"] in ("sonnet", "sharegpt")
        assert "dataset_args" not in draft.document
        assert (draft.needs, draft.document["dataset_path"]) == ([path], path)


def test_a_server_of_vllm_omni_has_the_family_of_its_endpoint(tmp_path: Path) -> None:
    serve = "vllm serve org/tts --omni --deploy-config /app/vllm_omni/deploy/tts.yaml --port 1\n"
    speech = "--backend openai-audio-speech --endpoint /v1/audio/speech"
    cell, _ = drafted(tmp_path, f"{serve}vllm bench serve --omni --num-prompts 8 {speech}\n")
    assert (cell.family, cell.client.name, cell.headline) == ("tts", "omni_bench", "audio_ttfp")
    assert cell.deploy_yaml is not None and cell.deploy_yaml.path == "vllm_omni/deploy/tts.yaml"
    chat = "--backend openai-chat-omni --endpoint /v1/chat/completions"
    assert drafted(tmp_path, f"{serve}vllm bench serve --omni --num-prompts 8 {chat}\n")[0].family == "omni"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"vllm serve $M\n{BENCH.replace('org/m', '$M')}", "does not say the model: it is set elsewhere"),
        ("vllm serve ${M} -tp 2\nais_bench -a", "the client AISBench is not read"),
    ],
)
def test_a_report_without_a_cell_says_why(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CellDraft.of(parse_report(text))


def test_a_model_that_is_not_said_may_be_given(tmp_path: Path) -> None:
    cell, written = drafted(tmp_path, f"vllm serve $M\n{BENCH.replace('org/m', '$M')}", "org/other")
    assert cell.model == "org/other"
    assert "model: org/other  # not said by the report" in written


@pytest.mark.parametrize(
    "name",
    ["a: b", "- x", "#", "null", "0x1", "1e5", "*a", "&b", "!!c", "'", "\\x", "é\u202e", "1.5e3", "-.5"],
)
def test_a_word_of_a_report_stays_one_text(tmp_path: Path, name: str) -> None:
    quoted = "'" + name.replace("'", "'\\''") + "'"
    cell, written = drafted(tmp_path, f"VLLM_X={quoted} vllm serve org/m --chat-template {quoted}\n{BENCH}")
    assert yaml.safe_load(written)["env"] == {"VLLM_X": name}
    assert cell.env == {"VLLM_X": name}
    assert cell.serve_args["chat-template"] == name and "\u202e" not in written


BISECT_LOG = """git bisect start
# bad: [3b6a204789] Merge what is good
git bisect bad 3b6a204789
# good: [fa2a33b893] Merge what is bad
git bisect good fa2a33b893
# bad: [1c2a33b893] Sample on the device
git bisect bad 1c2a33b893
# first bad commit: [1c2a33b893] Sample on the device
"""


def test_the_ends_that_a_report_names() -> None:
    ends = {
        "v0.15.0 was v0.14.0": ("v0.14.0", "v0.15.0"),
        "v0.15.0; git checkout 3b6a204789\ngit checkout fa2a33b893": ("3b6a204789", "fa2a33b893"),
        "v0.15.0": ("", ""),
        "Bad commit: 3b6a204789\nGood commit: fa2a33b893": ("fa2a33b893", "3b6a204789"),
        "**bad** | `3b6a204`\n**good** | `fa2a33b`": ("fa2a33b", "3b6a204"),
        "bad is 3b6a204789, git checkout fa2a33b893": ("fa2a33b893", "3b6a204789"),
        "commit 3b6a204789, the last good commit is fa2a33b893": ("fa2a33b893", "3b6a204789"),
        "3b6a204789 is good, fa2a33b893 is bad": ("3b6a204789", "fa2a33b893"),
        "good: 3b6a204789\nbad: 3b6a204789\nbad: fa2a33b893": ("", ""),
        "bad: 3b6a204789\nbad: fa2a33b893": ("", ""),
        "commit | state\n--|--\n3b6a204789 | good |\nfa2a33b893 | bad |": ("3b6a204789", "fa2a33b893"),
        BISECT_LOG: ("fa2a33b893", "3b6a204789"),
    }
    for text, named in ends.items():
        assert bisect_ends(parse_report(f"{text}\n{SERVE}")) == named


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("-i talk.json", {"max_concurrency": 1, "request_rate": float("inf"), "num_prompts": 100_000}),
        (
            "-i talk.json -p 4 -n 80 --request-rate 0.5 --max-turns 6",
            {"max_concurrency": 4, "request_rate": 2.0, "num_prompts": 80, "dataset_args": {"max-turns": 6}},
        ),
        (
            "--input-file /there/talk.json --num-clients 2 --no-stream -v --warmup-step",
            {"max_concurrency": 2, "dataset_args": {"warmup-step": True}},
        ),
    ],
)
def test_conversations_of_users(tmp_path: Path, options: str, fields: dict[str, object]) -> None:
    (tmp_path / "talk.json").write_text("[]", encoding="utf-8")
    script = "python benchmarks/multi_turn/benchmark_serving_multi_turn.py -m org/m -u http://localhost:8000"
    cell, _ = drafted(tmp_path, f"{SERVE}{script} {options}")
    assert cell.client.name == "multi_turn_bench"
    assert cell.dataset_path in (str(tmp_path / "talk.json"), "talk.json")
    assert {name: getattr(cell, name) for name in fields} == fields
    assert CLIENTS[cell.client.name].command(
        cell, ENDPOINT, seed=0, result=PurePosixPath("/r"), metadata={}
    )  # fmt: skip
