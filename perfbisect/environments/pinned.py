"""A pure Python package that stands on another engine, whose version each commit pins (vLLM-Omni on vLLM).

One environment for each pin and set of requirements; over it each commit's own tree as a thin layer, first on
the path. Commits of two pins stand side by side, so they can be compared in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfbisect.core.change import Change
from perfbisect.core.pins import DOCKERFILE
from perfbisect.environments import Environment, Refusal, uv
from perfbisect.environments.base import Built, Cabinet, variables
from perfbisect.environments.declared import Declared, declared
from perfbisect.environments.experience import median_bytes, median_minutes
from perfbisect.environments.health import health, inside, probe
from perfbisect.environments.index import Asker
from perfbisect.environments.kept import KeptBuilder, unread
from perfbisect.environments.keys import digest
from perfbisect.environments.lines import version_at
from perfbisect.environments.packages import Package
from perfbisect.environments.pinned_base import Origin, PinnedBases
from perfbisect.environments.running import interpreter_environment, run
from perfbisect.environments.tree import write_tree
from perfbisect.errors import BuildError, RevisionError
from perfbisect.system.git import Repository

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
            return digest("pinned refused/1", self.spec, change.id)
        return digest(
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
