"""An interpreter that is there already, as the base of overlays."""

from __future__ import annotations

import functools
from pathlib import Path

from perfbisect.environments import Environment
from perfbisect.environments.base import Built, Cabinet, as_environment, variables
from perfbisect.environments.health import Probe, health, probe
from perfbisect.environments.keys import digest, text_digest
from perfbisect.environments.packages import Package
from perfbisect.environments.uv import freeze


class InterpreterBase:
    """Compiled files and dependencies for overlays, from a user's interpreter: read, never written."""

    def __init__(self, interpreter: Path, package: Package, cabinet: Cabinet) -> None:
        self.interpreter = interpreter
        self.package = package
        self.cabinet = cabinet
        self.what = str(interpreter)

    @functools.cached_property
    def packages(self) -> str:
        """What is installed in it."""
        return freeze(self.interpreter, log=self._log)

    @functools.cached_property
    def looked(self) -> Probe:
        return probe(self.interpreter, self.package.module, env={"PYTHONPATH": ""}, log=self._log)

    @functools.cached_property
    def _key(self) -> str:
        return digest(
            "interpreter/1",
            str(self.interpreter),
            self.looked.python,
            self.packages,
            self.package.module,
            _listing(self.looked.package_folder),
        )

    def key(self) -> str:
        return self._key

    def cached(self) -> bool:
        return True

    def minutes(self) -> float | None:
        return 0.0

    def disk(self) -> int | None:
        return 0

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, Probe, str]:
        """Interpreter, what it has, and its packages."""
        del log, timeout
        return self.interpreter, self.looked, self.packages

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        """The base without an overlay; None if it has no engine of its own.

        :raises BuildError: its engine does not import.
        """
        if not self.looked.file:
            return None

        def check(folder: Path) -> Built:
            found = health(
                self.interpreter,
                self.package.module,
                env=variables(folder),
                log=log,
                what=self.what,
                timeout=timeout,
            )
            facts = {**found.facts, "packages": self.packages.splitlines(), "base": self.what}
            return Built(
                self.interpreter, found.version, found.commit, found.file, text_digest(self.packages), facts
            )

        stamp, seconds = self.cabinet.ensure(
            self.key(),
            builder="existing",
            spec=f"existing:{self.interpreter}",
            change="",
            make=lambda _: None,
            check=check,
            timeout=timeout,
        )
        return as_environment(stamp, self.cabinet.folder(self.key()), seconds=seconds)

    @property
    def _log(self) -> Path:
        return self.cabinet.log(f"interpreter-{text_digest(str(self.interpreter))}")


def _listing(folder: Path | None) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a package's files: what tells that somebody has changed it in place."""
    if folder is None:
        return []
    found = []
    for file in sorted(folder.rglob("*")):
        if "__pycache__" not in file.parts and file.is_file():
            status = file.stat()
            found.append((str(file.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return found
