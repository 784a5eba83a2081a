"""Does a cell make sense for an engine at a commit? Rules over what was read from the checkout there.

Nothing of the engine is imported: the facts are words and files of its sources, so what a rule cannot see it
says nothing of, or says that it cannot see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from perfbisect.model.cell import Cell

Level = Literal["error", "warning"]

_REMOTE = re.compile(r"^(?:https?|s3|gs)://", re.IGNORECASE)
_PORT = re.compile(r"^\s*(?P<key>[\w-]*port)\s*:\s*(?P<port>\d{2,5})\b", re.MULTILINE)
_OMNI_MODEL = re.compile(r"omni", re.IGNORECASE)


@dataclass(frozen=True)
class EngineFacts:
    """What a checkout says at one commit.

    ``engine`` is its name for messages; ``benchmark_words`` every text literal of its benchmark sources,
    empty where it has none; ``options`` whether each option of the cell's server is mentioned in its sources;
    ``deploy`` the text of the deploy YAML, None where the file is not there; ``born`` since when it is (a
    commit and its date), empty where it never was; ``rejects`` endpoints that the server at this commit
    refuses for models of a kind, with why.
    """

    engine: str
    at: str
    benchmark_words: frozenset[str] = frozenset()
    options: Mapping[str, bool] = field(default_factory=dict)
    deploy: str | None = None
    born: str = ""
    rejects: tuple[tuple[str, str, str], ...] = ()
    """(endpoint, kind of model, why)."""


@dataclass(frozen=True)
class LintFinding:
    """Something wrong with a field of a cell; an error would end an attempt or measure something else."""

    level: Level
    field: str
    message: str


def lint(cell: Cell, facts: EngineFacts, *, own_client: bool = True) -> tuple[LintFinding, ...]:
    """What is wrong with a cell for the engine at a commit; empty where nothing was found.

    ``own_client``: the load generator is the one of that commit, so that its benchmarks must know data set
    and backend.
    """
    return (
        *(_client_words(cell, facts) if own_client else ()),
        *_deploy(cell, facts),
        *_endpoint(cell, facts),
        *_server_options(cell, facts),
        *_remote(cell),
    )


def _client_words(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    if not facts.benchmark_words:
        yield LintFinding(
            "warning",
            "client",
            f"{facts.engine} has no benchmark sources at {facts.at}: data set and backend are not checked",
        )
        return
    for name, value in (("dataset_name", cell.dataset_name), ("backend", cell.backend)):
        if value not in facts.benchmark_words:
            yield LintFinding(
                "error", name, f"{value!r} occurs nowhere in the benchmarks of {facts.engine} at {facts.at}"
            )


def _deploy(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    deploy = cell.deploy_yaml
    if deploy is None:
        return
    text = deploy.text
    if deploy.origin:
        if facts.deploy is None:
            since = f"; it is there since {facts.born}" if facts.born else "; it never was"
            yield LintFinding("error", "deploy_yaml", f"there is no {deploy.path} at {facts.at}{since}")
            return
        text = facts.deploy
    for found in _PORT.finditer(text or ""):
        yield LintFinding(
            "warning",
            "deploy_yaml",
            f"{found['key']} is fixed at {found['port']}: another tenant, or a second slot, has it too",
        )


def _endpoint(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    kind = "omni" if cell.family == "omni" or _OMNI_MODEL.search(cell.model) else cell.family
    for endpoint, refused, why in facts.rejects:
        if cell.endpoint == endpoint and refused == kind:
            yield LintFinding("error", "endpoint", f"{endpoint} refuses {kind} models at {facts.at}: {why}")


def _server_options(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    for name, known in facts.options.items():
        if not known:
            yield LintFinding(
                "error" if cell.family == "text" else "warning",
                f"serve_args.{name}",
                f"--{name} is mentioned nowhere in the sources of {facts.engine} at {facts.at}",
            )


def _remote(cell: Cell) -> Iterator[LintFinding]:
    values: dict[str, object] = {"model": cell.model, "dataset_path": cell.dataset_path, **cell.dataset_args}
    for name, value in values.items():
        if isinstance(value, str) and _REMOTE.match(value):
            yield LintFinding(
                "warning", name, f"{value} is fetched while it is measured: bring it here first"
            )
