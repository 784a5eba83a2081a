"""Runs of the client against a ready server, and the image check after them."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfbisect.clients import Client
from perfbisect.clients.runner import Runner
from perfbisect.errors import ClientError, FaultCode, Interrupted, MachineError, PerfbisectError, ServerError
from perfbisect.measure.executor import Sink
from perfbisect.measure.faults import BlamedError, FaultClassifier
from perfbisect.measure.interference import InterferenceMonitor
from perfbisect.measure.record import AttemptRecord
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.serving.server import Server, hit_rate
from perfbisect.system import logs, processes
from perfbisect.system.processes import ProcessResult, StopRequested

_END_OF_LOG = 32768
_LAST_WORDS = 3.0
"""Time for a client to end after its server; some wait a minute for it to return."""


@dataclass
class _Serving:
    """Stops a run on request, or after its server ended."""

    server: Server
    asked: StopRequested
    _ended: float | None = None

    def __call__(self) -> bool:
        if self.asked():
            return True
        if self._ended is None and self.server.owned.exited() is not None:
            self._ended = time.monotonic()
        return self._ended is not None and time.monotonic() - self._ended > _LAST_WORDS


@dataclass(frozen=True)
class BenchRuns:
    """Runs the client against one server. ``limit``: seconds per run."""

    client: Client
    cell: Cell
    runner: Runner
    server: Server
    around: InterferenceMonitor
    folder: Path
    metadata: Mapping[str, str]
    limit: float
    judge: FaultClassifier
    asked: StopRequested

    def argv(self, cell: Cell, name: str, seed: int) -> tuple[str, ...]:
        """The command of a run, which writes ``run-NAME.json``."""
        arguments = self.client.command(
            cell, self.server.endpoint, seed=seed, result=self.result(name), metadata=self.metadata
        )
        return str(self.runner.interpreter), *arguments

    @property
    def expected(self) -> dict[str, str]:
        """Fields that identify a result of this attempt."""
        return {"model_id": self.server.endpoint.model_name, **self.metadata}

    def result(self, name: str) -> Path:
        return self.folder / f"run-{name}.json"

    def log(self, name: str) -> Path:
        return self.folder / f"client-{name}.log"

    def run(self, name: str, index: int, seed: int) -> RunResult:
        """Run the client and check port, server and result. Run 0 is the warm run: load does not discard it.

        Raises:
            BlamedError: no measurement, with its fault.
            MachineError: another process listens on the port or used the machine.
            Interrupted: a stop was requested.
        """
        with self.around.sample(measured=index > 0) as sampled:
            run = self._run(name, index, seed)
        return replace(run, facts={**run.facts, "sampled": sampled})

    def _run(self, name: str, index: int, seed: int) -> RunResult:
        cell = self.cell if index else self.cell.discarded
        result, log = self.result(name), self.log(name)
        result.unlink(missing_ok=True)
        self.server.check_ports(f"before run {name}")
        cache_before = self.server.prefix_cache()
        unfinished: list[int] = []
        try:
            ended = self.runner.run(
                self.argv(cell, name, seed),
                log=log,
                token=f"{self.runner.token}.client-{name}",
                timeout=self.limit,
                asked=_Serving(self.server, self.asked),
                at_limit=lambda: unfinished.append(self.server.in_flight()),
            )
        except Interrupted:
            if self.asked() or (wrong := self.server.trouble()) is None:
                raise
            raise self._of_the_server(wrong, "(its client went on, and was stopped)") from None
        document = self._document(ended, result, log, sum(unfinished))
        try:
            run = self.client.parse(cell, document, index=index, seed=seed, expected=self.expected)
        except ClientError as error:
            raise self._blamed(error, log, streamed=_stream_failed(document)) from error
        cache_after = self.server.prefix_cache()
        self.server.check_ports(f"after run {name}")
        rate = hit_rate(cache_before, cache_after)
        facts = {
            "duration": run.seconds,
            "prefix_cache": {"before": cache_before, "after": cache_after, "rate": rate},
        }
        return replace(
            run,
            index=index,
            seed=seed,
            seconds=ended.seconds,
            raw=str(result),
            values={**run.values, **({} if rate is None else {"prefix_cache_hit_rate": rate})},
            facts={**run.facts, **facts},
        )

    def _document(self, ended: ProcessResult, result: Path, log: Path, unfinished: int) -> Mapping[str, Any]:
        if unfinished:
            said = f"the server had {unfinished} requests unfinished when the limit of a run had passed"
            hung = ServerError(said, where=self.server.owned.log, code="server_hung")
            raise self._of_the_server(hung, f"({self.limit:.0f} s)")
        if ended.timed_out:
            said = f"the client did not end within {self.limit:.0f} s and was stopped"
            raise self._failed(said, log, "client_hung")
        if ended.code != 0:
            signal = f"was ended by signal {-ended.code}"
            how = signal if ended.code < 0 else f"ended with exit code {ended.code}"
            cause = logs.cause(log)
            said = f"the client {how}" + (f": {cause}" if cause else f"\n{logs.tail(log)}")
            raise self._failed(
                said, log, processes.signal_code(-ended.code) if ended.code < 0 else None, cause
            )
        try:
            document = json.loads(result.read_text("utf-8"))
        except FileNotFoundError:
            said = logs.tail(log)
            raise self._failed(
                f"the client ended with exit code 0 and wrote no {result.name}\n{said}", log
            ) from None
        except ValueError as error:
            raise self._failed(f"{result.name} is not JSON: {logs.neutral(str(error), 120)}", log) from error
        if not isinstance(document, dict):
            raise self._failed(f"{result.name} holds a {type(document).__name__}, not one result", log)
        return document

    def _failed(
        self, message: str, log: Path, code: FaultCode | None = None, output: str = ""
    ) -> BlamedError:
        return self._blamed(ClientError(message, where=log, code=code, output=output), log)

    def _blamed(self, error: ClientError, log: Path, *, streamed: bool = False) -> BlamedError:
        """Classify a failure: the server's if it died or does not answer."""
        text = logs.text_of(log, _END_OF_LOG)
        row = self.judge.row(error, "bench", text)
        if row.fault == "machine":
            return BlamedError(error, row, self.judge.reason(error, "bench", text))
        wrong = self.server.trouble()
        if wrong is None and streamed:
            wrong = ServerError("the server answered requests with errors", where=self.server.owned.log)
        if wrong is not None:
            return self._of_the_server(wrong, f"(what the client said: {error.message})")
        return BlamedError(error, row, f"{error.message} (in the client: the server still answers)")

    def _of_the_server(self, wrong: PerfbisectError, more: str) -> BlamedError:
        """Classify by the server's output; the client's follows from it."""
        text = logs.text_of(self.server.owned.log, _END_OF_LOG)
        reason = self.judge.reason(wrong, "bench", text)
        return BlamedError(wrong, self.judge.row(wrong, "bench", text), f"{reason} {more}")


def measure_runs(record: AttemptRecord, bench: BenchRuns, server: Server, sink: Sink) -> None:
    """Make the measured runs, with caches emptied before each; one run if that is impossible.

    Raises:
        PerfbisectError: what a run raises.
    """
    cell, count = bench.cell, record.request.runs
    record.facts["cache_reset"] = "yes"
    for index in range(1, count + 1):
        server.check_ports(f"before run {index}")
        refused = server.reset_caches()
        if refused:
            if server.command.reset_requests and (wrong := server.trouble()) is not None:
                raise wrong
            record.facts["cache_reset"] = f"no: {refused}"
            count = 1
            if index > 1:
                return
        record.log = bench.log(str(index))
        run = bench.run(str(index), index, cell.seed + index)
        record.runs.append(run)
        told = {"run": index, "of": count, "seed": run.seed, "seconds": run.seconds}
        sink("bench", {**told, "values": dict(run.values), "warnings": run.warnings})
        if index >= count:
            return


def _stream_failed(document: Mapping[str, Any]) -> bool:
    """Whether the result reports failed requests."""
    failed, errors = document.get("failed"), document.get("errors")
    return (isinstance(failed, int) and failed > 0) or (isinstance(errors, list) and any(errors))


DISTANCE = "image_distance:median"

COMPARE = """
import sys
from PIL import Image, ImageChops, ImageStat
made, wanted = (Image.open(name).convert("RGB") for name in sys.argv[1:])
if made.size != wanted.size:
    sizes = ["{} x {}".format(*image.size) for image in (made, wanted)]
    sys.exit(f"the image has {sizes[0]} pixels, the reference {sizes[1]}")
means = ImageStat.Stat(ImageChops.difference(made, wanted)).mean
print(sum(means) / len(means) / 255)
"""
"""Mean absolute pixel difference as a share of the full range, with the engine's Pillow."""

_IMAGE_LIMIT = 60.0


class _NoDistanceError(Exception):
    """No distance can be computed."""


def check_image(
    record: AttemptRecord, server: Server, env: Mapping[str, str], asked: StopRequested, sink: Sink
) -> None:
    """Add the image distance to every run, unless the client reported one.

    On failure the guard stays unreported, and the attempt's facts have the reason.

    Raises:
        Interrupted: ``asked`` returned True.
    """
    reference, request = record.request.cell.reference, server.command.image_check
    if reference is None or request is None or not record.runs:
        return
    made = record.request.folder / "reference-made.png"
    try:
        made.write_bytes(_image(server.value(request, record.request.limits.first_request, asked)))
        distance = _distance(record, made, Path(reference.image), env, asked)
    except (ServerError, MachineError, OSError, _NoDistanceError) as error:
        why = logs.neutral(str(error), 400)
        record.facts["reference"] = {"image": reference.image, "why_not": why}
        sink("warning", {"text": f"the image was not compared with its reference: {why}"})
        return
    record.facts["reference"] = {"image": reference.image, "made": made.name, "distance": distance}
    record.runs[:] = [replace(run, values={DISTANCE: distance, **run.values}) for run in record.runs]


def _image(encoded: object) -> bytes:
    """Decode base64, bare or as a data URL."""
    text = str(encoded)
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except binascii.Error:
        raise _NoDistanceError("the answer holds no image in base64") from None


def _distance(
    record: AttemptRecord, made: Path, wanted: Path, env: Mapping[str, str], asked: StopRequested
) -> float:
    environment = record.environment
    if environment is None:
        raise _NoDistanceError("there is no environment")
    log = made.with_suffix(".log")
    log.unlink(missing_ok=True)
    ended = processes.run(
        (str(environment.interpreter), "-c", COMPARE, str(made), str(wanted)),
        env=env,
        cwd=made.parent,
        log=log,
        token=f"{record.token}.image-check",
        timeout=_IMAGE_LIMIT,
        asked=asked,
    )
    if ended.timed_out or ended.code != 0:
        raise _NoDistanceError(logs.tail(log) or f"the comparison ended with {ended.code}")
    try:
        return float(log.read_text("utf-8").split()[-1])
    except (ValueError, IndexError):
        raise _NoDistanceError(f"the comparison printed no number: {logs.tail(log)}") from None
