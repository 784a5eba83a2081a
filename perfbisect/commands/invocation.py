"""Values of the options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JobOptions:
    """Options of commands that work on a job.

    ``wait``: minutes to wait for busy devices; ``full``: do not shorten lists in JSON.
    """

    repo: Path | None = None
    state: Path | None = None
    wait: float | None = None
    verbose: bool = False
    quiet: bool = False
    detach: bool = False
    full: bool = False
    as_json: bool = False


@dataclass(frozen=True)
class MeasureOptions(JobOptions):
    """Options of commands that start a measurement; None: not given."""

    env: str | None = None
    client: str | None = None
    metric: str | None = None
    variant: str | None = None
    expect_workload: str | None = None
    constraints: Path | None = None
    exclude_newer: str | None = None
    machine: str | None = None
