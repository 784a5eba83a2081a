"""Cells that match a bench command or the name of a result file."""

from __future__ import annotations

import ast
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, islice, takewhile
from typing import Literal

from perfbisect.cells.reported_environment import (
    NO_VARIABLES,
    is_workload,
    read_exports,
    read_prefix,
    unread_variables,
)
from perfbisect.common.arguments import parse_options
from perfbisect.common.digests import canonical
from perfbisect.common.secret_references import hide_literals
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell, DeployYaml
from perfbisect.redaction import redacted
from perfbisect.serving.families import FAMILIES

_MARKUP = re.compile(r"^[ \t]*(?:(?:>|[*+-]|\d+[.)])[ \t]+)*`*[ \t]*(?:\$[ \t]+)?", re.MULTILINE)
"""What Markdown and a shell put before a line: quotation, list, code, prompt."""
_CONTINUED = re.compile(r"\\[ \t]*\r?\n|\r?\n[ \t]*(?=--?[A-Za-z])")
"""A command on two lines, in a shell or as wrapped text."""
_ASSIGNED = re.compile(
    r"""^(?:export[ ]+)?(?P<name>[A-Za-z_]\w*)=(?:"([^"\n]*)"|'([^'\n]*)'|([^\s;&|'"`]+))[ ]*[;`]*$""",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_OPEN_VALUE = re.compile(r"""'\s*(?:[{\[][^']*)?$|"\s*(?:[{\[].*)?$""")
"""A quoted value that later lines end, such as JSON; not the apostrophe of a sentence."""
_MOST_LINES = 40
"""Lines of a command with such a value."""
_CALL = re.compile(r"^export\s|\bserve\b|benchmark_serving\.py|\bapi_server\b|vllm-openai")
_PROGRAM = re.compile(r"(?:\S*/)?vllm(?:-omni)?|\S*\bcli\.main")
_SCRIPT = re.compile(r"(?:\S*/)?benchmark_serving\.py")
_LLM = re.compile(r"\bLLM\(")
_PYTHON = re.compile(
    r"\'{3}.*?\'{3}|\"{3}.*?\"{3}|\'(?:\\.|[^\'\\\n])*\'|\"(?:\\.|[^\"\\\n])*\"|#[^\n]*|[()]", re.DOTALL
)
"""Strings, comments and parentheses of Python."""
_MOST_CALLS = 100
_LONGEST_CALL = 4_000
"""Calls of ``LLM(`` that are tried, and characters of one."""
_QUOTES = re.compile(r"\\.|['\"]", re.DOTALL)
_LARGEST_TEXT = 1_000_000
"""Characters of a report."""
_MOST_REPLACED = 100_000
"""Characters of all values that are put in place of variables."""
_LONGEST_COMMAND = 20_000
_API_SERVER = re.compile(r"vllm(?:_omni)?\.entrypoints\.openai\.api_server|(?:\S*/)?vllm-openai(?:[:@]\S+)?")
"""The server's module, or the image that runs it."""
_SEPARATOR = re.compile(r"[;&|]+")
_END = re.compile(r"#|\d*>")
"""Comment or redirection, which ends a command's arguments."""


Verb = Literal["bench", "script", "server", "export"]
"""``vllm bench serve``, ``benchmark_serving.py`` before it, a server, or the shell's ``export``."""

_Command = tuple[Verb, list[str], list[str]]
"""Verb, the words before the program, its arguments."""


def _find_commands(text: str) -> Iterator[_Command | ValueError]:
    """Each command in a text, or why it cannot be read; other lines are passed over.

    Variables that the text assigns on lines of their own are replaced.
    """
    text = _MARKUP.sub("", text)
    assigned = {
        found["name"]: next(filter(None, found.groups()[1:]), "") for found in _ASSIGNED.finditer(text)
    }
    # Bounded: a short text with many uses of a long variable would become very long.
    left = _MOST_REPLACED

    def value(found: re.Match[str]) -> str:
        nonlocal left
        new = assigned.get(found[1] or found[2])
        left -= len(new or "")
        return found[0] if new is None or left < 0 else new

    text = _VARIABLE.sub(value, text)
    lines = [line.strip().strip("`") for line in _CONTINUED.sub(" ", text).splitlines()]
    for start, line in enumerate(lines):
        if not _CALL.search(line):
            continue
        end = _end_of_value(lines, start) if _OPEN_VALUE.search(line) else start + 1
        try:
            command_line = " ".join(lines[start:end])
            if len(command_line) > _LONGEST_COMMAND:  # shlex copies a word for each of its characters.
                raise ValueError(f"it has more than {_LONGEST_COMMAND:,} characters")
            lexer = shlex.shlex(command_line, posix=True, punctuation_chars=";&|")
            lexer.whitespace_split = True
            # shlex would drop the rest of a line behind a # inside of a word.
            lexer.commenters = ""
            words = list(lexer)
        except ValueError as error:
            if _split_command(line.split()):
                yield error
            continue
        for is_separator, command in groupby(words, lambda word: bool(_SEPARATOR.fullmatch(word))):
            if not is_separator and (found := _split_command(list(command))):
                yield found


def _end_of_value(lines: Sequence[str], start: int) -> int:
    """After the line that closes the quotes which a line opens."""
    quote = ""
    for index in range(start, min(start + _MOST_LINES, len(lines))):
        for token in _QUOTES.findall(lines[index]):
            if not quote and len(token) == 1:
                quote = token
            elif token == quote or (quote == "'" and token == "\\'"):  # A shell has no escapes there.
                quote = ""
        if not quote:
            return index + 1
    return start + 1


def _split_command(words: Sequence[str]) -> _Command | None:
    """The parts of a command; None of other programs and comments."""
    if words[:1] == ["export"]:
        return "export", [], list(words[1:])
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        verb: Verb | None = None
        if word.startswith("#"):
            return None
        if word == "serve" and (before == "bench" or _PROGRAM.fullmatch(before)):
            verb = "bench" if before == "bench" else "server"
        elif _SCRIPT.fullmatch(word):
            verb = "script"
        elif _API_SERVER.fullmatch(word):
            verb = "server"
        if verb:
            arguments = takewhile(lambda argument: not _END.match(argument), words[index + 1 :])
            return verb, list(words[:index]), list(arguments)
    return None


WORKLOAD_PARTS = ("model", "task", "deploy YAML", "dataset", "prompts", "load", "warm-ups")
"""The parts of a cell; a report without one of them does not determine the cell."""

_RESULT = re.compile(
    r"^result_(?P<test>.+)_(?P<dataset>[^_]+)_(?P<flow>\d{1,15}(?:\.\d{1,15})?|inf)_(?P<prompts>\d{1,15})"
    r"(?:_in(?P<input>\d{1,15}|na)_out(?P<output>\d{1,15}|na))?_(?P<time>\d{8}-\d{6})\.json$"
)
_DIFFUSION = re.compile(r"^(?:benchmark_results|diffusion_result)_(?P<test>.+)_(?P<time>\d{8}-\d{6})\.json$")

_DEFAULTS: Mapping[str, object] = {
    "backend": "openai",
    "endpoint": "/v1/completions",
    "dataset_name": "random",
    "num_prompts": 1000,
    "num_warmups": 0,
    "max_concurrency": None,
    "request_rate": math.inf,
    "burstiness": 1.0,
    "seed": 0,
    "ignore_eos": False,
}
"""Defaults of ``vllm bench serve``."""

_SCRIPT_DEFAULTS = {**_DEFAULTS, "dataset_name": "sharegpt"}
"""Defaults of ``benchmarks/benchmark_serving.py``."""

_BACKENDS = {"vllm": "openai", "vllm-chat": "openai-chat"}
"""Two names of one thing in vLLM's client."""

_SERVER_ADDRESS = {
    *("host", "port", "uds", "served-model-name", "api-key", "omni", "init-timeout", "stage-init-timeout")
}
"""Options about the server's address and the time of its start."""

_PACKAGE = re.compile(r"^.*(?=vllm_omni/)")
"""The checkout's folder before a path inside vLLM-Omni."""

_ADDRESS = {"host", "port", "base-url", "uds", "served-model-name", "tokenizer"}
"""Options about the server's address, not about the requests."""

_REPORTING = re.compile(
    r"^(save-.*|append-result|result-.*|metadata|disable-tqdm|percentile-metrics|metric-percentiles|label|"
    r"goodput|ready-check-timeout-sec|omni|trust-remote-code|profile|plot-.*)$"
)
"""Options about reporting the same requests."""

_SEVERAL = frozenset({"goodput", "metadata", "lora-modules", "header"})
"""Options of the client that take several values."""


@dataclass(frozen=True)
class ReportedWorkload:
    """A workload as far as a report determines it.

    ``fields``: fields of a cell; ``missing``: parts of :data:`WORKLOAD_PARTS` that it lacks; ``test``: name
    of the nightly test without ``test_``; ``time``: start of the run (``20260412-190115``, without zone);
    ``arguments``: of data set and client without a field; ``closed``: no other argument is set;
    ``serve_args``, ``env``: all options and environment variables of the server, None if unknown; ``unread``:
    what is set for the server and cannot be compared; ``engine``: package of the server, empty if unknown.
    """

    fields: Mapping[str, object]
    missing: tuple[str, ...]
    test: str = ""
    time: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    closed: bool = False
    serve_args: Mapping[str, object] | None = None
    env: Mapping[str, str] | None = None
    unread: tuple[str, ...] = ()
    engine: Literal["", "vllm", "vllm_omni"] = ""


def parse_report(text: str) -> ReportedWorkload:
    """Read the first bench command and the first server's of a text, or the name of a result file.

    Raises:
        UsageError: the text is neither.
    """
    name = text.strip().rsplit("/", 1)[-1]
    if " " not in text.strip() and name.endswith(".json"):
        return parse_result_name(name)
    return parse_command(text)


def parse_result_name(name: str) -> ReportedWorkload:
    """Read the name of a result file of any era. :raises UsageError: it is not one.

    A load with a point is a request rate (``2.0``), one without a concurrency (``2``). The name is read from
    its end, since a test's own name may contain what looks like a load.
    """
    if found := _DIFFUSION.match(name):
        test = found["test"].removeprefix("test_")
        return ReportedWorkload({}, WORKLOAD_PARTS, test, found["time"])
    found = _RESULT.match(name)
    if found is None:
        raise UsageError(
            f"{name!r} is no name of a result file",
            next_step="such as result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json",
        )
    is_rate = "." in found["flow"] or found["flow"] == "inf"
    known: dict[str, object] = {
        "dataset_name": found["dataset"],
        "num_prompts": int(found["prompts"]),
        "request_rate": float(found["flow"]) if is_rate else math.inf,
        "max_concurrency": None if is_rate else int(found["flow"]),
    }
    lengths = {f"random-{side}-len": found[side] for side in ("input", "output")}
    arguments = {option: int(length) for option, length in lengths.items() if length not in (None, "na")}
    missing = ("model", "task", "deploy YAML", "warm-ups")
    test = found["test"].removeprefix("test_")
    return ReportedWorkload(known, missing, test, found["time"], arguments)


def parse_command(text: str) -> ReportedWorkload:
    """Read the first bench command and the first server's command of a text that can be read; one is enough.

    Without a server's command the first ``LLM(...)`` in Python says what the engine is.

    Raises:
        UsageError: there is none, or none can be read.
    """
    if len(text) > _LARGEST_TEXT:
        raise UsageError(
            f"the text has more than {_LARGEST_TEXT:,} characters", next_step="give the part with the command"
        )
    client: tuple[dict[str, object], dict[str, object]] | None = None
    server: tuple[dict[str, object], dict[str, object]] | None = None
    exported = served = NO_VARIABLES
    engine: Literal["", "vllm", "vllm_omni"] = ""
    unreadable: list[ValueError] = []
    used = {name for use in _VARIABLE.finditer(text) for name in use.groups() if name}
    for command in _find_commands(text):
        try:
            if isinstance(command, ValueError):
                raise command
            verb, before, words = command
            if verb == "export":
                exported |= read_exports(words, used)
            elif verb == "server" and server is None:
                server, served = _server_fields(words), exported | read_prefix(before)
                engine = "vllm_omni" if "--omni" in words else "vllm"
            elif verb != "server":
                client = client or _client_fields(words, _DEFAULTS if verb == "bench" else _SCRIPT_DEFAULTS)
        except ValueError as error:
            unreadable.append(error)
    if client is None and unreadable:
        raise UsageError(
            f"the command cannot be read: {unreadable[0]}",
            next_step="write each command on a line of its own, as it was typed",
        )
    server = server or _offline_engine(text)
    if client is None and server is None:
        raise UsageError(
            f"no `vllm serve`, no `vllm bench serve` and no name of a result file: {text[:80]!r}",
            next_step="perfbisect cells list",
        )
    known, arguments = client or ({}, {})
    fields, serve_args = server or ({}, None)
    known = {**known, **fields}
    missing = ["task"] if "model" in known else ["model", "task"]
    missing += ["deploy YAML"] if serve_args is None else []
    missing += WORKLOAD_PARTS[WORKLOAD_PARTS.index("dataset") :] if client is None else ()
    return ReportedWorkload(
        known,
        tuple(missing),
        arguments=arguments,
        closed=client is not None,
        serve_args=serve_args,
        env=served.values if engine else None,
        unread=(*served.unread, *unread_variables(text, served.values)),
        engine=engine,
    )


def _client_fields(
    words: Sequence[str], defaults: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Fields of a cell, and the other arguments. :raises ValueError: no arguments of the client."""
    known = dict(defaults)
    arguments: dict[str, object] = {}
    options = parse_options(words, negatable=False)
    if not options:
        raise ValueError("it has no options")
    for name, value in options.items():
        own = name.replace("-", "_")
        if name in _ADDRESS or _REPORTING.match(name):
            continue
        if isinstance(value, list) and name not in _SEVERAL:
            raise ValueError(f"--{name} takes one value, not {' '.join(map(str, value))!r}")
        if own in defaults or own in ("model", "dataset_path", "extra_body"):
            known[own] = value
        else:
            arguments[name] = value
    if known["request_rate"] == "inf":
        known["request_rate"] = math.inf
    known["backend"] = _BACKENDS.get(str(known["backend"]), known["backend"])
    return _without_variables(known), _without_variables(arguments)


def _offline_engine(text: str) -> tuple[dict[str, object], dict[str, object]] | None:
    """Fields and serve arguments of the first ``LLM(...)`` in Python, but values that it computes."""
    # Bounded: a text of many "LLM(" once took 23 s, as each was parsed to the end.
    for found in islice(_LLM.finditer(text), _MOST_CALLS):
        # Up to the parenthesis that closes the call; nothing without one.
        depth = end = 0
        for token in _PYTHON.finditer(text, found.start(), found.start() + _LONGEST_CALL):
            depth += (token[0] == "(") - (token[0] == ")")
            if token[0] == ")" and depth <= 0:
                end = token.end()
                break
        try:
            call = ast.parse(text[found.start() : end], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if isinstance(call, ast.Call):
            # Keywords without a name are **mappings, whose content is computed.
            given = [(word.arg, word.value) for word in call.keywords if word.arg]
            given += [("model", value) for value in call.args[:1]]
            options = {
                name.replace("_", "-"): literal for name, value in given for literal in _literals(value)
            }
            if options:
                model = options.pop("model", None)
                fields = {"model": model} if model else {}
                return {**fields, "deploy_yaml": None, "stage_overrides": None}, options
    return None


def _literals(value: ast.expr) -> Iterator[object]:
    """The value of an option if it stands there; nothing where it is computed."""
    with suppress(ValueError, TypeError, RecursionError, MemoryError):
        yield from parse_options({"x": ast.literal_eval(value)}, negatable=True).values()


def _without_variables(options: Mapping[str, object]) -> dict[str, object]:
    """Options but those whose value the text does not say: ``$MODEL``."""
    return {
        name: value
        for name, value in options.items()
        if not (isinstance(value, str) and _VARIABLE.search(value))
    }


def _server_fields(words: Sequence[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Fields of a cell from the arguments of ``vllm serve``, and the other options.

    Raises:
        ValueError: no arguments of a server.
    """
    model = words[0] if words and not words[0].startswith("-") else None
    options = parse_options(words[0 if model is None else 1 :], negatable=True)
    named = model or options.pop("model", None)
    if not named:
        raise ValueError("the server has no model")
    deploy = options.pop("deploy-config", None) or options.pop("stage-configs-path", None)
    fields: dict[str, object] = {"model": named} if named else {}
    fields["deploy_yaml"] = None if deploy is None else _PACKAGE.sub("", str(deploy))
    fields["stage_overrides"] = options.pop("stage-overrides", None)
    others = {name: value for name, value in options.items() if name not in _SERVER_ADDRESS}
    return _without_variables(fields), _without_variables(others)


Difference = tuple[str, object, object]
"""(field, reported value, value of the cell)."""


@dataclass(frozen=True)
class Match:
    """A cell with its differences from a reported workload."""

    cell: Cell
    differing: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        """Nothing that was reported differs; what was not reported may."""
        return not self.differing


def nearest_cells(report: ReportedWorkload, cells: Iterable[Cell]) -> tuple[Match, ...]:
    """The cells of the report's engine, endpoint and model first, then by number of differences, then those
    of the report's test, then by name."""
    found = [Match(cell, differing(report, cell)) for cell in cells]

    def distance(match: Match) -> tuple[object, ...]:
        fields = {row[0] for row in match.differing}
        engine = FAMILIES[match.cell.family].module.partition(".")[0]
        kind = (report.engine not in ("", engine), "endpoint" in fields, "model" in fields)
        return *kind, len(match.differing), not _is_of_test(report, match.cell), match.cell.name

    return tuple(sorted(found, key=distance))


def differing(report: ReportedWorkload, cell: Cell) -> tuple[Difference, ...]:
    """Reported fields that the cell has otherwise."""
    rows: list[Difference] = []
    for name, value in sorted(report.fields.items()):
        held: object = getattr(cell, name)
        if name == "backend":
            held = _BACKENDS.get(cell.backend, cell.backend)
        elif isinstance(held, DeployYaml):
            held = held.path or "a text of the cell's own"
        elif isinstance(held, Mapping):
            held = held or None
        rows.append((name, value, held))
    sampling = cell.sampling.model_dump(exclude_none=True)
    options = {name.replace("_", "-"): value for name, value in sampling.items()}
    client = {name: value for name, value in cell.client.args.items() if not _REPORTING.match(name)}
    own = {**cell.dataset_args, **client, **options}
    if is_silent_on_temperature(report, cell):
        own.pop("temperature", None)
    names = {*report.arguments, *(own if report.closed else ())}
    rows += [(name, report.arguments.get(name, "-"), own.get(name, "-")) for name in sorted(names)]
    if (serve := report.serve_args) is not None:
        names = {*serve, *cell.serve_args}
        rows += [
            (f"serve_args.{name}", serve.get(name, "-"), cell.serve_args.get(name, "-"))
            for name in sorted(names)
        ]
    rows = [
        (name, hide_literals(there, (name,)), hide_literals(here, (name,)))
        for name, there, here in rows
        # Canonical: 64 and 64.0 are the same load.
        if canonical(there) != canonical(here)
    ]
    if report.env is not None:
        variables = {name: value for name, value in cell.env.items() if is_workload(name)}
        there, here = redacted(report.env), redacted(variables)
        rows += [
            (f"env.{name}", there.get(name, "-"), here.get(name, "-"))
            for name in sorted({*report.env, *variables})
            if report.env.get(name) != variables.get(name)
        ]
    if report.test and not _is_of_test(report, cell):
        rows.insert(0, ("test", report.test, cell.name))
    return tuple(rows)


def is_silent_on_temperature(report: ReportedWorkload, cell: Cell) -> bool:
    """Whether the cell asks for 0 and the report is silent: vLLM's client sent 0 by default until v0.15."""
    return report.closed and cell.sampling.temperature == 0 and "temperature" not in report.arguments


def _is_of_test(report: ReportedWorkload, cell: Cell) -> bool:
    stem = cell.name.partition("@")[0]
    return bool(report.test) and (stem == report.test or stem.startswith(f"{report.test}-"))
