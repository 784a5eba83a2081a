"""Writes docs/cli.md from the help of every verb: ``python -m scripts.gen_cli_docs``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from perfbisect.cli.app import app

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
_WIDTH = 100


def commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, in the order of the help."""
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from commands(command.commands[name], (*path, name))


def help_of(command: click.Command, path: tuple[str, ...]) -> str:
    """What ``-h`` prints, whatever the width of the terminal."""
    parent: click.Context | None = None
    for name in path[:-1]:
        parent = click.Context(app, info_name=name, parent=parent)
    settings = {"help_option_names": ["-h", "--help"], "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, info_name=path[-1], parent=parent, **settings)  # type: ignore[arg-type]
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def text() -> str:
    """The whole page."""
    out = [
        "# The command line",
        "",
        "Made from the help of every verb by `python -m scripts.gen_cli_docs`; a test compares.",
        "What each error and exit code means stands in [errors.md](errors.md).",
    ]
    for path, command in commands(app, ("perfbisect",)):
        out += ["", f"## `{' '.join(path)}`", "", "```text", help_of(command, path), "```"]
    return "\n".join(out) + "\n"


def main() -> int:
    """Writes the page."""
    TARGET.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
