"""The Python tree of a commit over the compiled files and dependencies of a base: about a second a commit.

Nothing in an engine checks that its Python and its compiled files fit, so this does: a commit is testable if
and only if its compiled sources, build files and requirements equal those of the commit that the base was
built from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from perfbisect.core.change import Change
from perfbisect.environments import Environment, Refusal
from perfbisect.environments.base import Built, Cabinet, variables
from perfbisect.environments.experience import median_bytes, median_minutes
from perfbisect.environments.health import Probe, health, inside
from perfbisect.environments.identity import FOREIGN_SHARE
from perfbisect.environments.kept import KeptBuilder, unread
from perfbisect.environments.keys import digest, text_digest
from perfbisect.environments.packages import Package
from perfbisect.environments.parts import blobs_inside
from perfbisect.environments.running import interpreter_environment, run
from perfbisect.environments.tree import Installed, Written, installed, write_tree
from perfbisect.errors import BuildError, RevisionError
from perfbisect.system.git import Repository

_TREE = "tree"
_MINUTES = 0.2
_BYTES = 50_000_000
"""What the first overlay is taken to cost: its files are links but for those that changed, its import is not
warm. Later ones cost what the first ones did."""


class Base(Protocol):
    """What an overlay lies over: an interpreter with compiled files and dependencies."""

    what: str

    def key(self) -> str: ...

    def cached(self) -> bool: ...

    def minutes(self) -> float | None: ...

    def disk(self) -> int | None: ...

    def engine(self, *, log: Path, timeout: float) -> tuple[Path, Probe, str]:
        """Interpreter, where its engine is, its packages; built if it is not there."""
        ...

    def environment(self, *, log: Path, timeout: float) -> Environment | None:
        """The base without an overlay; None if it has no engine."""
        ...


class OverlayBuilder(KeptBuilder):
    """``overlay:BASE,base=REV``: the change is a commit of the repository."""

    name = "overlay"

    def __init__(
        self,
        spec: str,
        base: Base,
        package: Package,
        cabinet: Cabinet,
        repository: Repository,
        commit: Change | None,
        any_base: bool,
    ) -> None:
        self.spec = spec
        self.base = base
        self.package = package
        self.cabinet = cabinet
        self.repository = repository
        self.commit = commit
        self.any_base = any_base
        self._trees: dict[str, str | None] = {}
        self._differing: dict[str, tuple[str, ...]] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        """Look many changes up at once: two git processes in all, instead of two a change."""
        changes = list(changes)
        unknown = unread(changes, self._trees)
        if unknown:
            self._trees |= self.repository.tree_ids(unknown, self.package.folder)
        unknown = unread(changes, self._differing)
        if unknown and self.commit is not None:
            self._differing |= self.repository.differing(self.commit.id, unknown, self.package.pathspecs)

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} makes commits; {change.id} is a release", error=True)
        if self.commit is None and not self.any_base:
            return Refusal(
                f"{self.spec} does not say which commit {self.base.what} was built from: add base=REV "
                "(base=any if nothing in the repository is compiled)",
                error=True,
            )
        try:
            self.prepare((change,))
        except RevisionError as error:
            return Refusal(f"{change.short} cannot be read: {error.message}", error=True)
        if self._trees[change.id] is None:
            return Refusal(f"{change.short} has no folder {self.package.folder}/")
        files = self._differing.get(change.id, ())
        if files and self.commit is not None:
            count = "1 file differs" if len(files) == 1 else f"{len(files)} files differ"
            more = f" and {len(files) - 3} more" if len(files) > 3 else ""
            return Refusal(
                f"needs compiling or other packages than {self.base.what} (built from {self.commit.short}): "
                f"{count}: {', '.join(files[:3])}{more}"
            )
        return None

    def key(self, change: Change) -> str:
        if self.refuses(change) is not None:  # never built, so the same as no other
            return digest("overlay refused/1", self.base.key(), change.id)
        return digest(
            "overlay/1", self.base.key(), self._trees[change.id], self.package.module, *self._carrying()
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        folder = self.folder_of(change)
        interpreter, looked, packages = self.base.engine(log=log, timeout=timeout)
        tree = folder / _TREE
        written: list[Written] = []

        def make(staging: Path) -> None:
            written.append(self._write(staging / _TREE, change, looked))
            self._compile(interpreter, staging / _TREE, written[0].changed, log, timeout)

        def check(folder: Path) -> Built:
            found = health(
                interpreter,
                self.package.module,
                env=variables(folder, str(tree)),
                log=log,
                what=change.short,
                timeout=timeout,
            )
            if not inside(found.file, tree):
                raise BuildError(f"{change.short}: imported {found.file}, which is not in {tree}", where=log)
            facts = {
                **found.facts,
                "packages": packages.splitlines(),
                "base": self.base.what,
                "base_commit": self.commit.id if self.commit else "any",
                "tree": self._trees[change.id],
                "engine_says_commit": found.commit,
                "files_linked": written[0].linked,
                "files_changed": len(written[0].changed),
                "files_carried": list(written[0].carried),
                "files_dropped": written[0].dropped,
            }
            return Built(interpreter, found.version, change.id, found.file, text_digest(packages), facts)

        return self.kept(change, make=make, check=check, timeout=timeout, python_path=str(tree))

    def client(self) -> Environment | None:
        return self.base.environment(log=self.cabinet.log(self.base.key()), timeout=3600.0)

    def minutes(self, change: Change) -> float | None:
        if self.cached(change):
            return 0.0
        below = self.base.minutes()
        each = median_minutes(self.stamps())
        return None if below is None else below + (_MINUTES if each is None else each)

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        if not missing:
            return 0
        below = self.base.disk()
        each = median_bytes(self.stamps())
        return None if below is None else below + len(missing) * (_BYTES if each is None else each)

    def _carrying(self) -> tuple[str, ...]:
        """What decides which of the base's files are carried in."""
        if self.commit is None:
            return ("any",)
        self.prepare((self.commit,))
        return (str(self._trees[self.commit.id]),)

    @functools.cached_property
    def _tracked_at_base(self) -> dict[str, str] | None:
        """Path inside the package -> object name, at the base's commit."""
        if self.commit is None:
            return None
        return blobs_inside(self.repository, self.commit.id, self.package.folder)

    def _write(self, tree: Path, change: Change, looked: Probe) -> Written:
        base = None
        if looked.package_folder is not None:
            base = installed(looked.package_folder, looked.tag, change.id)
            self._check_base(base)
        return write_tree(
            tree / self.package.folder,
            repository=self.repository,
            entries=self.repository.entries(change.id, self.package.folder),
            package=self.package.folder,
            base=base,
            tracked_at_base=self._tracked_at_base,
            generated=self.package.generated,
        )

    def _check_base(self, base: Installed) -> None:
        """:raises BuildError: the base is not what its commit says."""
        tracked = self._tracked_at_base
        if tracked is None or self.commit is None:
            return
        shared = [path for path, blob in base.blobs.items() if blob and path in tracked]
        foreign = [path for path in shared if base.blobs[path] != tracked[path]]
        if len(foreign) > FOREIGN_SHARE * max(len(shared), 1) or (tracked and not shared):
            raise BuildError(
                f"{self.base.what} was not built from {self.commit.short}: "
                f"{len(foreign)} of {len(shared)} files differ"
                + (f", among them {', '.join(sorted(foreign)[:3])}" if foreign else ""),
                next_step="name the commit it was built from: base=REV",
            )

    def _compile(
        self, interpreter: Path, tree: Path, changed: Iterable[str], log: Path, timeout: float
    ) -> None:
        """Byte code for what changed; a file that does not compile is left to the import."""
        files = [str(tree / self.package.folder / path) for path in changed if path.endswith(".py")]
        if not files:
            return
        listed = tree.parent / "changed.txt"
        listed.write_text("".join(f"{file}\n" for file in files))
        argv = [str(interpreter), "-I", "-m", "compileall", "-q", "-i", str(listed)]
        run(argv, env=interpreter_environment(interpreter), cwd=tree.parent, log=log, timeout=timeout)
