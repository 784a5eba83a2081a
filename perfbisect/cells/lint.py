"""Rules that check a cell against facts about the engine's sources at a commit.

The engine is not imported, so a rule reports only what words and files of its sources show.
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
    """Facts about a checkout at one commit.

    ``benchmark_words``: all string literals of its benchmark sources; ``options``: whether its sources
    mention each option of the cell's server; ``deploy``: text of the deploy YAML, if it exists; ``born``: the
    commit and date since when; ``rejects``: (endpoint, kind of model that its server refuses, why).
    """

    engine: str
    at: str
    benchmark_words: frozenset[str] = frozenset()
    options: Mapping[str, bool] = field(default_factory=dict)
    deploy: str | None = None
    born: str = ""
    rejects: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class LintFinding:
    """A problem with a field; an error would fail the attempt or measure something else."""

    level: Level
    field: str
    message: str


def lint(cell: Cell, facts: EngineFacts, *, own_client: bool = True) -> tuple[LintFinding, ...]:
    """Problems of a cell with the engine; ``own_client``: the load generator is of the same commit."""
    return (
        *(_check_client(cell, facts) if own_client else ()),
        *_check_deploy(cell, facts),
        *_check_endpoint(cell, facts),
        *_check_options(cell, facts),
        *_check_remote(cell),
    )


def _check_client(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    source = f"{facts.engine} at {facts.at}"
    if not facts.benchmark_words:
        message = (
            f"{facts.engine} has no benchmark sources at {facts.at}: data set and backend are not checked"
        )
        yield LintFinding("warning", "client", message)
        return
    for name, value in (("dataset_name", cell.dataset_name), ("backend", cell.backend)):
        if value not in facts.benchmark_words:
            yield LintFinding("error", name, f"{value!r} occurs nowhere in the benchmarks of {source}")


def _check_deploy(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    deploy = cell.deploy_yaml
    if deploy is None:
        return
    if deploy.origin and facts.deploy is None:
        since = f"; it is there since {facts.born}" if facts.born else "; it never was"
        yield LintFinding("error", "deploy_yaml", f"there is no {deploy.path} at {facts.at}{since}")
        return
    for found in _PORT.finditer((facts.deploy if deploy.origin else deploy.text) or ""):
        message = f"{found['key']} is fixed at {found['port']}: another tenant, or a second slot, has it too"
        yield LintFinding("warning", "deploy_yaml", message)


def _check_endpoint(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    kind = "omni" if cell.family == "omni" or _OMNI_MODEL.search(cell.model) else cell.family
    for endpoint, refused, reason in facts.rejects:
        if cell.endpoint == endpoint and refused == kind:
            message = f"{endpoint} refuses {kind} models at {facts.at}: {reason}"
            yield LintFinding("error", "endpoint", message)


def _check_options(cell: Cell, facts: EngineFacts) -> Iterator[LintFinding]:
    level: Level = "error" if cell.family == "text" else "warning"
    for name, is_known in facts.options.items():
        if not is_known:
            message = f"--{name} is mentioned nowhere in the sources of {facts.engine} at {facts.at}"
            yield LintFinding(level, f"serve_args.{name}", message)


def _check_remote(cell: Cell) -> Iterator[LintFinding]:
    values: dict[str, object] = {"model": cell.model, "dataset_path": cell.dataset_path, **cell.dataset_args}
    for name, value in values.items():
        if isinstance(value, str) and _REMOTE.match(value):
            message = f"{value} is fetched while it is measured: bring it here first"
            yield LintFinding("warning", name, message)
