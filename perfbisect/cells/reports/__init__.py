"""Reports of people and of programs -> what they say of a workload; nothing of them is executed."""

from __future__ import annotations

from pathlib import Path

from perfbisect.cells.reports import results, tables
from perfbisect.cells.reports.commands import ReportCommands
from perfbisect.cells.reports.names import parse_result_name
from perfbisect.cells.reports.programs import OTHER_CLIENTS, OTHER_SERVERS, named_in
from perfbisect.cells.reports.report import WORKLOAD_PARTS, ReportedWorkload
from perfbisect.cells.reports.shell import clean
from perfbisect.errors import LocatedError, UsageError

__all__ = ["WORKLOAD_PARTS", "ReportedWorkload", "parse_command", "parse_report", "parse_result_name"]

_FORMS = "commands of a server or a client, a result file or its name, or a row of a table with its header"


def parse_report(text: str) -> ReportedWorkload:
    """Read a report: text with commands, a result file's content or name, or rows of a table.

    Raises:
        UsageError: it is none, or cannot be read.
    """
    bare = text.strip()
    if bare.startswith(("{", "[")) and (found := results.read(clean(bare))):
        return found
    name = bare.rsplit("/", 1)[-1]
    if " " not in bare and name.endswith(".json"):
        return parse_result_name(name)
    return parse_command(text)


def parse_command(text: str) -> ReportedWorkload:
    """Read the first client's command and the first server's of a text that can be read; one is enough.

    Without a server's command the first ``LLM(...)`` in Python says what the engine is.

    Raises:
        UsageError: there is none, or none can be read.
    """
    text = clean(text)
    commands = ReportCommands(text)
    if commands.is_readable:
        return commands.workload()
    if commands.problems:
        line, problem = commands.problems[0]
        raise LocatedError(
            f"the command cannot be read: {problem}",
            file=Path("the report"),
            line=line,
            next_step="write each command on a line of its own, as it was typed",
        )
    if (row := tables.read(text)) is not None:
        return row
    if servers := named_in(text, OTHER_SERVERS):
        said = f"the server is that of {servers[0]}, which no family here starts"
        raise UsageError(said, next_step="its command can be an environment: --env command:...")
    if clients := named_in(text, OTHER_CLIENTS):
        said = f"the client is {clients[0]}, which is not read, and there is no server's command"
        raise UsageError(said, next_step="add the command of the server: vllm serve MODEL ...")
    raise UsageError(
        f"no `vllm serve`, no `vllm bench serve` and no name of a result file: {text[:80]!r}",
        next_step=f"give {_FORMS}",
    )
