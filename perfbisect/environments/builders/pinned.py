"""Builder ``pinned:PACKAGE``: a Python package over the engine that each commit pins (vLLM-Omni on vLLM).

Each commit's tree is a thin layer, so that commits with different pins can be compared in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from perfbisect.changes.pins import DOCKERFILE, Pins
from perfbisect.common.quantities import counted
from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment, Refusal
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.cached import (
    LAYER,
    BuildContext,
    CachedBuilder,
    CommitBuilder,
    LayerBuilder,
    compile_files,
)
from perfbisect.environments.builders.release import add_alias, site_packages, write_metadata
from perfbisect.environments.builders.wheel import (
    CPU,
    CUDA,
    ReleaseWheels,
    allowed_variants,
    machine_cuda,
)
from perfbisect.environments.builders.wheel_index import WheelIndex, WheelLookup
from perfbisect.environments.cache import CheckedEnvironment, variables
from perfbisect.environments.health import check_version, locate_engine
from perfbisect.environments.packages import engine, package
from perfbisect.environments.source_tree import DeclaredBase, declared_bases, sync_tree, version_at
from perfbisect.environments.spec import Spec
from perfbisect.errors import BuildError
from perfbisect.model.change import Change


class PinnedBaseBuilder(CachedBuilder):
    """Builds the engine that a commit pins: a ``release``, or a commit from a wheel index."""

    name = "pinned base"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        super().__init__(spec, context, package(spec.option("release", "vllm")))
        template = spec.index_url(spec.options["wheel"]) if "wheel" in spec.options else ""
        self.index = WheelIndex(template, self.package.distribution, self.python, optional=context.is_plan)
        variant = spec.option("variant")
        self.variants = allowed_variants(template, variant, context.machine) if template else ("",)
        self.releases = ReleaseWheels(self.package, variant, self.python, "", context)
        self.declared: dict[str, DeclaredBase] = {}

    def refuses(self, change: Change) -> Refusal | None:
        pins, name = self.declared[change.id].pins, self.package.name
        if pins is None:
            return Refusal(f"it has no {DOCKERFILE}, which names its {name}")
        if pins.kind == "unknown":
            return Refusal(f"its {DOCKERFILE} names no {name} of a known form")
        if not pins.commit:
            return self.releases.refusal(pins.release)
        short = pins.commit[:12]
        if not self.index.template:
            reason = f"it needs the wheel of {name} commit {short}: add wheel=URL with {{sha}} in it"
            return Refusal(reason)
        lookup = self._wheel(pins.commit)[1]
        return Refusal(f"no wheel of {short}: {lookup.reason}") if lookup.state == "hole" else None

    def key_parts(self, change: Change) -> tuple[object, ...]:
        declared, pins = self.declared[change.id], self._pins(change)
        source: tuple[str, ...] = ("release", pins.release, *self.releases.key_parts(pins.release))
        if pins.commit:
            source = (self.index.template, pins.commit, self._wheel(pins.commit)[0])
        replaced = [(package.name, package.version) for package in pins.packages]
        return (source, replaced, declared.requirements, *self.install_parts())

    def label(self, change: Change) -> str:
        return f"{self.package.name} {self.declared[change.id].group}"

    def claim(self, environment: Environment, change: Change) -> Environment:
        del change
        return environment  # its engine is not the change

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        pins, engine = self._pins(change), self.package
        if pins.commit:
            variant = self._wheel(pins.commit)[0]
            requirements = self.index.requirements(pins.commit, variant)
        else:
            requirements, variant = self.releases.requirements(pins.release)
        interpreter = self.create_venv(build, staging, requirements, variant)
        if declared := self.declared[change.id].requirements:
            file = staging / "requirements.txt"
            file.write_text("".join(f"{line}\n" for line in declared))
            uv.install(build, interpreter, ["-r", str(file)], engine, folder=staging)
        replaced = _replaced(pins, uv.list_packages(build, interpreter))
        if replaced:
            uv.install(build, interpreter, replaced, engine, folder=staging)
        if engine.alias is not None and not pins.commit:
            add_alias(site_packages(staging / "venv"), *engine.alias, pins.release)
        return {"pin": pins.text, "replaced": replaced, **self.limits.facts()}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        pins, group = self._pins(change), self.declared[change.id].group
        found = self.import_venv(build, folder, group)
        said = found.reported_commit
        if not pins.commit:
            check_version(build, found, pins.release, group)
        elif said and not pins.commit.startswith(said):
            message = f"the wheel of {self.package.name} {pins.commit[:12]} says it is commit {said}"
            raise BuildError(message, where=build.log)
        return found.checked(pins.commit, uv.list_packages(build, found.interpreter), {})

    def _pins(self, change: Change) -> Pins:
        pins = self.declared[change.id].pins
        assert pins is not None  # else it is refused
        return pins

    def _wheel(self, sha: str) -> tuple[str, WheelLookup]:
        """The variant of which the index has the commit's wheel, and that wheel; or why it has none."""
        variant, _ = self.index.choose_variant(self.variants, (sha,))
        return variant, self.index.find((sha,), variant)[sha]


def _replaced(pins: Pins, packages: Iterable[str]) -> list[str]:
    """Packages that the image replaces and that are installed here: a CPU has no CUDA libraries."""
    present = {canonicalize_name(line.partition("==")[0]) for line in packages}
    return [
        f"{package.name}=={package.version}"
        for package in pins.packages
        if package.version and canonicalize_name(package.name) in present
    ]


class PinnedBuilder(LayerBuilder, CommitBuilder):
    """Builds commits of a package; ``platform`` names the requirements file."""

    name = "pinned"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        if not spec.argument.replace(".", "_").isidentifier():
            raise spec.error(f"{spec.argument!r} is no package", "name what is imported: pinned:vllm_omni")
        super().__init__(spec, context, engine(spec.argument))
        self.platform = spec.option("platform") or (CUDA if machine_cuda(context.machine) else CPU)
        self.bases = PinnedBaseBuilder(spec, context.here)

    def base(self, change: Change) -> tuple[Builder, Change]:
        return self.bases, change

    def look_up(self, shas: Collection[str]) -> None:
        super().look_up(shas)
        self.bases.declared |= declared_bases(self.repository, shas, self.platform)

    def group(self, change: Change) -> str:
        if change.kind != "commit":
            return ""
        self.prepare((change,))
        return self.bases.label(change) if self.bases.declared[change.id].group else ""

    def refuses(self, change: Change) -> Refusal | None:
        return super().refuses(change) or self.bases.refuses(change)

    def key_parts(self, change: Change) -> tuple[object, ...]:
        return (self.bases.key(change), self.trees[change.id], self.package.module)

    def make(self, build: BuildRun, change: Change, staging: Path) -> Mapping[str, Any]:
        """Write the commit's package, and its version as a build does: in a file and as metadata."""
        base, layer = self.base_environment(build, change), staging / LAYER
        target, version = layer / self.package.folder, version_at(self.repository, change.id)
        written = sync_tree(target, self.repository, change.id, self.package.folder).written
        if not (target / "_version.py").exists():
            (target / "_version.py").write_text(_version_file(version))
        metadata = layer / f"{self.package.name.replace('-', '_')}-{version}.dist-info"
        write_metadata(metadata, self.package.name, version)
        compile_files(build, base.interpreter, target, (*written, "_version.py"))
        return {}

    def check(self, build: BuildRun, change: Change, folder: Path) -> CheckedEnvironment:
        base, layer = self.base_environment(build, change), folder / LAYER
        found = self.import_layer(build, change, base, folder)
        module = self.bases.package.module
        below = locate_engine(build, base.interpreter, module, variables(folder, str(layer)))
        if below.file != base.engine_file:
            raise BuildError(
                f"{change.short}: {module} would come from {below.file or 'nowhere'}, not from "
                f"{base.engine_file}",
                where=build.log,
            )
        facts = {
            "pin": base.facts["pin"],
            "replaced": base.facts["replaced"],
            "below": {"key": base.key, "version": base.engine_version, "commit": base.engine_commit},
            "tree": self.trees[change.id],
        }
        checked = found.checked(change.id, base.facts["packages"], facts, layer)
        return replace(checked, engine_version=found.version or version_at(self.repository, change.id))

    def notes(self) -> tuple[str, ...]:
        images: dict[str, str] = {}
        groups: Counter[str] = Counter()
        for sha, declared in self.bases.declared.items():
            groups.update([declared.group] if declared.group else [])
            pins = declared.pins
            if pins and not pins.commit and pins.tag.removeprefix("v") != pins.release:
                images.setdefault(
                    pins.tag,
                    f"the image of {sha[:12]} is {pins.tag}; installed is the release {pins.release}",
                )
        shares = ", ".join(f"{group} under {counted(count, 'commit')}" for group, count in groups.items())
        pinned = f"{self.bases.package.name} as {DOCKERFILE} of each commit pins it: {shares}"
        return (pinned, *images.values(), *self.bases.releases.notes(), *self.bases.index.notes())


def _version_file(version: str) -> str:
    """The version file that setuptools-scm writes in a build."""
    parts = tuple(int(part) if part.isdigit() else part for part in version.replace("+", ".").split("."))
    return (
        f"__version__ = version = {version!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        "__commit_id__ = commit_id = None\n"
    )
