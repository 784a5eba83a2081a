"""Result files of other harnesses -> points in our units, and what is rejected, each with its reason.

No cell says what must be in a result, so whatever the metric table knows is read, and what makes it no
measurement is refused. The suffix of a name is its unit, the table says ours.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import TypeAdapter

from perfbisect.cells.reports import WORKLOAD_PARTS, ReportedWorkload, parse_command, parse_result_name
from perfbisect.clients.base import CELL, count, fact, number, positive_goodput, read_stages
from perfbisect.common.checked import LARGEST
from perfbisect.common.json_text import WRONG_SHAPE, parse_json
from perfbisect.common.quantities import moment, stamp
from perfbisect.common.text import line
from perfbisect.errors import ClientError, LocatedError, UsageError
from perfbisect.model.metric import METRICS, per_unit
from perfbisect.series.points import (
    Build,
    Point,
    RawFile,
    RejectedResult,
    RejectionKind,
    ReportedResult,
    Workload,
    known,
    message_of,
)
from perfbisect.series.sources import dashboards, journals, sweeps
from perfbisect.series.sources.base import (
    UNREADABLE,
    UnreadableFileError,
    night_in,
    parse_records,
    stated_commits,
)
from perfbisect.series.sources.forms import form_of
from perfbisect.series.sources.kanban import of_nightly
from perfbisect.serving.eras import nightly_warmups

SPEECH = "openai-audio-speech"
"""A backend whose TTFT was its TTFP until #3674, and is gone since: never read."""

_TOLERANCE = 0.02
"""How far, relatively, two numbers of a result that follow from each other may lie apart."""

# Names drifted: total_audio_duration_ms became _s in vLLM-Omni 117d9bd1, so the suffix decides the unit.
_STATISTIC = r"(?P<statistic>mean|median|p\d{1,2}(?:\.\d+)?)"
_SERVED = re.compile(rf"^{_STATISTIC}_(?P<name>[a-z0-9_]+?)(?P<unit>_ms|_s)?$")
_DIFFUSION = re.compile(rf"^(?P<name>latency|peak_memory_mb|image_distance)_{_STATISTIC}(?P<unit>)$")
_FACTORS = {("_ms", "s"): 0.001, ("_s", "ms"): 1000.0}
# The recipe is nowhere in the file: its folder says it, and ends in the kind of GPU.
_PERF_EVAL = re.compile(
    r"(?:^|/)(?P<recipe>[^/]+?(?:[-_](?P<gpu>(?:g?b|h|a|l|mi)\d+\w?))?)"
    r"/bench-(?P<config>[^/]+)-conc-\d+(?P<run>-run-\d+)?\.json$"
)
"""A result of vLLM's perf-eval, in the folder of its recipe."""

_WORKLOAD = TypeAdapter(Workload)
_LONGEST_CELL = 500
_FIRST_YEAR = 2000  # a time before it is the zero of a clock or of a language
_TEMPLATE = "the form of zeros that the harness writes where the benchmark left none"
_PLAIN_TIME = "%Y%m%d-%H%M%S"
_LOAD_OR_TIME = re.compile(
    r"_(?:0[1-9]|1[0-2])[0-3]\d_\d+_(?:\d+_\d+|[a-z]+)$"
    r"|(?:^|[-_])\d{8}-\d{6}|(?:^|[-_])20\d\d(-?)(?:0[1-9]|1[0-2])\1[0-3]\d(?!\d)"
    r"|_qps_(?:inf|[\d.]+)(?:_concurrency_\d+)?$|-(?:inf|[\d.]+)qps(?:-concurrency\d+)?"
)
"""What of a file's name is its load or its time, where the name follows no rule of the kanban."""


class UnusableResultError(ValueError):
    """A document that is no usable result."""

    def __init__(self, kind: RejectionKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: RejectionKind = kind


class NoZoneError(ValueError):
    """A time without a zone, and no zone is known."""


def read_file(
    build: Build, file: RawFile
) -> Iterator[Point | RejectedResult | journals.PublishedRun | sweeps.SweepRun]:
    """The results of a file.

    Raises:
        LocatedError: a time has no zone, and the file's is not known.
    """
    harness = _PERF_EVAL.search(f"{build.name}/{file.name}")
    setting = sweeps.sweep_setting(file.name)
    try:
        document = _parse_document(file.text)
        # perf-eval uploads each run and their median: counted together, one night would be several.
        if harness and harness["run"]:
            raise UnusableResultError("repeated", "one of the runs whose median is the result beside it")
        if setting and file.name.endswith(f"/{sweeps.SUMMARY}"):
            raise UnusableResultError("repeated", "the runs of the sweep, which are the files beside it")
    except UnusableResultError as error:
        yield RejectedResult(build, error.kind, message_of(error), file.place)
        return
    if isinstance(document, dict) and document.get("schema") == journals.SCHEMA:
        yield from journals.recorded_results(build, document, file.place)
        return
    name = _parse_name(file.name.rsplit("/", 1)[-1])
    if harness:
        name = ReportedWorkload({}, WORKLOAD_PARTS, f"{harness['recipe']}-{harness['config']}")
        file = replace(file, facts={"hardware": (harness["gpu"] or "").upper(), **file.facts})
    for index, record in enumerate(result_records(document)):
        try:
            published = journals.read_published(record)
            if setting:
                unnamed = ReportedWorkload({}, WORKLOAD_PARTS)
                yield setting.run(_point(build, file, unnamed, index, record))
            elif published is None:
                yield _point(build, file, name, index, record)
            else:
                yield published.model_copy(update={"build": build, "raw": file.place, "record": index})
        except UnusableResultError as error:
            yield _reject(build, file, name, index, error)
        except NoZoneError as error:
            raise LocatedError(
                f"{error}: nothing was ingested from there",
                file=file.place,
                field="date",
                allowed="a time with its zone, or --zone",
                next_step="add --zone UTC, or the zone of the machine that measured: --zone Asia/Shanghai",
            ) from None
        except WRONG_SHAPE as error:
            yield RejectedResult(build, "broken", message_of(reason_of(error)), file.place, index)


def reason_of(error: Exception) -> str:
    """What a reader says of a value; what Python says of another shape has the name of its error."""
    said = isinstance(error, ValueError) and type(error) is not UnicodeEncodeError
    return line(str(error) if said else f"cannot be read ({type(error).__name__}: {error})")


def _parse_document(text: str) -> object:
    """Raises UnusableResultError: it could not be read, is no JSON, or no single results are in it."""
    try:
        document = parse_json(text)
    except ValueError as error:
        document = parse_records(text)
        if document is None:
            raise UnusableResultError("broken", f"is no JSON: {error}") from error
    if isinstance(document, dict) and document.get("schema") == UNREADABLE:
        raise UnusableResultError("broken", str(document.get("reason")))
    if isinstance(document, dict) and isinstance(document.get("results"), list) and "date" in document:
        raise UnusableResultError("older", "a day's summary: no cells, requests or lengths stand behind it")
    return document


def _point(build: Build, file: RawFile, name: ReportedWorkload, index: int, record: object) -> Point:
    """Raises ValueError: there is no time, or the file's name is of another run than the result."""
    result = parse_result(record)
    load = {
        "num_prompts": result.workload.prompts,
        "max_concurrency": result.workload.concurrency,
        "request_rate": result.workload.rate,
    }
    for field, value in load.items():
        if field in name.fields and name.fields[field] != value:
            raise ValueError(f"the file's name says {field} {name.fields[field]}, the result {value}")
    commands, device = ReportedWorkload({}, WORKLOAD_PARTS), ""
    # The commands beside a result only say more of its workload: where they cannot be read it stays a point.
    with suppress(*WRONG_SHAPE, UsageError):
        beside: Any = parse_json(file.beside) if file.beside else {}
        commands = parse_command(str(beside["client_command"]))
        device = str(beside.get("gpu_type") or "").strip()
    # What has no time at all is of the day in its path, of which the zone moves no night.
    day = "" if result.began or name.time or result.ended else night_in(file.place)
    if not (result.began or name.time or result.ended or day):
        raise ValueError("has no time in it: name the file or its folder by its day (2026-08-24)")
    length = timedelta(seconds=float(result.covariates.get("duration") or 0))
    ended = parse_time(result.ended, file.zone) if result.ended else None
    zone = file.zone or ("UTC" if day else "")
    # vLLM's "date" is the end of a run, the time in the file's name the start of its script.
    began = ended - length if ended is not None else parse_time(result.began or name.time or day, zone)
    if began.year < _FIRST_YEAR:
        raise ValueError(f"by its duration of {length} it began in the year {began.year}")
    is_diffusion = any(key.startswith("latency:") for key in result.values)
    is_omni = (
        is_diffusion or "omni" in build.pipeline or result.workload.backend.endswith(("-omni", "-speech"))
    )
    facts = {**result.covariates, **file.facts}
    # A hash is compared within its repository. A build of vLLM-Omni has the commit of vLLM-Omni, and versions
    # are those of the vLLM below it; a stamp in perf-eval may be that of its harness.
    has_stamp = not build.pipeline.endswith("/perf-eval")
    facts["commits"] = {
        key: commit
        for key, commit in stated_commits(record).items()
        if key != "sha"
        and (has_stamp if key in ("commit", "git_commit") else key.startswith("vllm_omni") == is_omni)
    }
    if name.time and file.zone and ended is not None:
        outside = (began - parse_time(name.time, file.zone)).total_seconds()
        # Seconds from the start of the script to the run: what warms the server is in them.
        facts["outside"] = round(outside, 1) if outside > 0 else None
    facts["hardware"] = facts.get("hardware") or device
    if facts.get("warmups") is None:
        facts["warmups"] = commands.fields.get("num_warmups")
    # vLLM-Omni's harness sent 0, then 2, then max(2, concurrency) warm-ups, which its results do not say.
    if facts["warmups"] is None and of_nightly(build):
        fixed = moment(build.fixed) if build.fixed else began
        facts["warmups"] = nightly_warmups(
            stamp(fixed), None if is_diffusion else result.workload.concurrency
        )
    dataset = name.fields.get("dataset_name") or commands.fields.get("dataset_name") or ""
    workload = replace(
        result.workload,
        test=result.workload.test or name.test,
        dataset=result.workload.dataset or str(dataset),
        lengths=_lengths({**commands.arguments, **name.arguments}) or result.workload.lengths,
    )
    if len(workload.cell) > _LONGEST_CELL:
        raise ValueError(f"names a cell of {len(workload.cell)} characters, more than {_LONGEST_CELL}")
    return Point(
        build=build,
        workload=workload,
        began=stamp(began),
        ended=stamp(ended or began + length),
        values=result.values,
        covariates=known(facts),
        raw=file.place,
        record=index,
    )


def _reject(
    build: Build, file: RawFile, name: ReportedWorkload, index: int, error: UnusableResultError
) -> RejectedResult:
    """With the cell and the night that the file's name says, if any."""
    try:
        night = stamp(parse_time(name.time, file.zone or "UTC"))[:10] if name.time else ""
    except WRONG_SHAPE as time_error:
        return RejectedResult(build, "broken", message_of(reason_of(time_error)), file.place, index)
    cell, fields = "", dict[str, Any](name.fields)
    if fields:
        cell = Workload(
            test=name.test,
            dataset=fields["dataset_name"],
            concurrency=fields["max_concurrency"],
            rate=fields["request_rate"],
            prompts=fields["num_prompts"],
            lengths=_lengths(name.arguments),
        ).cell
    return RejectedResult(build, error.kind, message_of(error), file.place, index, cell, night)


def _lengths(arguments: Mapping[str, object]) -> str:
    sides = {"in": arguments.get("random-input-len"), "out": arguments.get("random-output-len")}
    return "-".join(f"{short}{length}" for short, length in sides.items() if length is not None)


def _parse_name(name: str) -> ReportedWorkload:
    """What a file's name says; of a name that follows no rule the test, without its load and time."""
    try:
        return parse_result_name(name)
    except UsageError:
        stem = name.rpartition(".")[0]
        return ReportedWorkload({}, WORKLOAD_PARTS, _LOAD_OR_TIME.sub("", stem).lstrip("-_") or stem)


def parse_time(text: str, zone: str) -> datetime:
    """A time as results have it: ``20260412-190115`` or ISO 8601. ``zone``: of times without one.

    Raises:
        NoZoneError: it has no zone and ``zone`` is empty.
        ValueError: it is no time, or none of a measurement.
    """
    try:
        # The clients write local times without a zone, 20260412-190115.
        time = datetime.strptime(text, _PLAIN_TIME)
    except ValueError:
        try:
            time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            raise ValueError(f"{text!r} is no time") from None
    if time.year < _FIRST_YEAR:
        raise ValueError(f"{text!r} is a time of a clock that was not set")
    if time.tzinfo is not None:
        return time
    if not zone:
        raise NoZoneError(f"{text!r} does not say its zone")
    return time.replace(tzinfo=zone_of(zone))


def zone_of(name: str) -> tzinfo:
    """``UTC``, ``Asia/Shanghai`` -> the zone."""
    if name.upper() in ("UTC", "Z"):
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"{name!r} is no time zone that this machine knows", next_step="such as --zone UTC"
        ) from None


def key_of(name: str) -> tuple[str, float] | None:
    """A result's own name -> ours with its statistic, and the factor to our unit.

    ``median_audio_ttfp_ms`` -> (``audio_ttfp:median``, 1.0); None where the metric table has none of it. A
    time without a unit is in seconds.
    """
    if name in METRICS and not METRICS[name].per_request:
        return name, 1.0
    for pattern in (_SERVED, _DIFFUSION):
        match = pattern.match(name)
        metric = METRICS.get(match["name"]) if match else None
        if match and metric and metric.per_request:
            factor = _FACTORS.get((match["unit"] or "_s", metric.unit), 1.0)
            return f"{metric.name}:{match['statistic']}", factor
    return None


def result_records(document: object) -> list[object]:
    """The records of a file: one of a benchmark, or those of a list or of lines with a result among them."""
    known: list[object] = [document]
    if isinstance(document, list) and any(
        _is_diffusion(record) or _is_served(record) or form_of(record) for record in document
    ):
        known = document
    forms = [(record, form_of(record)) for record in known]
    return [part for record, form in forms for part in (form.split(record) if form else [record])]


def parse_result(record: object) -> ReportedResult[float]:
    """Read one record.

    Raises:
        UnusableResultError: it is no measurement.
    """
    if isinstance(record, UnreadableFileError):
        raise UnusableResultError("broken", str(record))
    if isinstance(record, list):
        raise UnusableResultError("other", "a list without a result of a benchmark")
    if not isinstance(record, Mapping):
        raise UnusableResultError("other", f"holds {type(record).__name__}, no result of a benchmark")
    try:
        if record.get("schema") == dashboards.SCHEMA:
            workload = _WORKLOAD.validate_python(record["workload"])
            fields = {name: record[name] for name in ("began", "values", "covariates")}
            return _in_our_units(ReportedResult(workload=workload, **fields))
        if _is_diffusion(record):
            return _diffusion(record, record["result"])
        if form := form_of(record):
            return _in_our_units(form.read(record))
        if _is_served(record):
            # The harness writes zeros where the benchmark left no file, and uploads them as a result.
            if not any(map(record.get, ("date", "num_prompts", "completed"))):
                raise UnusableResultError("template", _TEMPLATE)
            return _served(record)
    except (ClientError, ArithmeticError) as error:
        raise UnusableResultError("broken", str(error)) from error
    raise UnusableResultError(
        "other", "holds no result of a served benchmark: no completed, duration, request_throughput"
    )


def _in_our_units(result: ReportedResult[object]) -> ReportedResult[float]:
    """A result of a dashboard or another client; with the counts of its requests it is read as vLLM's own."""
    reported: Mapping[str, Any] = result.values
    if {"completed", "num_prompts", "duration"} <= set(reported):
        own = _served(reported)
        values, covariates = own.values, own.covariates
    else:
        values, converted = _read_values(reported)
        covariates = {"converted": converted, "keys": _digest(sorted(reported))}
    if not values:
        names = ", ".join(reported) or "it names none"
        raise UnusableResultError("other", f"has no metric that perfbisect knows: {names}")
    return ReportedResult(
        workload=result.workload,
        began=result.began,
        ended=result.ended,
        values=values,
        covariates={**covariates, **result.covariates},
    )


def _is_served(record: object) -> bool:
    return isinstance(record, Mapping) and record.keys() >= {"completed", "duration", "request_throughput"}


def _is_diffusion(record: object) -> bool:
    result = record.get("result") if isinstance(record, Mapping) else None
    return isinstance(result, Mapping) and "completed_requests" in result


def _served(document: Mapping[str, Any]) -> ReportedResult[float]:
    prompts, completed = count(document, "num_prompts"), count(document, "completed")
    # Older clients do not report the number of failed requests.
    failed = count(document, "failed") if "failed" in document else prompts - completed
    shared = _shared_covariates(document, prompts, completed, failed)
    # vLLM renamed the key, which was endpoint_type at first.
    backend = str(document.get("backend") or document.get("endpoint_type") or "")
    # Until #3674 TTFT of speech was its TTFP under another name.
    without_ttft = {
        name: value for name, value in document.items() if backend != SPEECH or not name.endswith("_ttft_ms")
    }
    values, converted = _read_values(without_ttft)
    if "spec_decode_acceptance_rate" in values:
        values["spec_decode_acceptance_rate"] /= 100  # The client reports per cent.
    # The nightly measures chat models with sound and as text alone under one name: 1151 ms and 6940 ms are
    # not a step.
    spoken = any(key.startswith("audio_") and key != "audio_throughput" for key in values)
    if spoken or backend == SPEECH:
        converted += _check_audio(document, shared["duration"])
    values |= _per_request(document, completed)
    values |= {**per_unit(values), **read_stages(document)}
    lengths = {"in": document.get("random_input_len"), "out": document.get("random_output_len")}
    workload = Workload(
        test="",
        # Null for cells of a request rate; the rate is the text "inf" for the others.
        concurrency=count(document, "max_concurrency") if document.get("max_concurrency") else None,
        rate=_rate(document.get("request_rate")),
        prompts=prompts,
        lengths="-".join(f"{s}{n}" for s, n in lengths.items() if isinstance(n, int) and n > 0),
        # Only a server that can speak: a plain text model has no sound to miss.
        only_text=backend.endswith("-omni") and not spoken,
        model=str(document.get("model_id") or ""),
        backend=backend,
        digest=str(document.get(CELL) or ""),
    )
    covariates = {
        **shared,
        "converted": converted,
        "input_tokens": values.get("input_tokens"),
        "output_tokens": values.get("output_tokens"),
        "audio_duration": values.get("audio_duration:median"),
        "max_concurrent_requests": fact(document, "max_concurrent_requests"),
        "warmups": fact(document, "num_warmups"),
        "baseline": _mapping(document.get("baseline")),
        "hardware": _hardware(document),
    }
    ended = str(document.get("date") or "")
    return ReportedResult(workload=workload, values=values, covariates=covariates, ended=ended)


def _diffusion(record: Mapping[str, Any], result: Mapping[str, Any]) -> ReportedResult[float]:
    load, server = _mapping(record.get("benchmark_params")), _mapping(record.get("server_params"))
    prompts = count(load, "num-prompts") if load.get("num-prompts") else 0
    if not record.get("timestamp") and not prompts:
        raise UnusableResultError("template", _TEMPLATE)
    completed, failed = count(result, "completed_requests"), count(result, "failed_requests")
    shared = _shared_covariates(result, prompts, completed, failed)
    values, converted = _read_values(result)
    values |= {"failed": 0.0, **read_stages(result)}
    workload = Workload(
        test=str(record.get("test_name") or "").removeprefix("test_"),
        dataset=str(load.get("name") or load.get("task") or ""),
        concurrency=count(load, "max-concurrency") if load.get("max-concurrency") else None,
        rate=_rate(load.get("request-rate")),
        prompts=prompts,
        model=str(server.get("model") or result.get("model") or ""),
        # vLLM-Omni #3137 renamed backend to endpoint.
        backend=str(record.get("endpoint") or record.get("backend") or ""),
    )
    covariates = {
        **shared,
        "converted": converted,
        # The model is part of the workload; other arguments make another series.
        "server": _digest({key: value for key, value in server.items() if key != "model"}),
        "baseline": _mapping(load.get("baseline")),
        "hardware": _hardware(record),
    }
    began = str(record.get("timestamp") or "")
    return ReportedResult(workload=workload, values=values, covariates=covariates, began=began)


def _shared_covariates(
    document: Mapping[str, Any], prompts: int, completed: int, failed: int
) -> dict[str, Any]:
    """Duration, requests, names and engine of either benchmark; all requests must have been answered."""
    if completed == 0:
        raise UnusableResultError("failed", f"none of {prompts} requests completed ({failed} failed)")
    if failed:
        raise UnusableResultError("failed", f"{failed} of {completed + failed} requests failed")
    if completed != prompts:
        raise UnusableResultError("failed", f"{completed} requests completed where {prompts} were asked for")
    duration = number(document, "duration")
    if duration <= 0:
        raise ClientError(f"duration is {duration:g} s")
    return {
        "duration": duration,
        "completed": completed,
        "failed": failed,
        "prompts": prompts,
        "keys": _digest(sorted(document)),
        "engine": str(document.get("engine_version") or ""),
    }


def _read_values(document: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Values in the table's units, and the names that were converted; zeros count for guards only.

    Raises:
        ClientError: a value is no number, below zero or too small.
    """
    values: dict[str, float] = {}
    converted: list[str] = []
    for name, reported in document.items():
        match = key_of(name)
        if match is None or reported is None:
            continue
        key, factor = match
        value = positive_goodput(key, number(document, name) * factor, document)
        row = METRICS[key.partition(":")[0]]
        if value < 0 or (0 < value < 1 / LARGEST and not row.absolute):
            raise ClientError(f"{name} is {reported}: no measurement")
        # A time or a rate of zero was not measured.
        if value == 0 and not (row.guard or row.absolute):
            continue
        if factor != 1.0:
            converted.append(name)
        values[key] = value
    return values, converted


def _check_audio(document: Mapping[str, Any], duration: float) -> list[str]:
    """Check that there is sound, and as much as the throughput says; return the converted names.

    Raises:
        UnusableResultError: there is none.
        ClientError: total and throughput contradict each other, so a unit is not what its name says.
    """
    name = next((n for n in ("total_audio_duration_s", "total_audio_duration_ms") if n in document), None)
    if name is None:
        return []
    is_converted = name.endswith("_ms")
    total = number(document, name) / (1000.0 if is_converted else 1.0)
    if total <= 0:
        raise UnusableResultError("silent", "sound was asked for, and not one second of it came")
    # A sample rate in the environment of the client silently skews every duration.
    implied = number(document, "audio_throughput") * duration if "audio_throughput" in document else total
    if abs(implied - total) > _TOLERANCE * max(implied, total):
        raise ClientError(
            f"contradicts itself: {total:g} s of sound, and by its audio_throughput {implied:g} s"
        )
    return [name] if is_converted else []


def _per_request(document: Mapping[str, Any], completed: int) -> dict[str, float]:
    values = {"failed": 0.0}
    totals = (("input_tokens", "total_input_tokens"), ("output_tokens", "total_output_tokens"))
    for name, key in (*totals, ("images", "total_images")):
        if total := count(document, key) if document.get(key) is not None else 0:
            values[name] = total / completed
    if document.get("average_pixels_per_image"):
        values["image_pixels"] = number(document, "average_pixels_per_image")
    return values


def _rate(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.inf


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _hardware(document: Mapping[str, Any]) -> str:
    return str(document.get("Hardware") or document.get("hardware") or "")


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
