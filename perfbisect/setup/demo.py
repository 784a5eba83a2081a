"""The repository of ``perfbisect demo``: a history of the pretend engine in which one commit is slow.

The engine (``pretend/`` in a checkout) has the command line, processes and HTTP of vLLM, and sleeps in place
of computing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.errors import UsageError
from perfbisect.resources import shipped_folder
from perfbisect.setup.checkout import SETTINGS_FILE

Commit = tuple[str, str, Mapping[str, bytes | None]]
"""Message, date (seconds and zone, as git has them), and new contents by path; None: the file goes."""

AUTHOR = "Perf Bisect Demo <demo@example.invalid>"
FIRST_SECOND = 1_735_689_600
"""Time of the first commit (2025-01-01 UTC); each later one is an hour younger."""

COMMITS = 25
_PACE, _USAGE = "vllm/pace.py", "docs/usage.md"
_EDITS = {
    5: ("[Doc] Describe usage", _USAGE),
    16: ("[Core] Batch bookkeeping", _PACE),
}
"""Position, from 0 -> subject and file of a commit that is not code, and of the slow one."""

_HARMLESS = (
    ("[Core] Explain processes", "vllm/processes.py"),
    ("[Misc] Explain the noise", "vllm/noise.py"),
    ("[KVCache] Explain the blocks", "vllm/prefix_cache.py"),
    ("[Metrics] Explain the counters", "vllm/counters.py"),
    ("[Frontend] Explain the options", "vllm/entrypoints/cli/serve.py"),
)
"""Of the other commits, which take turns."""

_PLANTED = "planted"
"""A file of the git folder with the id of the slow commit: no tag, which the history would show."""


def write_commits(path: Path, commits: Iterable[Commit], *, checkout: bool = True) -> tuple[str, ...]:
    """Write a new repository with one branch, ``main``, by ``git fast-import``; equal commits get equal ids.

    Returns the full commit ids, oldest first.
    """
    stream: list[bytes] = []
    for number, (message, date, changes) in enumerate(commits, 1):
        text = message.encode(errors="surrogateescape")
        stream.append(
            b"commit refs/heads/main\nmark :%d\ncommitter %s %s\ndata %d\n%s\n"
            % (number, AUTHOR.encode(), date.encode(), len(text), text)
        )
        stream += [b"from :%d\n" % (number - 1)] if number > 1 else []
        for name, content in sorted(changes.items()):
            if content is None:
                stream.append(b"D %s\n" % name.encode())
            else:
                stream.append(b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(content), content))
        stream.append(b"\n")
    path.mkdir(parents=True)
    git = Repository(path)
    git.text("init", "--quiet", "--initial-branch=main")
    git.text("fast-import", "--quiet", stdin=b"".join(stream))
    if checkout:
        git.text("reset", "--quiet", "--hard", "main")
    return tuple(git.text("rev-list", "--reverse", "main").split())


def write_demo(folder: Path) -> str:
    """Write the repository, or keep one that an earlier demo wrote; returns the id of the slow commit.

    Beside the history is what a user has: ``perfbisect.yaml`` and a cell. The first commit has the tag
    ``first``.

    Raises:
        UsageError: something else is in the folder.
    """
    shipped, planted = shipped_folder("pretend"), folder / ".git" / _PLANTED
    engine = shipped / "engine"
    if folder.exists() and not planted.is_file():
        raise UsageError(
            f"{folder} is there and is no demo",
            where=folder,
            next_step=f"perfbisect demo {folder}-2, or another folder",
        )
    if not planted.is_file():
        sources = sorted((engine / "vllm").rglob("*.py"))
        files = {file.relative_to(engine).as_posix(): file.read_bytes() for file in sources}
        # A launch that is slow by chance would take the demo as long again.
        files[_PACE] = files[_PACE].replace(b"OUTLIER_PROBABILITY = 0.03", b"OUTLIER_PROBABILITY = 0.0")
        files[_USAGE] = b"# Usage\n"
        commits: list[Commit] = [("Import the engine", f"{FIRST_SECOND} +0000", dict(files))]
        for position in range(1, COMMITS):
            subject, path = _EDITS.get(position) or _HARMLESS[position % len(_HARMLESS)]
            if path == _PACE:
                files[path] = files[path].replace(b"STEP_MS = 5.0", b"STEP_MS = 8.0")
            else:
                files[path] += b"\n# Note %d.\n" % position
            commits.append((subject, f"{FIRST_SECOND + 3600 * position} +0000", {path: files[path]}))
        ids = write_commits(folder, commits)
        Repository(folder).text("tag", "first", ids[0])
        shutil.copytree(shipped / "cells", folder / "cells")
        (folder / ".git" / "info").mkdir(exist_ok=True)
        (folder / ".git" / "info" / "exclude").write_text(f"/{SETTINGS_FILE}\n/cells\n/state\n/cache\n")
        # Last: a folder without it is no whole demo.
        planted.write_text(ids[next(at for at, (_, path) in _EDITS.items() if path == _PACE)])
    # Each time: another version may be installed by now, at another path.
    (folder / SETTINGS_FILE).write_text(
        f"env: overlay:{sys.executable},base=any\n"
        f"client: existing:{sys.executable},path={engine}\n"
        "state: state\n"
        "cache: cache\n"
    )
    return planted.read_text()
