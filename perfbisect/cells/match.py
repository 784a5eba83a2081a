"""Which cell a workload is that somebody wrote down, or the nearest, and in what it differs."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfbisect.common.arguments import parse_options
from perfbisect.common.digests import canonical
from perfbisect.errors import UsageError
from perfbisect.model.cell import Cell, DeployYaml, cell_difference

_CONTINUED = re.compile(r"\\[ \t]*\r?\n|\r?\n[ \t]*(?=--[A-Za-z])")
"""A command on two lines, as a shell has it and as wrapped text has it."""
_PROGRAM = re.compile(r"(?:\S*/)?vllm(?:-omni)?|\S*\bcli\.main")
_SEPARATOR = re.compile(r"[;&|]+")
_END = re.compile(r"#|\d*>")
"""What ends a command's arguments in a shell: a comment, a redirection."""


@dataclass(frozen=True)
class EngineCommand:
    """A command of vLLM: its verb and the arguments behind it."""

    verb: Literal["bench", "server"]
    words: tuple[str, ...]


def parse_commands(text: str) -> tuple[EngineCommand, ...]:
    """Return the commands of ``vllm serve`` and ``vllm bench serve``, which stand on lines of their own.

    Raises:
        ValueError: a quote in a line with a command is not closed.
    """
    return tuple(
        command
        for line in _CONTINUED.sub(" ", text).splitlines()
        if re.search(r"\bserve\b", line)
        for words in _simple_commands(line)
        if (command := _command(words)) is not None
    )


def _simple_commands(line: str) -> Iterable[list[str]]:
    """Split a line at ``;``, ``&&``, ``|`` and ``&``."""
    lexer = shlex.shlex(line.strip().strip("`"), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in lexer:
        if _SEPARATOR.fullmatch(word):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def _command(words: Sequence[str]) -> EngineCommand | None:
    for index, word in enumerate(words):
        if word != "serve" or index == 0:
            continue
        arguments = words[index + 1 :]
        end = next((i for i, argument in enumerate(arguments) if _END.match(argument)), len(arguments))
        if words[index - 1] == "bench":
            return EngineCommand("bench", tuple(arguments[:end]))
        if _PROGRAM.fullmatch(words[index - 1]):
            return EngineCommand("server", tuple(arguments[:end]))
    return None


WORKLOAD_PARTS = ("model", "task", "deploy YAML", "dataset", "prompts", "load", "warm-ups")
"""What a cell is made of; a report that lacks one of them leaves the cell open."""

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
"""What ``vllm bench serve`` does where the command does not say."""

_SERVER_PLACES = {
    *("host", "port", "uds", "served-model-name", "api-key", "omni", "init-timeout", "stage-init-timeout")
}
"""Options of a server that say where it is and how long its start may take."""

_PACKAGE = re.compile(r"^.*(?=vllm_omni/)")
"""What stands before a path inside vLLM-Omni: the folder of somebody's checkout."""

_PLACES = {"host", "port", "base-url", "uds", "served-model-name", "tokenizer"}
"""Options about where the server is, not about what is asked of it."""

_REPORTING = re.compile(
    r"^(save-.*|append-result|result-.*|metadata|disable-tqdm|percentile-metrics|metric-percentiles|label|"
    r"goodput|ready-check-timeout-sec|omni|trust-remote-code|profile|plot-.*)$"
)
"""Options about what is written down of the same requests."""

_SEVERAL = frozenset({"goodput", "metadata", "lora-modules", "header"})
"""Options of the client that take any number of values."""


@dataclass(frozen=True)
class ReportedWorkload:
    """``fields``: fields of a cell by name, as far as they are known. ``missing``: those of the seven that
    are not said. ``test`` is the name of the nightly test without ``test_``, ``time`` the start of the run
    (``20260412-190115``, the zone is not said); both are empty where the text has none."""

    text: str
    fields: Mapping[str, object]
    missing: tuple[str, ...]
    test: str = ""
    time: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the data set and of the client that have no field of their own."""
    closed: bool = False
    """True where what is not in ``arguments`` is known not to be set."""
    serve_args: Mapping[str, object] | None = None
    """Options of the server, all that it was given; None where its command is not said."""


def parse_report(text: str) -> ReportedWorkload:
    """Read a bench command, with the server's or without it, or the name of a result file.

    Raises:
        UsageError: the text is neither.
    """
    name = text.strip().rsplit("/", 1)[-1]
    if " " not in text.strip() and name.endswith(".json"):
        return parse_result_name(name)
    return parse_command(text)


def parse_result_name(name: str) -> ReportedWorkload:
    """The name of a result file of any era.

    A load with a point is a request rate (``2.0``), one without a concurrency (``2``). The name is read from
    its end, since a test's own name may hold what looks like a load.

    :raises UsageError: it is no name of a result.
    """
    if found := _DIFFUSION.match(name):
        return ReportedWorkload(name, {}, WORKLOAD_PARTS, _test(found["test"]), found["time"])
    found = _RESULT.match(name)
    if found is None:
        raise UsageError(
            f"{name!r} is no name of a result file",
            next_step="such as result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json",
        )
    known: dict[str, object] = {"dataset_name": found["dataset"], "num_prompts": int(found["prompts"])}
    if "." in found["flow"] or found["flow"] == "inf":
        known |= {"request_rate": float(found["flow"]), "max_concurrency": None}
    else:
        known |= {"max_concurrency": int(found["flow"]), "request_rate": math.inf}
    arguments = {
        f"random-{side}-len": int(found[side])
        for side in ("input", "output")
        if found[side] not in (None, "na")
    }
    missing = ("model", "task", "deploy YAML", "warm-ups")
    return ReportedWorkload(name, known, missing, _test(found["test"]), found["time"], arguments)


def parse_command(text: str) -> ReportedWorkload:
    """Read a ``vllm bench serve`` command and, where it is there, the server's.

    Raises:
        UsageError: there is no such command, or one that cannot be read.
    """
    try:
        found = parse_commands(text)
        bench = next((command.words for command in found if command.verb == "bench"), None)
        server = next((command.words for command in found if command.verb == "server"), None)
        if bench is None:
            raise UsageError(
                f"neither a `vllm bench serve` command nor the name of a result file: {text[:80]!r}",
                next_step="perfbisect cells list",
            )
        known, arguments = _client_fields(bench)
        serve_args: Mapping[str, object] | None = None
        if server is not None:
            fields, serve_args = _server_fields(server)
            known |= fields
    except ValueError as error:
        raise UsageError(
            f"the command cannot be read: {error}",
            next_step="write each command on a line of its own, as it was typed",
        ) from None
    missing = ["task"] if "model" in known else ["model", "task"]
    missing += ["deploy YAML"] if serve_args is None else []
    return ReportedWorkload(
        text, known, tuple(missing), arguments=arguments, closed=True, serve_args=serve_args
    )


def _client_fields(words: Sequence[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Return fields of a cell, and the arguments that have none of their own."""
    known = dict(_DEFAULTS)
    arguments: dict[str, object] = {}
    for name, value in parse_options(words, negatable=False).items():
        if isinstance(value, list) and name not in _SEVERAL:
            raise ValueError(f"--{name} takes one value, not {' '.join(map(str, value))!r}")
        own = name.replace("-", "_")
        if own in _DEFAULTS or own in ("model", "dataset_path", "extra_body"):
            known[own] = math.inf if own == "request_rate" and value == "inf" else value
        elif name not in _PLACES and not _REPORTING.match(name):
            arguments[name] = value
    return known, arguments


def _server_fields(words: Sequence[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Return fields of a cell from the arguments of ``vllm serve``, and the options that have none."""
    model = words[0] if words and not words[0].startswith("-") else None
    options = parse_options(words[0 if model is None else 1 :], negatable=True)
    named = model or options.pop("model", None)
    deploy = options.pop("deploy-config", None) or options.pop("stage-configs-path", None)
    fields: dict[str, object] = {"model": named} if named else {}
    fields["deploy_yaml"] = None if deploy is None else _PACKAGE.sub("", str(deploy))
    fields["stage_overrides"] = options.pop("stage-overrides", None)
    return fields, {name: value for name, value in options.items() if name not in _SERVER_PLACES}


def _test(name: str) -> str:
    return name.removeprefix("test_")


@dataclass(frozen=True)
class Match:
    """A cell beside a sighting: (field, what was seen, what the cell has), empty where nothing differs."""

    cell: Cell
    differing: tuple[tuple[str, object, object], ...]

    @property
    def exact(self) -> bool:
        """Nothing that was said differs; what was not said may."""
        return not self.differing


def nearest_cells(seen: ReportedWorkload, cells: Iterable[Cell]) -> tuple[Match, ...]:
    """The cells, those that differ in fewest fields first; among equals those of the sighting's test, then by
    name."""
    found = [Match(cell, differing(seen, cell)) for cell in cells]
    return tuple(sorted(found, key=lambda m: (len(m.differing), not _named(seen, m.cell), m.cell.name)))


def fields_apart(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The fields in which cells differ from one another, none where there are not two."""
    return tuple(sorted({row[0] for other in cells[1:] for row in cell_difference(cells[0], other)}))


def differing(seen: ReportedWorkload, cell: Cell) -> tuple[tuple[str, object, object], ...]:
    """Fields that were said and that the cell has otherwise."""
    rows: list[tuple[str, object, object]] = []
    if seen.test and not _named(seen, cell):
        rows.append(("test", seen.test, cell.name))
    for name, value in sorted(seen.fields.items()):
        own = _value(cell, name)
        if canonical(value) != canonical(own):
            rows.append((name, value, own))
    rows += _options(seen.arguments, _arguments(cell), closed=seen.closed)
    if seen.serve_args is not None:
        told = _options(seen.serve_args, cell.serve_args, closed=True)
        rows += [(f"serve_args.{name}", left, right) for name, left, right in told]
    return tuple(rows)


def _options(
    seen: Mapping[str, object], have: Mapping[str, object], *, closed: bool
) -> list[tuple[str, object, object]]:
    rows: list[tuple[str, object, object]] = []
    for name in sorted({*seen, *(have if closed else ())}):
        left, right = seen.get(name), have.get(name)
        if canonical(left) != canonical(right):
            rows.append((name, "-" if left is None else left, "-" if right is None else right))
    return rows


def _named(seen: ReportedWorkload, cell: Cell) -> bool:
    stem = cell.name.partition("@")[0]
    return bool(seen.test) and (stem == seen.test or stem.startswith(f"{seen.test}-"))


def _value(cell: Cell, name: str) -> object:
    value: object = getattr(cell, name)
    if isinstance(value, DeployYaml):
        return value.path or "a text of the cell's own"
    return value or None if isinstance(value, Mapping) else value


def _arguments(cell: Cell) -> dict[str, object]:
    sampling = cell.sampling.model_dump(exclude_none=True)
    told = {name.replace("_", "-"): value for name, value in sampling.items()}
    return {**cell.dataset_args, **cell.client.args, **told}
