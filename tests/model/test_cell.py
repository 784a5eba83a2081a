"""Cells: what makes the digest, variants, how two differ."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfbisect.errors import UsageError
from perfbisect.model.cell import (
    NOT_WORKLOAD,
    SERVER_SIDE,
    Cell,
    apply_variant,
    cell_difference,
)

BASE: dict[str, Any] = {
    "name": "one",
    "family": "text",
    "model": "org/model",
    "num_prompts": 20,
    "max_concurrency": 4,
    "dataset_args": {"random_input_len": 64},
    "sampling": {"temperature": 0.0},
    "serve_args": {"max-model-len": 512},
    "env": {"A": "1"},
    "guards": ["image_distance"],
    "variants": {"fast": {"serve_args": {"enforce-eager": True}}},
}

CHANGES: dict[str, list[Any]] = {
    "family": ["other"],
    "model": ["org/another"],
    "tokenizer": ["org/tokenizer"],
    "task": ["generate"],
    "deploy_yaml": ["deploy/a.yaml", {"text": "a: 1"}],
    "backend": ["openai-chat"],
    "endpoint": ["/v1/chat/completions"],
    "dataset_name": ["sharegpt"],
    "dataset_path": ["org/dataset"],
    "dataset_args": [{"random_input_len": 65}, {}, {"random_input_len": 64, "random_output_len": 1}],
    "sampling": [
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
    ],
    "ignore_eos": [True],
    "extra_body": [{"a": 1}, {"a": {"b": 1}}],
    "num_prompts": [21],
    "num_warmups": [1],
    "discard_prompts": [5],
    "max_concurrency": [5, None],
    "request_rate": [2.0],
    "burstiness": [0.5],
    "stage_overrides": [{"0": {"devices": "1"}}],
    "serve_args": [{"max-model-len": 513}, {}, {"max-model-len": 512, "enforce-eager": True}],
    "env": [{"A": "2"}, {"B": "1"}, {}],
    "reference": [
        {"image": "a.png", "prompt": "A lighthouse"},
        {"image": "b.png", "prompt": "A lighthouse"},
        {"image": "a.png", "prompt": "A harbour"},
        {"image": "a.png", "prompt": "A lighthouse", "body": {"seed": 7}},
        {"image": "a.png", "prompt": "A lighthouse", "input": "https://example.invalid/x.jpg"},
        {"pixels": [{"at": [0, 1], "rgb": [1, 2, 3]}], "prompt": "A lighthouse"},
        {"pixels": [{"at": [0, 1], "rgb": [1, 2, 4]}], "prompt": "A lighthouse"},
    ],
    "client": ["another_client", {"args": {"goodput": ["ttft:200"]}}, {"env": {"X": "1"}}],
    "gpus": [1],
    "seed": [1],
}
"""Every field of the workload with values that are not the ones of BASE."""

ASIDE: dict[str, Any] = {
    "name": "another",
    "description": "in other words",
    "percentile_metrics": ["ttft"],
    "metric_percentiles": [99],
    "headline": "ttft:p99",
    "guards": ["failed"],
    "channels": ["kv_cache_tokens"],
    "ready_timeout": 5.0,
    "expected_answer": {"prompt": "2 + 2 =", "text": "4"},
    "known_baselines": {"H100": {"tpot": 7.1}},
    "variants": {"slow": {"env": {"Z": "1"}}},
}
"""Fields that are told, judged or waited for, and make no workload."""


def cell(**fields: Any) -> Cell:
    return Cell.model_validate({**BASE, **fields})


def test_every_field_is_classified() -> None:
    assert set(CHANGES) | set(NOT_WORKLOAD) == set(Cell.model_fields)
    assert not set(CHANGES) & set(NOT_WORKLOAD)
    assert set(ASIDE) | {"variant", "before_variant", "revision"} == set(NOT_WORKLOAD)


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in CHANGES for value in CHANGES[field]]
)
def test_what_makes_the_workload_makes_the_digest(field: str, value: Any) -> None:
    changed = cell(**{field: value})
    assert changed.digest != cell().digest
    named = {row[0].split(".")[0] for row in cell_difference(cell(), changed)}
    assert named == ({"model", "tokenizer"} if field == "model" else {field})


@pytest.mark.parametrize("field", list(ASIDE))
def test_what_is_only_told_does_not(field: str) -> None:
    assert cell(**{field: ASIDE[field]}).digest == cell().digest
    assert cell_difference(cell(), cell(**{field: ASIDE[field]})) == ()


@pytest.mark.parametrize("pin", ["model", "tokenizer", "dataset"])
def test_revisions_make_the_digest(pin: str) -> None:
    given_path = {"dataset_path": "org/d", "tokenizer": "org/t"}
    digests = {cell(**given_path, revision={pin: value}).digest for value in (None, "aaa", "bbb")}
    assert len(digests) == 3


def test_a_local_folder_is_its_content_not_its_place() -> None:
    here = cell(model="/home/a/model", revision={"model": "sha256:11"})
    there = cell(model="/srv/b/other", revision={"model": "sha256:11"})
    changed = cell(model="/home/a/model", revision={"model": "sha256:22"})
    assert here.digest == there.digest != changed.digest
    assert here.needs_no_hub
    assert not cell().needs_no_hub


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from(["extra_body", "stage_overrides"]))
def test_mapping_and_json_text_are_the_same(body: dict[str, Any], field: str) -> None:
    mapping, text = cell(**{field: body}), cell(**{field: json.dumps(body)})
    assert mapping.digest == text.digest
    assert getattr(mapping, field) == getattr(text, field)


@given(st.randoms(use_true_random=False), st.dictionaries(st.text(), JSON, min_size=2, max_size=4))
def test_the_order_of_keys_does_not_matter(random: Any, body: dict[str, Any]) -> None:
    document = {**BASE, "extra_body": body}
    shuffled = list(document)
    random.shuffle(shuffled)
    inner = list(body)
    random.shuffle(inner)
    other = {name: document[name] for name in shuffled} | {"extra_body": {name: body[name] for name in inner}}
    assert Cell.model_validate(other).digest == Cell.model_validate(document).digest


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_equal_numbers_are_equal(prompts: int, warmups: int, rate: int) -> None:
    whole = cell(num_prompts=prompts, num_warmups=warmups, request_rate=rate, serve_args={"a": rate})
    decimal = cell(
        num_prompts=float(prompts),
        num_warmups=float(warmups),
        request_rate=float(rate),
        serve_args={"a": float(rate)},
    )
    assert whole.digest == decimal.digest


@given(st.dictionaries(st.text(), JSON, max_size=3), st.dictionaries(st.text(), JSON, max_size=3))
def test_no_difference_is_the_same_digest(left: dict[str, Any], right: dict[str, Any]) -> None:
    a, b = cell(extra_body=left), cell(extra_body=right)
    assert (cell_difference(a, b) == ()) == (a.digest == b.digest)


def test_values_that_only_look_alike_differ() -> None:
    bodies: list[Any] = [
        {"a": 1},
        {"a": True},
        {"a": "1"},
        {"a": [1]},
        {"a": {"b": 1}},
        {"a": None},
        {"a.b": 1},
        {"a": {}},
    ]
    assert len({cell(extra_body=body).digest for body in bodies}) == len(bodies)
    for left, right in itertools.combinations(bodies, 2):
        assert cell_difference(cell(extra_body=left), cell(extra_body=right))


def test_serve_arguments_have_one_spelling() -> None:
    spellings: list[Any] = [
        {"max_model_len": 512, "enable_prefix_caching": False},
        {"--max-model-len": "512", "no-enable-prefix-caching": True},
        ["--max-model-len", "512", "--no-enable-prefix-caching"],
        ["--no-enable-prefix-caching", "--max-model-len=512"],
    ]
    assert len({cell(serve_args=spelling).digest for spelling in spellings}) == 1


def test_a_cell_survives_its_own_json() -> None:
    original = cell(deploy_yaml="deploy/a.yaml", request_rate="inf", percentile_metrics="ttft,tpot")
    for applied in (original, apply_variant(original, "fast")):
        back = Cell.model_validate(json.loads(json.dumps(applied.model_dump(mode="json"), allow_nan=False)))
        assert back == applied
        assert Cell.model_validate_json(applied.model_dump_json(by_alias=True)) == applied
        assert back.digest == applied.digest


class TestVariants:
    base = cell(
        serve_args={"max-model-len": 512, "enforce-eager": True},
        stage_overrides={"0": {"devices": "0", "dtype": "half"}},
        variants={
            "other": {
                "serve_args": {"enforce_eager": None, "max_model_len": 256, "seed_kv": 1},
                "env": {"B": "2"},
                "deploy_yaml": {"text": "b: 1"},
                "stage_overrides": {"0": {"devices": "1"}, "1": {"x": 1}},
            }
        },
    )

    def test_server_side_fields_are_set_and_the_digest_stays(self) -> None:
        applied = apply_variant(self.base, "other")
        assert applied.digest == self.base.digest
        assert applied.serve_args == {"max-model-len": 256, "seed-kv": 1}
        assert applied.env == {"A": "1", "B": "2"}
        assert applied.deploy_yaml is not None and applied.deploy_yaml.text == "b: 1"
        assert applied.stage_overrides == {"0": {"devices": "1", "dtype": "half"}, "1": {"x": 1}}
        changed = {name for name in Cell.model_fields if getattr(applied, name) != getattr(self.base, name)}
        assert changed == {*SERVER_SIDE, "variant", "before_variant"}
        assert self.base.serve_args["enforce-eager"] is True

    def test_an_unknown_one_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no variant 'none'; it has: other"):
            apply_variant(self.base, "none")

    def test_a_second_one_is_refused(self) -> None:
        with pytest.raises(UsageError, match="has its variant 'other' already"):
            apply_variant(apply_variant(self.base, "other"), "other")


class TestDeployYaml:
    def test_pinned_text_is_in_the_digest_wherever_it_comes_from(self) -> None:
        text = cell(deploy_yaml={"text": "a: 1"})
        file = cell(deploy_yaml={"file": "x.yaml", "text": "a: 1"})
        commit = cell(deploy_yaml={"at": "0" * 40, "path": "deploy/x.yaml", "text": "a: 1"})
        assert text.digest == file.digest == commit.digest
        assert cell(deploy_yaml={"text": "a: 2"}).digest != text.digest

    def test_of_the_change_the_path_is(self) -> None:
        assert (
            cell(deploy_yaml="d/a.yaml").digest
            == cell(deploy_yaml={"from": "change", "path": "d/a.yaml"}).digest
        )
        assert cell(deploy_yaml="d/a.yaml").digest != cell(deploy_yaml="d/b.yaml").digest

    def test_a_commit_that_was_not_read_has_no_digest(self) -> None:
        with pytest.raises(UsageError, match=r"d/a.yaml at abc has not been read(.|\n)*--repo"):
            _ = cell(deploy_yaml={"at": "abc", "path": "d/a.yaml"}).digest

    @pytest.mark.parametrize(
        "form",
        [
            {},
            {"path": "a"},
            {"at": "abc"},
            {"from": "change"},
            {"file": "a", "at": "b", "path": "c"},
            {"text": "a", "path": "b"},
            {"from": "change", "path": "a", "text": "b"},
            {"from": "elsewhere", "path": "a"},
        ],
    )
    def test_anything_else_is_refused(self, form: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            cell(deploy_yaml=form)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nmu_prompts": 3}, "Extra inputs"),
        ({"num_prompts": "20"}, "valid integer"),
        ({"num_prompts": 0}, "greater than or equal to 1"),
        ({"num_prompts": 1.5}, "valid integer"),
        ({"num_prompts": True}, "valid integer"),
        ({"max_concurrency": 0}, "greater than or equal to 1"),
        ({"request_rate": 0}, "greater than 0"),
        ({"request_rate": "fast"}, "valid number"),
        ({"ignore_eos": "yes"}, "valid boolean"),
        ({"extra_body": "{"}, "no JSON"),
        ({"extra_body": "[1]"}, "expected a mapping"),
        ({"extra_body": {1.5: 2}}, "cannot be a key"),
        ({"env": {"A": True}}, "quote it"),
        ({"env": {"A-B": "1"}}, "no name of an environment variable"),
        ({"env": ["A=1"]}, "expected a mapping of variables"),
        ({"serve_args": "--enforce-eager"}, "not one text"),
        ({"serve_args": ["eager"]}, "not a long option"),
        ({"serve_args": {"nnodes": 2}}, "serve_args.nnodes: a server over several machines"),
        ({"serve_args": ["--headless", "-dpa", "h"]}, "serve_args.headless: a server over several machines"),
        ({"serve_args": {"max_model_len": 1, "max-model-len": 2}}, "given twice"),
        ({"headline": "tpott"}, "nearest: tpot"),
        ({"guards": ["failed", "speed"]}, "unknown metric"),
        ({"endpoint": "v1"}, "pattern"),
        ({"metric_percentiles": [100]}, "between 0 and 100"),
        ({"name": "a b"}, "letters, digits"),
        ({"sampling": {"temprature": 1}}, "Extra inputs"),
        ({"model": ""}, "at least 1"),
        ({"variants": {"a b": {}}}, "no name of a variant"),
        ({"gpus": 1, "serve_args": {"tensor-parallel-size": 8}}, "take 8 devices"),
        (
            {"gpus": 8, "serve_args": {"tensor_parallel_size": 4, "data_parallel_size": "4"}},
            "take 16 devices",
        ),
        (
            {"gpus": 1, "variants": {"two": {"serve_args": {"pipeline-parallel-size": 2}}}},
            "of variant two: they take 2 devices",
        ),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        cell(**fields)


def test_short_forms() -> None:
    written = cell(
        client="vllm_bench",
        revision="abc",
        percentile_metrics="ttft, tpot",
        metric_percentiles="99,50",
        guards="failed",
    )
    assert written.client.name == "vllm_bench"
    assert written.revision.model == "abc"
    assert written.percentile_metrics == ("ttft", "tpot")
    assert written.metric_percentiles == (50.0, 99.0)
    assert written.guards == ("failed",)
    assert cell(env={"N": 3, "F": 0.5}).env == {"N": "3", "F": "0.5"}


def test_nothing_said_is_nothing() -> None:
    empty = cell(env=None, extra_body=None, stage_overrides=" ", serve_args=None, metric_percentiles="50, 99")
    assert (empty.env, empty.extra_body, empty.stage_overrides, empty.serve_args) == ({}, {}, {}, {})
    assert empty.metric_percentiles == (50.0, 99.0)
    assert cell(metric_percentiles=90).metric_percentiles == (90.0,)


def test_text_is_greedy_by_default_and_speech_as_its_deploy_yaml_says() -> None:
    def of(family: str, **more: object) -> Cell:
        return Cell.model_validate({"name": "x", "family": family, "model": "m", "num_prompts": 1, **more})

    assert of("text").sampling.temperature == 0.0
    assert of("text", sampling={"top_p": 0.9}).sampling.temperature == 0.0
    assert of("text").digest == of("text", sampling={"temperature": 0}).digest
    left = of("text", sampling="server")
    assert (left.sampling.temperature, left.sampling.sent) == ("server", {})
    assert left.digest not in (of("text").digest, of("text", sampling={"top_p": 0.9}).digest)
    assert Cell.model_validate_json(left.model_dump_json()) == left
    assert of("text", sampling={"temperature": "server", "top_p": 0.9}).sampling.sent == {"top-p": 0.9}
    assert of("tts").sampling.temperature is None
    assert of("tts").digest != of("tts", sampling={"temperature": 0}).digest
    again = Cell.model_validate_json(of("tts").model_dump_json())
    assert again.digest == of("tts").digest


def test_parallel_servers_on_devices_enough_or_without_any() -> None:
    parallel = {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}
    assert cell(gpus=8, serve_args=parallel).gpus == 8
    assert cell(gpus=0, serve_args=parallel).gpus == 0, "processors: the engine takes them as it likes"
    assert cell(gpus=1, serve_args={"tensor-parallel-size": "auto"}).gpus == 1, "the engine refuses it"


def test_a_difference_shows_both_sides_and_what_is_missing() -> None:
    left = cell(serve_args={"max-model-len": 512, "load-format": "1"}, extra_body={"a": "", "b": {"c": 1}})
    right = cell(serve_args={"max-model-len": 256, "load-format": "dummy"}, extra_body={"a": "-", "b": {}})
    assert cell_difference(left, right) == (
        ("extra_body.a", '""', '"-"'),
        ("extra_body.b", "-", "{}"),
        ("extra_body.b.c", "1", "-"),
        ("serve_args.load-format", "1", "dummy"),
        ("serve_args.max-model-len", "512", "256"),
    )
