"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

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
verbose = click.option("-v", "--verbose", is_flag=True, help="Tell every phase of every launch.")


def measuring(function: _Function) -> _Function:
    """The options of verbs that measure."""
    for option in (verbose, exclude_newer, constraints, variant, metric, client, env, state, repo):
        function = option(function)
    return function
