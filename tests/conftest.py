"""What all tests need of the process that runs them."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C reaches the programs under test, also where who started the tests ignores it (``nohup``, ``&``).

    An ignored signal stays ignored in every program that is started; one with a handler does not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
