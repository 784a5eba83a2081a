"""Channels of apprise against servers on the loopback: what is sent, what fails, what is never shown."""

from __future__ import annotations

import logging

import pytest

from perfbisect.errors import MachineError
from perfbisect.nightly.delivery import delivery_tasks
from perfbisect.nightly.notify import notify
from perfbisect.system.http import RetryPolicy
from tests.nightly.night_factory import make_night, make_quiet_night
from tests.nightly.nights import Place
from tests.nightly.webhook_server import SECRET, serve_hook

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning:apprise")

OK = (200, "ok", {})


def address(url: str) -> str:
    """A channel that posts JSON to a server."""
    return f"json://user:{SECRET[:9]}@{url.partition('://')[2]}/services/{SECRET}"


@pytest.fixture
def cell_names() -> tuple[str, ...]:
    return ("a",)


def test_a_night_with_findings_goes_to_every_channel(place: Place) -> None:
    place.text = """\
name: n
cells: [a]
budget: 10h
exclude_newer: "2026-01-01"
tell: {job_summary: false, notify: [A_CHAT, A_MAIL]}
"""
    with serve_hook(OK) as hook, serve_hook(OK) as other:
        variables = {"A_CHAT": address(hook.url), "A_MAIL": address(other.url)}
        retries = RetryPolicy("webhook", 1, wait=lambda _: None)
        (task,) = dict(delivery_tasks(place.file, place.folder / "state", variables, retries)).values()
        assert task(make_quiet_night()).reported == "skipped: no findings"
        assert hook.got == []
        assert task(make_night()).reported == "sent to 2 channels"
    assert hook.got == other.got
    (sent,) = hook.got
    assert sent["title"].startswith("vllm-cpu: ") and sent["type"] == "warning"
    assert any(alert.cell in sent["message"] for alert in make_night().alerts if alert.counts)


def test_a_channel_that_fails_stops_no_other_and_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    logged = logging.StreamHandler()
    logging.getLogger().addHandler(logged)
    with serve_hook((404, f"no hook {SECRET}", {})) as refusing, serve_hook(OK) as hook:
        variables = {"A": address(refusing.url), "B": f"nosuch://{SECRET}", "D": address(hook.url)}
        with pytest.raises(MachineError) as caught:
            notify(["A", "B", "C", "D"], variables, "title", "text", bad=False)
    assert [(sent["title"], sent["message"], sent["type"]) for sent in hook.got] == [
        ("title", "text", "info")
    ]
    assert str(caught.value).splitlines()[0] == (
        "3 of 4 channels did not take the message: A: refused, status 404; "
        "B: unknown to apprise; C: is not set"
    )
    logging.getLogger("another").warning("is logged")
    logging.getLogger().removeHandler(logged)
    printed = capfd.readouterr()
    assert "is logged" in printed.err
    shown = printed.out + printed.err + repr(caught.value) + str(vars(caught.value))
    assert not any(part in shown for part in SECRET.split("/"))
