"""Whether an installed engine is the commit that was asked for: by what it says, and by its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfbisect.environments.health import Health
from perfbisect.environments.keys import file_blob_id
from perfbisect.errors import BuildError

_HEX = re.compile(r"^g([0-9a-f]{7,64})$")
FOREIGN_SHARE = 0.1
"""An engine of which more files than this share differ from a commit was not built from that commit."""


def commit_in_version(version: str) -> str:
    """The abbreviated commit in a version's local part (``1.2.dev5+gabcdef123.cu129``); empty: none."""
    for word in re.split(r"[.\-_]", version.partition("+")[2].lower()):
        found = _HEX.match(word)
        if found:
            return found[1]
    return ""


def said_commit(found: Health) -> str:
    """The commit that an engine says it is: seven or more hex digits; empty where it says none."""
    said = found.commit.lower().removeprefix("g")
    return said if re.fullmatch(r"[0-9a-f]{7,64}", said) else commit_in_version(found.version)


@dataclass(frozen=True)
class Content:
    """An installed package's Python files beside those that git has at a commit; paths inside the package.

    ``missing`` leaves out folders of which nothing was installed.
    """

    same: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def exact(self) -> bool:
        return not self.differing and not self.missing

    @property
    def foreign(self) -> bool:
        """True if this cannot have been built from the commit."""
        return len(self.differing) > FOREIGN_SHARE * max(self.same + len(self.differing), 1)


def compare(folder: Path, tracked: Mapping[str, str]) -> Content:
    """The files of an installed package against git's object names of a commit."""
    python = {path: blob for path, blob in tracked.items() if path.endswith(".py")}
    there = {path for path in python if (folder / path).is_file()}
    parents = {PurePosixPath(path).parent for path in there}
    differing = sorted(path for path in there if file_blob_id(folder / path, python[path]) != python[path])
    missing = sorted(path for path in python if path not in there and PurePosixPath(path).parent in parents)
    return Content(len(there) - len(differing), tuple(differing), tuple(missing))


def check_commit(found: Health, sha: str, tracked: Mapping[str, str], *, what: str, log: Path) -> str:
    """What shows that an engine is a commit: ``commit`` (it says so) or ``content`` (its files are git's).

    ``tracked``: path inside the package -> object name, at that commit.

    :raises BuildError: it says another commit, or says none and differs from git, or has little in common
        with the commit that it says.
    """
    said = said_commit(found)
    if said and not sha.startswith(said):
        raise BuildError(f"{what}: the engine ({found.version}) says it is commit {said}", where=log)
    content = compare(found.file.parent, tracked)
    if content.foreign or (not said and not content.exact):
        files = (*content.differing, *content.missing)
        says = f"says it is {said}, but" if said else f"says no commit (its version is {found.version}), and"
        raise BuildError(
            f"{what}: the engine {says} {len(files)} of its files are not those of {sha[:12]}: "
            f"{', '.join(files[:3])}{' and more' if len(files) > 3 else ''}",
            where=log,
        )
    return "commit" if said else "content"
