"""Builder ``command:TEMPLATE``: the user's own command makes the environment of a commit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from perfbisect.common.digests import environment_key, text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Environment
from perfbisect.environments.builders.cached import BuildContext, CommitBuilder
from perfbisect.environments.builders.toolchain import build_variables, redacted_variables
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.health import PACKAGES_FILE, check_commit_environment, exit_text
from perfbisect.environments.source_tree import sync_tree, tree_digests
from perfbisect.environments.spec import Spec
from perfbisect.environments.uv import registry_environment, run
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change

PLACEHOLDERS = ("sha", "env", "python", "repo", "tree")
"""Names that a template may contain in braces."""
TRY_AGAIN = 75
"""Exit code (EX_TEMPFAIL of sysexits.h) by which a command reports a failure of the machine."""


class CommandBuilder(CommitBuilder):
    """Builds commits; the command leaves an interpreter at ``{env}/bin/python``."""

    name = "command"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        try:
            words = shlex.split(spec.argument)
        except ValueError as error:
            raise spec.error(f"the command cannot be read: {error}", "close its quotes") from error
        if "{env}" not in spec.argument or not words:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise spec.error(
                "the command does not say where the environment goes", f"write {{env}}; known are {known}"
            )
        super().__init__(spec, context, folder="")
        self.template = spec.argument
        self.variables = build_variables(os.environ, spec.words("env"))

    def read_trees(self, shas: Collection[str]) -> dict[str, str | None]:
        return tree_digests(self.repository, shas, "", whole=True)

    def key(self, change: Change) -> str:
        self.prepare((change,))
        reads_commit = any(f"{{{name}}}" in self.template for name in ("sha", "repo"))
        return environment_key(
            "command/1",
            self.template,
            self._program_digest(),
            change.id if reads_commit else self._trees[change.id],
            self.package.module,
            uv.base_python_version(),
            dict(self.variables),
            *self.limits.key_parts(),
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        interpreter = self.folder_of(change) / "env" / "bin" / "python"

        def make(folder: Path) -> None:
            if "{tree}" in self.template:
                entries = self.repository.entries(change.id)
                sync_tree(folder / "tree", repository=self.repository, entries=entries)
            self._run(change, folder, log, timeout)
            if not os.access(interpreter, os.X_OK):
                raise BuildError(
                    f"{change.short}: the command ended well but left no interpreter at {interpreter}",
                    where=log,
                )
            (folder / PACKAGES_FILE).write_text(uv.list_packages(interpreter, log=log))

        def check(folder: Path) -> CheckedEnvironment:
            facts = {
                "command": self.template,
                "variables": redacted_variables(self.variables),
                **self.limits.facts(),
            }
            return check_commit_environment(
                folder, self.package, self.repository, change, inside=self.package.folder, what=change.short,
                facts=facts, log=log, timeout=timeout, interpreter=interpreter,
            )  # fmt: skip

        return self.ensure_cached(change, make=make, check=check, timeout=timeout, in_place=True)

    def _run(self, change: Change, folder: Path, log: Path, timeout: float) -> None:
        """Run the command. :raises BuildError, MachineError: it failed, by whose fault it is."""
        values = {
            "sha": change.id,
            "env": str(folder / "env"),
            "python": str(uv.base_python()),
            "repo": str(self.repository.path),
            "tree": str(folder / "tree"),
        }
        argv = [_fill(word, values) for word in shlex.split(self.template)]
        limits = {
            "UV_EXCLUDE_NEWER": self.limits.exclude_newer or "",
            "UV_CONSTRAINT": str(self.limits.constraints or ""),
        }
        given = {name: value for name, value in limits.items() if value}
        env = {**registry_environment(), **given, **self.variables}
        output = run(argv, env=env, cwd=folder, log=log, timeout=timeout)
        what = f"{change.short}: {shlex.join(argv)}"
        if output.timed_out:
            raise MachineError(f"{what}: not done after {timeout:.0f} s", where=log)
        if output.code == TRY_AGAIN:
            raise MachineError(
                f"{what}: ended with {TRY_AGAIN}: the machine failed, not the commit", where=log
            )
        if output.code != 0:
            lines = [line.strip() for line in output.text.splitlines() if line.strip()]
            last = lines[-1] if lines else "no output"
            raise BuildError(f"{what}: ended with {exit_text(output.code)}: {last}", where=log, output=last)

    def _program_digest(self) -> str:
        """Digest of the program if it is a file of the user: changing it makes other environments."""
        program = Path(shlex.split(self.template)[0])
        return text_digest(program.read_bytes()) if program.is_absolute() and program.is_file() else ""


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
