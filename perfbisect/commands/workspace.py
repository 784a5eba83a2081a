"""State and cache folders, the repository under test, and its ``perfbisect.yaml``."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.errors import PerfbisectError, RevisionError

if TYPE_CHECKING:
    from perfbisect.cells.loading import ReadAt
    from perfbisect.changes.git import Repository
    from perfbisect.commands.settings import Settings
    from perfbisect.jobs.folders import Job, Jobs
    from perfbisect.jobs.plans import MeasurementConfig


@dataclass(frozen=True)
class Workspace:
    """Folders and settings of an invocation; ``repository`` is None outside any."""

    state: Path
    cache: Path
    settings: Settings
    repository: Repository | None
    root: Path

    @property
    def jobs(self) -> Jobs:
        from perfbisect.jobs.folders import Jobs

        return Jobs(self.state)

    def new_job(self) -> Job:
        """Create a job folder."""
        from perfbisect.system.clock import now

        return self.jobs.new(now(), secrets.token_hex(2))

    def needed_repository(self) -> Repository:
        """Return the repository; raises RevisionError if there is none."""
        if self.repository is None:
            raise RevisionError(f"{Path.cwd()} is not in a git repository", next_step="add --repo PATH")
        return self.repository

    @property
    def read_at(self) -> ReadAt | None:
        """Reads a text of the repository at a commit, such as the deploy YAML of a cell."""
        repository = self.repository
        return None if repository is None else lambda sha, path: repository.read(sha, path).decode("utf-8")


def open_workspace(*, repo: Path | None = None, state: Path | None = None) -> Workspace:
    """Find state and cache by option, environment, ``perfbisect.yaml`` or the user's folders."""
    import platformdirs

    from perfbisect.changes.git import Repository
    from perfbisect.commands.options import FolderSettings
    from perfbisect.commands.settings import load_settings, resolve

    repository: Repository | None = None
    # A folder that was typed must be a repository; the current one need not be.
    with nullcontext() if repo else suppress(PerfbisectError):
        repository = Repository.open(repo or Path.cwd())
    root = repository.path if repository else Path.cwd()
    settings = load_settings(root if repository else None)
    folders = resolve(FolderSettings, {"state": state}, settings)
    cache = (folders.cache or platformdirs.user_cache_path("perfbisect")).absolute()
    return Workspace(
        (folders.state or platformdirs.user_state_path("perfbisect")).absolute(),
        cache,
        settings,
        with_objects(repository, cache) if repository else None,
        root,
    )


def repository_of(setting: MeasurementConfig, cache: Path | None = None) -> Repository | None:
    """The repository of a job's configuration; ``cache``: in place of the configuration's."""
    from perfbisect.changes.git import Repository

    if not setting.repository:
        return None
    return with_objects(Repository.open(Path(setting.repository)), cache or Path(setting.cache))


def with_objects(repository: Repository, cache: Path) -> Repository:
    """The repository with a separate object folder for reverted commits."""
    # Git reads this folder as an alternate, so that the user's repository is never written.
    name = hashlib.sha256(str(repository.path).encode()).hexdigest()[:16]
    return replace(repository, objects=cache / "objects" / name)
