"""Sections of reports: the cell, from its document."""

from __future__ import annotations

import json

import pytest

from perfbisect.jobs.documents import cell_document
from perfbisect.model.cell import Cell, apply_variant
from perfbisect.model.metric import parse_metric
from perfbisect.report.sections import cell_rows
from tests.model.test_cell import cell


def rows_of(of: Cell, metric: str = "tpot") -> list[tuple[str, str]]:
    return cell_rows(cell_document(of, parse_metric(metric)))


def test_the_echo_shows_what_will_be_measured() -> None:
    rows = dict(
        rows_of(
            cell(extra_body={"a": 1}, num_warmups=7, seed=3, guards=["failed"], revision="abc"), "ttft:p99"
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
    rows = dict(rows_of(apply_variant(local, "fast")))
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
    assert dict(rows_of(cell(deploy_yaml=deploy)))["deploy YAML"].startswith(shown)


def test_a_cell_in_json_has_its_own_values_and_no_text_of_a_terminal() -> None:
    of = cell(
        extra_body={"a": {"b": 1}}, deploy_yaml={"text": "a: 1"}, reference={"image": "x.png", "prompt": "p"}
    )
    document = json.loads(cell_document(apply_variant(of, "fast"), of.metric).text())
    assert "rows" not in document
    assert document["variant"] == "fast" and document["metric"] == of.headline
    assert document["extra_body"] == {"a": {"b": 1}}
    assert document["request_rate"] == "inf" and document["max_concurrency"] == 4
    assert document["deploy_yaml"].keys() == {"digest"}
    texts = [text for row in rows_of(of) for text in row if " " in text]
    assert [text for text in texts if text in json.dumps(document)] == []
