"""Builder ``wheel:URL``: wheels that a project's CI built for each commit, from an index.

A wheel is installed by its own address, so ``--exclude-newer`` does not apply to it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import BuildContext, CommitBuilder
from perfbisect.environments.builders.wheel_index import WheelIndex, WheelLookup
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.packages import TORCH_BACKEND
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file

CPU = "cpu"
DEFAULT = "default"
"""The wheel at the commit's own address, whatever it was built for."""

_TABLE: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
    ((13, 0), ("cu130", "cu129", "cu128", "cu126")),
    ((12, 0), ("cu129", "cu128", "cu126", "cu124", "cu121")),
    ((11, 8), ("cu118",)),
)
"""Minimum CUDA version of the driver -> builds that run on it, best first.

Builds of an earlier major version run, and of the same one any (CUDA minor version compatibility).
"""


def variants(cuda: tuple[int, int] | None) -> tuple[str, ...]:
    """Builds that a machine can run, best first; ``cuda``: of its driver, None without one."""
    if cuda is None:
        return (CPU,)
    return next((names for least, names in _TABLE if cuda >= least), (CPU,))


def driver_cuda() -> tuple[int, int] | None:
    """CUDA version of this machine's driver; None without a working driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "-q"], capture_output=True, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"^CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", done.stdout, re.MULTILINE)
    return (int(version[1]), int(version[2])) if version and done.returncode == 0 else None


def allowed_variants(template: str, variant: str) -> tuple[str, ...]:
    """Builds that may be taken, best first: the user's, or what this machine runs."""
    if variant:
        return ("",) if variant == DEFAULT else (variant,)
    runs = variants(driver_cuda())
    return runs if "{variant}" in template else (*runs, "")


def torch_backend(variant: str) -> str:
    return variant if TORCH_BACKEND.match(variant) else ""


_UNPACKED = 3
"""Unpacked size of a wheel of compiled files, as a multiple of its size."""


class WheelBuilder(CommitBuilder):
    """Builds commits; ``variants`` are the builds of a wheel that may be taken, best first."""

    name = "wheel"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        super().__init__(spec, context, folder="", whole=False)
        self.index = WheelIndex(spec.index_url(spec.argument), self.package.distribution, self.python)
        self.variants = allowed_variants(self.index.template, spec.option("variant"))
        self.variant: str | None = None
        self._lookups: dict[str, WheelLookup] = {}

    def look_up(self, shas: Collection[str]) -> None:
        """Choose the variant, once, and look up the wheel of every commit."""
        if self.variant is None:
            ends = list(dict.fromkeys((next(iter(shas)), list(shas)[-1])))
            self.variant = self._choose_variant(ends)
        self._lookups |= self.index.find(shas, self.variant)
        super().look_up(shas)

    def refuses(self, change: Change) -> Refusal | None:
        refusal = super().refuses(change)
        if refusal is not None:
            return refusal
        lookup = self._lookups[change.id]
        return Refusal(f"no wheel: {lookup.reason}") if lookup.state == "hole" else None

    def key_parts(self, change: Change) -> tuple[object, ...]:
        return (self.index.template, self.variant, self.trees[change.id], *self.install_parts())

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        wheel, variant = self._wheel(change), self.variant or ""
        uv.create_venv(
            build, staging, [f"{self.package.name} @ {wheel.url}"], self.package,
            python=self.python, torch_backend=torch_backend(variant),
        )  # fmt: skip
        return {"wheel": wheel.url, "variant": variant or DEFAULT, **self.limits.facts()}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        what = f"{change.short} ({self._wheel(change).file})"
        return self.check_commit(build, change, folder, inside=self.package.folder, what=what)

    def notes(self) -> tuple[str, ...]:
        notes = []
        others = ", ".join(name for name in self.variants if name and name != self.variant)
        if self.variant:
            runs = f" (it also runs {others}: variant=NAME)" if others else ""
            notes.append(f"wheels of the variant {self.variant}, which this machine runs{runs}")
        elif self.variant is not None and others:
            notes.append(
                f"the index does not have {others}, which this machine runs, for both ends: wheels are those "
                "at the commit's own address, whatever they were built for"
            )
        for state, words in (("hole", "has no wheel for"), ("silent", "did not answer for")):
            problems: dict[str, list[str]] = {}
            for sha, lookup in self._lookups.items():
                if lookup.state == state:
                    problems.setdefault(lookup.problem, []).append(sha[:12])
            if problems:
                named = "; ".join(f"{', '.join(shas)} ({problem})" for problem, shas in problems.items())
                count = sum(map(len, problems.values()))
                notes.append(f"the index {words} {count} of {len(self._lookups)} commits: {named}")
        return tuple(notes)

    def bytes_of(self, change: Change) -> int | None:
        url = self._lookups[change.id].url
        size = self.index.size(url) if url and not self.stamps() else None
        return super().bytes_of(change) if size is None else size * _UNPACKED

    def _wheel(self, change: Change) -> WheelLookup:
        """A commit's wheel; an index that did not answer is asked again."""
        self._lookups |= self.index.find((change.id,), self.variant or "")
        lookup = self._lookups[change.id]
        if lookup.state == "hole":
            raise BuildError(f"{change.short}: no wheel: {lookup.reason}")
        return lookup

    def _choose_variant(self, ends: list[str]) -> str:
        """The variant of the index for both ends; remembered for the same ends."""
        if len(self.variants) == 1:
            return self.variants[0]
        name = environment_key(self.index.template, self.package.name, self.variants, ends)
        remembered = self.cache.path / "indices" / name
        if remembered.is_file() and (variant := remembered.read_text().strip()) in self.variants:
            return variant
        best, is_there = self.index.choose_variant(self.variants, ends)
        if is_there:
            remembered.parent.mkdir(parents=True, exist_ok=True)
            replace_file(remembered, f"{best}\n")
        return best
