"""The files of one build -> its points, and what is rejected, each with its reason."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perfbisect.cells.importers.vllm_omni import WARMUPS
from perfbisect.cells.match import WORKLOAD_PARTS, ReportedWorkload, parse_command, parse_result_name
from perfbisect.common.quantities import moment, stamp
from perfbisect.errors import UsageError
from perfbisect.series.points import Build, Point, RawFile, RejectedResult, Workload, known
from perfbisect.series.sources import journals, kanban
from perfbisect.series.sources.base import LARGEST
from perfbisect.series.sources.published import PublishedRun, published_points, read_origin
from perfbisect.series.sources.results import (
    ParsedResult,
    UnusableResultError,
    parse_result,
    result_records,
)
from perfbisect.serving.eras import NIGHTLY_ERAS

_PLAIN_TIME = "%Y%m%d-%H%M%S"
_LOAD_OR_TIME = re.compile(
    r"[-_]\d{8}-\d{6}|_qps_(?:inf|[\d.]+)(?:_concurrency_\d+)?$|-(?:inf|[\d.]+)qps(?:-concurrency\d+)?"
)
"""What of a file's name is its load or its time, where the name follows no rule of the kanban."""

_OTHER_PROMPTS = 2.0
"""How many times longer prompts are those of another workload: one that draws them anew varies by less."""

_Results = tuple[tuple[Point, ...], tuple[RejectedResult, ...]]


class NoZoneError(ValueError):
    """A time without a zone, and no zone is known."""


def admit_build(build: Build, files: Iterable[RawFile], latest: datetime | None = None) -> _Results:
    """Admit the results of a build: its points and the rejected ones.

    What began after ``latest`` was measured by a clock that is wrong: one such night would be the last of all
    for years.
    """
    results: list[Point | RejectedResult] = []
    runs: list[PublishedRun] = []
    for file in files:
        for result in _read_file(build, file):
            if isinstance(result, RejectedResult):
                results.append(result)
            elif file.duplicate_of:
                results.append(result.rejected("twin", f"the same file as {file.duplicate_of}"))
            elif isinstance(result, PublishedRun):
                runs.append(result)
            elif latest is not None and result.moment > latest:
                reason = f"says {result.began}, which is not yet: the clock was wrong"
                results.append(replace(result.rejected("broken", reason), night=""))
            else:
                results.append(result)
    recorded_starts = {result.start for result in results if isinstance(result, Point)}
    results += published_points(runs, recorded_starts)
    points = [result for result in results if isinstance(result, Point)]
    admitted, others = admit_results(points)
    rejected = [*(result for result in results if isinstance(result, RejectedResult)), *others]
    night = _night(points)
    return admitted, tuple(replace(r, night=night or r.night or build.fixed[:10]) for r in rejected)


def admit_results(points: Sequence[Point]) -> _Results:
    """The points of one build with their night and server start, and the rejected ones.

    Of several like results of a cell the last counts, since a step that is run again replaces the first; of
    unlike workloads none counts, since it is not known which is which.
    """
    night = _night(points)
    by_cell: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.order):
        by_cell.setdefault(point.cell, []).append(replace(point, night=night, start=_start(point)))
    admitted: list[Point] = []
    rejected: list[RejectedResult] = []
    for cell, results in by_cell.items():
        last = results[-1]
        unlike = next((point for point in results if not _is_alike(point, last)), None)
        if last.build.source == journals.SOURCE:
            admitted += results
        elif unlike is not None:
            reason = _unlike_reason(unlike, last)
            rejected += [point.rejected("ambiguous", reason) for point in results]
        else:
            reason = f"{cell} was measured again in this build: {last.raw}"
            rejected += [point.rejected("repeated", reason) for point in results[:-1]]
            admitted.append(last)
    return tuple(sorted(admitted, key=lambda p: (p.began, p.cell, p.raw))), tuple(rejected)


def check_zone(text: str, zone: str) -> None:
    """Check that the times of a file's results have a zone; results without a time are rejected later.

    Raises:
        NoZoneError: one has none, and ``zone`` is empty.
    """
    try:
        records = result_records(json.loads(text))
    except (ValueError, RecursionError):
        return
    for record in records:
        try:
            result = parse_result(record)
            parse_time(result.ended or result.began, zone)
        except NoZoneError:
            raise
        except ValueError:
            continue


def parse_time(text: str, zone: str) -> datetime:
    """A time as results have it: ``20260412-190115`` or ISO 8601. ``zone``: of times without one.

    Raises:
        NoZoneError: it has no zone and ``zone`` is empty.
        ValueError: it is no time.
    """
    try:
        time = datetime.strptime(text, _PLAIN_TIME)
    except ValueError:
        try:
            time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            raise ValueError(f"{text!r} is no time") from None
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


def _night(points: Iterable[Point]) -> str:
    return min((point.began for point in points), default="")[:10]


def _start(point: Point) -> str:
    """One server serves every workload of a test; that for text alone is another test of the same name."""
    kind = "-text" if point.workload.only_text else ""
    return point.start or f"{point.build.key}/{point.workload.test}{kind}"


def _is_alike(a: Point, b: Point) -> bool:
    left, right = _prompt_tokens(a), _prompt_tokens(b)
    is_other = left and right and max(left, right) > _OTHER_PROMPTS * min(left, right)
    return a.workload == b.workload and not is_other


def _prompt_tokens(point: Point) -> float:
    return float(point.covariates.get("input_tokens") or 0)


def _unlike_reason(a: Point, b: Point) -> str:
    prompts = f"prompts of {_prompt_tokens(a):g} and {_prompt_tokens(b):g} tokens"
    difference = "models or backends differ" if a.workload != b.workload else prompts
    return f"two workloads under one name, {a.raw} and {b.raw}: {difference}"


def _read_file(build: Build, file: RawFile) -> Iterator[Point | RejectedResult | PublishedRun]:
    try:
        document = json.loads(file.text)
    except (ValueError, RecursionError) as error:
        is_cut = len(file.text.encode("utf-8", "replace")) >= LARGEST
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        reason = f"is larger than {LARGEST >> 20} MB" if is_cut else f"is no JSON: {why}"
        yield RejectedResult(build, "broken", reason, file.place)
        return
    if isinstance(document, dict) and document.get("schema") == journals.SCHEMA:
        yield from journals.recorded_points(build, document, file.place)
        return
    if isinstance(document, dict) and isinstance(document.get("results"), list) and "date" in document:
        reason = "a day's summary: no cells, requests or lengths stand behind it"
        yield RejectedResult(build, "older", reason, file.place)
        return
    name = _parse_name(file.name.rsplit("/", 1)[-1])
    for index, record in enumerate(result_records(document)):
        try:
            yield _read_record(build, file, name, index, record)
        except UnusableResultError as error:
            yield _reject(build, file, name, index, record, error)
        except (ValueError, ArithmeticError) as error:
            yield RejectedResult(build, "broken", str(error), file.place, index)


def _read_record(
    build: Build, file: RawFile, name: ReportedWorkload, index: int, record: object
) -> Point | PublishedRun:
    result = parse_result(record)
    if result.published is not None:
        moment(result.published.origin.began)
        return replace(result.published, build=build, raw=file.place, record=index)
    return _point(build, file, name, index, result)


def _point(build: Build, file: RawFile, name: ReportedWorkload, index: int, result: ParsedResult) -> Point:
    """Raises ValueError: there is no time, or the file's name is of another run than the result."""
    _check_load(name, result.workload)
    commands = _parse_commands(file.beside)
    if not (result.began or name.time or result.ended):
        raise ValueError("says no time at which it was measured")
    length = timedelta(seconds=float(result.covariates["duration"]))
    ended = parse_time(result.ended, file.zone) if result.ended else None
    began = ended - length if ended is not None else parse_time(result.began or name.time, file.zone)
    facts = {**result.covariates, **file.facts}
    if name.time and file.zone and ended is not None:
        outside = (began - parse_time(name.time, file.zone)).total_seconds()
        facts["outside"] = round(outside, 1) if outside > 0 else None
    facts["hardware"] = facts.get("hardware") or str(commands.get("gpu_type") or "").strip()
    if facts.get("warmups") is None:
        facts["warmups"] = commands.get("warmups", _nightly_warmups(build, began))
    lengths = _lengths({**commands.get("arguments", {}), **name.arguments})
    dataset = name.fields.get("dataset_name") or commands.get("dataset") or ""
    workload = replace(
        result.workload,
        test=result.workload.test or name.test,
        dataset=result.workload.dataset or str(dataset),
        lengths=lengths or result.workload.lengths,
    )
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
    build: Build,
    file: RawFile,
    name: ReportedWorkload,
    index: int,
    record: object,
    error: UnusableResultError,
) -> RejectedResult:
    """With the cell and the night that the result or the file's name says, if any."""
    origin = read_origin(record)
    cell, night = (origin.cell, stamp(moment(origin.began))[:10]) if origin else ("", "")
    if not night and name.time:
        try:
            night = stamp(parse_time(name.time, file.zone or "UTC"))[:10]
        except ValueError as time_error:
            return RejectedResult(build, "broken", str(time_error), file.place, index)
    cell = cell or _named_cell(name)
    return RejectedResult(build, error.kind, str(error), file.place, index, cell, night)


def _named_cell(name: ReportedWorkload) -> str:
    """The cell that a file's name alone says; empty if it says none."""
    fields = name.fields
    if not fields:
        return ""
    concurrency, rate, prompts = (fields[key] for key in ("max_concurrency", "request_rate", "num_prompts"))
    return Workload(
        test=name.test,
        dataset=str(fields["dataset_name"]),
        concurrency=concurrency if isinstance(concurrency, int) else None,
        rate=rate if isinstance(rate, float) else math.inf,
        prompts=prompts if isinstance(prompts, int) else 0,
        lengths=_lengths(name.arguments),
    ).cell


def _lengths(arguments: Mapping[str, object]) -> str:
    sides = {"in": arguments.get("random-input-len"), "out": arguments.get("random-output-len")}
    return "-".join(f"{short}{length}" for short, length in sides.items() if length is not None)


def _parse_name(name: str) -> ReportedWorkload:
    """What a file's name says; of a name that follows no rule the test, without its load and time."""
    try:
        return parse_result_name(name)
    except UsageError:
        stem = name.removesuffix(".json")
        return ReportedWorkload(name, {}, WORKLOAD_PARTS, _LOAD_OR_TIME.sub("", stem) or stem)


def _check_load(name: ReportedWorkload, workload: Workload) -> None:
    """Raises ValueError: the name says another load than the result."""
    load: dict[str, object] = {
        "num_prompts": workload.prompts,
        "max_concurrency": workload.concurrency,
        "request_rate": workload.rate,
    }
    for field, value in load.items():
        if field in name.fields and name.fields[field] != value:
            raise ValueError(f"the file's name says {field} {name.fields[field]}, the result {value}")


def _parse_commands(text: str) -> Mapping[str, Any]:
    """Device, data set, lengths and warm-ups of the commands beside a result; empty without them."""
    try:
        document = json.loads(text) if text else {}
        workload = parse_command(str(document["client_command"])) if document else None
    except (ValueError, KeyError, TypeError, UsageError):
        return {}
    if workload is None:
        return {}
    return {
        "gpu_type": document.get("gpu_type"),
        "dataset": workload.fields.get("dataset_name"),
        "warmups": workload.fields.get("num_warmups"),
        "arguments": workload.arguments,
    }


def _nightly_warmups(build: Build, began: datetime) -> int | None:
    """Of vLLM-Omni's nightly by its date; None where it is not known."""
    if not kanban.of_nightly(build):
        return None
    fixed = moment(build.fixed) if build.fixed else began
    return WARMUPS if NIGHTLY_ERAS[-1].reached(stamp(fixed)) else 0
