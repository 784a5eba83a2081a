"""The ``perfbisect`` command: its subcommands, exit codes and error output."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from perfbisect.cli.table import build_commands
from perfbisect.cli.verbs import Verbs
from perfbisect.commands.output import (
    OutputError,
    drop_output,
    print_lines,
    print_output,
    print_text,
)
from perfbisect.errors import (
    EXIT_OK,
    EXIT_OURS,
    EXIT_REGRESSION,
    EXIT_UNTESTABLE,
    EXIT_USAGE,
    Interrupted,
    PerfbisectError,
    UsageError,
)

STOP = 128
# git bisect takes every other code below 128 as bad: a failure would name a wrong commit.
_GIT_CODES = {EXIT_OK: 0, EXIT_REGRESSION: 1, EXIT_UNTESTABLE: EXIT_UNTESTABLE}
_MEASURES_NOTHING = ("--dry-run", "--detach", "--save-baseline", "--help", "-h")

_DETACH_GIT = "the same without --detach; to leave the terminal: nohup git bisect run perfbisect check ... &"
"""git waits for each step, so its loop must run in the background."""


def is_step(typed: Sequence[str]) -> bool:
    """True for a step of ``git bisect run``."""
    return list(typed[:1]) == ["check"] and "--git-bisect" in typed


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, no regression; 1 failure of ours; 2 usage or bad input; 3 culprit named; "
    "4 inconclusive; 5 environment, server, client or machine failed; 130 interrupted.",
)
@click.option(
    "--version", is_flag=True, help="Show the version; with --json also those of all that is written."
)
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.pass_context
def app(context: click.Context, version: bool, as_json: bool) -> None:
    """Name the commit that made an LLM server slower: measured, with its probability.

    \b
    Examples:
      perfbisect init --repo vllm
      perfbisect bisect text_cpu_llama100m --repo vllm --good v0.31.0 --bad v0.32.0 --dry-run
    """
    if version:
        from perfbisect.cli.schema import versions

        context.exit(print_output(versions(), as_json=as_json))
    if as_json:
        raise click.UsageError("--json comes after the command", context)
    if context.invoked_subcommand is None:
        raise click.UsageError("Missing command.", context)


for command in build_commands():
    app.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; every outcome is an exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    code = _run(typed)
    return _GIT_CODES.get(code, STOP) if is_step(typed) else code


def _run(typed: list[str]) -> int:
    # Read from the words as typed: an error in parsing is printed as a document, too.
    as_json = "--json" in typed
    try:
        for word in typed if is_step(typed) else ():
            if word.partition("=")[0] in _MEASURES_NOTHING:  # such a step would succeed without measuring
                raise UsageError(
                    f"{word} measures nothing, and git would count that as a result",
                    next_step=_DETACH_GIT if word == "--detach" else f"the same command without {word}",
                )
        code = app.main(args=typed, prog_name="perfbisect", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.MissingParameter as error:
        return _print_error(_missing(error, typed), as_json)
    except click.ClickException as error:
        # Bare `perfbisect` prints its help, which click raises as an error.
        if not typed:
            print_text(error.format_message())
            return EXIT_USAGE
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "perfbisect"
        return _print_error(UsageError(error.format_message(), next_step=f"{command} -h"), as_json)
    except UsageError as error:
        if error.next_step is None and error.where is None:
            error.next_step = f"{_command(typed)} -h"
        return _print_error(error, as_json)
    except OutputError as error:
        return _print_error(error, as_json=False)
    except PerfbisectError as error:
        return _print_error(error, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _print_error(Interrupted("interrupted"), as_json)
    except BrokenPipeError:
        drop_output()
        return EXIT_OURS
    except OSError as error:
        from perfbisect.system.files import machine_error

        failed = machine_error(error)
        return _unexpected(as_json) if failed is None else _print_error(failed, as_json)
    except Exception:
        return _unexpected(as_json)


def _command(typed: Sequence[str]) -> str:
    """The full name of the typed command, such as ``perfbisect track detect``."""
    path, _ = _split(typed)
    return " ".join(path)


def _split(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that name the typed command, and those that follow."""
    path: list[str] = ["perfbisect"]
    command: click.Command = app
    rest = list(typed)
    while isinstance(command, click.Group) and rest:
        word = rest.pop(0)
        if word in command.commands:
            path.append(word)
            command = command.commands[word]
    return path, rest


_EXAMPLE = re.compile(r"Examples?:\n((?:.*\\\n)*.*)")


def _missing(error: click.MissingParameter, typed: Sequence[str]) -> UsageError:
    """All that a command line lacks, with an example; click names the first alone."""
    context = error.ctx
    if context is None:
        return UsageError(error.format_message())
    command, (path, rest) = context.command, _split(typed)
    given, _, _ = command.make_parser(context).parse_args(args=rest)
    lacking = [
        param for param in command.params if param.required and not _is_given(given.get(str(param.name)))
    ]
    names = [
        f"{param.opts[-1]} " * isinstance(param, click.Option) + param.make_metavar(context)
        for param in lacking
    ]
    optional = [param for param in command.params if isinstance(param, click.Argument) and not param.required]
    if any(param.name == "cell" and not _is_given(given.get("cell")) for param in optional):
        names.append("CELL (unless perfbisect.yaml names one)")
    example = _EXAMPLE.search(command.help or "")
    words = " ".join(example[1].replace("\\\n", " ").split()) if example else f"{' '.join(path)} -h"
    return UsageError(f"missing: {', '.join(names)}", next_step=f"for example: {words}")


def _is_given(value: object) -> bool:
    """Whether a command line has a parameter; without it click has None, () or a mark of its own."""
    return isinstance(value, str | bool | tuple | list) and value != ()


def _print_error(error: PerfbisectError, as_json: bool) -> int:
    from perfbisect.jobs.documents import ErrorDocument
    from perfbisect.report.console import error_lines

    if as_json:
        # Standard output may be what failed: then the error is printed as text.
        with contextlib.suppress(OutputError, BrokenPipeError):
            print_text(ErrorDocument.of(error).text())
            return error.exit_code
    print_lines(error_lines(error.message, error.where, error.next), err=True)
    return error.exit_code


def _unexpected(as_json: bool) -> int:
    """Report an internal error and save its traceback."""
    text, log = traceback.format_exc(), None
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", prefix="perfbisect-", suffix=".log", encoding="utf-8", delete=False
        ) as file,
    ):
        log = Path(file.name)
        file.write(text)
    last = text.strip().splitlines()[-1]
    error = PerfbisectError(f"internal error: {last}", where=log, next_step="report it with this file")
    return _print_error(error, as_json)
