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
from tests.fakes.gitwriter import HistoryWriter
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


def history_repository(path: Path, *, newest: str = "") -> HistoryRepository:
    """Write the history up to a day (``2026-04-15``, not with it), or all; skips where there is none."""
    rows = [json.loads(line) for line in data("vllm_omni", "history.jsonl").read_text().splitlines()]
    rows = [row for row in reversed(rows) if not newest or row["date"] < newest]
    pins = _pins()
    writer, pin = HistoryWriter(path), ""
    for row in rows:
        pin = pins.get(row["sha"][:8], pin)
        when = datetime.fromisoformat(row["date"])
        content = f"{row['sha']}\n".encode()
        files = dict.fromkeys(row["files"], content)
        if DOCKERFILE in files:
            files[DOCKERFILE] = f"{pin}# ".encode() + content
        date = f"{int(when.timestamp())} {when:%z}"
        writer.commit(f"{row['subject']}\n\n{TRAILER}: {row['sha']}\n", files, date=date)
    commits = writer.finish(checkout=False)
    return HistoryRepository(path, {row["sha"]: sha for row, sha in zip(rows, commits, strict=True)})


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
