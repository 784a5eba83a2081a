"""Builder ``wheel:URL``: wheels that a project's CI built for each commit, from an index.

A wheel is installed by its own address, so ``--exclude-newer`` does not apply to it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import BuildContext, CommitBuilder
from perfbisect.environments.builders.wheel_index import WheelIndex, WheelLookup
from perfbisect.environments.cache import CheckedEnvironment
from perfbisect.environments.packages import EnginePackage
from perfbisect.environments.source_tree import declared_numbers
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.machine.devices import Smi
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file

CPU, CUDA, ROCM = "cpu", "cuda", "rocm"
DEFAULT = "default"
"""The wheel at the commit's own address, whatever it was built for."""

CUDA_BUILDS: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
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
    return next((names for least, names in CUDA_BUILDS if cuda >= least), (CPU,))


def driver_cuda(smi: Smi | None = None) -> tuple[int, int] | None:
    """CUDA version of this machine's driver; None without a working driver."""
    command = (smi or Smi()).command
    return None if command is None else _reported_cuda(command)


def machine_cuda(machine: str) -> tuple[int, int] | None:
    """CUDA version of the driver of a kind of machine, empty: this one; None without CUDA.

    Without a driver here, one of the kind ``cuda`` is taken to have the newest.
    """
    if machine not in ("", CUDA):
        return None
    return driver_cuda() or (CUDA_BUILDS[0][0] if machine else None)


@functools.cache
def _reported_cuda(command: str) -> tuple[int, int] | None:
    report = Smi(command, timeout_s=60.0).text("-q")
    version = re.search(r"^CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", report, re.MULTILINE)
    return (int(version[1]), int(version[2])) if version else None


def rocm_variant() -> str:
    """Build for this machine's ROCm, as vLLM's ``setup.py`` names it: 7.2.3 is ``rocm723``; empty without."""
    named, command = os.environ.get("ROCM_PATH"), shutil.which("rocm-smi")
    folders = [Path(named)] if named else Path(command).resolve().parents if command else ()
    files = (folder / ".info" / "version" for folder in folders)
    version = next((re.match(r"[\d.]+", file.read_text()) for file in files if file.is_file()), None)
    return f"rocm{version[0].replace('.', '')}" if version else ""


def cuda_refusal(needed: int | None, driver: tuple[int, int] | None) -> str:
    """Why a build for a major CUDA version does not run with a driver; empty if it does or may."""
    if needed is None or driver is None or needed <= driver[0]:
        return ""
    return f"built for CUDA {needed}, and the driver is for CUDA {driver[0]}.{driver[1]}"


class ReleaseWheels:
    """Wheels of releases of a variant, for machines on which the registry's do not run.

    ``template``: address of the index, with ``{version}``.
    """

    def __init__(
        self, package: EnginePackage, variant: str, python: str, template: str, context: BuildContext
    ) -> None:
        self.package = package
        self.variant = variant
        template = (template or package.release_index).replace("{version}", "{sha}")
        self.index = WheelIndex(template, package.distribution, python, optional=context.is_plan)
        self.driver = None if variant or not package.release_cuda else machine_cuda(context.machine)
        self.used: set[str] = set()
        """Variants other than the registry's that were chosen."""

    def find(self, version: str) -> tuple[str, WheelLookup] | None:
        """The variant of a release's wheel, and that wheel; None: the registry's own."""
        wanted: tuple[str, ...] = (self.variant,)
        if not self.variant:
            if not cuda_refusal(self.package.cuda_of(version), self.driver):
                return None
            wanted = variants(self.driver)
        elif self.variant == DEFAULT:
            return None
        variant, is_there = self.index.choose_variant(wanted, (version,))
        if is_there:
            self.used.add(variant)
        return variant, self.index.find((version,), variant)[version]

    def refusal(self, version: str) -> Refusal | None:
        """Why there is no wheel of a release that runs here."""
        if self.variant not in ("", DEFAULT) and not self.index.template:
            reason = f"no index of releases of {self.package.name} is known, which variant= needs"
            return Refusal(reason, error=True)
        found = self.find(version)
        if found is None or found[1].state != "hole":
            return None
        name = f"{self.package.name} {version}"
        why = cuda_refusal(self.package.cuda_of(version), self.driver)
        if why:
            return Refusal(f"the registry's wheel of {name} is {why}; no other: {found[1].reason}")
        return Refusal(f"no wheel of {name} of the variant {self.variant}: {found[1].reason}")

    def requirements(self, version: str) -> tuple[list[str], str]:
        """What to install of a release, and its variant; empty: the registry's own."""
        found = self.find(version)
        if found is None:
            return [f"{self.package.name}=={version}"], ""
        return self.index.requirements(version, found[0]), found[0]

    def key_parts(self, version: str) -> tuple[str, ...]:
        found = self.find(version)
        return () if found is None else (self.index.template, found[0])

    def notes(self) -> tuple[str, ...]:
        why = "" if self.driver is None else f", for the driver's CUDA {self.driver[0]}.{self.driver[1]}"
        used = (
            f"releases of {self.package.name} are of the variant {name}{why}" for name in sorted(self.used)
        )
        return (*used, *self.index.notes())


def allowed_variants(template: str, variant: str, machine: str = "") -> tuple[str, ...]:
    """Builds that may be taken, best first: the user's, or what a kind of machine runs."""
    if variant:
        return ("",) if variant == DEFAULT else (variant,)
    driver = machine_cuda(machine)
    if driver is None and machine in ("", ROCM) and (rocm := rocm_variant()):
        return (rocm,)
    if machine == ROCM:  # which, is not known here
        return ("",)
    runs = variants(driver)
    return runs if "{variant}" in template else (*runs, "")


_UNPACKED = 3
"""Unpacked size of a wheel of compiled files, as a multiple of its size."""


class WheelBuilder(CommitBuilder):
    """Builds commits; ``variants`` are the builds of a wheel that may be taken, best first."""

    name = "wheel"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        super().__init__(spec, context, folder="", whole=False)
        template = spec.index_url(spec.argument)
        self.index = WheelIndex(template, self.package.distribution, self.python, optional=context.is_plan)
        self.machine = context.machine
        self.variants = allowed_variants(template, spec.option("variant"), context.machine)
        self.variant: str | None = None
        is_default = spec.option("variant") == DEFAULT
        has_cuda = not is_default and self.package.cuda_pattern is not None
        self._driver = machine_cuda(context.machine) if has_cuda else None
        self._cuda: dict[str, int] = {}
        self._lookups: dict[str, WheelLookup] = {}

    def look_up(self, shas: Collection[str]) -> None:
        """Choose the variant, once, and look up the wheel of every commit."""
        if self.variant is None:
            ends = list(dict.fromkeys((next(iter(shas)), list(shas)[-1])))
            self.variant = self._choose_variant(ends)
        self._lookups |= self.index.find(shas, self.variant)
        if not self.variant and self._driver is not None and self.package.cuda_pattern is not None:
            self._cuda |= declared_numbers(self.repository, shas, *self.package.cuda_pattern)
        super().look_up(shas)

    def refuses(self, change: Change) -> Refusal | None:
        refusal = super().refuses(change)
        if refusal is not None:
            return refusal
        lookup = self._lookups[change.id]
        if lookup.state == "hole":
            return Refusal(f"no wheel: {lookup.reason}")
        why = cuda_refusal(self._cuda.get(change.id), self._driver)
        return Refusal(f"the wheel at its address is {why}") if why else None

    def key_parts(self, change: Change) -> tuple[object, ...]:
        return (self.index.template, self.variant, self.trees[change.id], *self.install_parts())

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        wheel, variant = self._wheel(change), self.variant or ""
        self.create_venv(build, staging, self.index.requirements(change.id, variant), variant)
        return {"wheel": wheel.url, "variant": variant or DEFAULT, **self.limits.facts()}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        what = f"{change.short} ({self._wheel(change).file})"
        return self.check_commit(build, change, folder, inside=self.package.folder, what=what)

    def notes(self) -> tuple[str, ...]:
        notes = []
        others = ", ".join(name for name in self.variants if name and name != self.variant)
        if self.variant:
            runs = f" (it also runs {others}: variant=NAME)" if others else ""
            where = f"a {self.machine} machine" if self.machine else "this machine"
            notes.append(f"wheels of the variant {self.variant}, which {where} runs{runs}")
        elif self.variant is not None and others:
            notes.append(
                f"the index does not have {others}, which fits the machine, for both ends: wheels are those "
                "at the commit's own address, whatever they were built for"
            )
        notes += self.index.notes()
        for state, words in (("hole", "has no wheel for"), ("silent", "did not answer for")):
            if state == "silent" and self.index.no_answer is not None:
                continue
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
