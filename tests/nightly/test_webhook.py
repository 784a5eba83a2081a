"""Webhooks against servers that answer as they do: what is sent again, what is not, what is never shown."""

from __future__ import annotations

import socket
import traceback
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from perfbisect.errors import MachineError, PerfbisectError, UsageError
from perfbisect.nightly.delivery import WEBHOOK_TRIES, WebhookTarget, read_target, send
from perfbisect.system.http import RetryPolicy
from tests.nightly.webhook_server import NAME, SECRET, serve_hook

TOKEN = "tok-0123456789abcdef"


OK = (200, "ok", {})
BUSY = (500, "rollup_error", {})


def secret_in(error: BaseException) -> bool:
    """Whether any of it stands in what a log or a report could hold of the error."""
    told = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))
    return any(part in told for part in (*SECRET.split("/"), TOKEN))


@pytest.mark.parametrize(("token", "header"), [("", None), (TOKEN, f"Bearer {TOKEN}")])
def test_a_message_is_taken(token: str, header: str | None) -> None:
    with serve_hook((204, "", {})) as hook:
        hook.send({"text": "hello", "n": 1}, token=token)
    assert (hook.got, hook.tokens) == ([{"text": "hello", "n": 1}], [header])
    assert (hook.waited, hook.said) == ([], [])


def test_what_failed_there_is_sent_again() -> None:
    with serve_hook(BUSY, (503, "", {}), OK) as hook:
        hook.send()
    assert len(hook.got) == 3
    assert hook.waited == [0.0, 2.0]
    assert hook.said == ["webhook: status 500; retrying in 0 s", "webhook: status 503; retrying in 2 s"]


def test_it_is_given_up_after_a_few_tries() -> None:
    with (
        serve_hook(BUSY) as hook,
        pytest.raises(MachineError, match="did not take the message: status 500") as caught,
    ):
        hook.send()
    assert len(hook.got) == 4
    assert hook.waited == [0.0, 2.0, 4.0]
    assert caught.value.where == "http://127.0.0.1/(redacted)"
    assert not secret_in(caught.value)


@pytest.mark.parametrize(
    ("status", "error"), [(400, MachineError), *((code, UsageError) for code in (401, 403, 404, 410))]
)
def test_what_was_refused_is_not_sent_again(status: int, error: type[PerfbisectError]) -> None:
    with serve_hook((status, "no_service", {})) as hook, pytest.raises(error, match="no_service") as caught:
        hook.send()
    assert (len(hook.got), hook.waited) == (1, [])
    assert caught.value.next_step == (f"set {NAME} again" if error is UsageError else None)
    assert not secret_in(caught.value)


def test_its_limit_is_kept() -> None:
    with serve_hook((429, "rate_limited", {"Retry-After": "7"}), OK) as hook:
        hook.send()
    assert hook.waited == [7.0]
    soon = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=60), usegmt=True)
    with serve_hook((429, "", {"Retry-After": soon}), (429, "", {"Retry-After": "soon"}), OK) as hook:
        hook.send()
    assert 50 < hook.waited[0] <= 60
    assert hook.waited[1] == 2.0, "a header that says nothing is none"


def test_a_wait_that_is_too_long_is_told() -> None:
    with (
        serve_hook((429, "", {"Retry-After": "3600"})) as hook,
        pytest.raises(MachineError, match="asks to wait 3600 s"),
    ):
        hook.send()
    assert hook.waited == []


def test_a_redirect_is_not_followed() -> None:
    away = (302, "", {"Location": "http://127.0.0.1:1/elsewhere"})
    with serve_hook(away) as hook, pytest.raises(MachineError, match="redirects: status 302"):
        hook.send(token=TOKEN)
    assert len(hook.got) == 1


def test_what_echoes_the_secret_does_not_show_it() -> None:
    echo = (400, f"no hook /services/{SECRET} for Bearer {TOKEN}", {})
    with serve_hook(echo) as hook, pytest.raises(MachineError) as caught:
        hook.send(token=TOKEN)
    assert "no hook" in str(caught.value)
    assert not secret_in(caught.value)


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    waited: list[float] = []
    to = read_target(NAME, {NAME: f"http://127.0.0.1:{port}/services/{SECRET}"})
    with pytest.raises(MachineError, match="ConnectionError") as caught:
        send(to, {"text": "x"}, RetryPolicy("webhook", WEBHOOK_TRIES, wait=waited.append))
    assert len(waited) == 3
    assert not secret_in(caught.value)


def test_one_that_hangs_is_left() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        to = WebhookTarget(NAME, f"http://127.0.0.1:{silent.getsockname()[1]}/services/{SECRET}")
        said: list[str] = []
        with pytest.raises(MachineError, match=r"no answer within 0\.1 s") as caught:
            retries = RetryPolicy("webhook", WEBHOOK_TRIES, wait=lambda _: None, say=said.append)
            send(to, {"text": "x"}, retries, (0.1, 0.1))
    assert len(said) == 3
    assert not secret_in(caught.value)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "is not set"),
        (f"http://hooks.example/services/{SECRET}", "is no https address"),
        (f"hooks.example/{SECRET}", "is no https address"),
        ("https://", "is no https address"),
    ],
)
def test_an_address_that_is_none(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_target(NAME, {NAME: address})
    assert caught.value.next_step == f"export {NAME}=https://..."
    assert not secret_in(caught.value)


def test_a_token_that_is_none() -> None:
    with serve_hook(OK) as hook, pytest.raises(PerfbisectError) as caught:
        hook.send(token=f"{TOKEN}\nHost: elsewhere")
    assert hook.got == []
    assert not secret_in(caught.value)


def test_a_target_does_not_show_itself() -> None:
    to = WebhookTarget(NAME, f"https://hooks.example/services/{SECRET}", TOKEN)
    assert SECRET not in repr(to)
    assert TOKEN not in repr(to)
    assert to.shown == "https://hooks.example/(redacted)"
