"""A clone and its remote, a bare repository beside it that can get ahead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter, run_git


@dataclass(frozen=True)
class Cloned:
    """``commits`` are those of a line whose first is all that ``clone`` has seen; ``origin`` is bare."""

    clone: Path
    origin: Path
    commits: tuple[str, ...]

    def push(self, number: int) -> str:
        """Somebody pushes the line up to a commit."""
        run_git(self.origin, "update-ref", "refs/heads/main", self.commits[number])
        return self.commits[number]


def cloned(folder: Path, commits: int = 3) -> Cloned:
    """Made in an empty folder."""
    writer = HistoryWriter(folder / "line")
    for number in range(commits):
        writer.commit(f"Change {number}", {"vllm/__init__.py": b"# %d\n" % number})
    made = writer.finish(checkout=False)
    run_git(folder, "clone", "--quiet", "--bare", "line", "origin.git")
    found = Cloned(folder / "clone", folder / "origin.git", made)
    found.push(0)
    run_git(folder, "clone", "--quiet", "origin.git", "clone")
    return found
