"""What goes where: one JSON document on standard output, everything else for people on standard error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from perfbisect.render.documents import Document


def say(text: str) -> None:
    """A line for a person, on standard error."""
    click.echo(text, err=True)


def emit(document: Document, lines: Iterable[str], *, as_json: bool) -> None:
    """The result of a verb: its document with ``--json``, else its lines, on standard output."""
    if as_json:
        click.echo(document.text())
        return
    for text in lines:
        click.echo(text)
