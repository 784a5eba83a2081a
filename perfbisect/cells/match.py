"""Cells that match a bench command or the name of a result file."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, takewhile

from perfbisect.common.arguments import parse_options
from perfbisect.common.digests import canonical
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell, DeployYaml, cell_difference

_CONTINUED = re.compile(r"\\[ \t]*\r?\n|\r?\n[ \t]*(?=--[A-Za-z])")
"""A command on two lines, in a shell or as wrapped text."""
_PROGRAM = re.compile(r"(?:\S*/)?vllm(?:-omni)?|\S*\bcli\.main")
_SEPARATOR = re.compile(r"[;&|]+")
_END = re.compile(r"#|\d*>")
"""Comment or redirection, which ends a command's arguments."""


def _find_commands(text: str) -> dict[str, list[str]]:
    """Arguments of the first ``vllm bench serve`` (``bench``) and the first ``vllm serve`` (``server``).

    Raises:
        ValueError: an open quote.
    """
    found: dict[str, list[str]] = {}
    for line in _CONTINUED.sub(" ", text).splitlines():
        if not re.search(r"\bserve\b", line):
            continue
        lexer = shlex.shlex(line.strip().strip("`"), posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        lexer.commenters = ""
        for is_separator, command in groupby(lexer, lambda word: bool(_SEPARATOR.fullmatch(word))):
            if not is_separator:
                verb, arguments = _split_command(list(command))
                found.setdefault(verb, arguments)
    return found


def _split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """Verb and arguments of a command; the verb of other programs is empty."""
    for index, (before, word) in enumerate(pairwise(words), 2):
        verb = "bench" if before == "bench" else "server" if _PROGRAM.fullmatch(before) else ""
        if word == "serve" and verb:
            return verb, list(takewhile(lambda argument: not _END.match(argument), words[index:]))
    return "", []


WORKLOAD_PARTS = ("model", "task", "deploy YAML", "dataset", "prompts", "load", "warm-ups")
"""The parts of a cell; a report without one of them does not determine the cell."""

_RESULT = re.compile(
    r"^result_(?P<test>.+)_(?P<dataset>[^_]+)_(?P<flow>\d+(?:\.\d+)?|inf)_(?P<prompts>\d+)"
    r"(?:_in(?P<input>\d+|na)_out(?P<output>\d+|na))?_(?P<time>\d{8}-\d{6})\.json$"
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
    ``serve_args``: all options of the server, None if unknown.
    """

    fields: Mapping[str, object]
    missing: tuple[str, ...]
    test: str = ""
    time: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    closed: bool = False
    serve_args: Mapping[str, object] | None = None


def parse_report(text: str) -> ReportedWorkload:
    """Read a bench command, with or without the server's, or the name of a result file.

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
    """Read a ``vllm bench serve`` command and the server's, if any. :raises UsageError: none, or invalid."""
    try:
        commands = _find_commands(text)
        if "bench" not in commands:
            raise UsageError(
                f"neither a `vllm bench serve` command nor the name of a result file: {text[:80]!r}",
                next_step="perfbisect cells list",
            )
        known, arguments = _client_fields(commands["bench"])
        serve_args: Mapping[str, object] | None = None
        if "server" in commands:
            fields, serve_args = _server_fields(commands["server"])
            known |= fields
    except ValueError as error:
        raise UsageError(
            f"the command cannot be read: {error}",
            next_step="write each command on a line of its own, as it was typed",
        ) from None
    missing: tuple[str, ...] = ("task",) if "model" in known else ("model", "task")
    missing += ("deploy YAML",) if serve_args is None else ()
    return ReportedWorkload(known, missing, arguments=arguments, closed=True, serve_args=serve_args)


def _client_fields(words: Sequence[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Fields of a cell, and the other arguments."""
    known = dict(_DEFAULTS)
    arguments: dict[str, object] = {}
    for name, value in parse_options(words, negatable=False).items():
        if isinstance(value, list) and name not in _SEVERAL:
            raise ValueError(f"--{name} takes one value, not {' '.join(map(str, value))!r}")
        own = name.replace("-", "_")
        if own in _DEFAULTS or own in ("model", "dataset_path", "extra_body"):
            known[own] = math.inf if own == "request_rate" and value == "inf" else value
        elif name not in _ADDRESS and not _REPORTING.match(name):
            arguments[name] = value
    return known, arguments


def _server_fields(words: Sequence[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Fields of a cell from the arguments of ``vllm serve``, and the other options."""
    model = words[0] if words and not words[0].startswith("-") else None
    options = parse_options(words[0 if model is None else 1 :], negatable=True)
    named = model or options.pop("model", None)
    deploy = options.pop("deploy-config", None) or options.pop("stage-configs-path", None)
    fields: dict[str, object] = {"model": named} if named else {}
    fields["deploy_yaml"] = None if deploy is None else _PACKAGE.sub("", str(deploy))
    fields["stage_overrides"] = options.pop("stage-overrides", None)
    return fields, {name: value for name, value in options.items() if name not in _SERVER_ADDRESS}


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
    """The cells by number of differences, then those of the report's test, then by name."""
    found = [Match(cell, differing(report, cell)) for cell in cells]
    return tuple(
        sorted(found, key=lambda m: (len(m.differing), not _is_of_test(report, m.cell), m.cell.name))
    )


def fields_apart(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The fields in which cells differ from one another."""
    return tuple(sorted({row[0] for other in cells[1:] for row in cell_difference(cells[0], other)}))


def differing(report: ReportedWorkload, cell: Cell) -> tuple[Difference, ...]:
    """Reported fields that the cell has otherwise."""
    rows: list[Difference] = [
        (name, value, _field(cell, name)) for name, value in sorted(report.fields.items())
    ]
    sampling = cell.sampling.model_dump(exclude_none=True)
    options = {name.replace("_", "-"): value for name, value in sampling.items()}
    own = {**cell.dataset_args, **cell.client.args, **options}
    names = {*report.arguments, *(own if report.closed else ())}
    rows += [(name, report.arguments.get(name, "-"), own.get(name, "-")) for name in sorted(names)]
    if (serve := report.serve_args) is not None:
        names = {*serve, *cell.serve_args}
        rows += [
            (f"serve_args.{name}", serve.get(name, "-"), cell.serve_args.get(name, "-"))
            for name in sorted(names)
        ]
    rows = [row for row in rows if canonical(row[1]) != canonical(row[2])]
    if report.test and not _is_of_test(report, cell):
        rows.insert(0, ("test", report.test, cell.name))
    return tuple(rows)


def _is_of_test(report: ReportedWorkload, cell: Cell) -> bool:
    stem = cell.name.partition("@")[0]
    return bool(report.test) and (stem == report.test or stem.startswith(f"{report.test}-"))


def _field(cell: Cell, name: str) -> object:
    value: object = getattr(cell, name)
    if isinstance(value, DeployYaml):
        return value.path or "a text of the cell's own"
    return value or None if isinstance(value, Mapping) else value
