"""The fetch phase: what a cell needs from a hub is brought once, and from then on nobody asks the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfbisect.measure.executor import AttemptRequest
from perfbisect.measure.local import LocalExecutor
from perfbisect.measure.preparation import hub_repositories
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Revision
from tests.measure.pretend import CHANGE, ENGINE, LIMITS, OneEnvironment, Watch, attempt, cell, environment

HUB = """
import json, os, pathlib
asked = pathlib.Path(os.environ["PRETEND_HUB"])
class HfApi:
    def list_repo_files(self, name, revision=None):
        if name == "org/unreachable" or name == "org/cached":
            raise ConnectionError("Max retries exceeded")
        return ["model.safetensors", "pytorch_model.bin"]
def snapshot_download(name, revision=None, ignore_patterns=(), local_files_only=False):
    if local_files_only and name != "org/cached":
        raise FileNotFoundError(name)
    with asked.open("a") as out:
        out.write(json.dumps([name, revision, "*.bin" in ignore_patterns]) + "\\n")
    return "/cache/" + name
"""


def run(
    tmp_path: Path, names: tuple[str, ...], user: dict[str, str] | None = None, **fields: Any
) -> list[Attempt]:
    """Attempts of one executor whose engine's interpreter has a pretend client of the hub."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "huggingface_hub.py").write_text(HUB)
    path = f"{ENGINE}:{tmp_path / 'site'}"
    made = environment(tmp_path, PYTHONPATH=path, PRETEND_HUB=str(tmp_path / "asked"))
    executor = LocalExecutor(OneEnvironment(made), **({} if user is None else {"shell": user}))
    attempts = []
    for name in names:
        watch = Watch()
        request = AttemptRequest(name, cell(**fields), CHANGE, 1, "run", tmp_path / name, LIMITS)
        attempts.append(executor.run(request, started=watch.started, sink=watch.sink))
    return attempts


def offline(attempt: Attempt) -> tuple[str | None, str | None]:
    facts = attempt.provenance.facts
    server, client = (facts[command]["env"].get("HF_HUB_OFFLINE") for command in ("server", "client"))
    return server, client


def test_a_model_is_fetched_once_and_all_are_offline(tmp_path: Path) -> None:
    one, two = run(tmp_path, ("one", "two"), model="org/model", revision=Revision(model="abc"))
    assert one.failure is None and two.failure is None
    assert (tmp_path / "asked").read_text().splitlines() == ['["org/model", "abc", true]']
    assert [offline(one), offline(two)] == [("1", "1"), ("1", "1")]
    assert "fetch" in one.seconds and "fetch" not in two.seconds


def test_a_hub_that_does_not_answer_is_the_machine(tmp_path: Path) -> None:
    (one,) = run(tmp_path, ("one",), model="org/unreachable")
    assert one.failure is not None
    assert (one.failure.phase, one.failure.fault) == ("fetch", "machine")
    assert "org/unreachable" in one.failure.reason and "Max retries exceeded" in one.failure.reason
    assert Path(one.failure.log).name == "fetch.log"


@pytest.mark.parametrize(
    ("fields", "user", "server", "client"),
    [
        ({"model": "org/cached"}, None, "1", "1"),
        ({"model": "org/unreachable"}, {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}, "1", "1"),
        ({"model": "org/model", "dataset_name": "hf", "dataset_path": "org/prompts"}, None, "1", None),
    ],
    ids=("in the cache", "offline by the user", "prompts from a hub"),
)
def test_who_stays_online(
    tmp_path: Path, fields: dict[str, str], user: dict[str, str] | None, server: str, client: str | None
) -> None:
    (one,) = run(tmp_path, ("one",), user=user, **fields)
    assert one.failure is None and offline(one) == (server, client)
    assert (tmp_path / "asked").exists() is (user is None)


def test_without_a_client_of_the_hub_the_engine_fetches(tmp_path: Path) -> None:
    made = attempt(tmp_path, workload=cell(model="org/model"))
    assert made.failure is None and offline(made) == (None, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "org/a"}, ("org/a",)),
        ({"model": "org/a", "revision": Revision(model="v1")}, ("org/a@v1",)),
        ({"model": "org/a", "tokenizer": "org/a"}, ("org/a",)),
        ({"model": "/here", "tokenizer": "org/t"}, ("org/t",)),
        ({"model": "name", "revision": Revision(model="sha256:00")}, ()),
        (
            {"model": "org/a", "serve_args": {"speculative-config": {"model": "org/draft"}}},
            ("org/a", "org/draft"),
        ),
        ({"model": "org/a", "serve_args": {"speculative-config": {"method": "ngram"}}}, ("org/a",)),
    ],
)
def test_what_a_cell_names_on_a_hub(fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert hub_repositories(cell(**fields)) == expected
