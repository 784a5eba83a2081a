"""A change with packages swapped (``REV+pip:NAME==V``): the change's own environment, and a layer over it.

The layer is a folder with those packages, first on ``PYTHONPATH``. The environment below it stays as it is,
so both sides of a comparison differ in these packages and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfbisect.common.digests import environment_key, text_digest
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal, group_of
from perfbisect.environments.cache import (
    Built,
    Cabinet,
    as_environment,
    earlier,
    median_bytes,
    median_minutes,
    variables,
)
from perfbisect.environments.health import health
from perfbisect.environments.packages import backend_of
from perfbisect.environments.uv import interpreter_environment, run
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_LAYER = "layer"
_MINUTES = 0.2
_BYTES = 50_000_000
"""What the first layer is taken to cost; later ones cost what the first ones did."""

_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = ""
print(json.dumps(found))
"""


class SwapBuilder:
    """Any builder, and changes of it with packages swapped; other changes go through as they are.

    ``python``: of the environments below, as uv takes it; empty: our own.
    """

    def __init__(self, inner: Builder, cabinet: Cabinet, limits: uv.Limits, python: str = "") -> None:
        self.inner = inner
        self.name, self.spec = inner.name, inner.spec
        self.cabinet = cabinet
        self.limits = limits
        self.python = python
        self._found: dict[str, Refusal | None] = {}

    def group(self, change: Change) -> str:
        """What the change stands on, as the builder below tells it."""
        return group_of(self.inner, change.unswapped)

    def prepare(self, changes: Iterable[Change]) -> None:
        self.inner.prepare([change.unswapped for change in changes])

    def refuses(self, change: Change) -> Refusal | None:
        refusal = self.inner.refuses(change.unswapped)
        if refusal is not None:
            return refusal
        return next((why for pip in change.pips if (why := self._unknown(pip)) is not None), None)

    def key(self, change: Change) -> str:
        below = self.inner.key(change.unswapped)
        if not change.pips:
            return below
        return environment_key("swap/1", below, change.pips, self.limits.exclude_newer or "")

    def cached(self, change: Change) -> bool:
        below = self.inner.cached(change.unswapped)
        return below and (not change.pips or self.cabinet.stamp(self.key(change)) is not None)

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        below = self.inner.ensure(change.unswapped, log=log, timeout=timeout)
        if not change.pips:
            return below
        key = self.key(change)
        folder = self.cabinet.folder(key)
        path = ":".join(filter(None, (str(folder / _LAYER), below.env.get("PYTHONPATH", ""))))
        env = {**below.env, **variables(folder, path)}

        def make(staging: Path) -> None:
            for pip in change.pips:
                uv.lay(
                    staging / _LAYER,
                    pip,
                    python=str(below.interpreter),
                    limits=self.limits,
                    torch_backend=backend_of(pip),
                    log=log,
                    timeout=timeout,
                )
            _check_libraries(staging / _LAYER, change, log)

        def check(_: Path) -> Built:
            module = Path(below.engine_file).parent.name
            what = change.short
            found = health(below.interpreter, module, env=env, log=log, what=what, timeout=timeout)
            if found.file.resolve() != Path(below.engine_file).resolve():
                raise BuildError(
                    f"{what}: with the packages swapped, {module} comes from {found.file} instead of "
                    f"{below.engine_file}: the engine itself is the change's, never a package's",
                    where=log,
                )
            _check_versions(below.interpreter, env, change, log, timeout)
            packages = swapped(below.facts.get("packages", ()), change.pips)
            facts = {
                **below.facts,
                **found.facts,
                "packages": packages,
                "swapped": list(change.pips),
                "below": below.key,
            }
            digested = text_digest(below.packages_digest + "\n".join(packages))
            return Built(below.interpreter, found.version, below.engine_commit, found.file, digested, facts)

        stamp, seconds = self.cabinet.ensure(
            key, builder="swap", spec=self.spec, change=change.id, make=make, check=check, timeout=timeout
        )
        made = as_environment(stamp, folder, seconds=below.seconds + seconds)
        return replace(made, env=env, engine_commit=below.engine_commit)

    def client(self) -> Environment | None:
        return self.inner.client()

    def minutes(self, change: Change) -> float | None:
        below = self.inner.minutes(change.unswapped)
        if below is None or not change.pips or self.cached(change):
            return below
        each = median_minutes(earlier(self.cabinet, "swap", self.spec))
        return below + (_MINUTES if each is None else each)

    def notes(self) -> tuple[str, ...]:
        return self.inner.notes()

    def disk(self, changes: Iterable[Change]) -> int | None:
        asked = list(changes)
        below = self.inner.disk(dict.fromkeys(change.unswapped for change in asked))
        layers = {self.key(change) for change in asked if change.pips and not self.cached(change)}
        if below is None or not layers:
            return below
        each = median_bytes(earlier(self.cabinet, "swap", self.spec))
        return below + len(layers) * (_BYTES if each is None else each)

    def _unknown(self, pip: str) -> Refusal | None:
        """Why a package cannot be had, looked up once; None if it can."""
        if pip not in self._found:
            self._found[pip] = self._looked(pip)
        return self._found[pip]

    def _looked(self, pip: str) -> Refusal | None:
        log = self.cabinet.log(f"swap-{text_digest(pip)}")
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            uv.lay(
                log.parent / "nothing",
                pip,
                python=self.python or str(uv.base_python()),
                limits=self.limits,
                torch_backend=backend_of(pip),
                log=log,
                timeout=300.0,
                look_only=True,
            )
        except BuildError as error:
            return Refusal(f"{pip} cannot be had: {error.message}")
        return None


def swapped(packages: Sequence[str], pips: Sequence[str]) -> list[str]:
    """A list of ``name==version`` with some of them replaced or added, sorted."""
    names = {pip.partition("==")[0] for pip in pips}
    kept = [line for line in packages if canonicalize_name(re.split(r"[=@ ]", line)[0]) not in names]
    return sorted((*kept, *pips))


def _check_libraries(layer: Path, change: Change, log: Path) -> None:
    """:raises BuildError: a package is libraries alone, which others load by a path of their own."""
    for package in importlib.metadata.distributions(path=[str(layer)]):
        files = [layer / str(file) for file in package.files or ()]
        libraries = [file.name for file in files if file.name.startswith("lib") and ".so" in file.name]
        modules = [file for file in files if file.suffix == ".so" and not file.name.startswith("lib")]
        python = [file for file in files if file.suffix == ".py" and file.stat().st_size]
        if libraries and not modules and not python:
            raise BuildError(
                f"{change.short}: {package.name} is nothing but libraries ({', '.join(libraries[:3])}), "
                "which other packages load from their own folder: a layer does not take their place",
                where=log,
                next_step="pin it for the whole environment of one side instead, with --constraints",
            )


def _check_versions(
    interpreter: Path, env: dict[str, str], change: Change, log: Path, timeout: float
) -> None:
    """:raises BuildError: the interpreter finds another version of a package than was asked for."""
    names = [pip.partition("==")[0] for pip in change.pips]
    output = run(
        [str(interpreter), "-c", _VERSIONS, *names],
        env=interpreter_environment(interpreter, env),
        cwd=log.parent,
        log=log,
        timeout=timeout,
    )
    try:
        found = json.loads(output.text.splitlines()[-1])
    except (IndexError, ValueError):
        raise BuildError(f"{change.short}: {interpreter} does not tell its packages", where=log) from None
    for pip in change.pips:
        name, _, asked = pip.partition("==")
        if not _same(found[name], asked):
            raise BuildError(
                f"{change.short}: {name} is {found[name] or 'not there'}, {asked} was asked for", where=log
            )


def _same(found: str, asked: str) -> bool:
    """A local part counts if it was asked for."""
    try:
        there, wanted = Version(found), Version(asked)
    except InvalidVersion:
        return found == asked
    return there == wanted or (wanted.local is None and there.public == wanted.public)
