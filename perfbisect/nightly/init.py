"""The first ``nightly.yaml`` of a repository: what was seen of it, with every key and what it is for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfbisect.cells.settings import load_settings
from perfbisect.changes.git import Repository
from perfbisect.errors import RevisionError, UsageError
from perfbisect.nightly.config import FILE
from perfbisect.nightly.documents import NightlyInitDocument
from perfbisect.series.detection.model import FEWEST
from perfbisect.setup.checkout import look
from perfbisect.setup.templates import first_settings
from perfbisect.system.clock import now
from perfbisect.system.files import write_whole


@dataclass(frozen=True)
class FirstNightly:
    """What is known. ``repository``: as the file names it; ``saw``: what was looked at; ``cell``: empty where
    no shipped cell can be measured here; ``settings``: keys that ``perfbisect.yaml`` does not say, of which
    one without a value is left for the user; ``day``: today."""

    name: str
    repository: str
    branch: str
    cell: str
    settings: Mapping[str, str]
    saw: tuple[tuple[str, str], ...]
    day: str


def first_nightly(known: FirstNightly) -> str:
    """The text of the file."""
    return "\n".join(_lines(known)) + "\n"


def _lines(known: FirstNightly) -> Iterator[str]:
    width = max(len(what) for what, _ in known.saw)
    yield "# What is measured every night: perfbisect nightly THIS_FILE; docs/nightly.md has the rules."
    yield f"# A change is told from the {FEWEST}th night of a series on; runs of one day are one night."
    yield "# Written by `perfbisect nightly --init`, which saw:"
    yield from (f"#   {what:<{width}}  {found}" for what, found in known.saw)
    yield "# Paths are relative to this file. What perfbisect.yaml says there need not stand here."
    yield ""
    yield f"name: {known.name}"
    yield f"repository: {_text(known.repository)}"
    yield f"branch: {_text(known.branch)}   # its head is measured"
    yield "fetch: false        # true: git fetch of the branch's remote before, as in origin/main"
    yield ""
    yield "# Cells by name, by pattern of names, or as files: perfbisect cells list shows the names."
    if known.cell:
        yield f"cells: [{known.cell}]"
    else:
        yield "# No shipped cell can be measured on this machine: name your own."
        yield "cells: [my_cell.yaml]"
    yield ""
    yield from _settings(known)
    yield from _REST.format(day=known.day).splitlines()


def _settings(known: FirstNightly) -> Iterator[str]:
    yield "# How a commit gets an environment, by which client it is measured, on which kind of machine."
    for key, value in known.settings.items():
        yield f"{key}: {_text(value)}" if value else f"# {key}: ...   # to be said: it is not known here"
    yield ""


def _text(value: str) -> str:
    """As YAML writes it: quoted as JSON is."""
    return json.dumps(value, ensure_ascii=False)


_REST = """\
# Dependencies as they were on this day: else a change between two nights may be one of theirs.
exclude_newer: "{day}"

budget: 6h          # of a night, bisections included; the shortest cells that fit are measured
launches: 2         # fresh server starts a cell, at least two
runs: 1             # runs in each of them
# launches_of: {{"slow_*": 4}}   # more, for cells whose launches differ much
suite: false        # true: cells of one server share its launches; as_nightly: in the order above

alerts:
  fdr: 0.05                      # share of false alarms among the series that are alarmed, at most
  causes: [product, unknown]     # which are findings; the others are listed
  # smallest: 3%                 # less is no finding
  # since: "{day}"             # changes of earlier nights are not told

bisect:
  when: new         # never: alerts only
  budget: 3h        # of one bisection, within what the night has left
  most: 2           # so many a night
  # smallest: 5%    # less is not worth it

# Written every night:
# report: nightly/report                       # folder of night.md, nightly.md and nightly.html
# dashboard: {{folder: nightly/site}}            # the static site
# publish: nightly/kanban                      # results in the kanban's own format
# exports: {{csv: nightly/results.csv, benchmark: nightly/benchmark.json}}

# Who is told. The address of a webhook is a secret: only the name of its variable stands here.
tell:
  job_summary: true              # where GITHUB_STEP_SUMMARY is set
  # markdown: nightly/night.md   # for an issue or a comment
  # webhook: {{url: NIGHTLY_WEBHOOK}}
"""

_KEYS = {"env": "environment", "client": "client", "machine": "machine"}


def write_first(config: Path | None, folder: Path) -> NightlyInitDocument:
    """Writes the configuration for the repository of a folder.

    :raises UsageError: the file is there already.
    :raises RevisionError, LocatedError: there is no repository, or none of an engine that is known.
    """
    file = config or Path(FILE)
    if file.exists():
        raise UsageError(
            f"{file} is there already: it stays as it is",
            where=file,
            next_step=f"perfbisect nightly {file} --dry-run; or another: perfbisect nightly --init FILE",
        )
    repository = Repository.open(folder)
    first = first_settings(look(repository, os.environ))
    said = load_settings(repository.path)
    missing = {name: key for key, name in _KEYS.items() if getattr(said, key) is None}
    values = {choice.key: choice.value for choice in first.choices}
    branch = _branch(repository)
    content = first_nightly(
        FirstNightly(
            name=re.sub(r"[^a-z0-9._-]+", "-", repository.path.name.lower()).strip("-._") or "nightly",
            repository=os.path.relpath(repository.path, file.absolute().parent),
            branch=branch,
            cell=first.cell,
            settings={name: values[key] for name, key in missing.items() if key in values},
            saw=first.saw,
            day=now().date().isoformat(),
        )
    )
    write_whole(file, content)
    return NightlyInitDocument(
        file=str(file),
        repository=str(repository.path),
        branch=branch,
        content=content,
        next=f"perfbisect nightly {file} --dry-run",
    )


def _branch(repository: Repository) -> str:
    """The main line as it was fetched last, where there is one; else where the repository stands."""
    for name in ("origin/HEAD", "origin/main", "origin/master", "main", "master"):
        with suppress(RevisionError):
            repository.resolve(name)
            return name
    return "HEAD"
