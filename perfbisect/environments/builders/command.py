"""Builder ``command:TEMPLATE``: the user's own command makes the environment of a commit."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfbisect.common.digests import text_digest
from perfbisect.environments import uv
from perfbisect.environments.build import BuildRun, registry_environment
from perfbisect.environments.builders.cached import BuildContext, CommitBuilder
from perfbisect.environments.builders.source import build_variables
from perfbisect.environments.cache import CheckedEnvironment
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


class CommandBuilder(CommitBuilder):
    """Builds commits; the command leaves an interpreter at ``{env}/bin/python``."""

    name = "command"
    guess_min = 10.0
    in_place = True

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        try:
            self.words = shlex.split(spec.argument)
        except ValueError as error:
            raise spec.error(f"the command cannot be read: {error}", "close its quotes") from error
        if "{env}" not in spec.argument or not self.words:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise spec.error(
                "the command does not say where the environment goes", f"write {{env}}; known are {known}"
            )
        super().__init__(spec, context, folder="", whole=True)
        self.template = spec.argument
        self.variables = build_variables(os.environ, spec.words("env"))

    def key_parts(self, change: Change) -> tuple[object, ...]:
        program = Path(self.words[0])
        is_own = program.is_absolute() and program.is_file()
        reads_commit = any(f"{{{name}}}" in self.template for name in ("sha", "repo"))
        return (
            self.template,
            text_digest(program.read_bytes()) if is_own else "",
            change.id if reads_commit else self.trees[change.id],
            self.package.module,
            uv.base_python_version(),
            dict(self.variables),
            *self.limits.key_parts(),
        )

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        if "{tree}" in self.template:
            sync_tree(staging / "tree", self.repository, change.id)
        self._run(build, change, staging)
        interpreter = staging / "env" / "bin" / "python"
        if not os.access(interpreter, os.X_OK):
            message = f"{change.short}: the command ended well but left no interpreter at {interpreter}"
            raise BuildError(message, where=build.log)
        variables = redacted(self.variables)
        return {"command": self.template, "variables": variables, **self.limits.facts()}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        return self.check_commit(build, change, folder, inside=self.package.folder, venv="env")

    def _run(self, build: BuildRun, change: Change, folder: Path) -> None:
        """Run the command. Raises BuildError or MachineError if it fails, by whose fault it is."""
        values = {
            "sha": change.id,
            "env": str(folder / "env"),
            "python": str(uv.base_python()),
            "repo": str(self.repository.path),
            "tree": str(folder / "tree"),
        }
        argv = [_NAMED.sub(lambda found: values[found[1]], word) for word in self.words]
        limits = self.limits.facts()
        limits = {"UV_EXCLUDE_NEWER": limits["exclude_newer"], "UV_CONSTRAINT": limits["constraints"]}
        given = {name: value for name, value in limits.items() if value}
        output = build.run(argv, env={**registry_environment(), **given, **self.variables}, cwd=folder)
        what, log = f"{change.short}: {shlex.join(argv)}", build.log
        if output.timed_out:
            raise MachineError(f"{what}: not done after {build.timeout:.0f} s", where=log)
        if output.code == TRY_AGAIN:
            message = f"{what}: ended with {TRY_AGAIN}: the machine failed, not the commit"
            raise MachineError(message, where=log)
        if output.code != 0:
            last = output.last_line
            raise BuildError(f"{what}: ended with {output.ending}: {last}", where=log, output=last)
