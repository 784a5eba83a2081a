"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from perfbisect.cli.durations import Minutes

_Function = TypeVar("_Function", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
state = click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Folder of jobs.  [default: $PERFBISECT_STATE or the user's state folder]",
)
repo = click.option(
    "--repo", type=click.Path(path_type=Path), help="Git repository under test.  [default: the current one]"
)
cell = click.argument("cell", required=False)
env = click.option(
    "--env", "env", metavar="SPEC", help="How a change gets an environment, e.g. overlay:NAME==V,base=REV."
)
client = click.option(
    "--client",
    metavar="SPEC",
    help="Environment of the load generator on all sides, or 'change' for each change's own.",
)
metric = click.option(
    "--metric", metavar="M", help="Metric to judge, e.g. ttft:p99.  [default: the cell's headline]"
)
variant = click.option("--variant", metavar="NAME", help="Variant of the cell, on all sides.")
constraints = click.option(
    "--constraints", type=click.Path(path_type=Path), help="File that pins versions of dependencies."
)
exclude_newer = click.option(
    "--exclude-newer", metavar="DAY", help="Take dependencies as they were on this day, e.g. 2026-11-01."
)
machine = click.option(
    "--machine",
    metavar="PROFILE",
    help="Kind of machine: cuda, cpu, ascend or a file.  [default: cuda where nvidia-smi is, else cpu]",
)
wait = click.option(
    "--wait", type=Minutes(), help="Wait so long for devices or cores that somebody uses.  [default: not]"
)
verbose = click.option("-v", "--verbose", is_flag=True, help="Tell every phase of every launch.")


def workers(function: _Function) -> _Function:
    """Launches beside each other."""
    return click.option(
        "--workers",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Launches at once, each on devices and cores of its own.",
    )(function)


as_in = click.option(
    "--as-in",
    metavar="TEXT",
    help="A report's commands (bench, serve) or result file: refuse a cell that is not the report's.",
)


def measuring(function: _Function) -> _Function:
    """The options of verbs that measure."""
    typed = (
        verbose,
        wait,
        machine,
        exclude_newer,
        constraints,
        as_in,
        variant,
        metric,
        client,
        env,
        state,
        repo,
    )
    for option in typed:
        function = option(function)
    return function
