"""Environments made by the user's own command, one call a commit; checked like all others."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key, text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.build_tree import sync
from perfbisect.environments.builders.toolchain import shown
from perfbisect.environments.cache import Built, Cabinet, KeptBuilder, unread
from perfbisect.environments.health import PACKAGES_FILE, check_built
from perfbisect.environments.packages import Package
from perfbisect.environments.tree_digest import tree_digests
from perfbisect.environments.uv import registry_environment, run
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change

PLACES = ("sha", "env", "python", "repo", "tree")
"""What a template may hold in braces."""
TRY_AGAIN = 75
"""Exit code (EX_TEMPFAIL of sysexits.h) by which a command says that the machine failed, not the commit."""


class CommandBuilder(KeptBuilder):
    """``command:TEMPLATE``: leaves an interpreter at ``{env}/bin/python``."""

    name = "command"

    def __init__(
        self,
        spec: str,
        template: str,
        package: Package,
        cabinet: Cabinet,
        limits: uv.Limits,
        repository: Repository,
        variables: Mapping[str, str],
    ) -> None:
        self.spec = spec
        self.template = template
        self.package = package
        self.cabinet = cabinet
        self.limits = limits
        self.repository = repository
        self.variables = variables
        self._trees: dict[str, str | None] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        unknown = unread(changes, self._trees)
        if unknown:
            self._trees |= tree_digests(self.repository, unknown, "", whole=True)

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} builds commits; {change.id} is a release", error=True)
        return None

    def key(self, change: Change) -> str:
        self.prepare((change,))
        by_tree = not any(f"{{{name}}}" in self.template for name in ("sha", "repo"))
        return environment_key(
            "command/1",
            self.template,
            self._script(),
            self._trees[change.id] if by_tree else change.id,
            self.package.module,
            uv.base_python_version(),
            dict(self.variables),
            *self.limits.digested(),
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        interpreter = self.folder_of(change) / "env" / "bin" / "python"

        def make(place: Path) -> None:
            if "{tree}" in self.template:
                entries = self.repository.entries(change.id)
                sync(place / "tree", repository=self.repository, entries=entries)
            self._run(change, place, log, timeout)
            if not os.access(interpreter, os.X_OK):
                raise BuildError(
                    f"{change.short}: the command ended well but left no interpreter at {interpreter}",
                    where=log,
                )
            (place / PACKAGES_FILE).write_text(uv.listed(interpreter, log=log))

        def check(place: Path) -> Built:
            facts = {
                "command": self.template,
                "variables": shown(self.variables),
                **self.limits.facts(),
            }
            return check_built(
                place, self.package, self.repository, change, inside=self.package.folder, what=change.short,
                facts=facts, log=log, timeout=timeout, interpreter=interpreter,
            )  # fmt: skip

        return self.kept(change, make=make, check=check, timeout=timeout, in_place=True)

    def _run(self, change: Change, place: Path, log: Path, timeout: float) -> None:
        """:raises BuildError: it ended badly. :raises MachineError: it says so, or did not end."""
        values = {
            "sha": change.id,
            "env": str(place / "env"),
            "python": str(uv.base_python()),
            "repo": str(self.repository.path),
            "tree": str(place / "tree"),
        }
        argv = [_filled(word, values) for word in shlex.split(self.template)]
        limits = {
            "UV_EXCLUDE_NEWER": self.limits.exclude_newer or "",
            "UV_CONSTRAINT": str(self.limits.constraints or ""),
        }
        given = {name: value for name, value in limits.items() if value}
        output = run(
            argv,
            env={**registry_environment(), **given, **self.variables},
            cwd=place,
            log=log,
            timeout=timeout,
        )
        doing = f"{change.short}: {shlex.join(argv)}"
        if output.timed_out:
            raise MachineError(f"{doing}: not done after {timeout:.0f} s", where=log)
        if output.code == TRY_AGAIN:
            raise MachineError(
                f"{doing}: ended with {TRY_AGAIN}: the machine failed, not the commit", where=log
            )
        if output.code != 0:
            lines = [line.strip() for line in output.text.splitlines() if line.strip()]
            ended = f"signal {-output.code}" if output.code < 0 else f"exit code {output.code}"
            last = lines[-1] if lines else "no output"
            raise BuildError(f"{doing}: ended with {ended}: {last}", where=log, output=last)

    def _script(self) -> str:
        """Digest of the program, where it is a file of the user: changed, it makes other environments."""
        program = Path(shlex.split(self.template)[0])
        return text_digest(program.read_bytes()) if program.is_absolute() and program.is_file() else ""


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
