"""A virtual environment of our own making: created, filled, looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfbisect.environments import uv
from perfbisect.environments.base import Built, variables
from perfbisect.environments.health import Health, health, inside
from perfbisect.environments.keys import text_digest
from perfbisect.environments.packages import Package
from perfbisect.errors import BuildError

PACKAGES_FILE = "packages.txt"


def fill(
    staging: Path,
    requirements: Sequence[str],
    *,
    package: Package,
    limits: uv.Limits,
    python: str,
    log: Path,
    timeout: float,
    torch_backend: str = "",
) -> Path:
    """``staging/venv`` with requirements and their dependencies; returns its interpreter.

    What is installed is written to ``staging/packages.txt``.

    :raises BuildError: the requirements cannot be met.
    :raises MachineError: the registry cannot be reached, or the disk is full.
    """
    interpreter = uv.create(
        staging / "venv", python=python or str(uv.base_python()), log=log, timeout=timeout
    )
    uv.install(
        interpreter,
        requirements,
        limits=limits,
        drop=package.drop,
        torch_backend=torch_backend or package.torch_backend,
        folder=staging,
        log=log,
        timeout=timeout,
    )
    (staging / PACKAGES_FILE).write_text(uv.listed(interpreter, log=log))
    return interpreter


def look(
    folder: Path, package: Package, *, what: str, log: Path, timeout: float, interpreter: Path | None = None
) -> Health:
    """What an environment imports as its engine, which must be its own.

    :raises BuildError: it does not import, or from elsewhere.
    """
    found = health(
        interpreter or folder / "venv" / "bin" / "python",
        package.module,
        env=variables(folder),
        log=log,
        what=what,
        timeout=timeout,
    )
    if not inside(found.file, folder):
        raise BuildError(f"{what}: imported {package.module} from {found.file}, not from {folder}", where=log)
    return found


def as_built(
    folder: Path, found: Health, commit: str, facts: Mapping[str, Any], interpreter: Path | None = None
) -> Built:
    """A looked-at environment as it is stamped, with the packages that were written down as it was filled."""
    packages = (folder / PACKAGES_FILE).read_text()
    return Built(
        interpreter or folder / "venv" / "bin" / "python",
        found.version,
        commit,
        found.file,
        text_digest(packages),
        {**found.facts, "packages": packages.splitlines(), **facts},
    )


def site_packages(venv: Path) -> Path:
    """:raises BuildError: it is no virtual environment."""
    found = sorted(venv.glob("lib/python3*/site-packages"))
    if not found:
        raise BuildError(f"{venv} has no site-packages")
    return found[0]
