"""The server of a text cell."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.serving.families import FAMILIES, ServerCommand
from tests.serving.workloads import ENDPOINT, make_cell


def cell(**fields: Any) -> Cell:
    return make_cell({"family": "text"}, **fields)


def server(**fields: Any) -> ServerCommand:
    return FAMILIES["text"].server(cell(**fields), ENDPOINT)


def option(command: ServerCommand, name: str) -> str:
    return command.args[command.args.index(name) + 1]


def test_it_is_started_by_module_on_the_loopback_under_the_attempts_name() -> None:
    assert server(seed=3).args == (
        *("-m", "vllm.entrypoints.cli.main", "serve", "org/m", "--host", "127.0.0.1", "--port", "4321"),
        *("--seed", "3", "--served-model-name", "pb-1a2b", "--generation-config", "vllm"),
    )


def test_sampling_defaults_are_the_engines_unless_the_cell_says_otherwise() -> None:
    command = server(serve_args={"generation_config": "auto"})
    assert option(command, "--generation-config") == "auto"
    assert command.args.count("--generation-config") == 1
    assert "--generation-config" not in server(sampling="server").args


def test_a_variants_arguments_and_variables_arrive() -> None:
    both = cell(
        serve_args={"enforce-eager": True},
        env={"A": "1"},
        variants={"v": {"serve_args": {"enforce-eager": None, "x": 1}, "env": {"B": "2"}}},
    )
    command = FAMILIES["text"].server(apply_variant(both, "v"), ENDPOINT)
    assert "--enforce-eager" not in command.args
    assert option(command, "--x") == "1"
    assert (command.env["A"], command.env["B"]) == ("1", "2")


def test_a_hubs_revision_is_asked_for() -> None:
    command = server(revision={"model": "abc"})
    assert (option(command, "--revision"), option(command, "--tokenizer-revision")) == ("abc", "abc")
    command = server(revision={"model": "abc", "tokenizer": "def"}, tokenizer="org/t")
    assert (option(command, "--tokenizer"), option(command, "--tokenizer-revision")) == ("org/t", "def")
    command = server(revision={"model": "abc"}, tokenizer="org/t")
    assert "--tokenizer-revision" not in command.args


def test_a_local_folder_has_no_revision_and_needs_no_hub() -> None:
    command = server(model="/m", revision={"model": "sha256:00"})
    assert "--revision" not in command.args
    assert command.env["HF_HUB_OFFLINE"] == command.env["TRANSFORMERS_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in server().env
    assert "HF_HUB_OFFLINE" not in server(model="/m", revision={"model": "sha256:00"}, tokenizer="org/t").env


def test_the_environment_is_quiet_local_and_the_cells() -> None:
    env = server(env={"DO_NOT_TRACK": "0", "OMP_NUM_THREADS": 2}).env
    assert env["VLLM_NO_USAGE_STATS"] == env["VLLM_SERVER_DEV_MODE"] == "1"
    assert env["VLLM_HOST_IP"] == "127.0.0.1"
    assert (env["DO_NOT_TRACK"], env["OMP_NUM_THREADS"]) == ("0", "2")


def test_the_first_request_is_a_real_completion() -> None:
    request = server().first_request
    assert (request.path, request.body["model"]) == ("/v1/completions", "pb-1a2b")
    assert (request.body["max_tokens"], request.body["ignore_eos"]) == (4, True)
    assert request.must_contain == "usage.completion_tokens"
    assert [request.path for request in server().reset_requests] == ["/reset_prefix_cache"]
    assert server(env={"VLLM_SERVER_DEV_MODE": "0"}).reset_requests == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"deploy_yaml": "d.yaml"}, "deploy_yaml is for families with stages"),
        ({"stage_overrides": {"0": {"a": 1}}}, "stage_overrides is for families with stages"),
        ({"serve_args": {"port": 80}}, "cannot set port"),
        ({"serve_args": ["--seed", "1", "--host", "0.0.0.0"]}, "cannot set host, seed"),
    ],
)
def test_what_it_cannot_serve_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        server(**fields)


@pytest.mark.parametrize(
    ("endpoint", "body", "place"),
    [
        ("/v1/completions", {"prompt": "1, 2,"}, "choices.0.text"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "1, 2,"}]},
            "choices.0.message.content",
        ),
    ],
)
def test_what_is_asked_is_asked_greedily_at_the_cells_endpoint(
    endpoint: str, body: dict[str, object], place: str
) -> None:
    backend = "openai-chat" if "chat" in endpoint else "openai"
    asked = server(endpoint=endpoint, backend=backend, expected_answer={"prompt": "1, 2,", "text": "3"})
    first = asked.first_request
    assert first is not None
    assert (first.path, first.answer_at, first.expected) == (endpoint, place, "3")
    assert {**body, "temperature": 0}.items() <= first.body.items()
    assert cell(expected_answer={"prompt": "1", "text": "3"}).digest == cell().digest


def test_families_without_text_expect_no_answer() -> None:
    fields = {"family": "pooling", "backend": "openai-embeddings", "endpoint": "/v1/embeddings"}
    pooling = make_cell(fields, expected_answer={"prompt": "1", "text": "3"})
    with pytest.raises(UsageError, match="the answers of family pooling are not read"):
        FAMILIES["pooling"].server(pooling, ENDPOINT)
