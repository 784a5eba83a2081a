"""Write the command reference to build/docs/cli.md: ``make docs``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from perfbisect.cli.app import app

TARGET = Path(__file__).resolve().parent.parent / "build" / "docs" / "cli.md"
_WIDTH = 100


def commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and its subcommands, sorted by name."""
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from commands(command.commands[name], (*path, name))


def help_of(command: click.Command, path: tuple[str, ...]) -> str:
    """Return the help text at a fixed width."""
    parent: click.Context | None = None
    for name in path[:-1]:
        parent = click.Context(app, info_name=name, parent=parent)
    settings = {"help_option_names": ["-h", "--help"], "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, info_name=path[-1], parent=parent, **settings)  # type: ignore[arg-type]
    formatter = context.make_formatter()
    command.format_help(context, formatter)
    return formatter.getvalue().rstrip("\n")


def text() -> str:
    """Return the page as Markdown."""
    out = [
        "# Command reference",
        "",
        "The help text of every command. docs/errors.md lists errors and exit codes.",
    ]
    for path, command in commands(app, ("perfbisect",)):
        out += ["", f"## `{' '.join(path)}`", "", "```text", help_of(command, path), "```"]
    return "\n".join(out) + "\n"


def main() -> int:
    """Write the page."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
