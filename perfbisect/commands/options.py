"""Options that several commands share: single ones, and groups that requests inherit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from perfbisect.commands.request import (
    MINUTES,
    OUTPUT,
    PERCENT,
    Argument,
    AsJson,
    Full,
    Option,
    Request,
    UnitParam,
    as_file_or_name,
    as_path,
    as_text,
)
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import parse_size


def as_spec(text: str, folder: Path) -> str:
    """A specification of environments whose paths are relative to the folder."""
    from perfbisect.environments.spec import absolute_spec

    return absolute_spec(text, folder)


def as_day(text: str, folder: Path) -> str:
    """A day, or none. :raises UsageError: neither."""
    from perfbisect.environments.dependency_day import require_day

    del folder
    require_day(text)
    return text


def as_fleet(text: str, folder: Path) -> str:
    """A fleet whose files are relative to the folder."""
    from perfbisect.commands.fleets import absolute_fleet

    return absolute_fleet(text, folder)


ENVIRONMENT, MACHINE, JOB = "Environment", "Machine", "Job"
"""Panels of the help."""

Minutes = Annotated[float, MINUTES]
"""Written as ``3h`` or ``90m``."""
Share = Annotated[float, PERCENT]
"""Written as ``5%``."""

Cell = Annotated[str | None, Argument(setting=as_file_or_name)]
KeptSize = Annotated[
    float | None,
    Option(
        "Size of all kept wheels and images together: 50G; the least useful nights go first.",
        metavar="SIZE",
        type=UnitParam("size", parse_size, "M", 1e6),
        default="no limit",
        setting=as_text,
    ),
]
State = Annotated[Path | None, Option("Folder of jobs.", default="the user's state folder", setting=as_path)]
Repo = Annotated[Path | None, Option("Git repository under test.", default="the current one")]
Budget = Annotated[Minutes, Option("Measure no longer than this: 3h, 90m.", default="15h", setting=as_text)]
MinEffect = Annotated[
    Share | None,
    Option("Smallest relevant effect, such as 2%.", metavar="PERCENT", default="the metric's"),
]
DryRun = Annotated[bool, Option("Show what would be measured; start nothing.")]
Env = Annotated[
    str | None,
    Option(
        "How to build a change's environment, e.g. overlay:NAME==V,base=REV.",
        metavar="SPEC",
        setting=as_spec,
        panel=ENVIRONMENT,
    ),
]
Client = Annotated[
    str | None,
    Option(
        "Environment of the load generator on all sides, or 'change' for each change's own.",
        metavar="SPEC",
        setting=as_spec,
        panel=ENVIRONMENT,
    ),
]
Constraints = Annotated[
    Path | None,
    Option("File that pins versions of dependencies.", setting=as_path, panel=ENVIRONMENT),
]
ExcludeNewer = Annotated[
    str | None,
    Option(
        "Resolve dependencies as of this day, or none: of any.",
        metavar="DAY",
        default="the newest change's",
        setting=as_day,
        panel=ENVIRONMENT,
    ),
]
MachineName = Annotated[
    str | None,
    Option(
        "Kind of machine: cuda, rocm, ascend, spyre, cpu or a file.",
        metavar="PROFILE",
        default="that of the driver's command",
        setting=as_file_or_name,
        panel=MACHINE,
    ),
]
Metrics = Annotated[
    tuple[str, ...],
    Option(
        "Metric to judge, e.g. ttft:p99; may be repeated.",
        ("--metric",),
        metavar="M",
        default="the cell's headline",
        setting=as_text,
    ),
]

InState = Annotated[Workspace, {"state": State}]
InRepository = Annotated[Workspace, {"repo": Repo}]
InRepositoryAndState = Annotated[Workspace, {"repo": Repo, "state": State}]


@dataclass(frozen=True, kw_only=True)
class FolderSettings(Request):
    """The folders of perfbisect, and a size; no command has an option for the cache."""

    state: State = None
    cache: Annotated[Path | None, Option("Folder of environments.", setting=as_path)] = None
    kept_size: KeptSize = None


@dataclass(frozen=True, kw_only=True)
class ProgressOptions(Request):
    """How much is printed."""

    verbose: Annotated[
        bool, Option("Show every phase of every launch.", ("-v", "--verbose"), panel=OUTPUT)
    ] = False
    quiet: Annotated[bool, Option("Show only the result and errors.", ("-q", "--quiet"), panel=OUTPUT)] = (
        False
    )
    full: Full = False
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class JobOptions(ProgressOptions):
    """Options of commands that work on a job."""

    wait: Annotated[
        Minutes | None,
        Option("How long to wait for busy devices or cores.", default="do not wait", panel=JOB),
    ] = None
    detach: Annotated[
        bool,
        Option(
            "Run in the background; return once the job has begun. `status --wait` follows it.", panel=JOB
        ),
    ] = False
    repo: Repo = None
    state: State = None


@dataclass(frozen=True, kw_only=True)
class BuildOptions(JobOptions):
    """How changes are built, and where they are measured."""

    env: Env = None
    client: Client = None
    constraints: Constraints = None
    exclude_newer: ExcludeNewer = None
    machine: MachineName = None
    fleet: Annotated[
        str | None,
        Option(
            "Machines that measure: ssh:hosts.yaml, slurm[:..], ray:ADDRESS, joined by +.",
            metavar="SPEC",
            default="this one",
            setting=as_fleet,
            panel=MACHINE,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(BuildOptions):
    """Options of commands that start a measurement of a cell."""

    cell: Cell = None
    variant: Annotated[
        str | None, Option("Variant of the cell, on all sides.", metavar="NAME", setting=as_text)
    ] = None
    metrics: Annotated[
        tuple[str, ...],
        Option(
            "Metric to judge, e.g. ttft:p99.",
            ("--metric",),
            metavar="M",
            default="the cell's headline",
            setting=as_text,
            is_repeated=False,
        ),
    ] = ()
    expect_workload: Annotated[
        str | None,
        Option(
            "Require the workload of a report: its commands or result file name, or @FILE.", metavar="TEXT"
        ),
    ] = None
    dry_run: DryRun = False


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(Request):
    """Options of commands that measure until a verdict."""

    budget: Budget = 900.0
    seed: Annotated[int, Option("Draws the order of launches.")] = 0


@dataclass(frozen=True, kw_only=True)
class BlockOptions(BudgetOptions):
    """Options of commands that compare two sides in blocks."""

    blocks: Annotated[int, Option("Most blocks of four.", type=click.IntRange(1))] = 10
