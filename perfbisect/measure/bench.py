"""Runs of the client against a ready server, and the image check after them."""

from __future__ import annotations

import base64
import json
import math
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfbisect.clients.base import request_statistics
from perfbisect.clients.runner import Runner
from perfbisect.common.json_text import parse_json
from perfbisect.errors import ClientError, FaultCode, Interrupted, MachineError, PerfbisectError, ServerError
from perfbisect.machine.devices import Gpu, Smi
from perfbisect.machine.interference import UNJUDGED, InterferenceLimits, interference_reason
from perfbisect.machine.late_packets import late_packets_reason
from perfbisect.machine.sampler import Sampler
from perfbisect.machine.slots import Slot
from perfbisect.measure.executor import Sink
from perfbisect.measure.faults import ATTEMPT_ERRORS, BlamedError, DiscardedRunError, is_own_error
from perfbisect.measure.record import END_OF_LOG, AttemptRecord
from perfbisect.model.attempt import RunResult, relative_spread
from perfbisect.model.cell import Cell
from perfbisect.model.counters import COUNTERS_FACT, CPU_FACT
from perfbisect.serving.counters import CpuReading, cpu_increase, hit_rate, prefix_cache, read_cpu
from perfbisect.serving.first_chunks import FIRST_CHUNK, LEAST_PERCENT, read_first_chunks
from perfbisect.serving.log_facts import engine_facts
from perfbisect.serving.server import Server
from perfbisect.system import logs, processes
from perfbisect.system.commands import ProcessResult, run_script
from perfbisect.system.ports import SharedPortError
from perfbisect.system.processes import Process, StopRequested

_LARGEST_RESULT = 1 << 29
"""Bytes of a result, which holds each token's time."""

_CLIENT_GRACE_S = 3.0
"""For a client to end after its server; some wait a minute for it to return."""


_LOOK_S = 0.5
"""Between two looks at a benchmark without a server."""

START_OF_LOG = 1 << 20
"""Bytes of a server's log in which it says how it is configured."""

_LOG_OF_REQUEST = 16 << 10
"""Bytes of a server's log that an answer with sound may have; tables of its stages take 6 KiB."""

_NEXT = "none needed, it is measured again; or end other processes on this machine"


@dataclass(frozen=True)
class InterferenceMonitor:
    """Samples one attempt's slot and discards runs under foreign load."""

    slot: Slot
    limits: InterferenceLimits
    ours: Callable[[], Iterable[Process]]
    smi: Smi
    devices: Sequence[Gpu]
    """All devices of the machine."""
    exact: bool = False
    """Nothing is measured that load could change."""

    @contextmanager
    def sample(self, *, measured: bool) -> Iterator[dict[str, Any]]:
        """Sample what happens meanwhile; the yielded facts are filled at its end.

        What is ``exact``, or not ``measured`` (a start, a warm run), is discarded for device conflicts only.
        A failure under load is discarded, unless the server ended by itself with an error that load does not
        explain.

        Raises:
            DiscardedRunError: a limit was exceeded, whether it succeeded or not.
        """
        # A start loads files and compiles: load of others delays it and changes no result; another process
        # on the device may.
        is_judged = measured and not self.exact
        limits = self.limits if is_judged else replace(UNJUDGED, device_memory=self.limits.device_memory)
        sampler = Sampler(self.ours, slot=self.slot, smi=self.smi, known=self.devices)
        facts: dict[str, Any] = {}
        try:
            with sampler:
                yield facts
        # The run is discarded already: load as a further reason would hide the first.
        except (DiscardedRunError, SharedPortError):
            raise
        except ATTEMPT_ERRORS as error:
            reason = interference_reason(sampler.summary(), self.limits)
            # Load may cause a timeout or a lack of memory, but no error of the engine's own: that is data
            # about the change.
            if reason is None or is_own_error(error):
                raise
            message = error.message if isinstance(error, PerfbisectError) else str(error)
            raise DiscardedRunError(
                f"discarded: {reason}; meanwhile: {message}",
                where=getattr(error, "where", None),
                next_step=_NEXT,
            ) from error
        samples = sampler.summary()
        facts |= samples.facts(self.limits)
        reason = interference_reason(samples, limits)
        if reason:
            raise DiscardedRunError(f"discarded: {reason}", next_step=_NEXT)


@dataclass(frozen=True)
class BenchRuns:
    """Runs the client of an attempt against a server."""

    record: AttemptRecord
    runner: Runner
    server: Server
    monitor: InterferenceMonitor
    stop_requested: StopRequested

    @property
    def _metadata(self) -> Mapping[str, str]:
        return {"attempt": self.record.request.id, "change": self.record.request.change.id}

    def argv(self, cell: Cell, name: str, seed: int) -> tuple[str, ...]:
        """The command of a run, which writes ``run-NAME.json``."""
        arguments = self.record.instrument.command(
            cell, self.server.endpoint, seed=seed, result=self._result(name), metadata=self._metadata
        )
        return str(self.runner.interpreter), *arguments

    def log(self, name: str) -> Path:
        return self.record.request.folder / f"client-{name}.log"

    def _result(self, name: str) -> Path:
        return self.record.request.folder / f"run-{name}.json"

    def run(self, name: str, index: int, seed: int, *, judged: bool = True) -> RunResult:
        """Run the client and check port, server and result. Run 0 is the warm run.

        Foreign load discards neither that nor what is not ``judged``.

        Raises:
            BlamedError: no measurement, with its fault.
            MachineError: another process listens on the port or used the machine.
            Interrupted: a stop was requested.
        """
        is_measured = index > 0 and judged and not self.monitor.exact
        with self.monitor.sample(measured=is_measured) as sampled:
            run = self._run(name, index, seed)
        run = replace(run, facts={**run.facts, "sampled": sampled})
        if reason := late_packets_reason(run, self.monitor.limits) if is_measured else None:
            raise DiscardedRunError(f"discarded: {reason}", next_step=_NEXT)
        return run

    def _run(self, name: str, index: int, seed: int) -> RunResult:
        request = self.record.request
        cell = request.cell if index else request.cell.discarded
        result, log = self._result(name), self.log(name)
        # The result of an attempt that was killed before could count as this run's.
        result.unlink(missing_ok=True)
        self.server.check_ports(f"before run {name}")
        # Counters run on from the start of the server: a run is the difference.
        before, cpu_before = self.server.counters(), self._cpu()
        unfinished: list[int] = []
        server_ended: list[float] = []

        def is_over() -> bool:
            """True on request, and some time after the server ended."""
            if self.stop_requested():
                return True
            if not server_ended and self.server.owned.exited() is not None:
                server_ended.append(time.monotonic())
            return bool(server_ended) and time.monotonic() - server_ended[0] > _CLIENT_GRACE_S

        try:
            ended = self.runner.run(
                self.argv(cell, name, seed),
                log=log,
                token=f"{self.runner.token}.client-{name}",
                timeout=request.limits.bench,
                stop_requested=is_over,
                # Asked before the client is ended: the server drops the requests of a client that goes
                # away.
                at_limit=lambda: unfinished.append(self.server.in_flight()),
            )
        except Interrupted:
            # The stop was either asked for, or was made because the server had ended.
            if self.stop_requested() or (trouble := self.server.trouble()) is None:
                raise
            raise self._server_failed(trouble, "(its client went on, and was stopped)") from None
        document = self._read(ended, result, log, sum(unfinished))
        expected = {"model_id": self.server.endpoint.model_name, **self._metadata}
        try:
            run = self.record.instrument.read(cell, document, index=index, seed=seed, expected=expected)
        except ClientError as error:
            failed, errors = document.get("failed"), document.get("errors")
            has_failed = isinstance(failed, int) and failed > 0
            has_errors = has_failed or (isinstance(errors, list) and any(errors))
            raise self._client_failed(error, log, has_errors=has_errors) from error
        cpu_s, after = cpu_increase(cpu_before, self._cpu()), self.server.counters()
        # Checked before and after: a listener that came meanwhile shared the requests.
        self.server.check_ports(f"after run {name}")
        cache_before, cache_after = prefix_cache(before), prefix_cache(after)
        rate = hit_rate(cache_before, cache_after)
        facts = {
            "duration": run.seconds,
            "prefix_cache": {"before": cache_before, "after": cache_after, "rate": rate},
            COUNTERS_FACT: {"before": before.stages, "after": after.stages},
            CPU_FACT: cpu_s,
        }
        values = {**run.values, **after.since(before).queue_values()}
        if rate is not None:
            values["prefix_cache_hit_rate"] = rate
        chunks = self._first_chunks(cell, run)
        return replace(
            run,
            index=index,
            seed=seed,
            seconds=ended.seconds,
            raw=str(result),
            values={
                **values,
                **request_statistics(FIRST_CHUNK, chunks, (LEAST_PERCENT, *cell.percentiles)),
            },
            spread={**run.spread, **({f"{FIRST_CHUNK}:median": relative_spread(chunks)} if chunks else {})},
            facts={**run.facts, **facts},
        )

    def _first_chunks(self, cell: Cell, run: RunResult) -> tuple[float, ...]:
        """The server's own TTFP of each request of a run, ms; none if it does not log them."""
        requests = run.facts.get("completed", 0)
        if f"{FIRST_CHUNK}:median" not in self.record.instrument.may_report(cell):
            return ()
        return read_first_chunks(
            logs.text_of(self.server.owned.log, _LOG_OF_REQUEST * (requests + 1)), requests
        )

    def measure(self, sink: Sink) -> None:
        """Make the measured runs, with caches emptied before each; one run if that is impossible."""
        record, server = self.record, self.server
        count = record.request.runs
        record.facts["cache_reset"] = "yes"
        for index in range(1, count + 1):
            server.check_ports(f"before run {index}")
            refusal = server.reset_caches()
            if refusal:
                # A server that died does not answer either.
                if server.command.reset_requests and (trouble := server.trouble()) is not None:
                    raise trouble
                record.facts["cache_reset"] = f"no: {refusal}"
                count = 1
                # Without a reset, the caches are warm from the run before: one run a launch is comparable,
                # further ones are not.
                if index > 1:
                    return
            record.log = self.log(str(index))
            run = self.run(str(index), index, record.request.cell.seed + index)
            record.runs.append(run)
            facts = {"run": index, "of": count, "seed": run.seed, "seconds": run.seconds}
            sink("bench", {**facts, "values": dict(run.values), "warnings": run.warnings})
            if index >= count:
                return

    def _cpu(self) -> CpuReading:
        """CPU seconds of the server's processes so far."""
        owned, host = self.server.owned, self.runner.host
        return read_cpu(owned.living(), owned.pid, host.pid if host else None)

    def _read(self, ended: ProcessResult, result: Path, log: Path, unfinished: int) -> Mapping[str, Any]:
        """The result of a client that has ended well."""
        limit = self.record.request.limits.bench
        # Requests in the server mean that it hangs; without any, the client does.
        if unfinished:
            message = f"the server had {unfinished} requests unfinished when the limit of a run had passed"
            hung = ServerError(message, where=self.server.owned.log, code="server_hung")
            raise self._server_failed(hung, f"({limit:.0f} s)")
        code: FaultCode | None = None
        output = ""
        document: dict[str, Any] | str = ""
        if ended.timed_out:
            message, code = f"the client did not end within {limit:.0f} s and was stopped", "client_hung"
        elif ended.code != 0:
            output = logs.cause(log)
            how = f"ended with exit code {ended.code}"
            if ended.code < 0:
                how, code = f"was ended by signal {-ended.code}", processes.signal_code(-ended.code)
            message = f"the client {how}" + (f": {output}" if output else f"\n{logs.tail(log)}")
        else:
            document = _read_result(result, log)
            message = document if isinstance(document, str) else ""
        if isinstance(document, dict):
            return document
        raise self._client_failed(ClientError(message, where=log, code=code, output=output), log)

    def _client_failed(self, error: ClientError, log: Path, *, has_errors: bool = False) -> BlamedError:
        """Classify a failure: the server's if it died or does not answer."""
        text = logs.text_of(log, END_OF_LOG)
        # The machine's faults first: a full disk fails client and server alike.
        row = self.record.classifier.row(error, "bench", text)
        if row.fault == "machine":
            return BlamedError(error, row, self.record.classifier.reason(error, "bench", text))
        trouble = self.server.trouble()
        # Failed requests are the server's answers, even if it answers again afterwards.
        if trouble is None and has_errors:
            trouble = ServerError("the server answered requests with errors", where=self.server.owned.log)
        # Every request completed and none held anything: only the server's answers can be empty.
        if trouble is None and error.code == "no_output":
            trouble = ServerError(
                "the server answered nothing", where=self.server.owned.log, code="no_output"
            )
        if trouble is not None:
            return self._server_failed(trouble, f"(what the client said: {error.message})")
        return BlamedError(error, row, f"{error.message} (in the client: the server still answers)")

    def _server_failed(self, error: PerfbisectError, more: str) -> BlamedError:
        """Classify by the server's output; the client's follows from it."""
        text = logs.text_of(self.server.owned.log, END_OF_LOG)
        reason = self.record.classifier.reason(error, "bench", text)
        return BlamedError(error, self.record.classifier.row(error, "bench", text), f"{reason} {more}")


def _read_result(path: Path, log: Path) -> dict[str, Any] | str:
    """The result of a process that ended with exit code 0, or why there is none; ``log``: its output."""
    try:
        state = path.stat()
        # A pipe would block.
        if not stat.S_ISREG(state.st_mode):
            return f"{path.name} cannot be read: it is no file"
        if state.st_size > _LARGEST_RESULT:
            return f"{path.name} cannot be read: it is larger than {_LARGEST_RESULT >> 20} MB"
        document = parse_json(path.read_bytes())
    except FileNotFoundError:
        return f"it ended with exit code 0 and wrote no {path.name}\n{logs.tail(log)}"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return f"{path.name} is not JSON: {logs.excerpt(str(error), 120)}"
    if not isinstance(document, dict):
        return f"{path.name} holds a {type(document).__name__}, not one result"
    return document


def measure_process(
    record: AttemptRecord, process: Server, monitor: InterferenceMonitor, stop: StopRequested, sink: Sink
) -> None:
    """Wait for a benchmark without a server, and read the runs of its result.

    Raises:
        ServerError: it failed, did not end in time, or its result is no measurement: data about the change,
            whose benchmark it is.
        MachineError: the machine ended it, or it was measured under foreign load.
        Interrupted: a stop was requested.
    """
    request, log = record.request, process.owned.log
    limit, count = request.limits.bench, request.runs
    with record.timed("bench", log), monitor.sample(measured=not monitor.exact) as sampled:
        end = time.monotonic() + limit
        parents: dict[int, int] = {}
        while process.owned.exited() is None:
            process.check_going("while it measured", stop)
            if time.monotonic() > end:
                message = f"the benchmark did not end within {limit:.0f} s"
                raise ServerError(message, where=log, code="server_hung")
            parents |= {row.pid: row.parent for row in process.owned.living()}
            time.sleep(_LOOK_S)
        if process.owned.exited() != 0:
            process.check_going("while it measured", stop)
        record.facts["engine_log"] = engine_facts(logs.text_of(log, START_OF_LOG, first=True), parents)
        result = request.folder / process.command.result
        document = _read_result(result, log)
        if isinstance(document, str):
            raise ServerError(f"the benchmark has no result: {document}", where=log)
        try:
            record.runs += [
                replace(
                    record.instrument.read(request.cell, part, index=index, seed=request.cell.seed),
                    raw=str(result),
                )
                for index, part in enumerate(record.instrument.parts(document, count), start=1)
            ]
        except ClientError as error:
            raise ServerError(
                f"the benchmark's result is no measurement: {error.message}", where=log
            ) from error
    record.runs[:] = [replace(run, facts={**run.facts, "sampled": sampled}) for run in record.runs]
    for run in record.runs:
        facts = {"run": run.index, "of": len(record.runs), "seed": run.seed, "seconds": run.seconds}
        sink("bench", {**facts, "values": dict(run.values), "warnings": run.warnings})


DISTANCE = "image_distance:median"

COMPARE = """
import json, sys
from PIL import Image, ImageChops, ImageStat
image = Image.open(sys.argv[1]).convert("RGB")
if sys.argv[2].startswith("["):
    pixels = json.loads(sys.argv[2])
    means = [abs(a - b) for p in pixels for a, b in zip(image.getpixel(tuple(p["at"])), p["rgb"])]
else:
    reference = Image.open(sys.argv[2]).convert("RGB")
    if image.size != reference.size:
        sizes = ["{} x {}".format(*one.size) for one in (image, reference)]
        sys.exit(f"the image has {sizes[0]} pixels, the reference {sizes[1]}")
    means = ImageStat.Stat(ImageChops.difference(image, reference)).mean
print(sum(means) / len(means) / 255)
"""
"""Mean absolute difference of all pixels, or of those given in JSON, as a share of the full range, with the
engine's Pillow."""

_IMAGE_LIMIT_S = 60.0


def check_image(
    record: AttemptRecord, server: Server, env: Mapping[str, str], stop_requested: StopRequested, sink: Sink
) -> None:
    """Add the image distance to every run, unless the client reported one.

    On failure the guard stays unreported, and the attempt's facts have the reason.

    Raises:
        Interrupted: ``stop_requested`` returned True.
    """
    reference, request = record.request.cell.reference, server.command.image_check
    if reference is None or request is None or not record.runs:
        return
    image = record.request.folder / "reference-made.png"
    try:
        answer = server.value(request, record.request.limits.first_request, stop_requested)
        text = str(answer)
        try:
            # Bare, or a data URL.
            encoded = text.partition(",")[2] if text.startswith("data:") else text
            data = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise ValueError("the answer holds no image in base64") from None
        image.write_bytes(data)
        pixels = json.dumps([pixel.model_dump() for pixel in reference.pixels])
        distance = _distance(record, image, reference.image or pixels, env, stop_requested)
    except (ServerError, MachineError, OSError, ValueError) as error:
        reason = logs.excerpt(str(error), 400)
        record.facts["reference"] = {"image": reference.described, "why_not": reason}
        sink("warning", {"text": f"the image was not compared with its reference: {reason}"})
        return
    record.facts["reference"] = {"image": reference.described, "made": image.name, "distance": distance}
    record.runs[:] = [replace(run, values={DISTANCE: distance, **run.values}) for run in record.runs]


def _distance(
    record: AttemptRecord, image: Path, reference: str, env: Mapping[str, str], stop_requested: StopRequested
) -> float:
    """Compare an image with a file or pixels; ValueError if there is no distance."""
    if record.environment is None:
        raise ValueError("there is no environment")
    log = image.with_suffix(".log")
    ended = run_script(
        COMPARE,
        str(image),
        reference,
        interpreter=record.environment.interpreter,
        env=env,
        log=log,
        token=f"{record.token}.image-check",
        timeout=_IMAGE_LIMIT_S,
        stop_requested=stop_requested,
    )
    if ended.timed_out or ended.code != 0:
        raise ValueError(logs.tail(log) or f"the comparison ended with {ended.code}")
    words = logs.text_of(log).split()
    with suppress(ValueError):
        if words and math.isfinite(distance := float(words[-1])):
            return distance
    raise ValueError(f"the comparison printed no number: {logs.tail(log)}")
