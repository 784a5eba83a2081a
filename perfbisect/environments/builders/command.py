"""Builder ``command:TEMPLATE``: the user's own command makes the environment of a commit."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.common.digests import text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Environment
from perfbisect.environments.build import BuildRun, registry_environment
from perfbisect.environments.builders.cached import (
    BuildContext,
    CachedBuilder,
    CommitTree,
    CommitTrees,
    Installation,
    Recipe,
)
from perfbisect.environments.builders.source import build_variables
from perfbisect.environments.source_tree import sync_tree
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from perfbisect.redaction import redacted

PLACEHOLDERS = ("sha", "env", "python", "repo", "tree")
"""Names that a template may contain in braces."""
_NAMED = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
TRY_AGAIN = 75
"""Exit code (EX_TEMPFAIL of sysexits.h) by which a command reports a failure of the machine."""


@dataclass(frozen=True)
class CommandSettings:
    """``words``: of the template; ``variables``: of the command."""

    installation: Installation
    trees: CommitTrees
    template: str
    words: tuple[str, ...]
    variables: Mapping[str, str]


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[CommandSettings, CommitTree]:
    """The builder of commits by a command that leaves an interpreter at ``{env}/bin/python``."""
    try:
        words = tuple(shlex.split(spec.argument))
    except ValueError as error:
        raise spec.error(f"the command cannot be read: {error}", "close its quotes") from error
    if "{env}" not in spec.argument or not words:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise spec.error(
            "the command does not say where the environment goes", f"write {{env}}; known are {known}"
        )
    installation = Installation.of(spec, context)
    trees = CommitTrees(context.required_repository(spec), "", spec.flag("whole"))
    variables = build_variables(os.environ, spec.words("env"))
    settings = CommandSettings(installation, trees, spec.argument, words, variables)
    return CachedBuilder(RECIPE, spec.text, context, settings)


def key_parts(settings: CommandSettings, commit: CommitTree) -> tuple[object, ...]:
    program = Path(settings.words[0])
    is_own = program.is_absolute() and program.is_file()
    reads_commit = any(f"{{{name}}}" in settings.template for name in ("sha", "repo"))
    return (
        settings.template,
        text_digest(program.read_bytes()) if is_own else "",
        commit.change.id if reads_commit else commit.tree,
        settings.installation.package.module,
        uv.base_python_version(),
        dict(settings.variables),
        *settings.installation.limits.key_parts(),
    )


def make(settings: CommandSettings, commit: CommitTree, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    change = commit.change
    if "{tree}" in settings.template:
        sync_tree(staging / "tree", settings.trees.repository, change.id)
    _run(settings, build, change, staging)
    interpreter = staging / "env" / "bin" / "python"
    if not os.access(interpreter, os.X_OK):
        message = f"{change.short}: the command ended well but left no interpreter at {interpreter}"
        raise BuildError(message, where=build.log)
    variables = redacted(settings.variables)
    return {"command": settings.template, "variables": variables, **settings.installation.limits.facts()}


def check(settings: CommandSettings, commit: CommitTree, build: BuildRun, folder: Path) -> Environment:
    return settings.trees.check(settings.installation, build, folder, commit.change, venv="env")


def _run(settings: CommandSettings, build: BuildRun, change: Change, folder: Path) -> None:
    """Run the command. Raises BuildError or MachineError if it fails, by whose fault it is."""
    values = {
        "sha": change.id,
        "env": str(folder / "env"),
        "python": str(uv.base_python()),
        "repo": str(settings.trees.repository.path),
        "tree": str(folder / "tree"),
    }
    argv = [_NAMED.sub(lambda found: values[found[1]], word) for word in settings.words]
    limits = settings.installation.limits.facts()
    limits = {"UV_EXCLUDE_NEWER": limits["exclude_newer"], "UV_CONSTRAINT": limits["constraints"]}
    given = {name: value for name, value in limits.items() if value}
    output = build.run(argv, env={**registry_environment(), **given, **settings.variables}, cwd=folder)
    what, log = f"{change.short}: {shlex.join(argv)}", build.log
    if output.timed_out:
        raise MachineError(f"{what}: not done after {build.timeout:.0f} s", where=log)
    if output.code == TRY_AGAIN:
        message = f"{what}: ended with {TRY_AGAIN}: the machine failed, not the commit"
        raise MachineError(message, where=log)
    if output.code != 0:
        last = output.last_line
        raise BuildError(f"{what}: ended with {output.ending}: {last}", where=log, output=last)


RECIPE = Recipe(
    name="command",
    guess_min=10.0,
    in_place=True,
    look_up=lambda settings, changes, _: settings.trees.find(changes),
    refuses=lambda settings, commit: settings.trees.refuses(commit),
    key_parts=key_parts,
    make=make,
    check=check,
)
