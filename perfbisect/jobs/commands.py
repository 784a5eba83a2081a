"""Commands to type: what reproduces an attempt, and what continues a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from perfbisect.clients import CLIENTS
from perfbisect.common.secret_references import hide_literals, references
from perfbisect.jobs.documents import CommandsDocument
from perfbisect.jobs.plans import EXAMPLE, MeasurementConfig
from perfbisect.jobs.requests import ONCE, RequestRecord
from perfbisect.model.attempt import Attempt
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.redaction import redacted_argv
from perfbisect.serving.families import FAMILIES, Engine, Family, ServerCommand
from perfbisect.serving.families.staged import DEPLOY_FILE

_ENGINE = "ENGINE"
_ENGINE_FOLDER = f"${{{_ENGINE}}}"
"""A shell's variable, for the folder with the engine's package."""

_REPEATABLE = ("compare", "verify", "check")
"""Commands that can be repeated with a larger budget."""


def commands_document(
    cell: Cell, setting: MeasurementConfig, change: Change, attempt: Attempt | None
) -> CommandsDocument:
    """The commands of an attempt as they ran, or, without one, as they will."""
    family, client = FAMILIES[cell.family], CLIENTS[cell.client.name]
    server = family.server(cell, EXAMPLE, Engine(root=_ENGINE_FOLDER))
    serve = _recorded(attempt, "server", server.env, server.files)
    bench = _recorded(attempt, "client", client.env(cell))
    note = "as they ran; the whole process environment is in the attempt's attempt.json"
    if not serve:
        serve = _planned(cell, family, server, setting.repository)
        drawn = "each attempt draws its own port and model name; " if family.serves else ""
        note = f"{drawn}python is that of the change's environment"
    result = PurePosixPath("result.json")
    arguments = client.command(cell, EXAMPLE, seed=cell.seed + 1, result=result, metadata={})
    if not bench and arguments:
        bench = _command(client.env(cell), ("python", *arguments))
    return CommandsDocument(
        change=change.id, serve=serve, bench=bench, perfbisect=setting.request.line, note=note
    )


def _planned(cell: Cell, family: Family, server: ServerCommand, repository: str) -> str:
    """The server's command before its environment is built: a shell finds or writes the files it names."""
    deploy, words, before = cell.deploy_yaml, ("python", *server.args), ""
    if deploy is not None and deploy.file is not None:
        words = tuple(deploy.file if word == f"./{DEPLOY_FILE}" else word for word in words)
    elif deploy is not None and deploy.origin is not None:
        package = family.module.partition(".")[0]
        search = (
            f"from importlib.util import find_spec as f; print(*f({package!r}).submodule_search_locations)"
        )
        before = f"{_ENGINE}=$(python -c {shlex.quote(search)})/.. && "
    elif deploy is not None:
        source = f"{deploy.at}:{deploy.path}"
        write = (
            git_command(repository, "show", source)
            if deploy.at
            else shlex.join(("printf", "%s", deploy.text or ""))
        )
        before = f"{write} > {DEPLOY_FILE} && "
    return before + _command(server.env, words)


def _recorded(
    attempt: Attempt | None, process: str, named: Mapping[str, str], files: Iterable[str] = ()
) -> str:
    """A process's recorded command with the variables of the engine's path and of the cell; empty: none.

    ``files``: names of those in the attempt's folder.
    """
    facts = attempt.provenance.facts.get(process) if attempt else None
    if not isinstance(facts, Mapping) or not facts.get("argv") or not isinstance(facts.get("env"), Mapping):
        return ""
    assert attempt is not None
    env = {name: str(facts["env"][name]) for name in ("PYTHONPATH", *named) if facts["env"].get(name)}
    inside = {f"./{name}": f"{attempt.folder}/{name}" for name in files}
    return _command(env, tuple(inside.get(word, word) for word in map(str, facts["argv"])))


def _command(env: Mapping[str, str], argv: tuple[str, ...]) -> str:
    variables = (f"{name}={_quoted(value)}" for name, value in sorted(hide_literals(env).items()))
    return " ".join([*variables, *map(_quoted, redacted_argv(argv))])


def _quoted(word: str) -> str:
    """A word of a command, in which the shell fills the secrets and the folder that it refers to."""
    quoted = shlex.quote(word)
    for reference in (*(f"${{{name}}}" for name in references(word)), _ENGINE_FOLDER):
        quoted = quoted.replace(reference, f"'\"{reference}\"'")
    return quoted


def follow_up_command(
    setting: MeasurementConfig, verb: str, cell: Mapping[str, Any], metrics: Sequence[str], **options: str
) -> str:
    """Another command for the cell, repository and environments of a job."""
    asked = setting.request
    # As it was typed: it may be a path.
    (name,) = asked.arguments.get("cell") or asked.options.get("cell") or (cell["name"],)
    known = {
        "repo": setting.repository,
        **options,
        "env": setting.environment,
        "client": setting.client,
        "constraints": setting.constraints,
        "exclude_newer": setting.exclude_newer,
        "machine": setting.machine,
    }
    given = {name: (value,) for name, value in known.items() if value}
    judged = {"metric": tuple(metrics)} if list(metrics) != [cell["headline"]] else {}
    return RequestRecord(verb, {"cell": (name,)}, given | judged).line


def repeat_command(setting: MeasurementConfig, option: str, value: str) -> str | None:
    """A job's command with another value of an option; None if the job was started by another command."""
    asked = setting.request
    if asked.verb not in _REPEATABLE:
        return None
    kept = {name: texts for name, texts in asked.options.items() if name not in (*ONCE, option)}
    return replace(asked, options=kept | {option: (value,)}).line


def git_command(repository: str, *words: str) -> str:
    """A git command in the repository."""
    return shlex.join(("git", *(("-C", repository) if repository else ()), *words))
