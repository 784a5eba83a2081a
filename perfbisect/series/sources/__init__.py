"""Where results measured elsewhere come from: folders and services -> files, build by build."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from perfbisect.common.text import hint
from perfbisect.errors import UsageError
from perfbisect.series.sources import buildkite, dashboards, folders, journals, kanban
from perfbisect.series.sources.base import IngestOptions as IngestOptions
from perfbisect.series.sources.base import ResultSource as ResultSource
from perfbisect.series.sources.base import SourceBuild as SourceBuild

_ALL: tuple[ResultSource, ...] = (buildkite, kanban, journals, dashboards, folders)
SOURCES = {source.NAME: source for source in _ALL}
"""In the order in which a place is offered to them."""


def find_source(place: str, name: str | None = None) -> tuple[ResultSource, str]:
    """The source of a path or address, and its absolute path; ``name``: the source that it must be."""
    is_address = urlsplit(place).scheme in ("http", "https")
    path = Path(place).expanduser().absolute()
    location = place if is_address else str(path)
    if name is not None and name not in SOURCES:
        raise UsageError(
            f"no source {name!r}{hint(name, SOURCES)}; there are: {', '.join(SOURCES)}",
            next_step="leave --from out: the place itself says which it is",
        )
    if not is_address and not path.exists():
        raise UsageError(f"no such file or folder: {path}", next_step="give a path or an address")
    if not is_address and path.is_dir() and not any(path.iterdir()):
        raise UsageError(f"{path} is empty", next_step="give a folder with results")
    for source in [SOURCES[name]] if name else SOURCES.values():
        if is_address == source.IS_REMOTE and source.takes(location):
            return source, location
    if name:
        raise UsageError(
            f"{place} is no {name}: {SOURCES[name].ACCEPTS}", next_step="leave --from out, or mend it"
        )
    accepted = "; ".join(f"{name}: {source.ACCEPTS}" for name, source in SOURCES.items())
    raise UsageError(
        f"{place} holds nothing that can be ingested ({accepted})", next_step="perfbisect track ingest -h"
    )
