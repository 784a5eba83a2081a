"""Where commits stand to tags and to each other: versions for builds, distances to bases."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from perfbisect.system.git import Repository


def version_at(repository: Repository, sha: str) -> str:
    """The version that a build of a commit is given: after its nearest tag, as setuptools-scm guesses it.

    ``v1.2.3`` and five commits: ``1.2.4.dev5+gSHA``; ``v1.2.3rc1``: ``1.2.3rc2.dev5+gSHA``. A tagged commit
    has the tag's version; without a tag ``0.1.dev0+gSHA``.
    """
    described = _git(repository, "describe", "--tags", "--long", "--abbrev=12", sha)
    found = re.match(r"^(.*)-(\d+)-g[0-9a-f]+$", described.strip())
    local = f"g{sha[:12]}"
    if found is None:
        return f"0.1.dev0+{local}"
    try:
        tag = Version(found[1].rpartition("/")[2])
    except InvalidVersion:
        return f"0.1.dev{found[2]}+{local}"
    if found[2] == "0":
        return str(tag)
    if tag.pre is not None:
        after = f"{tag.base_version}{tag.pre[0]}{tag.pre[1] + 1}"
    else:
        after = ".".join(map(str, (*tag.release[:-1], tag.release[-1] + 1)))
    return f"{after}.dev{found[2]}+{local}"


class Lines:
    """First-parent lines of a repository, each read once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._lines: dict[str, dict[str, int]] = {}

    def distance(self, base: str, sha: str) -> int | None:
        """First-parent commits between two: from both back to where their lines meet; None: nowhere."""
        ours, theirs = self._line(sha), self._line(base)
        below = itertools.islice(theirs, theirs[base], None)
        meeting = next((commit for commit in below if commit in ours), None)
        if meeting is None:
            return None
        return theirs[meeting] - theirs[base] + abs(ours[meeting] - ours[sha])

    def prepare(self, shas: Iterable[str]) -> None:
        """Read the lines of commits, given oldest first: usually one line that holds them all."""
        for sha in reversed(list(shas)):
            self._line(sha)

    def _line(self, sha: str) -> dict[str, int]:
        """Commit -> place, of a line that holds ``sha``: newest first."""
        for line in self._lines.values():
            if sha in line:
                return line
        words = _git(self.repository, "rev-list", "--first-parent", sha).split()
        self._lines[sha] = {commit: place for place, commit in enumerate(words or [sha])}
        return self._lines[sha]


def _git(repository: Repository, *arguments: str) -> str:
    """What git says; empty where it refuses."""
    done = repository.run(*arguments)
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
