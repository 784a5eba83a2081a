"""Where results made elsewhere come from: folders and services -> files, build by build."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from perfbisect.common.suggest import hint
from perfbisect.errors import UsageError
from perfbisect.series.points import Build


@dataclass(frozen=True)
class SourceFile:
    """A file that was found and not yet read.

    ``name`` is its path inside the build, ``place`` where it is (a full path or an address). ``size`` and
    ``version`` change when it does (the time of the last change in ns, or a digest that the source tells).
    ``read`` gives its text and, where one lies beside it, the text of the commands that made it.
    ``facts``: covariates that the source knows: host, job.
    """

    name: str
    place: str
    size: int
    version: str
    read: Callable[[], tuple[str, str]]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceBuild:
    """The files of one build. ``zone``: of times that say none; None: such a time is refused.

    ``logs``: job -> the end of its log. ``whole``: the build has ended and everything of it is listed.
    """

    build: Build
    files: tuple[SourceFile, ...]
    zone: tzinfo | None = None
    logs: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True)
class IngestOptions:
    """What limits an ingest. ``zone``: as it was typed; ``since``: the first day, ``2026-04-01``.

    ``branch``: whose builds, empty: of all. ``finished``: keys of builds that need not be looked at again.
    ``now``: results that began more than a day later are none, whatever their clock said; None: any may be.
    ``variables``: the process environment, for tokens. ``say`` is told what is waited for, ``wait`` waits.
    """

    zone: tzinfo | None = None
    since: str = ""
    branch: str = "main"
    logs: bool = True
    finished: frozenset[str] = frozenset()
    now: datetime | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda _: None
    wait: Callable[[float], None] = time.sleep


class ResultSource(Protocol):
    """One kind of place. A module that satisfies this and a line in ``SOURCES`` are a new source."""

    name: str
    what: str
    """What it takes, in a few words: for messages."""
    remote: bool
    """True: each batch is kept as it comes, since what follows may fail."""

    def takes(self, argument: str) -> bool:
        """True if this is such a place."""
        ...

    def batches(self, argument: str, asked: IngestOptions) -> Iterator[SourceBuild]:
        """The builds, oldest first where that is known.

        :raises UsageError: the place is not what this source takes, or holds nothing.
        :raises MachineError: it cannot be reached.
        """
        ...


def _sources() -> dict[str, ResultSource]:
    from perfbisect.series.sources import buildkite, folder, journals, kanban

    return {
        "buildkite": buildkite.SOURCE,
        "kanban": kanban.SOURCE,
        "journals": journals.SOURCE,
        "folder": folder.SOURCE,
    }


SOURCES: dict[str, ResultSource] = _sources()
"""In the order in which a place is offered to them."""


def source_of(argument: str, named: str | None = None) -> ResultSource:
    """The source that takes a path or address; ``named``: the one that it must be.

    :raises UsageError: there is no such place, or none takes it: what each would have taken.
    """
    if named is not None:
        if named not in SOURCES:
            raise UsageError(
                f"no source {named!r}{hint(named, SOURCES)}; there are: {', '.join(SOURCES)}",
                next_step="leave --from out: the place itself says which it is",
            )
        if not SOURCES[named].takes(argument):
            raise UsageError(
                f"{argument} is no {named}: {SOURCES[named].what}", next_step="leave --from out, or mend it"
            )
        return SOURCES[named]
    if urlsplit(argument).scheme not in ("http", "https"):
        path = Path(argument).expanduser()
        if not path.exists():
            raise UsageError(f"no such file or folder: {path}", next_step="give a path or an address")
        if path.is_dir() and not any(path.iterdir()):
            raise UsageError(f"{path} is empty", next_step="give a folder with results")
    for source in SOURCES.values():
        if source.takes(argument):
            return source
    told = "; ".join(f"{name}: {source.what}" for name, source in SOURCES.items())
    raise UsageError(
        f"{argument} holds nothing that can be ingested ({told})", next_step="perfbisect track ingest -h"
    )
