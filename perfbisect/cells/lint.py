"""Rules that check a cell against an engine's sources at a commit.

The engine is not imported, so a rule reports only what words and files of its sources show.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Literal

from perfbisect.changes.git import Repository, error_text
from perfbisect.clients import CLIENTS, Client
from perfbisect.common.python_source import parse_python
from perfbisect.errors import RevisionError
from perfbisect.model.cell import SERVER, Cell
from perfbisect.serving.eras import SERVER_SAMPLING
from perfbisect.serving.families import FAMILIES, Endpoint

ENGINES = {"vllm_omni": "vLLM-Omni", "vllm": "vLLM"}
"""Import name and display name; the first package in a checkout is its engine."""

_ANY = Endpoint(port=1, model_name="any")

Level = Literal["error", "warning"]

_REMOTE = re.compile(r"^(?:https?|s3|gs)://", re.IGNORECASE)
_PORT = re.compile(r"^\s*(?P<key>[\w-]*port)\s*:\s*(?P<port>\d{2,5})\b", re.MULTILINE)
_OMNI_MODEL = re.compile(r"omni", re.IGNORECASE)
_BENCHMARKS = ("vllm_omni/benchmarks", "vllm/benchmarks", "benchmarks")
_REJECTS = (
    ("/v1/audio/speech", "omni", 2763, "speech is for speech models; ask /v1/chat/completions for audio"),
)
"""(endpoint, kind of model, pull request that refuses it, advice)."""


@dataclass(frozen=True)
class LintFinding:
    """A problem with a field; an error would fail the attempt or measure something else."""

    level: Level
    field: str
    message: str


@dataclass(frozen=True)
class Checkout:
    """One commit of an engine's repository."""

    repository: Repository
    sha: str
    _words: dict[tuple[str, ...], frozenset[str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _searched: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def at(self) -> str:
        return self.sha[:12]

    @cached_property
    def engine(self) -> str:
        """Its package, or the repository's folder name if it is unknown."""
        package = next((name for name in ENGINES if self.repository.tree_id(self.sha, name)), None)
        return package or self.repository.path.name

    def of_another_engine(self, cell: Cell) -> str:
        """Why a cell cannot be checked here: its family is of the other engine; empty if it can."""
        own = FAMILIES[cell.family].package
        if self.engine not in ENGINES or own == self.engine:
            return ""
        return f"their engine is {ENGINES[own]}, give its repository: --repo"

    def words(self, *folders: str) -> frozenset[str]:
        """All string literals in the Python sources below folders."""
        if folders not in self._words:
            blobs = [
                entry.blob
                for folder in folders
                for entry in self.repository.entries(self.sha, folder)
                if entry.path.endswith(".py")
            ]
            sources = self.repository.contents(dict.fromkeys(blobs))
            literals = (_literals(source.decode(errors="replace")) for _, source in sources)
            self._words[folders] = frozenset().union(*literals)
        return self._words[folders]

    def unmentioned(self, options: Iterable[str]) -> tuple[str, ...]:
        """Options (``max-model-len``) that occur neither as an option nor as its field.

        Each is searched for once, all that are new by one git process.
        """
        forms = {option: _forms(option) for option in options}
        new = {word for words in forms.values() for word in words} - self._searched.keys()
        if new:
            self._searched.update(dict.fromkeys(new, False) | dict.fromkeys(self.occurring(new), True))
        return tuple(option for option, words in forms.items() if not any(map(self._searched.get, words)))

    def occurring(self, words: Iterable[str]) -> frozenset[str]:
        """Words, at least one, that stand in its Python sources; searched for by one git process.

        Raises:
            RevisionError: git cannot read them, as in a partial clone.
        """
        patterns = (part for word in sorted(words) for part in ("-e", word))
        search = ("grep", "-h", "-o", "-w", "-F", *patterns, self.sha, "--", "*.py")
        done = self.repository.run(*search)
        # git ends with 1 where nothing is found, and also where it cannot read a file.
        if done.returncode > 1 or b"error:" in done.stderr:
            raise RevisionError(f"the sources at {self.at} cannot be searched: {error_text(done)}")
        return frozenset(done.stdout.decode(errors="replace").splitlines())

    def contains_pull(self, number: int) -> bool:
        """Whether a pull request was merged before the commit."""
        # GitHub ends the subject of a squash merge with the number of its pull request.
        log = self.repository.text("log", "-1", "--format=%H", "-F", f"--grep=(#{number})", self.sha)
        return bool(log.strip())

    def born(self, path: str) -> str:
        """The commit that first added a file on any branch, with its date; empty if none did."""
        log = self.repository.run(
            "log", "--all", "--diff-filter=A", "--format=%h of %cs", "--reverse", "--", path
        )
        lines = log.stdout.decode(errors="replace").splitlines()
        return lines[0] if log.returncode == 0 and lines else ""


def _forms(option: str) -> tuple[str, str]:
    """An option as it is typed, and as the name of a field."""
    name = option.partition(".")[0]
    return f"--{name}", name.replace("-", "_")


def _literals(source: str) -> set[str]:
    tree = parse_python(source)
    nodes = ast.walk(tree) if tree is not None else ()
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _check_client(cell: Cell, checkout: Checkout) -> Iterator[LintFinding]:
    engine, at = checkout.engine, checkout.at
    words = checkout.words(*_BENCHMARKS)
    if not words:
        message = f"{engine} has no benchmark sources at {at}: data set, backend and options are not checked"
        yield LintFinding("warning", "client", message)
        return
    for name, value in (("dataset_name", cell.dataset_name), ("backend", cell.backend)):
        if value not in words:
            yield LintFinding(
                "error", name, f"{value!r} occurs nowhere in the benchmarks of {engine} at {at}"
            )
    client = CLIENTS[cell.client.name]
    if engine != "vllm" and type(client).command is Client.command:
        return  # options of vLLM's client are in vLLM's sources
    command = client.command(cell, _ANY, seed=0, result=PurePath("result.json"), metadata={})
    options = {word.partition("=")[0] for word in command if word.startswith("--")}
    options -= {"--backend", "--endpoint"}  # the diffusion benchmark gets the one that it knows
    folders = (posixpath.normpath(f"{client.package}/{source}") for source in client.sources)
    if unknown := sorted(options - checkout.words(*folders)):
        message = f"client {client.name} at {at} does not have {', '.join(unknown)}"
        yield LintFinding("error", "client", message)


def lint(cell: Cell, checkout: Checkout, *, own_client: bool = True) -> tuple[LintFinding, ...]:
    """Problems of a cell with the engine; ``own_client``: the load generator is of the same commit."""
    findings = list(_check_client(cell, checkout)) if own_client else []
    text = cell.deploy_yaml.text if cell.deploy_yaml else None
    if cell.deploy_yaml and cell.deploy_yaml.origin and (path := cell.deploy_yaml.path):
        text = checkout.repository.read_text(checkout.sha, path)
        if text is None:
            born = checkout.born(path)
            since = f"; it is there since {born}" if born else "; it never was"
            findings.append(
                LintFinding("error", "deploy_yaml", f"there is no {path} at {checkout.at}{since}")
            )
    for found in _PORT.finditer(text or ""):
        message = f"{found['key']} is fixed at {found['port']}: another tenant, or a second slot, has it too"
        findings.append(LintFinding("warning", "deploy_yaml", message))
    is_silent = own_client and cell.family == "text" and cell.sampling.temperature == SERVER
    if is_silent and not checkout.contains_pull(32723):
        message = f"the client at {checkout.at} sends 0 where none is said: until {SERVER_SAMPLING.change}"
        findings.append(LintFinding("warning", "sampling", message))
    kind = "omni" if cell.family == "omni" or _OMNI_MODEL.search(cell.model) else cell.family
    for endpoint, refused, pull, advice in _REJECTS:
        if cell.endpoint == endpoint and refused == kind and checkout.contains_pull(pull):
            message = f"{endpoint} refuses {kind} models at {checkout.at}: since #{pull}: {advice}"
            findings.append(LintFinding("error", "endpoint", message))
    # A server of vLLM-Omni also takes vLLM's options, which stand in another repository.
    level: Level = "error" if FAMILIES[cell.family].package == "vllm" else "warning"
    for name in checkout.unmentioned(cell.serve_args):
        message = f"--{name} is mentioned nowhere in the sources of {checkout.engine} at {checkout.at}"
        findings.append(LintFinding(level, f"serve_args.{name}", message))
    values: dict[str, object] = {"model": cell.model, "dataset_path": cell.dataset_path, **cell.dataset_args}
    for name, value in values.items():
        if isinstance(value, str) and _REMOTE.match(value):
            message = f"{value} is fetched while it is measured: bring it here first"
            findings.append(LintFinding("warning", name, message))
    return tuple(findings)
