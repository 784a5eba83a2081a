"""Commands of click: each is made of its request once it is needed; help in panels."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from perfbisect.common.text import hint

if TYPE_CHECKING:
    from perfbisect.commands.request import RequestField

_DETACHED = "perfbisect.commands.detach:DetachedDocument"


class Verb(click.Command):
    """A command whose module is imported once its options are asked for.

    ``place``: ``module:name`` of a function or a request; ``panel``: of the help that lists commands.
    """

    def __init__(self, name: str, short_help: str, place: str, panel: str = "Commands") -> None:
        self._place = place
        super().__init__(name, short_help=short_help)
        self.panel = panel

    @cached_property
    def declared(self) -> Callable[..., Any]:
        """The function or the request whose parameters are the options."""
        found: Callable[..., Any] = pkgutil.resolve_name(self._place)
        return found

    @cached_property
    def _fields(self) -> Sequence[RequestField]:
        from perfbisect.commands.request import request_fields

        return request_fields(self.declared)

    @cached_property
    def _parameters(self) -> list[click.Parameter]:
        return [field.parameter() for field in self._fields]

    @property
    def option_panels(self) -> dict[str, str]:
        """Option -> the panel that shows it."""
        return {field.name: field.panel for field in self._fields}

    @property
    def params(self) -> list[click.Parameter]:
        """The options and arguments of the request."""
        return self._parameters

    @params.setter
    def params(self, value: list[click.Parameter]) -> None:
        """Ignored: click's constructor sets none."""

    @property
    def help(self) -> str:
        """The text above the options: its docstring."""
        return inspect.cleandoc(self.declared.__doc__ or "")

    @help.setter
    def help(self, value: str | None) -> None:
        """Ignored: click's constructor sets none."""

    @property
    def prints(self) -> tuple[str, ...]:
        """The documents that the command prints with ``--json``."""
        own: tuple[str, ...] = getattr(self.declared, "prints", ())
        return (*own, _DETACHED) if any(param.name == "detach" for param in self.params) else own

    def invoke(self, ctx: click.Context) -> int:
        """Run what was typed and print the result; with ``--detach`` run it in the background."""
        from perfbisect.commands.detach import run_detached
        from perfbisect.commands.output import CommandResult, print_output
        from perfbisect.commands.request import WORKSPACE, record_request
        from perfbisect.commands.settings import NO_SETTINGS, resolve_values
        from perfbisect.commands.workspace import open_workspace

        source = click.core.ParameterSource.COMMANDLINE
        typed = {name: ctx.params[name] for name in ctx.params if ctx.get_parameter_source(name) is source}
        command = self.declared
        run: Callable[..., Any] = getattr(command, "run", command)
        workspace: dict[str, Any] = {}
        settings = NO_SETTINGS
        if WORKSPACE in inspect.signature(run).parameters:
            workspace[WORKSPACE] = open_workspace(repo=typed.get("repo"), state=typed.get("state"))
            settings = workspace[WORKSPACE].settings
        values = resolve_values(command, typed, settings)
        as_json, full = values.get("as_json", False), values.get("full", False)
        record = record_request(ctx.command_path.removeprefix("perfbisect "), command, typed)
        result: Any
        if values.get("detach") and not values.get("dry_run"):
            result = run_detached()
        elif isinstance(command, type):
            result = command(**values, record=record).run(**workspace)
        else:
            values |= {"record": record} | workspace
            declared = inspect.signature(command).parameters
            result = command(**{name: value for name, value in values.items() if name in declared})
        if isinstance(result, CommandResult):
            return print_output(result, as_json=as_json, full=full)
        return int(result)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)

    def get_help(self, ctx: click.Context) -> str:
        return _coloured_help(self, ctx) if is_terminal() else super().get_help(ctx)


class Verbs(click.Group):
    """A group that suggests the nearest commands for an unknown one, and lists them in panels."""

    panel = "Commands"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; raises click.UsageError with suggestions."""
        typed = args[0]
        if not typed.startswith("-") and self.get_command(ctx, typed) is None:
            raise click.UsageError(f"No such command {typed!r}{hint(typed, self.commands, 0.6)}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        del ctx
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)
        panels: dict[str, list[str]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                panels.setdefault(getattr(command, "panel", "Commands"), []).append(name)
        for panel, names in panels.items():
            width = formatter.width - 6 - max(map(len, names))
            rows = [(name, self.commands[name].get_short_help_str(width)) for name in names]
            with formatter.section(panel):
                formatter.write_dl(rows)

    def get_help(self, ctx: click.Context) -> str:
        return _coloured_help(self, ctx) if is_terminal() else super().get_help(ctx)


def option_panels(command: click.Command, ctx: click.Context) -> dict[str, list[click.Parameter]]:
    """Panel -> options, those that name no panel first."""
    panels: dict[str, list[click.Parameter]] = {"Options": []}
    chosen = command.option_panels if isinstance(command, Verb) else {}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            panels.setdefault(chosen.get(str(parameter.name), "Options"), []).append(parameter)
    return panels


def write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command under the titles of their panels."""
    for panel, parameters in option_panels(command, ctx).items():
        records = (parameter.get_help_record(ctx) for parameter in parameters)
        with formatter.section(panel):
            formatter.write_dl([record for record in records if record is not None])


def is_terminal() -> bool:
    """Whether help is read on a terminal: it has colours there."""
    return sys.stdout.isatty()


def _coloured_help(command: click.Command, ctx: click.Context) -> str:
    """The help with colours for titles and names."""
    formatter = ColouredFormatter(width=ctx.terminal_width, max_width=ctx.max_content_width)
    command.format_help(ctx, formatter)
    return formatter.getvalue().rstrip("\n")


class ColouredFormatter(click.HelpFormatter):
    """Help on a terminal: titles in bold, options and commands in colour."""

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        # The width of a column is that of the text: click counts no escape sequences.
        super().write_dl([(click.style(name, fg="cyan"), text) for name, text in rows], col_max, col_spacing)
