"""References to secrets are filled where something starts, and shown nowhere else."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from perfbisect.common.secret_references import fill, hide_literals, literal_secrets, names_secret
from perfbisect.errors import UsageError
from perfbisect.jobs.commands import commands_document
from perfbisect.jobs.documents import cell_document
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.model.cell import cell_difference
from perfbisect.model.change import Change
from tests.measure.pretend import cell

SHELL = {"MY_API_KEY": 'a "quoted" $key', "HOME": "/home/me"}


def test_fill_puts_secrets_into_texts_json_and_lists() -> None:
    given = {"a": "Bearer ${MY_API_KEY}", "b": ["${MY_API_KEY}", 1], "c": '{"k": "${MY_API_KEY}"}'}
    filled = fill(given, SHELL)
    assert filled["a"] == 'Bearer a "quoted" $key'
    assert filled["b"] == ['a "quoted" $key', 1]
    assert json.loads(filled["c"]) == {"k": 'a "quoted" $key'}


def test_only_names_of_secrets_are_references() -> None:
    assert fill("${HOME}/x", SHELL) == "${HOME}/x"
    with pytest.raises(UsageError, match="OTHER_API_KEY"):
        fill({"x": "${OTHER_API_KEY}"}, SHELL)


@pytest.mark.parametrize(
    "key", ["api-key", "API_KEY", "x-api-key", "hf_token", "DB_PASSWORD", "Authorization"]
)
def test_keys_of_secrets(key: str) -> None:
    assert names_secret(key)
    assert list(literal_secrets({key: "something"})) == [(key,)]
    assert list(literal_secrets({key: "${SOME_TOKEN}"})) == []
    assert hide_literals({key: "something"}) == {key: "(redacted)"}


@pytest.mark.parametrize("key", ["A_TOKEN", "API_KEY", "DB_PASSWORD", "CLIENT_SECRET"])
def test_a_short_value_of_a_secret_s_name_is_accepted_and_not_shown(key: str) -> None:
    assert list(literal_secrets({key: "x1"})) == []
    assert hide_literals({key: "x1", "header": [f"{key}=x1"], "other": "x1"}) == {
        key: "(redacted)", "header": ["(redacted)"], "other": "x1"
    }  # fmt: skip
    assert hide_literals({key: ""}) == {key: ""}
    text = cell_document(cell(env={key: "x1"}, serve_args={"api-key": "x1"}), cell().metric).text()
    assert "x1" not in text


@pytest.mark.parametrize("key", ["tokenizer", "max-num-batched-tokens", "eos_token", "ssl-keyfile"])
def test_keys_of_other_things(key: str) -> None:
    assert not names_secret(key)


def test_a_cell_of_an_earlier_job_is_shown_redacted() -> None:
    """Files are refused; journals that were written before have the value."""
    old, other = (cell(serve_args={"api-key": key}, env={"A_TOKEN": key}) for key in ("s3cr3t-1", "s3cr3t-2"))
    shown = [cell_document(old, old.metric), cell_difference(old, other)]
    shown += [commands_document(old, MeasurementConfig(environment="e"), Change("c" * 40), None)]
    assert "s3cr3t" not in str(shown)
    assert [row[0] for row in cell_difference(old, other)] == ["env.A_TOKEN", "serve_args.api-key"]


def test_what_reproduces_an_attempt_takes_its_secrets_from_the_shell() -> None:
    of = cell(serve_args={"api-key": "${MY_API_KEY}"}, env={"A_TOKEN": "${MY_API_KEY}"})
    command = commands_document(of, MeasurementConfig(environment="e"), Change("c" * 40), None).serve
    words = shlex.split(command)
    assert "A_TOKEN=${MY_API_KEY}" in words
    program = command.replace("python -m", 'printf "%s\\n" "$A_TOKEN"', 1)
    done = subprocess.run(["bash", "-c", program], env=SHELL, capture_output=True, text=True, check=True)
    assert SHELL["MY_API_KEY"] in done.stdout.splitlines()
