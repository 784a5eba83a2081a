"""How the process that last worked on a job ended: its exit code, and its error, for whoever asks later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from perfbisect.system.whole_file import write_whole

FILE = "ended.json"


@dataclass(frozen=True)
class Ending:
    """An exit code; of an error what was told of it, else empty."""

    exit_code: int
    error: str = ""
    kind: str = ""
    where: str | None = None
    next_step: str | None = None


def write_ending(folder: Path, ending: Ending) -> None:
    """Into a job's folder. :raises MachineError: the disk."""
    write_whole(folder / FILE, json.dumps(asdict(ending)))


def read_ending(folder: Path) -> Ending | None:
    """None: somebody works on the job, or its process ended without a word (``kill -9``)."""
    try:
        ending = Ending(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return ending if isinstance(ending.exit_code, int) else None


def clear_ending(folder: Path) -> None:
    """Somebody works on the job again."""
    (folder / FILE).unlink(missing_ok=True)
