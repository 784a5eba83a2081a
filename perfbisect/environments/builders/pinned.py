"""A pure Python package that stands on another engine, whose version each commit pins (vLLM-Omni on vLLM).

One environment for each pin and set of requirements; over it each commit's own tree as a thin layer, first on
the path. Commits of two pins stand side by side, so they can be compared in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from perfbisect.changes.git import Repository
from perfbisect.changes.pins import DOCKERFILE, Pins
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.nearest import version_at
from perfbisect.environments.builders.overlay import write_tree
from perfbisect.environments.builders.release import add_alias, same_version
from perfbisect.environments.builders.wheel import DEFAULT
from perfbisect.environments.builders.wheel_index import Answer, Asker, choose, links, page_of, supported
from perfbisect.environments.cache import (
    Built,
    Cabinet,
    KeptBuilder,
    as_environment,
    earlier,
    median_bytes,
    median_minutes,
    unread,
    variables,
)
from perfbisect.environments.health import (
    PACKAGES_FILE,
    as_built,
    fill,
    health,
    inside,
    look,
    probe,
    said_commit,
    site_packages,
)
from perfbisect.environments.packages import BACKEND, Package
from perfbisect.environments.requirements import Declared, declared
from perfbisect.environments.uv import interpreter_environment, run
from perfbisect.errors import BuildError, MachineError, RevisionError
from perfbisect.model.change import Change

_NAME = "pinned base"


@dataclass(frozen=True)
class Origin:
    """Where the engine of a pin comes from.

    ``release``: its distribution in the registry. ``template``: the address of an index of wheels with
    ``{sha}`` in it, empty: none. ``variants``: builds that may be taken of it, best first.
    """

    release: Package
    template: str = ""
    variants: tuple[str, ...] = ("",)
    python: str = ""


class PinnedBases:
    """Environments of pins."""

    def __init__(self, spec: str, origin: Origin, cabinet: Cabinet, limits: uv.Limits, asker: Asker) -> None:
        self.spec = spec
        self.origin = origin
        self.cabinet = cabinet
        self.limits = limits
        self.asker = asker
        self._wheels: dict[str, tuple[str, Answer]] = {}

    def refuses(self, asked: Declared) -> str:
        """Why there is no environment for what a commit declares; empty if there may be one."""
        pins = asked.pins
        if pins is None:
            return f"it has no {DOCKERFILE}, which names its {self.origin.release.name}"
        if pins.kind == "unknown":
            return f"its {DOCKERFILE} names no {self.origin.release.name} of a form that is known"
        if not pins.commit:
            return ""
        if not self.origin.template:
            return (
                f"it needs the wheel of {self.origin.release.name} commit {pins.commit[:12]}: "
                "add wheel=URL with {sha} in it"
            )
        answer = self._wheel(pins.commit)[1]
        return f"no wheel of {pins.commit[:12]}: {answer.why}" if answer.state == "hole" else ""

    def key(self, asked: Declared) -> str:
        return environment_key(
            "pinned base/1",
            self.origin.release.name,
            self.origin.release.drop,
            self._engine(asked.pins),
            [(package.name, package.version) for package in asked.pins.packages] if asked.pins else [],
            asked.requirements,
            self.origin.python or uv.base_python_version(),
            *self.limits.digested(),
        )

    def cached(self, asked: Declared) -> bool:
        return self.cabinet.stamp(self.key(asked)) is not None

    def ensure(self, asked: Declared, *, log: Path, timeout: float) -> Environment:
        """:raises BuildError: it cannot be built, or holds another engine than the pin's.

        :raises MachineError: no disk, no registry, no answer of the index.
        """
        key, package = self.key(asked), self.origin.release
        pins = asked.pins
        assert pins is not None
        replaced: list[str] = []

        def make(staging: Path) -> None:
            requirement, backend = self._requirement(pins)
            fill(
                staging,
                [requirement],
                package=package,
                limits=self.limits,
                python=self.origin.python,
                log=log,
                timeout=timeout,
                torch_backend=backend,
            )
            interpreter = staging / "venv" / "bin" / "python"
            if asked.requirements:
                listed = staging / "requirements.txt"
                listed.write_text("".join(f"{line}\n" for line in asked.requirements))
                self._add(interpreter, ["-r", str(listed)], staging, log, timeout)
            replaced.extend(_replaced(pins, uv.listed(interpreter, log=log)))
            if replaced:
                self._add(interpreter, replaced, staging, log, timeout)
            if package.alias is not None and not pins.commit:
                add_alias(site_packages(staging / "venv"), *package.alias, pins.release)
            (staging / PACKAGES_FILE).write_text(uv.listed(interpreter, log=log))

        def check(folder: Path) -> Built:
            found = look(folder, package, what=asked.group, log=log, timeout=timeout)
            if not pins.commit:
                same_version(found, pins.release, asked.group, log)
            elif (said := said_commit(found)) and not pins.commit.startswith(said):
                raise BuildError(
                    f"the wheel of {package.name} {pins.commit[:12]} says it is commit {said}", where=log
                )
            facts = {"pin": pins.text, "replaced": replaced, **self.limits.facts()}
            return as_built(folder, found, pins.commit, facts)

        stamp, seconds = self.cabinet.ensure(
            key,
            builder=_NAME,
            spec=self.spec,
            change=f"{package.name} {asked.group}",
            make=make,
            check=check,
            timeout=timeout,
        )
        return as_environment(stamp, self.cabinet.folder(key), seconds=seconds)

    def minutes(self, asked: Declared) -> float | None:
        return 0.0 if self.cached(asked) else median_minutes(earlier(self.cabinet, _NAME, self.spec))

    def disk(self) -> int | None:
        """Bytes of one."""
        return median_bytes(earlier(self.cabinet, _NAME, self.spec))

    def _add(self, interpreter: Path, words: list[str], staging: Path, log: Path, timeout: float) -> None:
        uv.install(
            interpreter,
            words,
            limits=self.limits,
            drop=self.origin.release.drop,
            torch_backend=self.origin.release.torch_backend,
            folder=staging,
            log=log,
            timeout=timeout,
        )

    def _engine(self, pins: Pins | None) -> tuple[str, ...]:
        if pins is None or not pins.commit:
            return ("release", pins.release if pins else "")
        return ("wheel", self.origin.template, pins.commit, self._wheel(pins.commit)[0])

    def _requirement(self, pins: Pins) -> tuple[str, str]:
        """What uv is told to install, and which build of torch with it."""
        name = self.origin.release.name
        if not pins.commit:
            return f"{name}=={pins.release}", ""
        variant, answer = self._wheel(pins.commit)
        if answer.state != "found":
            raise BuildError(f"no wheel of {name} {pins.commit[:12]}: {answer.why}")
        return f"{name} @ {answer.url}", variant if BACKEND.match(variant) else ""

    def _wheel(self, sha: str) -> tuple[str, Answer]:
        """The first variant of which the index has a wheel of a commit, and that wheel; or why it has none.

        :raises MachineError: the index does not answer.
        """
        if sha not in self._wheels:
            self._wheels[sha] = self._asked(sha)
        return self._wheels[sha]

    def _asked(self, sha: str) -> tuple[str, Answer]:
        distribution, fits = self.origin.release.distribution, supported(self.origin.python)
        answer = Answer("hole", problem="no variant was asked for")
        for variant in self.origin.variants:
            address = page_of(self.origin.template, sha, variant, distribution)
            answer = self.asker.page(
                sha,
                address,
                lambda key, url, text: choose(links(text, url), distribution, key, fits),
            )
            if answer.state == "found":
                return variant, answer
            if answer.state == "silent":
                raise MachineError(
                    f"the wheel index {self.origin.template} does not answer: {answer.why}",
                    next_step="check network, proxy and address, then start again",
                    code="hub_unreachable",
                )
        return self.origin.variants[-1] or DEFAULT, answer


def _replaced(pins: Pins, listed: str) -> list[str]:
    """The packages that the image replaces, of those that are installed here: a CPU has no CUDA libraries."""
    there = {canonicalize_name(line.partition("==")[0]) for line in listed.splitlines()}
    return [
        f"{package.name}=={package.version}"
        for package in pins.packages
        if package.version and canonicalize_name(package.name) in there
    ]


_TREE = "tree"
_MINUTES = 0.1
_BYTES = 50_000_000
"""What the first layer is taken to cost; later ones cost what the first ones did."""


class PinnedBuilder(KeptBuilder):
    """``pinned:PACKAGE``: the change is a commit; ``platform`` names its requirements file."""

    name = "pinned"

    def __init__(
        self,
        spec: str,
        package: Package,
        origin: Origin,
        platform: str,
        cabinet: Cabinet,
        limits: uv.Limits,
        repository: Repository,
        client: Change | None = None,
        asker: Asker | None = None,
    ) -> None:
        self.spec = spec
        self.package = package
        self.origin = origin
        self.platform = platform
        self.cabinet = cabinet
        self.repository = repository
        self.client_commit = client
        self.bases = PinnedBases(spec, origin, cabinet, limits, asker or Asker())
        self._declared: dict[str, Declared] = {}
        self._trees: dict[str, str | None] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        unknown = unread(changes, self._declared)
        if unknown:
            self._trees |= self.repository.tree_ids(unknown, self.package.folder)
            self._declared |= declared(self.repository, unknown, self.platform)

    def group(self, change: Change) -> str:
        """The engine below a commit, in a word; empty where it names none."""
        if change.kind != "commit":
            return ""
        self.prepare((change,))
        found = self._declared[change.id].group
        return f"{self.origin.release.name} {found}" if found else ""

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} makes commits; {change.id} is a release", error=True)
        try:
            self.prepare((change,))
        except RevisionError as error:
            return Refusal(f"{change.short} cannot be read: {error.message}", error=True)
        if self._trees[change.id] is None:
            return Refusal(f"{change.short} has no folder {self.package.folder}/")
        why = self.bases.refuses(self._declared[change.id])
        return Refusal(why) if why else None

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

        def check(_: Path) -> Built:
            env = variables(folder, str(tree))
            found = health(
                below.interpreter, self.package.module, env=env, log=log, what=change.short, timeout=timeout
            )
            if not inside(found.file, tree):
                raise BuildError(f"{change.short}: imported {found.file}, which is not in {tree}", where=log)
            engine = probe(below.interpreter, self.origin.release.module, env=env, log=log)
            if engine.file != below.engine_file:
                raise BuildError(
                    f"{change.short}: {self.origin.release.module} would come from "
                    f"{engine.file or 'nowhere'}, not from {below.engine_file}",
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
            return Built(
                below.interpreter,
                found.version or version,
                change.id,
                found.file,
                below.packages_digest,
                facts,
            )

        return self.kept(
            change, make=make, check=check, timeout=timeout, python_path=str(tree), before=below.seconds
        )

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        if self.refuses(change) is not None:
            return None
        below = self.bases.minutes(self._declared[change.id])
        each = median_minutes(self.stamps())
        return None if below is None else below + (_MINUTES if each is None else each)

    def notes(self) -> tuple[str, ...]:
        told: dict[str, str] = {}
        groups: dict[str, list[str]] = {}
        for sha, one in self._declared.items():
            if one.group:
                groups.setdefault(one.group, []).append(sha)
            if one.pins and not one.pins.commit and one.pins.tag.removeprefix("v") != one.pins.release:
                told.setdefault(
                    one.pins.tag,
                    f"the image of {sha[:12]} is {one.pins.tag}; installed is the release {one.pins.release}",
                )
        name = self.origin.release.name
        shares = ", ".join(f"{group} under {len(shas)} commits" for group, shas in groups.items())
        return (f"{name} as {DOCKERFILE} of each commit pins it: {shares}", *told.values())

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        if not missing:
            return 0
        bases = {self.bases.key(self._declared[change.id]): change.id for change in missing.values()}
        absent = sum(not self.bases.cached(self._declared[sha]) for sha in bases.values())
        below = self.bases.disk() if absent else 0
        each = median_bytes(self.stamps())
        return None if below is None else absent * below + len(missing) * (_BYTES if each is None else each)

    def _write(self, tree: Path, change: Change, version: str) -> None:
        """The commit's package, and what a build adds to it: its version, as a file and as metadata."""
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
        metadata.mkdir()
        head = f"Metadata-Version: 2.1\nName: {self.package.name}\nVersion: {version}\n"
        (metadata / "METADATA").write_text(head)
        (metadata / "INSTALLER").write_text("perfbisect\n")

    def _compile(self, interpreter: Path, tree: Path, log: Path, timeout: float) -> None:
        """Byte code; a file that does not compile is left to the import."""
        argv = [str(interpreter), "-I", "-m", "compileall", "-q", str(tree)]
        run(argv, env=interpreter_environment(interpreter), cwd=tree.parent, log=log, timeout=timeout)


def _version_file(version: str) -> str:
    """What setuptools-scm writes into a package when it is built."""
    parts = tuple(int(part) if part.isdigit() else part for part in version.replace("+", ".").split("."))
    return (
        f"__version__ = version = {version!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        "__commit_id__ = commit_id = None\n"
    )
