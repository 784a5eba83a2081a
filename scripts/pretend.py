"""``python -m scripts.pretend FOLDER``: a repository to try perfbisect on, whose engine is the pretend one.

One of its commits is slow; which one, only ``--tell`` says. Beside the history stand what a user would have:
``perfbisect.yaml``, and the cell ``cells/pretend.yaml``. The good end has the tag ``first``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.gitwriter import run_git
from tests.fakes.history import ENGINE, PretendHistory, make_history

CELLS = ENGINE.parent / "cells"
BESIDE = ("perfbisect.yaml", "cells", "state")
"""What is no part of the history."""


def place(commits: int, seed: int) -> int:
    """Which commit is slow: none of the first three, nor of the last two."""
    return 3 + 7 * seed % (commits - 5)


def write(folder: Path, commits: int, seed: int) -> PretendHistory:
    """The repository with what stands beside it. :raises FileExistsError: the folder is there."""
    made = make_history(folder, commits=commits, slow=place(commits, seed), docs=(2,))
    run_git(folder, "tag", "first", made.good)
    shutil.copytree(CELLS, folder / "cells")
    (folder / "perfbisect.yaml").write_text(
        f"env: overlay:{sys.executable},base=any\n"
        f"client: existing:{sys.executable},path={ENGINE}\n"
        "state: state\n"
    )
    exclude = folder / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("".join(f"/{name}\n" for name in BESIDE))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes it and says what to type; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.pretend", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commits", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1, help="where the slow commit is")
    parser.add_argument("--tell", action="store_true", help="say which commit is slow")
    typed = parser.parse_args(arguments)
    if typed.commits < 8:
        parser.error("--commits: at least 8")
    try:
        made = write(typed.folder.absolute(), typed.commits, typed.seed)
    except FileExistsError:
        parser.error(f"{typed.folder} is there already")
    print(f"{typed.commits} commits in {typed.folder}, one of them slow; the first has the tag 'first'")
    if typed.tell:
        print(f"the slow one: {made.culprit}")
    print(f"next: cd {typed.folder} && perfbisect bisect pretend --good first --bad main --dry-run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
