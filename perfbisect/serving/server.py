"""A running server: readiness, health, cache resets and counters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfbisect.errors import Interrupted, MachineError, PerfbisectError, ServerError
from perfbisect.serving.families import Endpoint, ProbeRequest, ServerCommand
from perfbisect.system import http, logs, ports, processes
from perfbisect.system.http import NoAnswerError, Reply
from perfbisect.system.processes import OwnedProcess, StopRequested, never

_SAMPLE = re.compile(
    r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(?P<value>[-+]?[\d.]+(?:[eE][-+]?\d+)?)", re.M
)
_TICK = 0.1
_EXIT_PATIENCE = 2.0
_ENDING = 5.0
"""Time for a server to exit after it stopped answering."""

_HELD_PATIENCE = 5.0
"""Time for an engine to free the blocks of finished requests."""

_ASK_LIMIT = 10.0
"""Timeout of cheap requests: models, metrics, health."""


@dataclass(frozen=True)
class Server:
    """A started server with its processes, endpoint and probes."""

    owned: OwnedProcess
    endpoint: Endpoint
    command: ServerCommand

    def wait_named(self, limit: float, asked: StopRequested = never) -> None:
        """Wait until the server lists this attempt's model; it is ready only after ``first_answer``.

        Raises:
            ServerError: it ended, is not ready within ``limit`` seconds or serves another model.
            MachineError: another process listens on the port, or the machine ended the server.
            Interrupted: ``asked`` returned True.
        """
        began, last, said = time.monotonic(), "nobody listens on its port", ""
        deadline = began + limit
        while True:
            self._check_going("before it was ready", asked)
            if ports.answers(self.endpoint.host, self.endpoint.port):
                self.check_ports("while waiting for it")
                try:
                    answer = http.get(f"{self.endpoint.base_url}/v1/models", _ASK_LIMIT)
                except NoAnswerError as error:
                    last, said = f"/v1/models: {error}", error.output
                else:
                    last, said = f"/v1/models: {answer}", str(answer)
                    names = _model_names(answer)
                    if self.endpoint.model_name in names:
                        return
                    if names:
                        raise ServerError(
                            f"the server on port {self.endpoint.port} is not the one that was started: "
                            f"model {self.endpoint.model_name!r} was asked for, it serves "
                            f"{', '.join(map(repr, names))}",
                            where=self.owned.log,
                        )
            if time.monotonic() > deadline:
                waited = time.monotonic() - began
                raise ServerError(
                    f"the server was not ready after {waited:.0f} s ({last})\n{self._log()}",
                    where=self.owned.log,
                    output=self._output(said),
                    next_step="raise ready_timeout in the cell if the server was only slow",
                )
            time.sleep(_TICK)

    def first_answer(self, limit: float, asked: StopRequested = never) -> None:
        """Send the first request, also streamed if the engine streams, and check the port.

        Raises:
            ServerError: it ended, did not answer within ``limit`` seconds or answered incorrectly.
            MachineError: another process listens on the port, or the machine ended the server.
            Interrupted: ``asked`` returned True.
        """
        request = self.command.first_request
        self._answered(request, limit, asked, lambda answer: _problem(answer, request))
        if "stream" in request.body and not request.content_type:
            streamed = replace(request, body={**request.body, "stream": True})
            self._answered(streamed, limit, asked, _stream_problem)
        self.check_ports("after the first request")
        self.owned.observe()

    def value(self, request: ProbeRequest, limit: float, asked: StopRequested = never) -> Any:
        """The value at ``must_contain`` of the response; raises what :meth:`first_answer` raises."""
        answer = self._answered(request, limit, asked, lambda answer: _problem(answer, request))
        return _at(answer.json(), request.must_contain.split("."))

    def _answered(
        self, request: ProbeRequest, limit: float, asked: StopRequested, problem: Callable[[Reply], str]
    ) -> Reply:
        path = request.path
        call = http.Call("POST", self.endpoint.base_url + path, request.body, limit, form=request.form)
        deadline = time.monotonic() + limit
        while not call.wait(_TICK) and time.monotonic() < deadline + 1.0:
            self._check_going("at the first request", asked)
        try:
            answer = call.result()
        except NoAnswerError as error:
            # A dying engine drops the connection before it exits; the exit code says more.
            end = time.monotonic() + _EXIT_PATIENCE
            while self.owned.exited() is None and time.monotonic() < end:
                time.sleep(_TICK)
            self._check_going("at the first request", asked)
            raise ServerError(
                f"{path}: {error} (limit {limit:.0f} s)\n{self._log()}",
                where=self.owned.log,
                output=self._output(error.output),
            ) from error
        said = problem(answer)
        if said:
            raise ServerError(f"{path}: {said}: {answer}", where=self.owned.log, output=str(answer))
        return answer

    def check_going(self, when: str) -> None:
        """:raises ServerError: the server ended. :raises MachineError: the machine ended it."""
        self._check_going(when, never)

    def _check_going(self, when: str, asked: StopRequested) -> None:
        if asked():
            raise Interrupted(f"stopped {when}", where=self.owned.log)
        code = self.owned.exited()
        if code is None:
            return
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        cause = logs.cause(self.owned.log)
        message = f"the server {ended} {when}" + (f": {cause}" if cause else "")
        kind = MachineError if code == -9 else ServerError
        hint = ", not sent by perfbisect: out of memory?" if code == -9 else ""
        raise kind(
            f"{message}{hint}\n{self._log()}",
            where=self.owned.log,
            code=processes.signal_code(-code) if code < 0 else None,
            output=self._output(cause),
        )

    def _log(self) -> str:
        return f"the end of its log:\n{logs.tail(self.owned.log)}"

    def _output(self, said: str = "") -> str:
        """The end of the server's log, after ``said``."""
        return f"{said}\n{logs.tail(self.owned.log)}"

    def check_ports(self, when: str) -> None:
        """:raises SharedPortError: a foreign listener. :raises ServerError: no listener."""
        if not ports.check_ours(self.endpoint.port, self.owned.living, when):
            self.check_going(when)
            raise ServerError(
                f"{when}: the server no longer listens on port {self.endpoint.port}\n{self._log()}",
                where=self.owned.log,
                output=self._output(),
            )

    def trouble(self, limit: float = 30.0) -> PerfbisectError | None:
        """The server's failure, or None if it is healthy and answers."""
        try:
            self.check_going("during the run")
            answer = http.get(f"{self.endpoint.base_url}/health", _ASK_LIMIT)
            if answer.status >= 500:
                return ServerError(f"/health: {answer}", where=self.owned.log, output=str(answer))
            self.first_answer(limit)
        except (ServerError, MachineError) as error:
            return error
        except NoAnswerError as error:
            silent = ServerError(f"/health: {error}", where=self.owned.log, output=error.output)
            return self._ending() or silent
        return None

    def _ending(self) -> PerfbisectError | None:
        """The exit of a silent server, if it ends soon."""
        end = time.monotonic() + _ENDING
        while time.monotonic() < end:
            try:
                self.check_going("during the run")
            except (ServerError, MachineError) as error:
                return error
            time.sleep(_TICK)
        return None

    def reset_caches(self) -> str:
        """Empty the caches; returns why that failed, or an empty text.

        Retries while the engine answers ``"success": false``: it still holds blocks of finished requests.
        """
        if not self.command.reset_requests:
            return "this engine has no request that empties its caches"
        for request in self.command.reset_requests:
            end, held = time.monotonic() + _HELD_PATIENCE, True
            while held:
                try:
                    answer = http.post(self.endpoint.base_url + request.path, request.body, _ASK_LIMIT)
                except NoAnswerError as error:
                    return f"{request.path}: {error}"
                document = answer.json()
                held = isinstance(document, dict) and document.get("success") is False
                if answer.status != 200 or (held and time.monotonic() > end):
                    return f"{request.path}: {answer}"
                time.sleep(_TICK if held else 0.0)
        return ""

    def prefix_cache(self) -> dict[str, float]:
        """Prefix-cache queries and hits since the start; empty if not reported."""
        try:
            answer = http.get(f"{self.endpoint.base_url}/metrics", _ASK_LIMIT)
        except NoAnswerError:
            return {}
        if answer.status != 200:
            return {}
        return counters(answer.text, {"queries": "prefix_cache_queries", "hits": "prefix_cache_hits"})

    def in_flight(self) -> int:
        """Number of unfinished requests; 0 if not reported."""
        try:
            answer = http.get(f"{self.endpoint.base_url}/metrics", _ASK_LIMIT)
        except NoAnswerError:
            return 0
        counts = counters(answer.text, {"running": "num_requests_running", "waiting": "num_requests_waiting"})
        return int(sum(counts.values()))


def counters(text: str, wanted: Mapping[str, str]) -> dict[str, float]:
    """Sum Prometheus counters over label sets; empty unless all are present.

    Names vary between versions: ``vllm:prefix_cache_hits_total``, ``vllm:gpu_prefix_cache_hits``.
    ``external_prefix_cache_hits`` is another cache.
    """
    sums: dict[str, float] = {}
    for found in _SAMPLE.finditer(text):
        name = found["name"].rpartition(":")[2].removesuffix("_total")
        for key, word in wanted.items():
            if name in (word, f"gpu_{word}", f"cpu_{word}"):
                sums[key] = sums.get(key, 0.0) + float(found["value"])
    return sums if len(sums) == len(wanted) else {}


def hit_rate(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Hit rate between two readings; None without queries."""
    queries = after.get("queries", 0.0) - before.get("queries", 0.0)
    hits = after.get("hits", 0.0) - before.get("hits", 0.0)
    return min(1.0, max(0.0, hits / queries)) if queries > 0 else None


def _model_names(answer: Reply) -> tuple[str, ...]:
    document = answer.json()
    data = document.get("data") if isinstance(document, dict) else None
    if answer.status != 200 or not isinstance(data, list):
        return ()
    return tuple(str(row["id"]) for row in data if isinstance(row, dict) and "id" in row)


def _problem(answer: Reply, request: ProbeRequest) -> str:
    """What is wrong with a response; empty if valid."""
    if answer.status != 200:
        return "the first request was refused"
    if request.content_type:
        return _binary_problem(answer, request)
    document = answer.json()
    if document is None:
        return "the first answer is not JSON"
    if isinstance(document, dict) and document.get("error"):
        return "the first answer is an error, with status 200"
    if request.must_contain and not _at(document, request.must_contain.split(".")):
        return f"the first answer has nothing at {request.must_contain!r}"
    return ""


def _binary_problem(answer: Reply, request: ProbeRequest) -> str:
    """What is wrong with a binary response such as sound; empty if valid."""
    if answer.content_type.startswith("text/event-stream"):
        return f"the first answer is a stream of events, where {request.content_type}... was asked for"
    if not answer.content_type.startswith(request.content_type):
        kind = logs.neutral(answer.content_type, 60) or "nothing"
        return f"the first answer is {kind}, where {request.content_type}... was asked for"
    if answer.size < request.at_least:
        return f"the first answer has {answer.size} bytes, where {request.at_least} or more were expected"
    return ""


def _stream_problem(answer: Reply) -> str:
    """What is wrong with a stream of server-sent events; empty if valid."""
    if answer.status != 200:
        return "the first streamed request was refused"
    lines = answer.text.splitlines()
    events = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    events = [event for event in events if event and event != "[DONE]"]
    if not events:
        return "the first stream has no event"
    for event in events:
        document = Reply(answer.status, event.encode()).json()
        if not isinstance(document, dict):
            return "the first stream has an event that is not JSON"
        if document.get("error"):
            return "the first stream has an error, with status 200"
    return ""


def _at(document: Any, path: Iterable[str]) -> Any:
    """The value at a path, or None; a star matches the first list item that has a value."""
    parts = tuple(path)
    for index, part in enumerate(parts):
        if part == "*" and isinstance(document, list):
            found = (_at(item, parts[index + 1 :]) for item in document)
            return next((value for value in found if value), None)
        if isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        elif isinstance(document, dict):
            document = document.get(part)
        else:
            return None
    return document
