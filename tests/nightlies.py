"""Nightlies of three servers of which one is slow from a night on, and the history that they ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter
from tests.series.made import name_of, served, write
from tests.series.made_series import noise, step

NIGHTS = 24
AT = 14
"""The first slow night, counted from 0: 2026-01-15."""

EACH = 2
"""Commits that a night runs and the night before did not."""

HARM = "<script>alert(1)</script>"
"""In the subject of the slow commit."""

_METRICS = ("median_audio_ttfp_ms", "median_audio_rtf", "median_e2el_ms")


@dataclass(frozen=True)
class Nightlies:
    """``repo``: the history; ``all``: a folder a night; ``early``: the same without the last four nights."""

    repo: Path
    all: Path
    early: Path
    commits: tuple[str, ...]

    @property
    def culprit(self) -> str:
        return self.commits[AT * EACH]

    @property
    def good(self) -> str:
        """What the night before the first slow one ran."""
        return self.commits[AT * EACH - 1]

    @property
    def bad(self) -> str:
        """What the first slow night ran."""
        return self.commits[(AT + 1) * EACH - 1]


def make_nightlies(home: Path) -> Nightlies:
    """Each result is stamped with its commit; the noise of a night is one per cent."""
    writer = HistoryWriter(home / "repo")
    for number in range(NIGHTS * EACH):
        slow = number == AT * EACH
        path = "vllm_omni/engine/orchestrator.py" if slow else f"docs/{number}.md"
        changes = {path: b"x\n" * (number + 1)}
        if slow or not number:
            changes["vllm/__init__.py"] = b"x" * number
        writer.commit(f"{HARM} {number}" if slow else f"Change {number}", changes)
    commits = writer.finish(checkout=False)
    _write(home / "early", commits, range(NIGHTS - 4))
    _write(home / "all", commits, range(NIGHTS))
    return Nightlies(home / "repo", home / "all", home / "early", commits)


def _write(folder: Path, commits: tuple[str, ...], nights: Iterable[int]) -> None:
    for number, test in enumerate(("omni_chunk", "image_b", "text_c")):
        columns = [noise(10 * number + m, NIGHTS, 400.0) for m in range(len(_METRICS))]
        if test == "omni_chunk":
            columns = [step(column, AT, 1.3) for column in columns]
        for night in nights:
            at = f"{datetime(2026, 1, 1, 19) + timedelta(days=night):%Y%m%d-%H%M%S}"
            values = {name: column[night] for name, column in zip(_METRICS, columns, strict=True)}
            document = served(date=at, backend="vllm", commit=commits[(night + 1) * EACH - 1], **values)
            write(folder / f"n{night:03d}" / name_of(test, at=at), document)
