"""Runs a command: its workspace, its values, its result on standard output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from perfbisect.commands.detach import run_detached
from perfbisect.commands.output import CommandResult, print_output
from perfbisect.commands.request import WORKSPACE, record_request
from perfbisect.commands.settings import NO_SETTINGS, resolve_values
from perfbisect.commands.workspace import open_workspace


def run_command(verb: str, command: Callable[..., Any], typed: Mapping[str, Any]) -> int:
    """Run what was typed and print the result; with ``--detach`` run it in the background."""
    run: Callable[..., Any] = getattr(command, "run", command)
    workspace: dict[str, Any] = {}
    settings = NO_SETTINGS
    if WORKSPACE in inspect.signature(run).parameters:
        workspace[WORKSPACE] = open_workspace(repo=typed.get("repo"), state=typed.get("state"))
        settings = workspace[WORKSPACE].settings
    values = resolve_values(command, typed, settings)
    as_json, full = values.get("as_json", False), values.get("full", False)
    if values.get("detach") and not values.get("dry_run"):
        result = run_detached()
    elif isinstance(command, type):
        result = command(**values, record=record_request(verb, command, typed)).run(**workspace)
    else:
        values |= {"record": record_request(verb, command, typed)} | workspace
        declared = inspect.signature(command).parameters
        result = command(**{name: value for name, value in values.items() if name in declared})
    return print_output(result, as_json=as_json, full=full) if isinstance(result, CommandResult) else result
