"""Output of commands: the result on standard output, progress on standard error."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.errors import EXIT_OK, EXIT_OUTSIDE, MachineError, UsageError

if TYPE_CHECKING:
    from perfbisect.commands.options import ProgressOptions
    from perfbisect.jobs.documents import Document
    from perfbisect.report.document import Report, Tone

_FILE = re.compile(r"@\S+")
"""A single word that starts with @; a text that starts with a mention has more words."""


def report_text(typed: str) -> str:
    """The text of a report, or the content of ``@FILE``.

    The path of an existing file is rejected unless it is the name of a result file.
    """
    if _FILE.fullmatch(typed):
        path = Path(typed[1:]).expanduser()
        try:
            return path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"the report cannot be read: {error}", where=path, next_step="@FILE names a file of text"
            ) from None
    is_file = os.path.isfile(typed)  # noqa: PTH113 - a text may be too long for a path
    if "\n" not in typed and not typed.endswith(".json") and is_file:
        raise UsageError(
            f"{typed!r} is the name of a file, not what a report says",
            where=typed,
            next_step=f"write an @ before it: @{typed}",
        )
    return typed


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Write to a place that a user chose. :raises UsageError: it cannot be written, or MachineError."""
    try:
        yield
    except OSError as error:
        from perfbisect.system.files import machine_error

        raise machine_error(error) or UsageError(
            f"{output} cannot be written: {error}", where=output, next_step="choose another -o"
        ) from error


class OutputError(MachineError):
    """Standard output cannot be written."""


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print; on standard error what cannot be written is dropped: it ends no measurement.

    Raises:
        OutputError: standard output is on a full device.
        BrokenPipeError: its reader has ended.
    """
    try:
        click.echo(text, err=err, nl=nl)
    except OSError as error:
        if err:
            return
        if isinstance(error, BrokenPipeError):
            raise
        drop_output()
        raise OutputError(
            f"standard output cannot be written: {error.strerror}",
            next_step="write it elsewhere; perfbisect status lists the jobs, whose results are kept",
        ) from error


def drop_output() -> None:
    """Write standard output to nowhere from here on, also what is buffered."""
    # Python flushes at exit and would fail once more, with an exit code of its own.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_progress(text: str) -> None:
    """Print a progress line on standard error."""
    print_text(text, err=True)


def progress_printer(working: ProgressOptions) -> Callable[[str], None]:
    """Return the printer of progress lines, which is silent with ``--quiet``."""
    return (lambda _: None) if working.quiet else print_progress


@dataclass(frozen=True)
class CommandResult:
    """What a command prints, a document for programs or lines for people, and its exit code.

    ``json``: print the whole document even without ``--json``. ``closing``: the verdict and what comes next,
    repeated at the end where a terminal does not show all lines; ``tone``: of the verdict.
    """

    document: Document
    lines: Sequence[str]
    exit_code: int = EXIT_OK
    json: bool = False
    closing: Sequence[str] = ()
    tone: Tone = "neutral"


def report_result(
    document: Document, report: Report, exit_code: int = EXIT_OK, lines: Sequence[str] | None = None
) -> CommandResult:
    """What a command prints of a report, by default the lines for a terminal; the verdict ends a long one."""
    from perfbisect.report.document import Command
    from perfbisect.report.terminal import block_lines, report_lines

    heading, *rest = report_lines(report)
    blocks = (*report.blocks, *(block for section in report.sections for block in section.blocks))
    commands = [block for block in blocks if isinstance(block, Command)]
    return CommandResult(
        document,
        [heading, *rest] if lines is None else lines,
        exit_code,
        closing=[heading, *block_lines(commands[:1])],
        tone=report.verdict.tone,
    )


def page_result(document: Document, report: Report, form: str) -> CommandResult:
    """What a command prints of a report as a page: ``html``, or ``md``, which the verdict ends."""
    if form == "html":
        from perfbisect.report.html import report_html

        return CommandResult(document, [report_html(report).rstrip("\n")])
    from perfbisect.report.markdown import report_markdown

    return report_result(document, report, lines=[report_markdown(report).rstrip("\n")])


def plan_result(document: Document, lines: Iterable[str], *, can_start: bool) -> CommandResult:
    """What a dry run prints, and its exit code: 5 where nothing of the plan can start."""
    if can_start:
        return CommandResult(document, [*lines, "next: the same command without --dry-run"])
    step = "next: perfbisect doctor shows what there is; nothing of this plan can start, see its notes"
    return CommandResult(document, [*lines, step], EXIT_OUTSIDE)


def print_output(output: CommandResult, *, as_json: bool, full: bool = False) -> int:
    """Print a command's output and return its exit code; ``full``: do not shorten the document's lists."""
    if as_json or output.json:
        document = output.document if full or output.json else output.document.brief()
        print_text(document.text())
    elif print_lines(output.lines) >= shutil.get_terminal_size().lines and output.closing:
        verdict, *following = output.closing
        print_text(click.style(f"\n{verdict}", fg=_COLOURS.get(output.tone), bold=True))
        print_lines(following)
    return output.exit_code


_COLOURS: dict[Tone, str] = {"good": "green", "bad": "red", "open": "yellow"}


def print_lines(lines: Iterable[str], *, err: bool = False) -> int:
    """Print lines, wrapped to the width of a terminal; returns how many rows of one they take."""
    if not (sys.stderr if err else sys.stdout).isatty():
        for text in lines:
            print_text(text, err=err)
        return 0
    from rich.cells import cell_len

    from perfbisect.report.terminal import fitted

    width = shutil.get_terminal_size().columns
    rows = [row for text in lines for row in fitted(text, width)]
    for row in rows:
        print_text(row, err=err)
    # A terminal folds what is wider: commands, and text of several lines.
    return sum(max(1, -(-cell_len(part) // width)) for row in rows for part in row.split("\n"))
