"""What load generators share: the command of ``bench serve`` and checked access to results."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import fmean, median
from typing import Any, TypeGuard

from perfbisect.common.arguments import option_tokens
from perfbisect.common.checked import LARGEST
from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.common.text import line, nearest
from perfbisect.errors import ClientError, PerfbisectError, UsageError
from perfbisect.model.attempt import RunResult
from perfbisect.model.attempt import key as metric_key
from perfbisect.model.cell import Cell
from perfbisect.model.metric import STAGE, MetricRef, per_unit
from perfbisect.serving.families import FAMILIES, OFFLINE, Endpoint

Document = Mapping[str, Any]
"""The JSON of a result."""

NO_VALUES: Document = {}

SEED = "perfbisect_seed"
CELL = "perfbisect_cell"
"""Metadata keys that stamp a result."""

RESERVED = (
    *("backend", "base-url", "host", "port", "endpoint", "model", "served-model-name", "tokenizer"),
    *("dataset-name", "dataset-path", "num-prompts", "num-warmups", "max-concurrency", "request-rate"),
    *("burstiness", "seed", "ignore-eos", "extra-body", "temperature", "top-p", "top-k", "min-p"),
    *("frequency-penalty", "presence-penalty", "repetition-penalty", "percentile-metrics"),
    *("metric-percentiles", "save-result", "save-detailed", "append-result", "result-dir"),
    *("result-filename", "metadata", "disable-tqdm"),
)
"""Options set by the attempt or by a key of the cell."""

STAGE_STATISTICS = {"mean": "mean", "median": "p50", "p99": "p99"}
"""Statistic of a stage -> the client's name for it."""

ACCEPTANCE = ("spec_decode_acceptance_rate", "spec_decode_acceptance_length")
_STAGE_NAME = re.compile(r"[\w.-]{1,80}")
_MAY_BE_ZERO = frozenset({"audio_underrun", "image_distance", *ACCEPTANCE})
"""Metrics of which 0 is a measurement; other zeros mean "not reported"."""

_LONGEST_FACT = 200
"""Characters of a text that is kept as a covariate."""


@dataclass(frozen=True)
class Totals:
    """Requests and duration of a run that passed the common gates."""

    completed: int
    failed: int
    duration: float
    errors: Sequence[str]

    @property
    def failed_share(self) -> float:
        return self.failed / (self.completed + self.failed)

    def warnings(self, wanted: int) -> list[str]:
        """Warnings about failed or missing requests."""
        sent, warnings = self.completed + self.failed, []
        if self.failed:
            warnings.append(f"{self.failed} of {sent} requests failed: {_first_error(self.errors)}")
        if sent != wanted:
            warnings.append(f"{sent} of {wanted} requests were sent")
        return warnings


class Client(ABC):
    """A load generator; a new one is a module with a subclass and a line in ``CLIENTS``.

    ``package``: import name of the package whose benchmark sources are digested; ``sources``: the folders or
    files in it: ``("benchmarks", "entrypoints/cli/benchmark")``.
    """

    name: str
    package: str
    sources: tuple[str, ...]
    no_usage: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    """Turns off usage reporting."""
    reports_stages = False

    def command(
        self, cell: Cell, endpoint: Endpoint, *, seed: int, result: PurePath, metadata: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Arguments after the interpreter; the result is written to ``result`` with seed and digest.

        Raises:
            UsageError: a reserved option, or a combination that the client does not support.
        """
        check_reserved_options(cell, RESERVED)
        own: dict[str, object] = {
            "backend": cell.backend,
            "base-url": endpoint.base_url,
            "endpoint": cell.endpoint,
            "model": endpoint.model_name,
            "tokenizer": cell.tokenizer or cell.model,
            "dataset-name": cell.dataset_name,
            "dataset-path": cell.dataset_path,
            "num-prompts": cell.num_prompts,
            "num-warmups": cell.num_warmups,
            "max-concurrency": cell.max_concurrency,
            "request-rate": f"{cell.request_rate:.12g}",
            "burstiness": None if cell.burstiness == 1 else cell.burstiness,
            "ignore-eos": cell.ignore_eos,
            "seed": seed,
            "disable-tqdm": True,
            "save-result": True,
            # The spread within a run is computed from its single requests.
            "save-detailed": True,
            "result-dir": str(result.parent),
            "result-filename": result.name,
        }
        options = {**own, **self.options(cell), **cell.sampling.sent, **cell.dataset_args, **cell.client.args}
        stamped = {**metadata, SEED: str(seed), CELL: cell.digest}
        return (
            *("-m", f"{self.package}.entrypoints.cli.main", "bench", "serve"),
            *option_tokens(options, negatable=False),
            *("--metadata", *(f"{name}={value}" for name, value in stamped.items())),
        )

    def options(self, cell: Cell) -> dict[str, object]:  # noqa: ARG002
        """Options of ``bench serve`` that only this client has."""
        return {}

    def env(self, cell: Cell) -> dict[str, str]:
        """Environment of the client: no proxy for the loopback, offline if possible, then the cell's own."""
        env = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", **self.no_usage}
        return {**env, **(OFFLINE if cell.needs_no_hub else {}), **cell.client.env}

    def preload(self, env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """Modules to import while the server starts; empty if a run needs another interpreter.

        ``env`` is the client's whole process environment.
        """
        return ()

    @abstractmethod
    def metrics(self, cell: Cell) -> tuple[str, ...]:
        """Metric keys that results of this cell report: ``tpot:median``, ``output_throughput``."""

    def may_report(self, cell: Cell) -> tuple[str, ...]:  # noqa: ARG002
        """Metric keys that a result has only with a server or client that is new enough."""
        return ()

    def check_metric(self, cell: Cell, metric: MetricRef) -> None:
        """:raises UsageError: launches of this cell do not report the metric, by client or server."""
        key, reported = metric_key(metric), (*self.metrics(cell), *self.may_report(cell))
        if metric.metric.source != "client" and key not in reported:
            lack = FAMILIES[cell.family].lacks(cell, metric.metric.needs)
            if lack:
                raise UsageError(
                    f"{metric} needs {metric.metric.needs}: {lack}",
                    next_step="another --metric (perfbisect metrics), or change it in the cell",
                )
            return
        has_statistic = metric.statistic in STAGE_STATISTICS or not metric.metric.per_request
        is_stage = metric.name.startswith(STAGE) and has_statistic
        if key in reported or (self.reports_stages and is_stage):
            return
        step = "choose one of these, or extend percentile_metrics or metric_percentiles in the cell"
        if not metric.metric.per_request:
            # No setting of the cell adds a metric of a whole run.
            near = nearest(metric.name, dict.fromkeys(name.partition(":")[0] for name in reported))
            step = f"--metric, nearest of these: {', '.join(near)}" if near else "choose one of these"
        raise UsageError(
            f"client {self.name} does not report {key} for cell {cell.name}; "
            f"it reports: {', '.join(reported)}",
            next_step=step,
        )

    def read(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        """:meth:`parse`, which never fails otherwise. :raises ClientError: no measurement."""
        try:
            run = self.parse(cell, document, index=index, seed=seed, expected=expected)
        except PerfbisectError:
            raise
        # The client may be part of the change: its result can have any shape, and a resume would meet it
        # again.
        except WRONG_SHAPE as error:
            reason = line(f"{type(error).__name__}: {error}")
            raise ClientError(f"the result cannot be read ({reason})") from error
        for key, value in {**run.spread, **run.values}.items():
            if not math.isfinite(value):
                raise ClientError(f"{key} is {value:g}: no measurement")
        return run

    def parts(self, document: Document, runs: int) -> Sequence[Document]:  # noqa: ARG002
        """The result of a launch without a server as a document for each of its runs, at most ``runs``."""
        return (document,)

    @abstractmethod
    def parse(
        self, cell: Cell, document: Document, *, index: int, seed: int, expected: Document = NO_VALUES
    ) -> RunResult:
        """Convert a result; ``expected``: top-level values that it must hold (``model_id``, metadata).

        Raises:
            ClientError: no measurement: nothing completed, NaN, zeros, missing keys, errors in the stream or
                the result of another run.
        """

    @abstractmethod
    def field(self, key: str) -> str:
        """The client's name of a metric key: ``tpot:median`` -> ``median_tpot_ms``."""

    def reported(self, document: Document, key: str) -> float | None:
        """A metric in the unit of the metric table, None if missing. :raises ClientError: not a number."""
        if self.field(key) not in document:
            return None
        return positive_goodput(key, number(document, self.field(key)), document)

    def read_values(self, cell: Cell, document: Document, known: Mapping[str, float]) -> dict[str, float]:
        """All metrics of a run, of which ``known`` are computed. :raises ClientError: missing, or zero."""
        keys = self.metrics(cell)
        if known.get("output_tokens", 2.0) <= 1:
            # An answer of one token has no time between tokens.
            keys = tuple(key for key in keys if not key.startswith(("tpot:", "itl:")))
        derived = {key for key in keys if "_per_" in key}
        optional = {*ACCEPTANCE, *self.may_report(cell)}
        values: dict[str, float] = {}
        missing = []
        for key in dict.fromkeys((*keys, *self.may_report(cell))):
            if key in derived:
                continue
            value = known[key] if key in known else self.reported(document, key)
            name, _, statistic = key.partition(":")
            may_be_zero = name in _MAY_BE_ZERO or statistic == "std"
            if value is not None and (value > 0 or key in known or (value == 0 and may_be_zero)):
                values[key] = value
            elif key not in optional and value is None:
                missing.append(self.field(key))
            elif key not in optional:
                raise ClientError(f"{self.field(key)} is {value:g}: no measurement")
        if missing:
            raise ClientError(f"the result has no {', '.join(missing)}")
        return {**values, **{key: value for key, value in per_unit(values).items() if key in derived}}


def find_script(package: str, path: str) -> str:
    """Python that finds a benchmark's script in the checkout around a package, as ``script``, to import."""
    return f"""
import importlib.util, pathlib, sys
package = importlib.util.find_spec("{package}")
if package is None or not package.origin:
    sys.exit("no package {package} here")
script = pathlib.Path(package.origin).parent.parent / "{path}"
if not script.is_file():
    sys.exit(f"no {{script}}: it stands in a checkout of the engine and in no wheel")
sys.path.insert(0, str(script.parent))
"""


def request_statistics(name: str, values: Sequence[float], percentiles: Iterable[float]) -> dict[str, float]:
    """A metric's statistics over the requests of a run, as clients report theirs; empty without any."""
    if not values:
        return {}
    # Clients take numpy's percentiles, linear between two values. It is slow to import and rarely needed.
    import numpy as np

    found = {"median": median(values), "mean": fmean(values)}
    found |= {f"p{p:g}": float(np.percentile(values, p)) for p in percentiles}
    return {f"{name}:{statistic}": value for statistic, value in found.items()}


def positive_goodput(key: str, value: float, document: Document) -> float:
    """A value; a goodput of no request counts half a request, so that it has a ratio."""
    return 0.5 / number(document, "duration") if key == "request_goodput" and value == 0 else value


def reporting_options(percentile_metrics: Sequence[str], percentiles: Sequence[float]) -> dict[str, object]:
    """Options that choose the reported metrics and percentiles."""
    return {
        "percentile-metrics": ",".join(percentile_metrics),
        "metric-percentiles": ",".join(f"{percentile:g}" for percentile in percentiles),
    }


def check_reserved_options(cell: Cell, reserved: Iterable[str]) -> None:
    """:raises UsageError: the cell sets a client or dataset option that belongs to the attempt."""
    found = [name for name in reserved if name in cell.dataset_args or name in cell.client.args]
    if found:
        raise UsageError(
            f"cell {cell.name}: client.args and dataset_args cannot set {', '.join(found)}; "
            "use the cell's own key, or leave it to the attempt",
            field="client" if found[0] in cell.client.args else "dataset_args",
        )


def check_identity(document: Document, expected: Mapping[str, object]) -> None:
    """:raises ClientError: the result is of another run."""
    for name, value in expected.items():
        if document.get(name) != value:
            raise ClientError(
                f"the result is of another run: {name} is {shown(document.get(name))}, expected {value!r}"
            )


def check_bench_identity(cell: Cell, document: Document, seed: int, expected: Mapping[str, object]) -> None:
    """:func:`check_identity`, also of load, seed and cell where ``bench serve`` recorded them."""
    recorded = {
        "num_prompts": cell.num_prompts,
        "max_concurrency": cell.max_concurrency,
        SEED: str(seed),
        CELL: cell.digest,
    }
    present = {name: value for name, value in recorded.items() if name in document}
    check_identity(document, {**expected, **present})


def read_totals(cell: Cell, document: Document, suffix: str = "") -> Totals:
    """Check that requests completed; ``suffix``: of the counts' names.

    Raises:
        ClientError: no completed request, errors in the stream or no duration.
    """
    completed, failed = (count(document, name + suffix) for name in ("completed", "failed"))
    reported = document.get("errors") or []
    if not isinstance(reported, list):
        raise ClientError(f"errors is {shown(reported)}, not a list")
    for index, text in enumerate(reported):
        if text is not None and not isinstance(text, str):
            raise ClientError(f"errors[{index}] is {shown(text)}, not text")
    errors = [text for text in reported if text]
    error = _first_error(errors)
    # vllm bench serve ends with exit code 0 even if the server is down: only the counts tell.
    if completed == 0:
        raise ClientError(
            f"0 of {cell.num_prompts} requests completed ({failed} failed): {error}", output=error
        )
    if len(errors) > failed:
        raise ClientError(
            f"{len(errors)} requests have an error in the stream, but {failed} count as failed: {error}",
            output=error,
        )
    duration = number(document, "duration")
    if duration <= 0:
        raise ClientError(f"duration is {duration:g} s")
    return Totals(completed, failed, duration, errors)


def token_values(document: Document, totals: Totals, *, has_output: bool = True) -> dict[str, float]:
    """Metrics of a run that are computed from its counts."""
    sides = ("output", "input") if has_output else ("input",)
    counted = {f"{side}_tokens": count(document, f"total_{side}_tokens") / totals.completed for side in sides}
    return {"failed": totals.failed_share, **counted}


def bench_facts(document: Document, totals: Totals) -> dict[str, Any]:
    """Covariates that ``bench serve`` reports."""
    return {
        "completed": totals.completed,
        "failed": totals.failed,
        "input_tokens": fact(document, "total_input_tokens"),
        "output_tokens": fact(document, "total_output_tokens"),
        "max_concurrent_requests": fact(document, "max_concurrent_requests"),
        "date": fact(document, "date"),
        "errors": totals.errors[:3],
    }


def read_stages(document: Document) -> dict[str, float]:
    """Stage durations from the engine's profiler, by metric key."""
    found: dict[str, float] = {}
    for statistic, suffix in STAGE_STATISTICS.items():
        reported = document.get(f"stage_durations_{suffix}")
        for stage, value in reported.items() if isinstance(reported, Mapping) else ():
            if is_number(value) and value >= 1 / LARGEST and _STAGE_NAME.fullmatch(stage):
                found[f"{STAGE}{stage}:{statistic}"] = float(value)
    return found


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number of a size that is measured."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def number(document: Document, name: str) -> float:
    """A finite number. :raises ClientError: missing, not finite or too large."""
    return check_number(document.get(name), name)


def check_number(value: object, name: str) -> float:
    """:raises ClientError: not a finite number, or too large."""
    if not is_number(value):
        raise ClientError(f"{name} is {shown(value)}, not a number")
    return float(value)


def fact(document: Document, name: str) -> int | float | str | None:
    """A covariate: a number or a short text; None for anything else."""
    value = document.get(name)
    if isinstance(value, str):
        return value[:_LONGEST_FACT]
    return value if is_number(value) else None


def shown(value: object) -> str:
    """A value of a result in a message."""
    if isinstance(value, int) and not is_number(value) and not isinstance(value, bool):
        # Python refuses to print integers of more than 4,300 digits.
        return "a number that is too large"
    return line(repr(value), 80)


def count(document: Document, name: str) -> int:
    """A count. :raises ClientError: missing or not a count."""
    if name not in document:
        raise ClientError(f"the result has no {name}")
    value = number(document, name)
    if value < 0 or value != int(value):
        raise ClientError(f"{name} is {value:g}, not a count")
    return int(value)


def _first_error(errors: Sequence[str]) -> str:
    """The last line of the first error."""
    if not errors:
        return "no error was recorded"
    # An error is a whole traceback, whose last line says what failed.
    lines = [line for line in errors[0].strip().splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "an empty error"
