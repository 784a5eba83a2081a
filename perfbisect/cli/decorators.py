"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from perfbisect.commands.options import JobOptions, MeasureOptions
from perfbisect.commands.request import MINUTES, PATH, PERCENT

if TYPE_CHECKING:
    from perfbisect.commands.output import CommandResult


min_effect = click.option(
    "--min-effect",
    metavar="PERCENT",
    type=PERCENT,
    help="Smallest relevant effect, such as 2%.  [default: the metric's]",
)

_Function = TypeVar("_Function", bound=Callable[..., Any])


json_flag = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


def as_json(function: _Function) -> _Function:
    """``--json``: prints the :class:`CommandResult` that the command returns, as a document or as lines."""

    @functools.wraps(function)
    def call(*, as_json: bool, full: bool = False, **typed: Any) -> int:
        return _print(function(**typed), as_json, full)

    return cast(_Function, json_flag(call))


def _print(output: CommandResult | int, as_json: bool, full: bool) -> int:
    from perfbisect.commands.output import print_output

    return output if isinstance(output, int) else print_output(output, as_json=as_json, full=full)


state = click.option(
    "--state",
    type=PATH,
    help="Folder of jobs.  [default: $PERFBISECT_STATE or the user's state folder]",
)
repo = click.option("--repo", type=PATH, help="Git repository under test.  [default: the current one]")
cell = click.argument("cell", required=False)
env = click.option(
    "--env", "env", metavar="SPEC", help="How to build a change's environment, e.g. overlay:NAME==V,base=REV."
)
client = click.option(
    "--client",
    metavar="SPEC",
    help="Environment of the load generator on all sides, or 'change' for each change's own.",
)
metric = click.option(
    "--metric",
    "metrics",
    metavar="M",
    callback=lambda _context, _param, value: () if value is None else (value,),
    help="Metric to judge, e.g. ttft:p99.  [default: the cell's headline]",
)
metrics = click.option(
    "--metric",
    "metrics",
    metavar="M",
    multiple=True,
    help="Metric to judge, e.g. ttft:p99; may be repeated.  [default: the cell's headline]",
)
variant = click.option("--variant", metavar="NAME", help="Variant of the cell, on all sides.")
constraints = click.option("--constraints", type=PATH, help="File that pins versions of dependencies.")
exclude_newer = click.option(
    "--exclude-newer",
    metavar="DAY",
    help="Resolve dependencies as of this day, or none: of any.  [default: the newest change's]",
)
machine = click.option(
    "--machine",
    metavar="PROFILE",
    help="Kind of machine: cuda, rocm, ascend, spyre, cpu or a file.  [default: of the driver's command]",
)
fleet = click.option(
    "--fleet",
    metavar="SPEC",
    help="Machines that measure: ssh:hosts.yaml, slurm[:..], ray:ADDRESS, joined by +.  [default: this one]",
)
wait = click.option(
    "--wait", type=MINUTES, help="How long to wait for busy devices or cores.  [default: do not wait]"
)
timeout = click.option("--timeout", type=MINUTES, help="Stop waiting after this time.  [default: never]")
verbose = click.option("-v", "--verbose", is_flag=True, help="Show every phase of every launch.")
quiet = click.option("-q", "--quiet", is_flag=True, help="Show only the result and errors.")
detach = click.option(
    "--detach",
    is_flag=True,
    help="Run in the background; return once the job has begun. `status --wait` follows it.",
)
full = click.option("--full", is_flag=True, help="With --json: do not shorten lists.")


blocks = click.option(
    "--blocks", type=click.IntRange(1), default=10, show_default=True, help="Most blocks of four."
)
budget = click.option("--budget", type=MINUTES, help="Measure no longer than this: 3h, 90m.  [default: 15h]")
seed = click.option("--seed", type=int, default=0, show_default=True, help="Draws which side begins a block.")
dry_run = click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
expect_workload = click.option(
    "--expect-workload",
    metavar="TEXT",
    help="Require the workload of a report: its commands or result file name, or @FILE.",
)


_WORKING = (wait, repo, state, detach, verbose, quiet, full, json_flag)
_ENVIRONMENT = (repo, state, env, client)
_MACHINE = (constraints, exclude_newer, machine, fleet, wait, detach, verbose, quiet, full, json_flag)


def working(function: _Function) -> _Function:
    """Options of commands that work on a job, passed as ``working``, and the workspace that they name."""
    return _bundled(function, "working", JobOptions, _WORKING)


def measuring(function: _Function) -> _Function:
    """Options of commands that measure, passed as ``measuring``, and the workspace that they name."""
    return _bundled(
        function, "measuring", MeasureOptions, (*_ENVIRONMENT, metric, variant, expect_workload, *_MACHINE)
    )


def measuring_metrics(function: _Function) -> _Function:
    """The options of :func:`measuring`, with as many metrics as are named."""
    return _bundled(
        function, "measuring", MeasureOptions, (*_ENVIRONMENT, metrics, variant, expect_workload, *_MACHINE)
    )


def measuring_a_claim(function: _Function) -> _Function:
    """The options of :func:`measuring` without those that a claim file sets."""
    return _bundled(function, "measuring", MeasureOptions, (*_ENVIRONMENT, *_MACHINE))


def _bundled(
    function: _Function, name: str, kind: type[JobOptions], options: Sequence[Callable[[Any], Any]]
) -> _Function:
    """Pass the options that are fields of ``kind`` as one value, and the workspace; print the result.

    With ``--detach`` the command runs in the background instead.
    """
    own = {field.name for field in fields(kind)}

    @functools.wraps(function)
    def call(**typed: Any) -> int:
        given = frozenset(name for name, option in typed.items() if option is not None)
        value = kind(**{key: typed.pop(key) for key in own & typed.keys()}, typed=given)
        if value.detach and not typed.get("dry_run"):
            from perfbisect.commands.detach import run_detached

            return _print(run_detached(), value.as_json, value.full)
        return _print(function(**typed, **{name: value}), value.as_json, value.full)

    return in_workspace(*options)(cast(_Function, call))


def in_workspace(*options: Callable[[Any], Any]) -> Callable[[_Function], _Function]:
    """Pass the workspace that ``--repo``, ``--state`` and ``--machine`` name, as far as they are options."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(**typed: Any) -> Any:
            from perfbisect.commands.workspace import open_workspace

            named = {name: typed.pop(name) for name in ("repo", "state", "machine") if name in typed}
            return function(workspace=open_workspace(**named), **typed)

        command: Any = call
        for option in reversed(options):
            command = option(command)
        return cast(_Function, command)

    return decorate
