"""Webhooks against servers that answer as they do: what is sent again, what is not, what is never shown."""

from __future__ import annotations

import socket
import traceback
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from perfbisect.errors import MachineError, PerfbisectError, UsageError
from perfbisect.nightly.delivery import WebhookTarget, read_target, send
from tests.nightly.webhook_server import NAME, SECRET, hook

TOKEN = "tok-0123456789abcdef"


OK = (200, "ok", {})
BUSY = (500, "rollup_error", {})


def secret_in(error: BaseException) -> bool:
    """Whether any of it stands in what a log or a report could hold of the error."""
    told = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))
    return any(part in told for part in (*SECRET.split("/"), TOKEN))


@pytest.mark.parametrize(("token", "header"), [("", None), (TOKEN, f"Bearer {TOKEN}")])
def test_a_message_is_taken(token: str, header: str | None) -> None:
    with hook((204, "", {})) as made:
        made.send({"text": "hello", "n": 1}, token=token)
    assert (made.got, made.tokens) == ([{"text": "hello", "n": 1}], [header])
    assert (made.waited, made.said) == ([], [])


def test_what_failed_there_is_sent_again() -> None:
    with hook(BUSY, (503, "", {}), OK) as made:
        made.send()
    assert len(made.got) == 3
    assert made.waited == [0.0, 2.0]
    assert made.said == ["webhook: status 500; retrying in 0 s", "webhook: status 503; retrying in 2 s"]


def test_it_is_given_up_after_a_few_tries() -> None:
    with (
        hook(BUSY) as made,
        pytest.raises(MachineError, match="did not take the message: status 500") as caught,
    ):
        made.send()
    assert len(made.got) == 4
    assert made.waited == [0.0, 2.0, 4.0]
    assert caught.value.where == "http://127.0.0.1/(redacted)"
    assert not secret_in(caught.value)


@pytest.mark.parametrize(
    ("status", "error"), [(400, MachineError), *((code, UsageError) for code in (401, 403, 404, 410))]
)
def test_what_was_refused_is_not_sent_again(status: int, error: type[PerfbisectError]) -> None:
    with hook((status, "no_service", {})) as made, pytest.raises(error, match="no_service") as caught:
        made.send()
    assert (len(made.got), made.waited) == (1, [])
    assert caught.value.next_step == (f"set {NAME} again" if error is UsageError else None)
    assert not secret_in(caught.value)


def test_its_limit_is_kept() -> None:
    with hook((429, "rate_limited", {"Retry-After": "7"}), OK) as made:
        made.send()
    assert made.waited == [7.0]
    soon = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=60), usegmt=True)
    with hook((429, "", {"Retry-After": soon}), (429, "", {"Retry-After": "soon"}), OK) as made:
        made.send()
    assert 50 < made.waited[0] <= 60
    assert made.waited[1] == 2.0, "a header that says nothing is none"


def test_a_wait_that_is_too_long_is_told() -> None:
    with (
        hook((429, "", {"Retry-After": "3600"})) as made,
        pytest.raises(MachineError, match="asks to wait 3600 s"),
    ):
        made.send()
    assert made.waited == []


def test_a_redirect_is_not_followed() -> None:
    away = (302, "", {"Location": "http://127.0.0.1:1/elsewhere"})
    with hook(away) as made, pytest.raises(MachineError, match="redirects: status 302"):
        made.send(token=TOKEN)
    assert len(made.got) == 1


def test_what_echoes_the_secret_does_not_show_it() -> None:
    echo = (400, f"no hook /services/{SECRET} for Bearer {TOKEN}", {})
    with hook(echo) as made, pytest.raises(MachineError) as caught:
        made.send(token=TOKEN)
    assert "no hook" in str(caught.value)
    assert not secret_in(caught.value)


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    waited: list[float] = []
    to = read_target(NAME, {NAME: f"http://127.0.0.1:{port}/services/{SECRET}"})
    with pytest.raises(MachineError, match="ConnectionError") as caught:
        send(to, {"text": "x"}, wait=waited.append)
    assert len(waited) == 3
    assert not secret_in(caught.value)


def test_one_that_hangs_is_left() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        to = WebhookTarget(NAME, f"http://127.0.0.1:{silent.getsockname()[1]}/services/{SECRET}")
        said: list[str] = []
        with pytest.raises(MachineError, match=r"no answer within 0\.1 s") as caught:
            send(to, {"text": "x"}, wait=lambda _: None, say=said.append, timeouts_s=(0.1, 0.1))
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
    with hook(OK) as made, pytest.raises(PerfbisectError) as caught:
        made.send(token=f"{TOKEN}\nHost: elsewhere")
    assert made.got == []
    assert not secret_in(caught.value)


def test_a_target_does_not_show_itself() -> None:
    to = WebhookTarget(NAME, f"https://hooks.example/services/{SECRET}", TOKEN)
    assert SECRET not in repr(to)
    assert TOKEN not in repr(to)
    assert to.shown == "https://hooks.example/(redacted)"
