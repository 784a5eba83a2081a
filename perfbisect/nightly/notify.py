"""Sends a night's message through apprise: to chats, mail, phones. Part of the extra ``notify``.

Every part of an address can be a token, its host too, so that of an address nothing is told but the name of
its variable.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial

from perfbisect.common.quantities import counted
from perfbisect.errors import MachineError
from perfbisect.system.http import FETCH_LIMIT_S, LateAnswerError, answer_within

_STATUS = re.compile(r"\berror=(\d{3})\b")
"""The status of an answer, in what apprise logs of a message that was refused."""


def notify(names: Sequence[str], variables: Mapping[str, str], title: str, text: str, *, bad: bool) -> str:
    """Send a text to the addresses in the variables of these names; returns what was done.

    ``bad``: shown as a warning, where a channel tells kinds of messages apart.

    Raises:
        MachineError: some channels did not take it; the others have it.
    """
    # Of an extra; reading the configuration has checked that it is installed.
    import apprise

    # It logs addresses: only the capture below reads these records.
    logging.getLogger(apprise.LOGGER_NAME).propagate = False
    asset = apprise.AppriseAsset(app_id="perfbisect", app_desc="perfbisect", async_mode=False)
    kind = apprise.NotifyType.WARNING if bad else apprise.NotifyType.INFO

    def deliver(url: str) -> str:
        """Why an address did not take the message; empty if it did."""
        with apprise.LogCapture(level=logging.WARNING) as log:
            channel = apprise.Apprise(asset=asset)
            if not channel.add(url):
                return "unknown to apprise"
            if channel.notify(text, title=title, notify_type=kind, body_format=apprise.NotifyFormat.TEXT):
                return ""
            status = _STATUS.search(log.getvalue())
            return f"refused, status {status[1]}" if status else "not delivered"

    problems = {}
    for name in names:
        url = variables.get(name, "").strip()
        try:
            problems[name] = answer_within(FETCH_LIMIT_S, partial(deliver, url)) if url else "is not set"
        except LateAnswerError as error:
            problems[name] = str(error)
    failed = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    if failed:
        raise MachineError(
            f"{len(failed)} of {counted(len(problems), 'channel')} did not take the message: "
            + "; ".join(failed),
            next_step=f"set {failed[0].partition(':')[0]}, or see the report of the night",
        )
    return f"sent to {counted(len(problems), 'channel')}"
