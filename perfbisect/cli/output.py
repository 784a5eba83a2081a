"""What goes where: one JSON document on standard output, everything else for people on standard error."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from perfbisect.cli.invocation import Working

if TYPE_CHECKING:
    from perfbisect.render.documents import Document


UNDONE = "next: the same command without --dry-run"
"""The last line of what a dry run shows."""


def say(text: str) -> None:
    """A line for a person, on standard error."""
    click.echo(text, err=True)


def teller(working: Working) -> Callable[[str], None]:
    """Says what happens meanwhile; nothing with ``--quiet``."""
    return (lambda _: None) if working.quiet else say


def emit(document: Document, lines: Iterable[str], *, as_json: bool, full: bool = False) -> None:
    """The result of a verb: its document with ``--json``, else its lines, on standard output.

    ``full``: with all that is in the document's lists, however long they are.
    """
    if as_json:
        click.echo((document if full else document.brief()).text())
        return
    show(lines)


def show(lines: Iterable[str], *, err: bool = False) -> None:
    """Lines for a person: no wider than the terminal, whole where there is none."""
    if not (sys.stderr if err else sys.stdout).isatty():
        for text in lines:
            click.echo(text, err=err)
        return
    from perfbisect.render.fit import fitted

    width = shutil.get_terminal_size().columns
    for text in lines:
        for row in fitted(text, width):
            click.echo(row, err=err)
