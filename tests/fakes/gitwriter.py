"""Write a git history in one go, the same bytes every time: for tests and for the demo."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

AUTHOR = "Perf Bisect Demo <demo@example.invalid>"
FIRST_SECOND = 1_735_689_600
"""Time of the first commit (2025-01-01 UTC); each later one is an hour younger."""


class HistoryWriter:
    """Collects commits of one branch, then writes them with ``git fast-import``.

    A commit is a mapping of what changes in it: path -> content, or None where a file goes away.
    """

    def __init__(self, path: Path, *, first: int = FIRST_SECOND) -> None:
        self.path = path
        self.first = first
        self._stream: list[bytes] = []
        self._count = 0

    def commit(self, message: str, changes: Mapping[str, bytes | None], *, date: str = "") -> int:
        """Add a commit on top; returns its position, from 0. ``date``: seconds and zone, as git has them."""
        stamp = date or f"{self.first + 3600 * self._count} +0000"
        text = message.encode(errors="surrogateescape")
        self._count += 1
        self._stream.append(
            b"commit refs/heads/main\nmark :%d\ncommitter %s %s\ndata %d\n%s\n"
            % (self._count, AUTHOR.encode(), stamp.encode(), len(text), text)
        )
        if self._count > 1:
            self._stream.append(b"from :%d\n" % (self._count - 1))
        for path, content in sorted(changes.items()):
            if content is None:
                self._stream.append(b"D %s\n" % path.encode())
            else:
                self._stream.append(
                    b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content)
                )
        self._stream.append(b"\n")
        return self._count - 1

    def finish(self, *, checkout: bool = True) -> tuple[str, ...]:
        """Write the repository; returns the full commit ids, oldest first."""
        self.path.mkdir(parents=True)
        run_git(self.path, "init", "--quiet", "--initial-branch=main")
        marks = self.path / ".git" / "marks"
        run_git(self.path, "fast-import", "--quiet", f"--export-marks={marks}", data=b"".join(self._stream))
        found = dict(line.split() for line in marks.read_text().splitlines())
        marks.unlink()
        if checkout:
            run_git(self.path, "reset", "--quiet", "--hard", "main")
        return tuple(found[f":{number}"] for number in range(1, self._count + 1))


def run_git(path: Path, *arguments: str, data: bytes | None = None) -> str:
    """Run git in ``path`` without the user's configuration; returns its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", *arguments], cwd=path, input=data, capture_output=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments)} in {path}: {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode(errors="surrogateescape")
