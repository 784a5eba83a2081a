"""Files that dashboards publish: ci.vllm.ai, PyTorch HUD and InferenceX.

One file holds many builds, so each of its results is stored by itself. A document is recognized by its shape:

- rows of ``/api/perf`` and of InferenceX (``agg_*.json``, ``/api/v1/benchmarks``): times in seconds;
- ``/api/compare``: a row is spread over its deltas;
- records of PyTorch's benchmark database (v3, a list or one a line): one metric of a run each.
"""

from __future__ import annotations

import json
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from perfbisect.clients.base import is_number
from perfbisect.common.digests import digest
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.common.quantities import counted, stamp
from perfbisect.common.text import line
from perfbisect.errors import MachineError, UsageError
from perfbisect.series.points import Build, ReportedResult, Workload
from perfbisect.series.sources.base import (
    LARGEST,
    IngestOptions,
    SourceBuild,
    SourceFile,
    UnreadableFileError,
    commit_of_image,
    decode,
    json_files,
    parse_records,
    read_bytes,
    safe_name,
)
from perfbisect.series.sources.forms.vllm_offline import STARTUP, THROUGHPUT

NAME = "dashboard"
ACCEPTS = "JSON of ci.vllm.ai, PyTorch HUD or InferenceX: a file, a folder or a .zip of files"
IS_REMOTE = False

SCHEMA = "perfbisect.dashboard-result/1"
"""Of a :class:`DashboardResult` as it is stored."""

# A result has one of these keys in its first bytes: other files need not be parsed whole.
_MARK = re.compile(rb'(?:tput_per_gpu|benchmark_values)"')
_MARKED_WITHIN = 64 * 1024
"""Bytes of a file in which its first result names its values."""

_DAY = re.compile(r"20\d{2}-\d{2}-\d{2}")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_COMPARED = ("model", "device", "tp", "conc", "isl", "osl", "precision")
_TOPOLOGY = ("tp", "pp", "dcp_size", "pcp_size", "ep", "dp_attention", "num_workers")
_ROLES = (
    *("num_prefill_gpu", "num_decode_gpu"),
    *(f"{role}_{name}" for role in ("prefill", "decode") for name in ("hw", *_TOPOLOGY)),
)
_IDENTITY = (
    *("hw", "hardware", "device", "precision", "framework", *_TOPOLOGY, "spec_decoding", "spec_method"),
    *("disagg", *_ROLES, "kv_offloading", "offload_mode"),
)
"""Keys of a row that tell one configuration of a model from another, in the order in which they are named."""

_ARCHIVE = ".zip"
_LARGEST_ARCHIVE = 1 << 30
"""Unpacked bytes of an archive that are read."""
_ARCHIVE_LIMIT = f"is beyond the first {_LARGEST_ARCHIVE >> 30} GB of its archive"
_DAMAGED = (
    zipfile.BadZipFile,
    RuntimeError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OSError,
    *WRONG_SHAPE,
)
"""What zipfile raises of an archive that is damaged, encrypted or packed in an unknown way."""

_RENAMED = {**THROUGHPUT, **STARTUP}


@dataclass(frozen=True, kw_only=True)
class DashboardResult(ReportedResult[object]):
    """A result of one run. ``values``: by the dashboard's names; a time without a unit is in seconds.

    ``began``: as published, in UTC; empty where it is not. ``covariates``: as of a point.
    """

    pipeline: str
    commit: str = ""
    branch: str = ""
    url: str = ""

    def build(self, day: str) -> Build:
        """The build: what was measured of a commit on a day; ``day``: where the result says none."""
        found = _DAY.match(self.began)
        name = f"{found[0] if found else day or 'undated'} {self.commit[:12]}".strip()
        return Build("dashboard", self.pipeline, name, self.commit, self.branch, url=self.url)

    def text(self, day: str) -> str:
        """As it is stored."""
        kept = {"workload": asdict(self.workload), "values": self.values, "covariates": self.covariates}
        return json.dumps({"schema": SCHEMA, "began": self.began or day, **kept})


def read_results(document: object) -> Iterator[DashboardResult | UnreadableFileError | object]:
    """The results of a document; records of no known shape as they are, those with values of another as
    errors."""
    if isinstance(document, Mapping) and isinstance(document.get("rows"), list):
        document = document["rows"]
    if isinstance(document, Mapping) and isinstance(deltas := _at(document, "perf", "deltas"), list):
        document = list(_compared_rows(deltas))
    records = document if isinstance(document, list) else [document]
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        names = (_at(record, "model", "name"), _at(record, "metric", "name"))
        is_named = all(isinstance(name, str) and name for name in names)
        values = _at(record, "metric", "benchmark_values")
        if isinstance(record, Mapping) and is_named and isinstance(values, list):
            shared = {name: value for name, value in record.items() if name != "metric"}
            runs.setdefault(json.dumps(shared, sort_keys=True, default=str), []).append(record)
        elif isinstance(record, Mapping) and {"model", "conc"} <= set(record):
            yield _guarded(_read_row, record)
        else:
            yield record
    for records in runs.values():
        yield _guarded(_read_run, records)


_Raw = TypeVar("_Raw")


def _guarded(read: Callable[[_Raw], DashboardResult], raw: _Raw) -> DashboardResult | UnreadableFileError:
    try:
        return read(raw)
    except WRONG_SHAPE as error:
        return UnreadableFileError(line(f"cannot be read ({type(error).__name__}: {error})"))


def _read_row(row: Mapping[str, Any]) -> DashboardResult:
    """A row of ci.vllm.ai or InferenceX; values may be nested under ``metrics``, numbers may be text."""
    fields = {name: _as_number(value) for name, value in {**row, **_mapping(row.get("metrics"))}.items()}
    if not _word("disagg", fields.get("disagg")) and all(
        fields.get(f"prefill_{name}") == fields.get(f"decode_{name}") for name in _TOPOLOGY
    ):
        # One server: the two roles that InferenceX's API reports of it are one.
        shared = {name: fields.get(f"prefill_{name}") for name in _TOPOLOGY}
        fields = {**shared, **{name: value for name, value in fields.items() if name not in _ROLES}}
    image = str(row.get("image") or "")
    commit = commit_of_image(image)
    words = (_word(name, fields.get(name)) for name in _IDENTITY)
    return DashboardResult(
        pipeline="ci.vllm.ai" if "device" in row else "InferenceX",
        began=str(row.get("date") or ""),
        workload=Workload(
            test="-".join([str(row["model"]).rpartition("/")[2], *filter(None, words)]),
            concurrency=_count(fields.get("conc")),
            lengths=_lengths(fields, "isl", "osl"),
            model=str(row["model"]),
            backend=str(row.get("framework") or ""),
        ),
        values={
            name: value
            for name, value in fields.items()
            if isinstance(value, float) and name not in (*_IDENTITY, "conc", "isl", "osl")
        },
        covariates={
            "hardware": str(row.get("hw") or row.get("hardware") or row.get("device") or ""),
            "image": image.replace(commit, "{sha}") if commit else image,
        },
        commit=commit,
        url=str(row.get("run_url") or ""),
    )


def _compared_rows(deltas: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Both rows of each comparison, from their deltas."""
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for delta in deltas:
        parts = str(delta.get("key")).split("|") if isinstance(delta, Mapping) else []
        if len(parts) != len(_COMPARED) + 1:
            yield {"delta": delta}
            continue
        # Each delta names a metric of two rows: together they give the rows back.
        for side in ("baseline", "candidate"):
            date, image = (str(delta.get(f"{side}{name}") or "") for name in ("Run", "Detail"))
            known = {**dict(zip(_COMPARED, parts, strict=False)), "date": date, "image": image}
            row = rows.setdefault((*parts[:-1], date, image), known)
            row[parts[-1]] = delta.get(f"{side}Value")
    yield from rows.values()


def _read_run(records: list[Mapping[str, Any]]) -> DashboardResult:
    """A run from the records of its metrics, which are alike but for the metric."""
    first = records[0]
    args = _mapping(_at(first, "benchmark", "extra_info", "args"))
    published = {
        _at(record, "metric", "name"): _at(record, "metric", "benchmark_values") for record in records
    }
    reported = {
        name: _as_number(value)
        for record in records
        for name, value in _mapping(_at(record, "metric", "extra_info")).items()
        if not isinstance(value, (list, Mapping))
    }
    asked = {name: _as_number(value) for name, value in {**reported, **args}.items()}
    # HUD records one metric each: which benchmark it was is seen in their names alone.
    kinds = {"throughput": THROUGHPUT, "startup": STARTUP, "latency": {"latency"}}
    kind = next((kind for kind, names in kinds.items() if published.keys() & set(names)), "")
    runners = first.get("runners")
    runner = runners[0] if isinstance(runners, list) and runners else None
    # Compiled and eager runs of one model stand under one name in HUD.
    is_eager = str(_at(first, "benchmark", "extra_info", "use_compile")).lower() == "false"
    model, device = _at(first, "model", "name"), str(_at(runner, "type") or _at(runner, "gpu_info") or "")
    repository = str(first.get("repo") or "").rpartition("/")[2]
    words = (
        *(model.rpartition("/")[2], device.replace(" ", "-"), _word("tp", asked.get("tensor_parallel_size"))),
        *(kind, "eager" if is_eager else "", _word("b", asked.get("batch_size"))),
        # Other repositories run the same benchmark on their own commits.
        "" if repository == "vllm" else repository,
    )
    rate = asked.get("request_rate")
    commit, torch = _versions(repository, first)
    # Seconds since 1970, as a number or as text.
    seconds, began = _as_number(first.get("timestamp")), ""
    with suppress(ValueError, OverflowError, OSError):
        began = stamp(datetime.fromtimestamp(seconds, timezone.utc)) if isinstance(seconds, float) else ""
    return DashboardResult(
        pipeline=f"HUD {first.get('repo') or ''}".strip(),
        began=began,
        workload=Workload(
            test="-".join(filter(None, words)),
            dataset=str(args.get("dataset_name") or ""),
            concurrency=_count(asked.get("max_concurrency")),
            rate=rate if isinstance(rate, float) and rate > 0 else math.inf,
            prompts=_count(asked.get("num_prompts")) or 0,
            lengths=_lengths(asked, "random_input_len", "random_output_len")
            or _lengths(asked, "input_len", "output_len"),
            model=model,
            backend=str(args.get("backend") or ""),
        ),
        values={**reported, **dict(_run_values(published))},
        covariates={
            "hardware": device,
            "torch": torch,
            "host": str(_at(runner, "extra_info", "hostname") or ""),
            "job": str(first.get("job_id") or ""),
        },
        commit=commit,
        branch=str(first.get("head_branch") or "").removeprefix("refs/heads/").removesuffix("(main)"),
    )


def _run_values(published: Mapping[str, list[object]]) -> Iterator[tuple[str, float]]:
    """The mean of each metric, as HUD shows it; of the batches of a latency benchmark mean and median."""
    for name, values in published.items():
        numbers = [value for value in map(_as_number, values) if isinstance(value, float)]
        if name == "latency" and numbers:
            # An offline latency benchmark times whole batches, which is what e2el means.
            yield "median_e2el", median(numbers)
            yield "mean_e2el", fmean(numbers)
        elif numbers:
            yield _RENAMED.get(name, name), fmean(numbers)


def _versions(repository: str, record: Mapping[str, Any]) -> tuple[str, str]:
    """Commit of vLLM and version or commit of torch: of the repository itself, or of a dependency."""
    found = {
        name.rpartition("/")[2].lower(): _mapping(value)
        for name, value in _mapping(record.get("dependencies")).items()
    }
    # In PyTorch's runs vLLM is a dependency, in vLLM's runs torch is.
    found[repository] = {"sha": record.get("head_sha")}
    torch = found.get("pytorch") or found.get("torch") or {}
    commit = str(found.get("vllm", {}).get("sha") or "")
    return commit if _COMMIT.fullmatch(commit) else "", str(torch.get("version") or torch.get("sha") or "")


def _word(name: str, value: object) -> str:
    """A part of a configuration's name; empty for what is off, not given, or one of anything but ``tp``."""
    if isinstance(value, float):
        return f"{name}{value:g}" if value > 1 or (name == "tp" and value == 1) else ""
    text = str(value or "").lower()
    if text in ("", "false", "none", "unknown"):
        return ""
    return name if text == "true" else text


def _lengths(fields: Mapping[str, object], *names: str) -> str:
    found = [_count(fields.get(name)) for name in names]
    return "-".join(f"{side}{length}" for side, length in zip(("in", "out"), found, strict=True) if length)


def _as_number(value: object) -> object:
    """A number as float, also one that is written as text; all else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return value
    try:
        found = float(value)
    except ValueError:
        return value
    return found if isinstance(value, (int, float)) or value.strip().lstrip("+-")[:1].isdigit() else value


def _count(value: object) -> int | None:
    return int(value) if is_number(value) and value > 0 and value == int(value) else None


def _at(record: object, *names: str) -> Any:
    for name in names:
        record = _mapping(record).get(name)
    return record


def _mapping(value: object) -> Mapping[str, Any]:
    """A mapping, also one that is written as JSON text, as the database keeps it."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = parse_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def takes(place: str) -> bool:
    """Whether a file in it has the values of a dashboard's result, or an archive cannot be read."""
    is_archive = Path(place).suffix == _ARCHIVE
    return any(_is_marked(read, otherwise=is_archive) for _, read in _members(Path(place)))


def builds(place: str, options: IngestOptions) -> Iterator[SourceBuild]:
    """The results of each build; what cannot be read is of a build without a day."""
    builds: dict[str, tuple[Build, _Files]] = {}
    others = 0
    for name, read in _members(Path(place)):
        if not _is_marked(read, otherwise=True):
            others += 1
            continue
        path = place if name == Path(place).name else f"{place}/{name}"
        day = "".join(_DAY.findall(path)[-1:])
        for build, label, text in _stored_results(read, day):
            if build.name[:10] >= options.since:
                _, files = builds.setdefault(build.key, (build, _Files()))
                files.add(name, f"{path}#{build.name}", label, text)
    if others:
        options.say(f"left out of {place}: {counted(others, 'file')} without values of a dashboard")
    if not builds:
        since = f" since {options.since}" if options.since else ""
        raise UsageError(f"{place} has no result{since}")
    for _, (build, files) in sorted(builds.items(), key=lambda item: (item[1][0].name, item[0])):
        yield SourceBuild(build, tuple(files.files.values()), "UTC")


@dataclass
class _Files:
    """The files of a build, and the versions of each label."""

    files: dict[str, SourceFile] = field(default_factory=dict)
    versions: dict[str, set[str]] = field(default_factory=dict)

    def add(self, name: str, path: str, label: str, text: str) -> None:
        """Add a result; one of the same label and another content gets a number."""
        version, own = digest(text), safe_name(f"{name}#{label}")
        known = self.versions.setdefault(own, set())
        if version in known:
            return
        known.add(version)
        own += f" ({len(known)})" if len(known) > 1 else ""
        self.files[own] = SourceFile(own, f"{path} {own.partition('#')[2]}", version, lambda: text)


def _stored_results(read: _Read, day: str) -> Iterator[tuple[Build, str, str]]:
    """Build, label and stored text of each result of a file."""
    unknown = Build("dashboard", "dashboard", day or "undated")
    try:
        text = decode(read(LARGEST + 1))
    except UnreadableFileError as error:
        yield unknown, "file", error.text
        return
    document = parse_records(text)
    if document is None:
        yield unknown, "file", text
        return
    for result in read_results(document):
        if isinstance(result, DashboardResult):
            label = f"{result.workload.cell} {result.began}".strip()
            yield result.build(day), label, result.text(day)
        elif isinstance(result, UnreadableFileError):
            yield unknown, "record", result.text
        else:
            yield unknown, "record", json.dumps(result)


_Read = Callable[[int], bytes]
"""So many bytes of a file, from its beginning. Raises UnreadableFileError."""


def _members(path: Path) -> Iterator[tuple[str, _Read]]:
    """The JSON files of a place by their names in it."""
    if path.is_dir():
        for file in json_files(path):
            yield safe_name(file.relative_to(path).as_posix()), partial(read_bytes, file)
    elif path.suffix == _ARCHIVE:
        yield from _archived(path)
    elif path.suffix in (".json", ".jsonl"):
        yield path.name, partial(read_bytes, path)


def _archived(path: Path) -> Iterator[tuple[str, _Read]]:
    """The JSON files of an archive, or the archive as one file that cannot be read."""
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
        except OSError as error:
            raise MachineError(f"the file cannot be read: {error.strerror or error}", where=path) from error
        except _DAMAGED as error:
            yield path.name, partial(_refuse, f"is no zip archive, or a damaged one: {error}")
            return
        left = _LARGEST_ARCHIVE
        members = {info.filename: info for info in archive.infolist() if info.filename.endswith(".json")}
        for name, info in sorted(members.items()):
            # A zip may unpack to a thousand times its size. The header may be wrong, but a member gives no
            # more bytes than it says.
            left -= min(info.file_size, LARGEST)
            if left < 0:
                yield safe_name(name), partial(_refuse, _ARCHIVE_LIMIT)
            else:
                yield safe_name(name), partial(_read_member, archive, info)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> bytes:
    """:raises UnreadableFileError: encrypted, damaged, or of an unknown method."""
    try:
        with archive.open(info) as stream:
            return stream.read(size)
    except _DAMAGED as error:
        raise UnreadableFileError(line(f"cannot be read from the archive: {error}")) from error


def _refuse(reason: str, size: int) -> bytes:  # noqa: ARG001 - a _Read
    raise UnreadableFileError(reason)


def _is_marked(read: _Read, *, otherwise: bool) -> bool:
    """Whether a file has the values of a dashboard; ``otherwise``: of one that cannot be read."""
    try:
        return _MARK.search(read(_MARKED_WITHIN)) is not None
    except UnreadableFileError:
        return otherwise
