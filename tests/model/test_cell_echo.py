"""What is shown of a cell before it is measured, and how two cells differ."""

from __future__ import annotations

import pytest

from perfbisect.model.cell import apply_variant, cell_difference, describe_cell
from perfbisect.model.metric import parse_metric
from tests.model.test_cell import cell


def test_the_echo_shows_what_will_be_measured() -> None:
    rows = dict(
        describe_cell(
            cell(extra_body={"a": 1}, num_warmups=7, seed=3, guards=["failed"], revision="abc"),
            parse_metric("ttft:p99"),
        )
    )
    assert rows["model"] == "org/model at abc"
    assert rows["dataset"] == "random random-input-len=64, seed 3"
    assert rows["prompts"] == "20"
    assert rows["load"] == "max concurrency 4"
    assert rows["warm-ups"] == "7"
    assert rows["deploy YAML"] == "none"
    assert rows["extra body"] == "a=1"
    assert rows["serve arguments"] == "max-model-len=512"
    assert rows["environment"] == "A=1"
    assert rows["digest"] == cell(extra_body={"a": 1}, num_warmups=7, seed=3, revision="abc").digest
    assert rows["metric"] == "ttft:p99 (time to first token), ms, lower is better"
    assert rows["guards"] == "failed"


def test_the_echo_names_variant_rate_and_local_content() -> None:
    local = cell(
        model="/m",
        revision={"model": "sha256:" + "ab" * 32},
        request_rate=2.5,
        max_concurrency=None,
        deploy_yaml="d.yaml",
    )
    rows = dict(describe_cell(apply_variant(local, "fast")))
    assert rows["cell"] == "one +fast"
    assert rows["model"] == "/m (sha256:abababababab)"
    assert rows["load"] == "request rate 2.5 req/s"
    assert rows["deploy YAML"] == "d.yaml of the change"
    assert rows["metric"].startswith("tpot (time per output token), ms, lower")


@pytest.mark.parametrize(
    ("deploy", "shown"),
    [
        ({"at": "abc", "path": "d.yaml", "text": "a: 1"}, "d.yaml at abc"),
        ({"file": "/x/d.yaml", "text": "a: 1"}, "/x/d.yaml"),
        ({"text": "a: 1"}, "given in the cell ("),
    ],
)
def test_the_echo_says_where_the_deploy_yaml_comes_from(deploy: dict[str, str], shown: str) -> None:
    assert dict(describe_cell(cell(deploy_yaml=deploy)))["deploy YAML"].startswith(shown)


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
