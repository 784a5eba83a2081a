"""Generates the first ``nightly.yaml`` of a repository, with every key and its meaning."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from perfbisect.cells.settings import load_settings
from perfbisect.changes.git import Repository
from perfbisect.errors import RevisionError, UsageError
from perfbisect.jobs.documents import Document
from perfbisect.series.detection.model import FEWEST
from perfbisect.setup.checkout import detect_checkout
from perfbisect.setup.templates import SettingChoice, choose_settings, detected_lines
from perfbisect.system.clock import now
from perfbisect.system.files import write_atomic

FILE = "nightly.yaml"

_KEYS = {"env": "environment", "client": "client", "machine": "machine"}
"""Keys of ``perfbisect.yaml`` and of ``nightly.yaml``."""

_TEMPLATE = """\
# Measured every night by `perfbisect nightly THIS_FILE`; docs/nightly.md has the rules.
# Detection begins with the {fewest}th night of a series; runs of one day count as one night.
# Written by `perfbisect nightly --init`, which detected:
{detected}
# Paths are relative to this file. Settings of perfbisect.yaml need not be repeated.

name: {name}
repository: {repository}
branch: {branch}   # its head is measured
fetch: false        # true: fetch the branch's remote first, as in origin/main

# Cells by name, pattern of names, or file: perfbisect cells list shows the names.
{cells}

# How a commit gets an environment, the load generator, the machine kind.
{settings}
# Dependencies as of this date: otherwise a change between two nights may be theirs.
exclude_newer: "{date}"

budget: 6h          # of a night, bisections included; shortest cells first
launches: 2         # server launches a cell, at least two
runs: 1             # runs in each launch
# launches_of: {{"slow_*": 4}}   # more, for cells with large launch-to-launch variation
suite: false        # true: cells of one server share its launches; as_nightly: in the order above

alerts:
  fdr: 0.05                      # largest share of false alarms among the series with an alert
  causes: [product, unknown]     # causes that are findings; others are listed
  # smallest: 3%                 # smaller effects are no findings
  # since: "{date}"             # earlier changes are not reported

bisect:
  when: new         # never: alerts only
  budget: 3h        # of one bisection, within what the night has left
  most: 2           # bisections a night
  # smallest: 5%    # smaller effects are not bisected

# Written every night:
# report: nightly/report                       # folder of night.md, nightly.md and nightly.html
# dashboard: {{folder: nightly/site}}            # the static site
# publish: nightly/kanban                      # results in the kanban's format
# exports: {{csv: nightly/results.csv, benchmark: nightly/benchmark.json}}

# Notifications. The address of a webhook is a secret: name the variable that holds it.
tell:
  job_summary: true              # if GITHUB_STEP_SUMMARY is set
  # markdown: nightly/night.md   # for an issue or a comment
  # webhook: {{url: NIGHTLY_WEBHOOK}}
"""
_NO_CELL = "# No shipped cell can be measured on this machine: name your own.\ncells: [my_cell.yaml]"


class NightlyInitDocument(Document):
    """``perfbisect nightly --init``: the file that was written."""

    schema_: Literal["perfbisect.nightly-init/1"] = Field(default="perfbisect.nightly-init/1", alias="schema")
    file: str
    repository: str
    branch: str
    content: str
    next: str


def write_nightly(config: Path | None, folder: Path) -> NightlyInitDocument:
    """Write the configuration for the repository of a folder."""
    file = config or Path(FILE)
    if file.exists():
        raise UsageError(
            f"{file} exists and is kept",
            where=file,
            next_step=f"perfbisect nightly {file} --dry-run; or another: perfbisect nightly --init FILE",
        )
    repository = Repository.open(folder)
    initial = choose_settings(detect_checkout(repository, os.environ))
    existing = load_settings(repository.path)
    missing = [choice for choice in initial.choices if getattr(existing, choice.key) is None]
    branch = _main_branch(repository)
    content = _TEMPLATE.format(
        fewest=FEWEST,
        detected=detected_lines(initial),
        name=re.sub(r"[^a-z0-9._-]+", "-", repository.path.name.lower()).strip("-._") or "nightly",
        repository=_quote(os.path.relpath(repository.path, file.absolute().parent)),
        branch=_quote(branch),
        cells=f"cells: [{initial.cell}]" if initial.cell else _NO_CELL,
        settings=_setting_lines(missing),
        date=now().date().isoformat(),
    )
    write_atomic(file, content)
    return NightlyInitDocument(
        file=str(file),
        repository=str(repository.path),
        branch=branch,
        content=content,
        next=f"perfbisect nightly {file} --dry-run",
    )


def _setting_lines(choices: Sequence[SettingChoice]) -> str:
    """Keys that ``perfbisect.yaml`` lacks; an empty value is left to the user."""
    lines = []
    for choice in choices:
        key, value = _KEYS[choice.key], choice.value
        lines.append(f"{key}: {_quote(value)}" if value else f"# {key}: ...   # required: unknown here")
    return "".join(f"{text}\n" for text in lines)


def _quote(value: str) -> str:
    """Quote as JSON, which is YAML."""
    return json.dumps(value, ensure_ascii=False)


def _main_branch(repository: Repository) -> str:
    """The main branch as fetched last, if there is one; else HEAD."""
    for name in ("origin/HEAD", "origin/main", "origin/master", "main", "master"):
        with suppress(RevisionError):
            repository.resolve(name)
            return name
    return "HEAD"
