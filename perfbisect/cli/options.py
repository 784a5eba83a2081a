"""Options that several verbs share, and what was typed of them as one value."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from perfbisect.cli.durations import Minutes

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Working:
    """What a verb that works on a job was told of where jobs are and of what is shown meanwhile.

    ``wait``: minutes to wait for whoever uses a device or core; ``full``: the documents with all that is in
    their lists.
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
class Measuring(Working):
    """What a verb that begins to measure was told besides; None: not said."""

    env: str | None = None
    client: str | None = None
    metric: str | None = None
    variant: str | None = None
    as_in: str | None = None
    constraints: Path | None = None
    exclude_newer: str | None = None
    machine: str | None = None


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
timeout = click.option("--timeout", type=Minutes(), help="Wait no longer than this.  [default: for ever]")
verbose = click.option("-v", "--verbose", is_flag=True, help="Tell every phase of every launch.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Tell nothing but the result, and errors.")
detach = click.option(
    "--detach",
    is_flag=True,
    help="Go on without this shell; return once the job has begun. `status --wait` follows it.",
)
full = click.option(
    "--full", is_flag=True, help="With --json: all of every list, not its first or last items."
)


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
    help="A report's commands or result file, or @FILE: refuse a cell that is not the report's.",
)


_told = (detach, verbose, quiet, full, as_json)


def working(function: _Function) -> _Function:
    """The options of verbs that work on a job; the function gets them as ``working``, a :class:`Working`."""
    return _gathered(function, "working", Working, (wait, repo, state, *_told))


def measuring(function: _Function) -> _Function:
    """The options of verbs that measure; the function gets them as ``measuring``, a :class:`Measuring`."""
    asked = (repo, state, env, client, metric, variant, as_in, constraints, exclude_newer, machine)
    return _gathered(function, "measuring", Measuring, (*asked, wait, *_told))


def measuring_a_claim(function: _Function) -> _Function:
    """Those of a verb whose file says the metric and the variants: :func:`measuring` without them."""
    asked = (repo, state, env, client, constraints, exclude_newer, machine)
    return _gathered(function, "measuring", Measuring, (*asked, wait, *_told))


def _gathered(
    function: _Function, name: str, kind: type[Working], options: tuple[Callable[[Any], Any], ...]
) -> _Function:
    """Hands over the options that are fields of ``kind`` as one value, and the others as they are.

    What is to go on without its shell is left to a process of its own, unless nothing is to be started.
    """
    own = {field.name for field in fields(kind)}

    @functools.wraps(function)
    def call(**typed: Any) -> Any:
        value = kind(**{key: typed.pop(key) for key in own & typed.keys()})
        if value.detach and not typed.get("dry_run"):
            from perfbisect.cli.detach import leave

            return leave(value, sys.argv[1:])
        return function(**typed, **{name: value})

    made: Any = call
    for option in reversed(options):
        made = option(made)
    return cast(_Function, made)
