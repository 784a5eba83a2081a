"""``perfbisect nightly --init``: the first configuration of a nightly."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from perfbisect.config.nightly import FILE
from perfbisect.config.settings import load_settings
from perfbisect.core.first_nightly import FirstNightly, first_nightly
from perfbisect.core.first_settings import first_settings
from perfbisect.errors import RevisionError, UsageError
from perfbisect.render.nightly_documents import NightlyInitDocument
from perfbisect.system.clock import now
from perfbisect.system.first_look import look
from perfbisect.system.git import Repository
from perfbisect.system.whole_file import write_whole

_KEYS = {"env": "environment", "client": "client", "machine": "machine"}


def write_first(config: Path | None, folder: Path) -> NightlyInitDocument:
    """Writes the configuration for the repository of a folder.

    :raises UsageError: the file is there already.
    :raises RevisionError, LocatedError: there is no repository, or none of an engine that is known.
    """
    file = config or Path(FILE)
    if file.exists():
        raise UsageError(
            f"{file} is there already: it stays as it is",
            where=file,
            next_step=f"perfbisect nightly {file} --dry-run; or another: perfbisect nightly --init FILE",
        )
    repository = Repository.open(folder)
    first = first_settings(look(repository, os.environ))
    said = load_settings(repository.path)
    missing = {name: key for key, name in _KEYS.items() if getattr(said, key) is None}
    values = {choice.key: choice.value for choice in first.choices}
    branch = _branch(repository)
    content = first_nightly(
        FirstNightly(
            name=re.sub(r"[^a-z0-9._-]+", "-", repository.path.name.lower()).strip("-._") or "nightly",
            repository=os.path.relpath(repository.path, file.absolute().parent),
            branch=branch,
            cell=first.cell,
            settings={name: values[key] for name, key in missing.items() if key in values},
            saw=first.saw,
            day=now().date().isoformat(),
        )
    )
    write_whole(file, content)
    return NightlyInitDocument(
        file=str(file),
        repository=str(repository.path),
        branch=branch,
        content=content,
        next=f"perfbisect nightly {file} --dry-run",
    )


def _branch(repository: Repository) -> str:
    """The main line as it was fetched last, where there is one; else where the repository stands."""
    for name in ("origin/HEAD", "origin/main", "origin/master", "main", "master"):
        with suppress(RevisionError):
            repository.resolve(name)
            return name
    return "HEAD"
