"""vLLM-Omni's history of spring 2026 as a repository of its own: subjects, dates and files as they were.

Of the files only the paths are known, so a touched file holds the sha of the commit that touched it last; of
``docker/Dockerfile.ci`` the pin is known besides. The original sha stands in a trailer.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perfbisect.changes.pins import DOCKERFILE
from tests.fakes.gitwriter import AUTHOR, run_git
from tests.shared import data

TRAILER = "Original-sha"


@dataclass(frozen=True)
class HistoryRepository:
    """The repository; ``shas``: original sha -> the commit here, oldest first."""

    path: Path
    shas: Mapping[str, str]

    def sha(self, original: str) -> str:
        """The commit that was made of an original, which the first digits name."""
        (found,) = (here for there, here in self.shas.items() if there.startswith(original))
        return found


def history_repository(path: Path, *, newest: str = "", blank: bool = False) -> HistoryRepository:
    """Write the history up to a day (``2026-04-15``, not with it), or all of it. Skips where it is not there.

    ``blank``: subjects say nothing but the number of their pull request.
    """
    rows = [json.loads(line) for line in data("vllm_omni", "history.jsonl").read_text().splitlines()]
    rows = [row for row in reversed(rows) if not newest or row["date"] < newest]
    pins = _pins()
    stream: list[bytes] = []
    pin = ""
    for mark, row in enumerate(rows, 1):
        pin = pins.get(row["sha"][:8], pin)
        stream.append(_commit(mark, row, pin, blank))
    path.mkdir(parents=True)
    run_git(path, "init", "--quiet", "--bare", "--initial-branch=main")
    marks = path / "marks"
    run_git(path, "fast-import", "--quiet", f"--export-marks={marks}", data=b"".join(stream))
    made = dict(line.split() for line in marks.read_text().splitlines())
    return HistoryRepository(path, {row["sha"]: made[f":{mark}"] for mark, row in enumerate(rows, 1)})


def _commit(mark: int, row: Mapping[str, object], pin: str, blank: bool) -> bytes:
    when = datetime.fromisoformat(str(row["date"]))
    zone = when.strftime("%z")
    subject = str(row["subject"])
    if blank:
        number = subject.rpartition("(#")[2]
        subject = f"x (#{number}" if number.endswith(")") else "x"
    message = f"{subject}\n\n{TRAILER}: {row['sha']}\n".encode()
    parts = [
        f"commit refs/heads/main\nmark :{mark}\ncommitter {AUTHOR} {int(when.timestamp())} {zone}\n".encode(),
        b"data %d\n%s\n" % (len(message), message),
        f"from :{mark - 1}\n".encode() if mark > 1 else b"",
    ]
    files = row["files"]
    assert isinstance(files, list)
    for name in dict.fromkeys(files):
        content = f"{pin}# {row['sha']}\n".encode() if name == DOCKERFILE else f"{row['sha']}\n".encode()
        quoted = json.dumps(name, ensure_ascii=False).encode()
        parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (quoted, len(content), content))
    return b"".join(parts)


def _pins() -> dict[str, str]:
    """First digits of a sha -> the text that pins its engine."""
    found = {}
    for sha, _, tag, wheel in csv.reader(
        data("vllm_omni", "vllm_pins.tsv").read_text().splitlines(), delimiter="\t"
    ):
        text = f"ARG VLLM_BASE_TAG={tag}\nFROM vllm/vllm-openai:${{VLLM_BASE_TAG}}\n"
        if wheel != "-":
            text += f"RUN uv pip install vllm --extra-index-url https://wheels.vllm.ai/{wheel}\n"
        found[sha] = text
    return found
