"""Builder ``pinned:PACKAGE``: a Python package over the engine that each commit pins (vLLM-Omni on vLLM).

There is one environment for each pin and set of requirements. Each commit's own tree is a thin layer over it,
first on the path, so that commits with different pins can be compared in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name

from perfbisect.changes.pins import DOCKERFILE, Pins
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.cached import (
    BuildContext,
    CommitBuilder,
    earlier_stamps,
    median_bytes,
    median_minutes,
    unknown_commits,
)
from perfbisect.environments.builders.overlay import write_tree
from perfbisect.environments.builders.release import add_alias, check_version, write_metadata
from perfbisect.environments.builders.wheel import DEFAULT, allowed_variants, driver_cuda, index_error
from perfbisect.environments.builders.wheel_index import (
    WheelIndexClient,
    WheelLookup,
    choose_wheel,
    links,
    page_of,
    supported,
)
from perfbisect.environments.cache import CheckedEnvironment, stamped_environment, variables
from perfbisect.environments.health import (
    PACKAGES_FILE,
    checked_venv,
    create_venv,
    import_own_engine,
    locate_engine,
    reported_commit,
    site_packages,
)
from perfbisect.environments.packages import TORCH_BACKEND, engine, package
from perfbisect.environments.source_tree import DeclaredBase, declared_bases, version_at
from perfbisect.environments.spec import Spec
from perfbisect.environments.uv import interpreter_environment, run
from perfbisect.errors import BuildError
from perfbisect.model.change import Change

_NAME = "pinned base"


class PinnedBases:
    """Environments of pinned engines: ``release`` from the registry, commits from a wheel index."""

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        self.spec = spec.text
        self.release = package(spec.option("release", "vllm"))
        self.template = spec.index_url(spec.options["wheel"]) if "wheel" in spec.options else ""
        variant = spec.options.get("variant")
        self.variants = allowed_variants(self.template, variant) if self.template else ("",)
        self.python = spec.option("python")
        self.cache = context.cache
        self.limits = context.limits
        self.index = WheelIndexClient()
        self._wheels: dict[str, tuple[str, WheelLookup]] = {}

    def refusal(self, declared: DeclaredBase) -> str:
        """Why a declared base cannot be built; empty if it may be."""
        pins = declared.pins
        if pins is None:
            return f"it has no {DOCKERFILE}, which names its {self.release.name}"
        if pins.kind == "unknown":
            return f"its {DOCKERFILE} names no {self.release.name} of a known form"
        if not pins.commit:
            return ""
        if not self.template:
            return (
                f"it needs the wheel of {self.release.name} commit {pins.commit[:12]}: "
                "add wheel=URL with {sha} in it"
            )
        lookup = self._wheel(pins.commit)[1]
        return f"no wheel of {pins.commit[:12]}: {lookup.reason}" if lookup.state == "hole" else ""

    def key(self, declared: DeclaredBase) -> str:
        return environment_key(
            "pinned base/1",
            self.release.name,
            self.release.drop,
            self._engine(declared.pins),
            [(package.name, package.version) for package in declared.pins.packages] if declared.pins else [],
            declared.requirements,
            self.python or uv.base_python_version(),
            *self.limits.key_parts(),
        )

    def cached(self, declared: DeclaredBase) -> bool:
        return self.cache.stamp(self.key(declared)) is not None

    def ensure(self, declared: DeclaredBase, *, log: Path, timeout: float) -> Environment:
        """Build a pinned base.

        :raises BuildError: it does not build, or contains another engine than the pinned one.
        :raises MachineError: no disk, registry or answer of the index.
        """
        key, release = self.key(declared), self.release
        pins = declared.pins
        assert pins is not None
        replaced: list[str] = []

        def make(staging: Path) -> None:
            requirement, backend = self._requirement(pins)
            create_venv(
                staging,
                [requirement],
                package=release,
                limits=self.limits,
                python=self.python,
                log=log,
                timeout=timeout,
                torch_backend=backend,
            )
            interpreter = staging / "venv" / "bin" / "python"
            if declared.requirements:
                file = staging / "requirements.txt"
                file.write_text("".join(f"{line}\n" for line in declared.requirements))
                self._add(interpreter, ["-r", str(file)], staging, log, timeout)
            replaced.extend(_replaced(pins, uv.list_packages(interpreter, log=log)))
            if replaced:
                self._add(interpreter, replaced, staging, log, timeout)
            if release.alias is not None and not pins.commit:
                add_alias(site_packages(staging / "venv"), *release.alias, pins.release)
            (staging / PACKAGES_FILE).write_text(uv.list_packages(interpreter, log=log))

        def check(folder: Path) -> CheckedEnvironment:
            found = import_own_engine(folder, release, what=declared.group, log=log, timeout=timeout)
            if not pins.commit:
                check_version(found, pins.release, declared.group, log)
            elif (said := reported_commit(found)) and not pins.commit.startswith(said):
                raise BuildError(
                    f"the wheel of {release.name} {pins.commit[:12]} says it is commit {said}", where=log
                )
            facts = {"pin": pins.text, "replaced": replaced, **self.limits.facts()}
            return checked_venv(folder, found, pins.commit, facts)

        stamp, seconds = self.cache.ensure(
            key,
            builder=_NAME,
            spec=self.spec,
            change=f"{release.name} {declared.group}",
            make=make,
            check=check,
            timeout=timeout,
        )
        return stamped_environment(stamp, self.cache.folder(key), seconds=seconds)

    def minutes(self, declared: DeclaredBase) -> float | None:
        return 0.0 if self.cached(declared) else median_minutes(earlier_stamps(self.cache, _NAME, self.spec))

    def disk(self) -> int | None:
        """Estimated bytes of a base."""
        return median_bytes(earlier_stamps(self.cache, _NAME, self.spec))

    def _add(self, interpreter: Path, words: list[str], staging: Path, log: Path, timeout: float) -> None:
        uv.install(
            interpreter,
            words,
            limits=self.limits,
            drop=self.release.drop,
            torch_backend=self.release.torch_backend,
            folder=staging,
            log=log,
            timeout=timeout,
        )

    def _engine(self, pins: Pins | None) -> tuple[str, ...]:
        if pins is None or not pins.commit:
            return ("release", pins.release if pins else "")
        return ("wheel", self.template, pins.commit, self._wheel(pins.commit)[0])

    def _requirement(self, pins: Pins) -> tuple[str, str]:
        """uv's requirement for the engine, and the build of torch."""
        name = self.release.name
        if not pins.commit:
            return f"{name}=={pins.release}", ""
        variant, lookup = self._wheel(pins.commit)
        if lookup.state != "found":
            raise BuildError(f"no wheel of {name} {pins.commit[:12]}: {lookup.reason}")
        return f"{name} @ {lookup.url}", variant if TORCH_BACKEND.match(variant) else ""

    def _wheel(self, sha: str) -> tuple[str, WheelLookup]:
        """The first variant of which the index has the commit's wheel, and that wheel; or why it has none.

        :raises MachineError: the index does not answer.
        """
        if sha not in self._wheels:
            self._wheels[sha] = self._look_up(sha)
        return self._wheels[sha]

    def _look_up(self, sha: str) -> tuple[str, WheelLookup]:
        distribution, tags = self.release.distribution, supported(self.python)
        lookup = WheelLookup("hole", problem="no variant was asked for")
        for variant in self.variants:
            lookup = self.index.page(
                sha,
                page_of(self.template, sha, variant, distribution),
                lambda key, url, text: choose_wheel(links(text, url), distribution, key, tags),
            )
            if lookup.state == "found":
                return variant, lookup
            if lookup.state == "silent":
                raise index_error(self.template, lookup)
        return self.variants[-1] or DEFAULT, lookup


def _replaced(pins: Pins, packages: str) -> list[str]:
    """Packages that the image replaces and that are installed here: a CPU has no CUDA libraries."""
    present = {canonicalize_name(line.partition("==")[0]) for line in packages.splitlines()}
    return [
        f"{package.name}=={package.version}"
        for package in pins.packages
        if package.version and canonicalize_name(package.name) in present
    ]


_TREE = "tree"
_FIRST_MINUTES = 0.1
_FIRST_BYTES = 50_000_000
"""Estimated cost of the first layer; the cost of later ones is measured."""


class PinnedBuilder(CommitBuilder):
    """Builds commits of a package; ``platform`` names the requirements file."""

    name = "pinned"

    def __init__(self, spec: Spec, context: BuildContext) -> None:
        if not spec.argument.replace(".", "_").isidentifier():
            raise spec.error(f"{spec.argument!r} is no package", "name what is imported: pinned:vllm_omni")
        super().__init__(spec, context, engine(spec.argument))
        self.platform = spec.option("platform") or ("cuda" if driver_cuda() else "cpu")
        self.bases = PinnedBases(spec, context)
        self._declared: dict[str, DeclaredBase] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        super().prepare(changes)
        unknown = unknown_commits(changes, self._declared)
        if unknown:
            self._declared |= declared_bases(self.repository, unknown, self.platform)

    def group(self, change: Change) -> str:
        if change.kind != "commit":
            return ""
        self.prepare((change,))
        group = self._declared[change.id].group
        return f"{self.bases.release.name} {group}" if group else ""

    def refuses(self, change: Change) -> Refusal | None:
        refusal = super().refuses(change)
        if refusal is not None:
            return refusal
        reason = self.bases.refusal(self._declared[change.id])
        return Refusal(reason) if reason else None

    def key(self, change: Change) -> str:
        if self.refuses(change) is not None:
            return environment_key("pinned refused/1", self.spec, change.id)
        return environment_key(
            "pinned/1",
            self.bases.key(self._declared[change.id]),
            self._trees[change.id],
            self.package.module,
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        folder = self.folder_of(change)
        below = self.bases.ensure(self._declared[change.id], log=log, timeout=timeout)
        tree = folder / _TREE
        version = version_at(self.repository, change.id)

        def make(staging: Path) -> None:
            self._write(staging / _TREE, change, version)
            self._compile(below.interpreter, staging / _TREE, log, timeout)

        def check(folder: Path) -> CheckedEnvironment:
            found = import_own_engine(
                folder, self.package, what=change.short, log=log, timeout=timeout,
                interpreter=below.interpreter, tree=tree,
            )  # fmt: skip
            env = variables(folder, str(tree))
            module = self.bases.release.module
            engine = locate_engine(below.interpreter, module, env=env, log=log)
            if engine.file != below.engine_file:
                raise BuildError(
                    f"{change.short}: {module} would come from {engine.file or 'nowhere'}, not from "
                    f"{below.engine_file}",
                    where=log,
                )
            facts = {
                **found.facts,
                "packages": below.facts["packages"],
                "pin": below.facts["pin"],
                "replaced": below.facts["replaced"],
                "below": {"key": below.key, "version": below.engine_version, "commit": below.engine_commit},
                "tree": self._trees[change.id],
            }
            version_found = found.version or version
            return CheckedEnvironment(
                below.interpreter, version_found, change.id, found.file, below.packages_digest, facts
            )

        return self.ensure_cached(
            change, make=make, check=check, timeout=timeout, python_path=str(tree), base_seconds=below.seconds
        )

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        if self.refuses(change) is not None:
            return None
        base = self.bases.minutes(self._declared[change.id])
        return None if base is None else base + (median_minutes(self.stamps()) or _FIRST_MINUTES)

    def notes(self) -> tuple[str, ...]:
        images: dict[str, str] = {}
        groups: Counter[str] = Counter()
        for sha, declared in self._declared.items():
            groups.update([declared.group] if declared.group else [])
            pins = declared.pins
            if pins and not pins.commit and pins.tag.removeprefix("v") != pins.release:
                images.setdefault(
                    pins.tag,
                    f"the image of {sha[:12]} is {pins.tag}; installed is the release {pins.release}",
                )
        shares = ", ".join(f"{group} under {count} commits" for group, count in groups.items())
        pinned = f"{self.bases.release.name} as {DOCKERFILE} of each commit pins it: {shares}"
        return (pinned, *images.values())

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        if not missing:
            return 0
        declared = (self._declared[change.id] for change in missing.values())
        bases = {self.bases.key(base): base for base in declared}
        absent = sum(not self.bases.cached(base) for base in bases.values())
        each_base = self.bases.disk() if absent else 0
        each = median_bytes(self.stamps()) or _FIRST_BYTES
        return None if each_base is None else absent * each_base + len(missing) * each

    def _write(self, tree: Path, change: Change, version: str) -> None:
        """Write the commit's package, and its version as a build does: in a file and as metadata."""
        package = tree / self.package.folder
        write_tree(
            package,
            repository=self.repository,
            entries=self.repository.entries(change.id, self.package.folder),
            package=self.package.folder,
            base=None,
            tracked_at_base=None,
            generated=(),
        )
        if not (package / "_version.py").exists():
            (package / "_version.py").write_text(_version_file(version))
        metadata = tree / f"{self.package.name.replace('-', '_')}-{version}.dist-info"
        write_metadata(metadata, self.package.name, version)

    def _compile(self, interpreter: Path, tree: Path, log: Path, timeout: float) -> None:
        """Compile to byte code; the import reports files that do not compile."""
        argv = [str(interpreter), "-I", "-m", "compileall", "-q", str(tree)]
        run(argv, env=interpreter_environment(interpreter), cwd=tree.parent, log=log, timeout=timeout)


def _version_file(version: str) -> str:
    """The version file that setuptools-scm writes in a build."""
    parts = tuple(int(part) if part.isdigit() else part for part in version.replace("+", ".").split("."))
    return (
        f"__version__ = version = {version!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        "__commit_id__ = commit_id = None\n"
    )
