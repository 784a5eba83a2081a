"""The ``perfbisect`` command: its subcommands, exit codes and error output."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from perfbisect.cli.agent import agent
from perfbisect.cli.bisect import bisect
from perfbisect.cli.cells import cells
from perfbisect.cli.changes import changes_group
from perfbisect.cli.compare import check, compare, verify
from perfbisect.cli.compare import run as run_verb
from perfbisect.cli.dashboard import dashboard
from perfbisect.cli.env import env
from perfbisect.cli.explain import explain
from perfbisect.cli.jobs import report, resume, status, stop
from perfbisect.cli.nightly import nightly
from perfbisect.cli.reproduce import reproduce
from perfbisect.cli.setup import doctor, init
from perfbisect.cli.skill import skill_group
from perfbisect.cli.track import track
from perfbisect.commands import options
from perfbisect.commands.options import Verbs
from perfbisect.commands.output import CommandResult, OutputError, drop_output, print_lines, print_text
from perfbisect.errors import (
    EXIT_OK,
    EXIT_OURS,
    EXIT_REGRESSION,
    EXIT_UNTESTABLE,
    Interrupted,
    PerfbisectError,
    UsageError,
)


def print_versions(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the versions and exit."""
    del parameter
    if value and not context.resilient_parsing:
        for text in version_lines():
            print_text(text)
        context.exit()


def version_lines() -> list[str]:
    """The version, and those of the journal, the store and the documents."""
    import perfbisect
    from perfbisect.jobs import journal
    from perfbisect.series.store import VERSION

    return [
        f"perfbisect, version {perfbisect.__version__}",
        f"journal    {journal.SCHEMA}",
        f"store      {VERSION}",
        f"documents  {_documents()}",
    ]


def _documents() -> str:
    """The most common version of JSON documents, then the exceptions."""
    from perfbisect.cli.schema import document_names

    names = {name for printed in document_names().values() for name in printed}
    versions = {name.rpartition("/")[0]: name.rpartition("/")[2] for name in names}
    ((usual, _),) = Counter(versions.values()).most_common(1)
    others = sorted(f"{name}/{version}" for name, version in versions.items() if version != usual)
    return ", ".join([f"{usual}", *others])


STOP = 128
_GIT_CODES = {EXIT_OK: 0, EXIT_REGRESSION: 1, EXIT_UNTESTABLE: EXIT_UNTESTABLE}
_MEASURES_NOTHING = ("--dry-run", "--detach", "--save-baseline", "--help", "-h")

_DETACH_GIT = "the same without --detach; to leave the terminal: nohup git bisect run perfbisect check ... &"
"""git waits for each step, so its loop must run in the background."""


def is_step(typed: Sequence[str]) -> bool:
    """True for a step of ``git bisect run``."""
    return list(typed[:1]) == ["check"] and "--git-bisect" in typed


def git_exit_code(typed: Sequence[str], code: int) -> int:
    """Map the exit code of a bisect step to git's."""
    return _GIT_CODES.get(code, STOP) if is_step(typed) else code


def require_measuring_step(typed: Sequence[str]) -> None:
    """Raise UsageError for options with which a bisect step would succeed without measuring."""
    if is_step(typed):
        for word in typed:
            if word.partition("=")[0] in _MEASURES_NOTHING:
                raise UsageError(
                    f"{word} measures nothing, and git would count that as a result",
                    next_step=_DETACH_GIT if word == "--detach" else f"the same command without {word}",
                )


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, no regression; 1 failure of ours; 2 usage or bad input; 3 culprit named; "
    "4 inconclusive; 5 environment, server, client or machine failed; 130 interrupted.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_versions,
    help="Show the version, and those of the journal, the store and the documents.",
)
def app() -> None:
    """Name the commit that made an LLM server slower: measured, with its probability.

    \b
    Examples:
      perfbisect init --repo vllm
      perfbisect bisect text_cpu_llama100m --repo vllm --good v0.31.0 --bad v0.32.0 --dry-run
    """


@click.command(short_help="JSON Schemas of documents and cells.")
@click.argument("verb", nargs=-1, metavar="[VERB|cell]")
@options.as_json
def schema(verb: tuple[str, ...]) -> CommandResult | int:
    """The JSON Schema of what VERB prints with --json, or of a cell file. Without VERB: list all schemas.

    The number behind a document's name grows with every incompatible change; a new field does not change it.

    \b
    Examples:
      perfbisect schema
      perfbisect schema bisect
      perfbisect schema track detect
      perfbisect schema cell
    """
    import json

    from perfbisect.cells.loading import cell_schema
    from perfbisect.cli.schema import document_names, verb_schema
    from perfbisect.commands.documents import SchemasDocument
    from perfbisect.common.text import hint
    from perfbisect.errors import UsageError

    verbs = document_names()
    if not verb:
        document = SchemasDocument(verbs={name: tuple(names) for name, names in verbs.items()})
        width = max(map(len, verbs))
        return CommandResult(
            document, [f"{name:<{width}}  {', '.join(names)}" for name, names in verbs.items()]
        )
    name = " ".join(verb)
    if name != "cell" and name not in verbs:
        known = ["cell", *verbs]
        raise UsageError(
            f"no schema of {name!r}{hint(name, known)}; there are: {', '.join(known)}",
            next_step="perfbisect schema",
        )
    print_text(json.dumps(cell_schema() if name == "cell" else verb_schema(name), indent=2))
    return 0


for command in (
    init,
    cells,
    changes_group,
    run_verb,
    compare,
    check,
    verify,
    bisect,
    resume,
    status,
    stop,
    report,
    explain,
    nightly,
    track,
    dashboard,
    agent,
    env,
    schema,
    skill_group,
    doctor,
):
    app.add_command(command)
track.add_command(reproduce)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; every outcome is an exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    return git_exit_code(typed, _run(typed))


def _run(typed: list[str]) -> int:
    as_json = "--json" in typed
    try:
        require_measuring_step(typed)
        code = app.main(args=typed, prog_name="perfbisect", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
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
    path: list[str] = ["perfbisect"]
    command: click.Command = app
    for word in typed:
        if isinstance(command, click.Group) and word in command.commands:
            path.append(word)
            command = command.commands[word]
    return " ".join(path)


def _print_error(error: PerfbisectError, as_json: bool) -> int:
    from perfbisect.jobs.documents import ErrorDocument
    from perfbisect.report.console import error_lines

    if as_json:
        document = ErrorDocument(
            error=error.message,
            kind=type(error).__name__,
            exit_code=error.exit_code,
            where=error.where,
            next=error.next,
        )
        with contextlib.suppress(OutputError, BrokenPipeError):
            print_text(document.text())
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
