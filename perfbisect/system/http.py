"""HTTP: sessions with proxy, token and retries; a REST client; requests to our own servers.

Proxies are for downloads only: requests to the loopback are direct, and requests to our own servers are
never retried, since their readiness is measured. Tokens are sent over TLS or to this machine only, never
follow a redirect and never appear in a message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import InvalidHeader, MaxRetryError
from urllib3.util.retry import Retry

from perfbisect.common.json_text import parse_json
from perfbisect.errors import MachineError, UsageError
from perfbisect.redaction import without_secrets
from perfbisect.system.logs import excerpt
from perfbisect.system.threads import start_thread

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

FETCH_TIMEOUT_S = (10.0, 60.0)
"""Connect and read timeout."""
FETCH_LIMIT_S = 600.0
"""For a whole answer of another machine, retries and their pauses included."""
_TICK_S = 0.1

_LONGEST_WAIT_S = 300.0
"""Longest ``Retry-After`` that is honoured."""

_RETRIED = frozenset({408, 425, 429, *range(500, 600)})
_CONNECTIONS = 16
_LARGEST_FETCH = 64 * 1024 * 1024
_LARGEST_ANSWER = 8 * 1024 * 1024
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

T = TypeVar("T")

Wait = Callable[[float], None]
Say = Callable[[str], None]


def _say_nothing(_: str) -> None:
    pass


class RetryPolicy(Retry):
    """urllib3 retries with an injected clock and announced pauses.

    ``tries`` includes the first one. Connection errors and statuses in :data:`_RETRIED` are retried for every
    method. ``RateLimit-Reset`` is a second ``Retry-After``.
    """

    def __init__(
        self,
        what: str = "",
        tries: int = 5,
        *,
        backoff_s: float = 1.0,
        wait: Wait = time.sleep,
        say: Say = _say_nothing,
        **state: Any,
    ) -> None:
        policy = {
            "total": tries - 1,
            "backoff_factor": backoff_s,
            "status_forcelist": _RETRIED,
            "allowed_methods": None,
            "raise_on_status": False,
        }
        super().__init__(**{**policy, **state})
        self._own: dict[str, Any] = {"what": what, "tries": tries, "wait": wait, "say": say}
        self.what, self.tries = what, tries

    def new(self, **kw: Any) -> RetryPolicy:
        """A copy, as urllib3 makes one for each try."""
        return super().new(**self._own, **kw)

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        """Wait as long as the service requests, or with exponential backoff.

        Raises:
            MachineError: the service requests more than :data:`_LONGEST_WAIT_S`.
        """
        last = self.history[-1]
        reason = f"status {last.status}" if last.status else type(last.error).__name__
        requested = self._requested_pause(response.headers) if response is not None else 0.0
        if requested > _LONGEST_WAIT_S:
            raise MachineError(
                f"{self.what}: {reason}, and it asks to wait {requested:.0f} s", next_step="try again later"
            )
        pause = requested or self.get_backoff_time()
        self._own["say"](f"{self.what}: {reason}; retrying in {pause:.0f} s")
        self._own["wait"](pause)

    def _requested_pause(self, headers: Mapping[str, str]) -> float:
        """Seconds that a response requests to wait, or 0."""
        try:
            pause = self.parse_retry_after(headers.get("Retry-After", ""))
        except InvalidHeader:
            pause = 0.0
        reset = headers.get("RateLimit-Reset", "")
        # Resets are whole seconds: one more avoids an early request.
        return pause or (float(reset) + 1.0 if reset.isdigit() else 0.0)


def is_safe_for_token(url: str) -> bool:
    """Whether a secret may be sent there: TLS or this machine."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (parts.scheme == "https" or parts.hostname in _LOOPBACK)


def open_session(url: str, *, token: str | None = None, retries: Retry | None = None) -> requests.Session:
    """Open a session with the host of ``url``; ``token`` None uses ``.netrc``.

    Raises:
        UsageError: the token would be sent unencrypted.
    """
    if token and not is_safe_for_token(url):
        raise UsageError(f"{public_url(url)}: tokens are only sent over https", next_step="use https://")
    session = requests.Session()
    # Neither proxies nor .netrc apply to this machine.
    session.trust_env = urlsplit(url).hostname not in _LOOPBACK

    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    if token is not None:
        # Set even without a token, so that .netrc does not apply.
        session.auth = authorize
    adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS, max_retries=0 if retries is None else retries)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def public_url(url: str) -> str:
    """The URL without user and query, which may hold a password or signature."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return without_secrets(f"{parts.scheme}://{host}{port}{parts.path}")


def failure_reason(error: BaseException, timeout_s: float) -> str:
    """Why there was no response, by error type: the texts hold addresses and tokens."""
    if isinstance(error, LateAnswerError):
        return str(error)
    # requests wraps a read timeout after retries in a plain ConnectionError, around urllib3's own.
    wrapped = error.args[0] if error.args else None
    reason = wrapped.reason if isinstance(wrapped, MaxRetryError) else None
    is_late = isinstance(error, requests.Timeout) or "Timeout" in type(reason).__name__
    return f"no answer within {timeout_s:g} s" if is_late else type(error).__name__


@dataclass(frozen=True)
class Reply:
    """A response, read up to a limit. ``url``: after redirects; ``next_url``: from the ``Link`` header."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    next_url: str = ""
    is_cut: bool = False

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    def json(self) -> Any:
        """The content as JSON, or None."""
        try:
            return parse_json(self.text)
        except ValueError:
            return None

    def __str__(self) -> str:
        if self.content_type.startswith(("audio/", "image/", "video/", "application/octet-stream")):
            return f"{self.status} {excerpt(self.content_type, 60)}, {len(self.content)} bytes"
        return f"{self.status} {excerpt(' '.join(self.text.split()), 200) or '(empty)'}"


class LateAnswerError(requests.Timeout):
    """The whole answer did not come in time."""


def send_request(
    session: requests.Session,
    method: str,
    url: str,
    most: int,
    limit_s: float,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    **options: Any,
) -> Reply:
    """Send one request and read at most ``most`` bytes; ``limit_s``: see :func:`answer_within`.

    Raises what requests and ``meanwhile`` raise.
    """

    def send() -> Reply:
        # Read in parts: an endless answer is dropped at the limit, not read into memory.
        with session.request(method, url, stream=True, **options) as response:
            content = bytearray()
            for chunk in response.iter_content(1 << 16):
                content += chunk
                if len(content) > most:
                    break
            return Reply(
                response.status_code,
                bytes(content[:most]),
                response.headers,
                response.url,
                response.links.get("next", {}).get("url", ""),
                is_cut=len(content) > most,
            )

    return answer_within(limit_s, send, meanwhile)


def answer_within(limit_s: float, ask: Callable[[], T], meanwhile: Callable[[], None] = lambda: None) -> T:
    """The answer of ``ask``, retries and all; ``meanwhile`` is called while it is waited for.

    The timeouts of sockets are for each read: a peer that sends a byte now and then defeats them. So the
    request has a thread of its own, which is left behind when its time is up; it ends with the connection.

    Raises:
        LateAnswerError: ``limit_s`` seconds have passed.
    """
    call: Future[T] = Future()

    def work() -> None:
        try:
            call.set_result(ask())
        # Every exception goes to the waiting thread, which would otherwise wait until the limit.
        except BaseException as error:
            call.set_exception(error)

    deadline = time.monotonic() + limit_s
    # A daemon: a thread that hangs in a read must not keep the program from ending.
    start_thread(threading.Thread(target=work, name="request", daemon=True))
    while not wait([call], _TICK_S).done:
        meanwhile()
        if time.monotonic() > deadline:
            raise LateAnswerError(f"no answer within {limit_s:g} s")
    return call.result()


class MissingResourceError(UsageError):
    """Status 404."""


class RestClient:
    """REST client with authentication, pagination, rate limits and retries."""

    def __init__(
        self,
        base: str,
        token: str,
        what: str,
        *,
        wait: Wait = time.sleep,
        say: Say = _say_nothing,
        limit_s: float = FETCH_LIMIT_S,
    ) -> None:
        self.what = what
        self.say = say
        self._limit_s = limit_s
        self._host = urlsplit(base).netloc
        self._retries = RetryPolicy(what, wait=wait, say=say)
        self._session = open_session(base, token=token, retries=self._retries)

    def pages(self, url: str, parameters: Mapping[str, str | int] | None = None) -> Iterator[Any]:
        """The items of a list over all pages (``Link`` header)."""
        page, query = url, parameters
        visited: set[str] = set()
        while page:
            if page in visited:
                raise self._unexpected(page, "a page that was already read: the pages form a loop")
            visited.add(page)
            reply = self._get(page, query)
            items = self._document(reply, page)
            if not isinstance(items, list):
                raise self._unexpected(page, "something other than a list")
            yield from items
            page, query = reply.next_url, None

    def json(self, url: str) -> Any:
        return self._document(self._get(url, None), url)

    def text(self, url: str) -> str:
        return self._get(url, None).text

    def _get(self, url: str, parameters: Mapping[str, str | int] | None) -> Reply:
        """:raises UsageError: refused or missing. :raises MachineError: no usable response."""
        where = public_url(url)
        # A token must not be sent to another host.
        if urlsplit(url).netloc != self._host:
            raise MachineError(f"{self.what} redirects to another host", where=where)
        try:
            reply = send_request(
                self._session,
                "GET",
                url,
                _LARGEST_FETCH,
                self._limit_s,
                params=parameters,
                timeout=FETCH_TIMEOUT_S,
            )
        except (requests.RequestException, ValueError) as error:
            raise self._gave_up(failure_reason(error, FETCH_TIMEOUT_S[1]), where) from None
        if reply.status in _RETRIED:
            raise self._gave_up(f"status {reply.status}", where)
        if reply.status in (401, 403):
            raise UsageError(
                f"{self.what} refuses the token (status {reply.status})",
                where=where,
                next_step="use a token that can read builds, artifacts and logs",
            )
        if reply.status == 404:
            raise MissingResourceError(f"{self.what} has nothing at this address", where=where)
        if reply.status != 200:
            raise self._unexpected(url, f"status {reply.status}")
        if reply.is_cut:
            raise MachineError(f"{self.what} sent more than {_LARGEST_FETCH >> 20} MB", where=where)
        return reply

    def _document(self, reply: Reply, url: str) -> Any:
        try:
            return parse_json(reply.content)
        except ValueError:
            raise self._unexpected(url, "invalid JSON") from None

    def _gave_up(self, reason: str, where: str) -> MachineError:
        return MachineError(
            f"{self.what} did not answer in {self._retries.tries} tries: {reason}",
            where=where,
            next_step="try again later; finished downloads are kept",
        )

    def _unexpected(self, url: str, content: str) -> MachineError:
        return MachineError(f"{self.what} answered with {content}", where=public_url(url))


class NoAnswerError(Exception):
    """One of our servers did not respond. ``output``: the system's error."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def ask_server(
    method: str,
    url: str,
    timeout_s: float,
    body: Mapping[str, object] | None = None,
    *,
    form: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> Reply:
    """Send one direct request to one of our servers; ``form``: as a multipart form, in which bytes are files.

    ``meanwhile`` is called while it is waited for.

    Raises:
        NoAnswerError: no whole response in time.
    """
    options: dict[str, Any] = {"timeout": timeout_s, "allow_redirects": False}
    if form:
        options["files"] = {
            name: (name, value) if isinstance(value, bytes) else (None, str(value))
            for name, value in (body or {}).items()
        }
    elif body is not None:
        options["json"] = dict(body)
    with requests.Session() as session:
        # A proxy in the environment would stand between the client and the server that is measured.
        session.trust_env = False
        try:
            return send_request(
                session, method, url, _LARGEST_ANSWER, timeout_s, meanwhile=meanwhile, **options
            )
        except LateAnswerError as error:
            raise NoAnswerError(str(error)) from error
        except requests.exceptions.ChunkedEncodingError as error:
            # An engine that fails within a stream: the root cause would be that '' is no number of bytes.
            raise NoAnswerError("the answer broke off", excerpt(str(error), 160)) from error
        except (requests.RequestException, OSError) as error:
            # The root cause: a refused connection is wrapped three times.
            cause: BaseException = error
            while (inner := cause.__cause__ or cause.__context__) is not None:
                cause = inner
            if isinstance(cause, TimeoutError):
                raise NoAnswerError(f"no answer within {timeout_s:g} s") from error
            reason = excerpt(f"{type(cause).__name__}: {cause}", 160)
            raise NoAnswerError(reason, reason) from error
