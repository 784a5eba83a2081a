"""Builder ``wheel:URL``: wheels that a project's CI built for each commit, from an index.

A wheel is installed by its own address, so ``--exclude-newer`` does not apply to it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    BuildContext,
    CachedBuilder,
    CommitTree,
    CommitTrees,
    Installation,
    Recipe,
    median_bytes,
)
from perfbisect.environments.builders.wheel_index import WheelIndex, WheelLookup
from perfbisect.environments.kept import KeptArtifacts, total_bytes
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


def platform_of(machine: str) -> str:
    """The platform of a kind of machine, empty: this one, which is a CPU without a driver."""
    return CUDA if machine_cuda(machine) else machine or CPU


@functools.cache
def _reported_cuda(command: str) -> tuple[int, int] | None:
    report = Smi(command, timeout_s=60.0).text("-q")
    version = re.search(r"^CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", report, re.MULTILINE)
    return (int(version[1]), int(version[2])) if version else None


def cuda_refusal(needed: int | None, driver: tuple[int, int] | None) -> str:
    """Why a build for a major CUDA version does not run with a driver; empty if it does or may."""
    if needed is None or driver is None or needed <= driver[0]:
        return ""
    return f"built for CUDA {needed}, and the driver is for CUDA {driver[0]}.{driver[1]}"


def wheel_index(
    installation: Installation, template: str, context: BuildContext, variants: tuple[str, ...]
) -> WheelIndex:
    """The index at an address, of an installation's package; ``template`` may be empty."""
    distribution = installation.package.distribution
    kept = KeptArtifacts(context.cache.path)
    return WheelIndex(
        template, distribution, installation.python, variants, optional=context.is_plan, kept=kept
    )


class ReleaseWheels:
    """Wheels of releases of a variant, for machines on which the registry's do not run.

    ``template``: address of the index, with ``{version}``.
    """

    def __init__(
        self, installation: Installation, variant: str, template: str, context: BuildContext
    ) -> None:
        self.installation = installation
        self.package = package = installation.package
        self.variant = variant
        template = (template or package.release_index).replace("{version}", "{sha}")
        self.driver = None if variant or not package.release_cuda else machine_cuda(context.machine)
        wanted = (variant,) if variant else variants(self.driver)
        self.index = wheel_index(installation, template, context, wanted)
        self.used: set[str] = set()
        """Variants other than the registry's that were chosen."""

    def find(self, version: str) -> tuple[str, WheelLookup] | None:
        """The variant of a release's wheel, and that wheel; None: the registry's own."""
        if not self.variant:
            if not cuda_refusal(self.package.cuda_of(version), self.driver):
                return None
        elif self.variant == DEFAULT:
            return None
        variant, is_there = self.index.choose_variant((version,))
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

    def requirements(self, version: str, build: BuildRun, staging: Path) -> tuple[list[str], str]:
        """What to install of a release, and its variant; empty: the registry's own."""
        found = self.find(version)
        if found is None:
            return [f"{self.package.name}=={version}"], ""
        return self.index.requirements(version, found[0], build, staging), found[0]

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
    if driver is None and machine in ("", ROCM):
        named, command = os.environ.get("ROCM_PATH"), shutil.which("rocm-smi")
        folders = [Path(named)] if named else Path(command).resolve().parents if command else ()
        files = (folder / ".info" / "version" for folder in folders)
        version = next((re.match(r"[\d.]+", file.read_text()) for file in files if file.is_file()), None)
        if version:
            # As vLLM's setup.py names it: ROCm 7.2.3 is rocm723.
            return (f"rocm{version[0].replace('.', '')}",)
    if machine == ROCM:
        # The ROCm version of the machine that is planned for is not known here.
        return ("",)
    runs = variants(driver)
    return runs if "{variant}" in template else (*runs, "")


_UNPACKED = 3
"""Unpacked size of a wheel of compiled files, as a multiple of its size."""


@dataclass(frozen=True)
class WheelSettings:
    """``driver``: its CUDA, where wheels need one.

    ``remembered``: folder of the variants that were chosen.
    """

    installation: Installation
    trees: CommitTrees
    index: WheelIndex
    driver: tuple[int, int] | None
    machine: str
    remembered: Path


@dataclass(frozen=True)
class CommitWheel(CommitTree):
    """A commit's wheel of a variant. ``cuda``: major version that the commit declares, if it counts."""

    wheel: WheelLookup
    variant: str
    cuda: int | None


def builder(spec: Spec, context: BuildContext) -> CachedBuilder[WheelSettings, CommitWheel]:
    """The builder of the wheels of an index."""
    installation = Installation.of(spec, context)
    trees = CommitTrees(context.required_repository(spec), "", whole=False)
    client, variant = trees.client(spec), spec.option("variant")
    template = spec.index_url(spec.argument)
    has_cuda = variant != DEFAULT and installation.package.cuda_pattern is not None
    settings = WheelSettings(
        installation,
        trees,
        wheel_index(installation, template, context, allowed_variants(template, variant, context.machine)),
        machine_cuda(context.machine) if has_cuda else None,
        context.machine,
        context.cache.path / "indices",
    )
    return CachedBuilder(RECIPE, spec.text, context, settings, client=client)


def look_up(
    settings: WheelSettings, changes: Sequence[Change], known: Mapping[str, CommitWheel]
) -> dict[str, CommitWheel]:
    """Choose the variant for both ends, once, and look up the wheel of every commit."""
    shas, index = [change.id for change in changes], settings.index
    variant = variant_of(known)
    if variant is None and len(index.variants) == 1:
        (variant,) = index.variants
    if variant is None:
        ends = list(dict.fromkeys((shas[0], shas[-1])))
        name = environment_key(index.template, settings.installation.package.name, index.variants, ends)
        # A resumed job must get its old keys, even if the index has a better variant by now.
        remembered = settings.remembered / name
        variant = remembered.read_text().strip() if remembered.is_file() else None
        if variant not in index.variants:
            variant, is_there = index.choose_variant(ends)
            if is_there:
                remembered.parent.mkdir(parents=True, exist_ok=True)
                replace_file(remembered, f"{variant}\n")
    wheels = index.find(shas, variant)
    cuda: Mapping[str, int] = {}
    pattern = settings.installation.package.cuda_pattern
    if not variant and settings.driver is not None and pattern is not None:
        # Two git processes read the file of all commits.
        path, expression = pattern
        repository = settings.trees.repository
        blobs = repository.tree_ids(shas, path)
        contents = repository.contents(sorted({blob for blob in blobs.values() if blob is not None}))
        texts = ((blob, re.search(expression, data.decode(errors="replace"))) for blob, data in contents)
        numbers = {blob: int(found[1]) for blob, found in texts if found}
        cuda = {sha: numbers[blob] for sha, blob in blobs.items() if blob in numbers}
    trees = settings.trees.look_up(changes)
    return {
        change.id: CommitWheel(change, trees[change.id], wheels[change.id], variant, cuda.get(change.id))
        for change in changes
    }


def variant_of(known: Mapping[str, CommitWheel]) -> str | None:
    """The variant that was chosen for all commits; None before the first lookup."""
    return next((commit.variant for commit in known.values()), None)


def refuses(settings: WheelSettings, commit: CommitWheel) -> Refusal | None:
    refusal = settings.trees.refuses(commit)
    if refusal is not None:
        return refusal
    if commit.wheel.state == "hole":
        return Refusal(f"no wheel: {commit.wheel.reason}")
    why = cuda_refusal(commit.cuda, settings.driver)
    return Refusal(f"the wheel at its address is {why}") if why else None


def key_parts(settings: WheelSettings, commit: CommitWheel) -> tuple[object, ...]:
    return (settings.index.template, commit.variant, commit.tree, *settings.installation.key_parts())


def make(settings: WheelSettings, commit: CommitWheel, build: BuildRun, staging: Path) -> Mapping[str, Any]:
    variant = commit.variant
    requirements = settings.index.requirements(commit.change.id, variant, build, staging)
    wheel = _wheel(settings, commit)
    settings.installation.create_venv(build, staging, requirements, variant)
    kept = {"kept": wheel.kept.digest} if wheel.kept else {}
    facts = {"wheel": wheel.url, "variant": variant or DEFAULT, **kept}
    return {**facts, **settings.installation.limits.facts()}


def check(settings: WheelSettings, commit: CommitWheel, build: BuildRun, folder: Path) -> Environment:
    what = f"{commit.change.short} ({_wheel(settings, commit).file})"
    return settings.trees.check(settings.installation, build, folder, commit.change, what=what)


def _wheel(settings: WheelSettings, commit: CommitWheel) -> WheelLookup:
    """A commit's wheel; an index that did not answer is asked again."""
    lookup = settings.index.find((commit.change.id,), commit.variant)[commit.change.id]
    if lookup.state == "hole":
        raise BuildError(f"{commit.change.short}: no wheel: {lookup.reason}")
    return lookup


def disk(settings: WheelSettings, commit: CommitWheel, stamps: Sequence[Environment]) -> int | None:
    url, kept = commit.wheel.url, commit.wheel.kept
    size = total_bytes([kept]) if kept else settings.index.size(url) if url and not stamps else None
    return median_bytes(stamps) if size is None else size * _UNPACKED


def notes(
    settings: WheelSettings, known: Mapping[str, CommitWheel], _stamps: Sequence[Environment]
) -> tuple[str, ...]:
    notes = []
    variant = variant_of(known)
    others = ", ".join(name for name in settings.index.variants if name and name != variant)
    if variant:
        runs = f" (it also runs {others}: variant=NAME)" if others else ""
        where = f"a {settings.machine} machine" if settings.machine else "this machine"
        notes.append(f"wheels of the variant {variant}, which {where} runs{runs}")
    elif variant is not None and others:
        notes.append(
            f"the index does not have {others}, which fits the machine, for both ends: wheels are those "
            "at the commit's own address, whatever they were built for"
        )
    notes += settings.index.notes()
    kept = [commit.wheel.problem for commit in known.values() if commit.wheel.kept]
    if kept:
        said = ", ".join(sorted(set(kept)))
        notes.append(f"{len(kept)} of {len(known)} commits have wheels that were kept; the index: {said}")
    for state, words in (("hole", "has no wheel for"), ("silent", "did not answer for")):
        if state == "silent" and settings.index.no_answer is not None:
            continue
        problems: dict[str, list[str]] = {}
        for sha, commit in known.items():
            if commit.wheel.state == state:
                problems.setdefault(commit.wheel.problem, []).append(sha[:12])
        if problems:
            named = "; ".join(f"{', '.join(shas)} ({problem})" for problem, shas in problems.items())
            count = sum(map(len, problems.values()))
            notes.append(f"the index {words} {count} of {len(known)} commits: {named}")
    return tuple(notes)


RECIPE = Recipe(
    name="wheel",
    look_up=look_up,
    refuses=refuses,
    key_parts=key_parts,
    make=make,
    check=check,
    artifact=lambda settings, commit: settings.index.artifact(commit.change.id, commit.variant),
    disk=disk,
    notes=notes,
)
