"""A running server: readiness, health, cache resets and counters."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfbisect.errors import FaultCode, Interrupted, MachineError, PerfbisectError, ServerError
from perfbisect.model.counters import EngineCounters
from perfbisect.serving.counters import read_counters, requests_in_flight
from perfbisect.serving.families import Endpoint, ProbeRequest, ServerCommand
from perfbisect.system import http, logs, ports, processes
from perfbisect.system.http import NoAnswerError, Reply
from perfbisect.system.processes import OwnedProcess, StopRequested, never

_TICK = 0.1
_EXIT_PATIENCE = 2.0
_EXIT_OF_SILENT = 5.0
"""Time for a server to exit after it stopped answering."""

_HELD_PATIENCE = 5.0
"""Time for an engine to free the blocks of finished requests."""

_ASK_LIMIT = 10.0
"""Timeout of cheap requests: models, health."""

_SHORTEST_ASK = 1.0

_LONGEST_ANSWER = 400

_METRICS_LIMIT = 3.0
"""Timeout of ``/metrics``, which is read between runs and may be missing."""


@dataclass(frozen=True)
class Server:
    """A started server with its processes, endpoint and probes."""

    owned: OwnedProcess
    endpoint: Endpoint
    command: ServerCommand

    def wait_named(self, limit: float, stop_requested: StopRequested = never) -> None:
        """Wait until the server lists this attempt's model; it is ready only after ``first_answer``.

        Raises:
            ServerError: it ended, is not ready within ``limit`` seconds or serves another model.
            MachineError: another process listens on the port, or the machine ended the server.
            Interrupted: ``stop_requested`` returned True.
        """
        began, last, output = time.monotonic(), "nothing listens on its port", ""
        while True:
            # vLLM opens its port only when the engine is ready: until then its process is all that there is
            # to see.
            self.check_going("before it was ready", stop_requested)
            # A connection is cheap: the process table is read only once something listens.
            if ports.answers(self.endpoint.host, self.endpoint.port):
                self.check_ports("while waiting for it")
                try:
                    left = began + limit - time.monotonic()
                    answer = self._ask("/v1/models", limit=max(_SHORTEST_ASK, left))
                except NoAnswerError as error:
                    last, output = f"/v1/models: {error}", error.output
                else:
                    last, output = f"/v1/models: {answer}", str(answer)
                    if self._serves_our_model(answer):
                        return
            if time.monotonic() > began + limit:
                raise self._failure(
                    f"the server was not ready after {time.monotonic() - began:.0f} s ({last})",
                    output,
                    next_step="raise ready_timeout in the cell if the server was only slow",
                )
            time.sleep(_TICK)

    def _serves_our_model(self, answer: Reply) -> bool:
        """Whether the answer lists this attempt's model. :raises ServerError: it lists others only."""
        document = answer.json()
        rows = document.get("data") if answer.status == 200 and isinstance(document, dict) else None
        names = [str(row["id"]) for row in rows or () if isinstance(row, dict) and "id" in row]
        # The model's name is random: another name is another server.
        if names and self.endpoint.model_name not in names:
            raise ServerError(
                f"the server on port {self.endpoint.port} is not the one that was started: model "
                f"{self.endpoint.model_name!r} was requested, it serves {', '.join(map(repr, names))}",
                where=self.owned.log,
            )
        return bool(names)

    def first_answer(self, limit: float, stop_requested: StopRequested = never) -> None:
        """Send the first request, also streamed if the engine streams, and check the port.

        Raises:
            ServerError: it ended, did not answer within ``limit`` seconds or answered incorrectly.
            MachineError: another process listens on the port, or the machine ended the server.
            Interrupted: ``stop_requested`` returned True.
        """
        request = self.command.first_request
        assert request is not None
        # An engine whose attention kernel lacks the model's head size lists its model, answers /health, and
        # dies at the first request: only a completion shows it.
        answer = self._probe(request, limit, stop_requested, lambda answer: _problem(answer, request))
        text = str(_value_at(answer.json(), request.answer_at.split(".")) or "") if request.expected else ""
        if request.expected not in text:
            # Below the first line, which is the signature: nonsense is another text in each launch.
            raise ServerError(
                f"the answer has no {request.expected!r}\nit is: {logs.excerpt(text, _LONGEST_ANSWER)!r}",
                where=self.owned.log,
                code="wrong_answer",
            )
        # Clients stream: a whole answer does not prove that streams work.
        if "stream" in request.body and not request.content_type:
            streamed = replace(request, body={**request.body, "stream": True})
            self._probe(streamed, limit, stop_requested, _stream_problem)
        self.check_ports("after the first request")
        # All processes of the engine exist now: what shared memory they hold is noted for a kill later.
        self.owned.observe()

    def value(self, request: ProbeRequest, limit: float, stop_requested: StopRequested = never) -> Any:
        """The value at ``must_contain`` of the response; raises what :meth:`first_answer` raises."""
        answer = self._probe(request, limit, stop_requested, lambda answer: _problem(answer, request))
        return _value_at(answer.json(), request.must_contain.split("."))

    def _probe(
        self,
        request: ProbeRequest,
        limit: float,
        stop_requested: StopRequested,
        problem: Callable[[Reply], str],
    ) -> Reply:
        path, url = request.path, self.endpoint.base_url + request.path
        try:
            answer = http.ask_server(
                "POST",
                url,
                limit,
                request.body,
                form=request.form,
                meanwhile=lambda: self.check_going("at the first request", stop_requested),
            )
        except NoAnswerError as error:
            # A dying engine drops the connection before it exits; the exit code says more.
            end = time.monotonic() + _EXIT_PATIENCE
            while self.owned.exited() is None and time.monotonic() < end:
                time.sleep(_TICK)
            self.check_going("at the first request", stop_requested)
            raise self._failure(f"{path}: {error} (limit {limit:.0f} s)", error.output) from error
        if found := problem(answer):
            raise ServerError(f"{path}: {found}: {answer}", where=self.owned.log, output=str(answer))
        return answer

    def check_going(self, when: str, stop_requested: StopRequested = never) -> None:
        """Check that the server runs.

        Raises:
            ServerError: it ended.
            MachineError: the machine ended it.
            Interrupted: ``stop_requested`` returned True.
        """
        if stop_requested():
            raise Interrupted(f"stopped {when}", where=self.owned.log)
        code = self.owned.exited()
        if code is None:
            return
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        cause = logs.cause(self.owned.log)
        what = "benchmark" if self.command.result else "server"
        message = f"the {what} {ended} {when}" + (f": {cause}" if cause else "")
        # perfbisect has sent no signal: the kernel or a person did.
        if code == -signal.SIGKILL:
            message += ", not sent by perfbisect: out of memory?"
        raise self._failure(
            message,
            cause,
            kind=MachineError if code == -signal.SIGKILL else ServerError,
            code=processes.signal_code(-code) if code < 0 else "server_failed",
        )

    def _failure(
        self,
        message: str,
        output: str = "",
        *,
        kind: type[ServerError | MachineError] = ServerError,
        code: FaultCode | None = None,
        next_step: str | None = None,
    ) -> ServerError | MachineError:
        """An error with the end of the server's log."""
        log = logs.tail(self.owned.log)
        return kind(
            f"{message}\nthe end of its log:\n{log}",
            where=self.owned.log,
            output=f"{output}\n{log}",
            code=code,
            next_step=next_step,
        )

    def check_ports(self, when: str) -> None:
        """:raises SharedPortError: a foreign listener. :raises ServerError: no listener."""
        if not ports.check_ours(self.endpoint.port, self.owned.living, when):
            self.check_going(when)
            raise self._failure(f"{when}: the server no longer listens on port {self.endpoint.port}")

    def trouble(self, limit: float = 30.0) -> PerfbisectError | None:
        """The server's failure, or None if it is healthy and answers."""
        try:
            self.check_going("during the run")
            # The API server answers this without its engine: only a completion proves both.
            answer = self._ask("/health")
            if answer.status >= 500:
                return ServerError(f"/health: {answer}", where=self.owned.log, output=str(answer))
            self.first_answer(limit)
            return None
        except (ServerError, MachineError) as error:
            return error
        except NoAnswerError as error:
            silent = ServerError(f"/health: {error}", where=self.owned.log, output=error.output)
        try:
            # The exit code of a server that is about to die says more than a missing answer.
            end = time.monotonic() + _EXIT_OF_SILENT
            while time.monotonic() < end:
                self.check_going("during the run")
                time.sleep(_TICK)
        except (ServerError, MachineError) as error:
            return error
        return silent

    def reset_caches(self) -> str:
        """Empty the caches; returns why that failed, or an empty text.

        Retries while the engine answers ``"success": false``, or 400 as SGLang does: it still holds blocks of
        finished requests.
        """
        # Prefix caching is on by default, and a seed repeats its prompts: with warm caches a TTFT is many
        # times shorter.
        if not self.command.reset_requests:
            return "this engine has no request that empties its caches"
        for request in self.command.reset_requests:
            end, is_held = time.monotonic() + _HELD_PATIENCE, True
            while is_held:
                try:
                    answer = self._ask(request.path, request.body)
                except NoAnswerError as error:
                    return f"{request.path}: {error}"
                document = answer.json()
                # Old engines answer without a body, which is success.
                is_held = answer.status == 400 or (
                    isinstance(document, dict) and document.get("success") is False
                )
                if answer.status not in (200, 400) or (is_held and time.monotonic() > end):
                    return f"{request.path}: {answer}"
                time.sleep(_TICK if is_held else 0.0)
        return ""

    def counters(self, limit_s: float = _METRICS_LIMIT) -> EngineCounters:
        """The engine's counters; none if it does not serve them in time."""
        return read_counters(self._metrics(limit_s))

    def in_flight(self) -> int:
        """Number of unfinished requests; 0 if not reported."""
        return requests_in_flight(self._metrics(_METRICS_LIMIT))

    def _metrics(self, limit_s: float) -> str:
        """The page, or nothing."""
        try:
            answer = http.ask_server("GET", self.endpoint.base_url + "/metrics", limit_s)
        except NoAnswerError:
            return ""
        return answer.text if answer.status == 200 else ""

    def _ask(
        self, path: str, body: Mapping[str, object] | None = None, *, limit: float = _ASK_LIMIT
    ) -> Reply:
        method = "GET" if body is None else "POST"
        return http.ask_server(method, self.endpoint.base_url + path, min(limit, _ASK_LIMIT), body)


def _problem(answer: Reply, request: ProbeRequest) -> str:
    """What is wrong with a response; empty if valid."""
    if answer.status != 200:
        return "the first request was refused"
    if request.content_type:
        kind, size = answer.content_type, len(answer.content)
        if kind.startswith("text/event-stream"):
            return f"the first answer is a stream of events, not {request.content_type}..."
        if not kind.startswith(request.content_type):
            return f"the first answer is {logs.excerpt(kind, 60) or 'nothing'}, not {request.content_type}..."
        if size < request.at_least:
            return f"the first answer has {size} bytes, at least {request.at_least} were expected"
        return ""
    document = answer.json()
    if document is None:
        return "the first answer is not JSON"
    # Some engines put an error into an answer of status 200.
    if isinstance(document, dict) and document.get("error"):
        return "the first answer is an error, with status 200"
    if request.must_contain and not _value_at(document, request.must_contain.split(".")):
        return f"the first answer has nothing at {request.must_contain!r}"
    return ""


def _stream_problem(answer: Reply) -> str:
    """What is wrong with a stream of server-sent events; empty if valid."""
    if answer.status != 200:
        return "the first streamed request was refused"
    lines = (line for line in answer.text.splitlines() if line.startswith("data:"))
    events = [line.removeprefix("data:").strip() for line in lines]
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


def _value_at(document: Any, path: Sequence[str]) -> Any:
    """The value at a path, or None; a star matches the first list item that has a value."""
    for index, part in enumerate(path):
        if part == "*" and isinstance(document, list):
            found = (_value_at(item, path[index + 1 :]) for item in document)
            return next((value for value in found if value), None)
        if isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        elif isinstance(document, dict):
            document = document.get(part)
        else:
            return None
    return document
