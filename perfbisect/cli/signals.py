"""Ctrl-C, TERM and HUP end what is under way in order, also where a shell had us ignore them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from perfbisect.errors import Interrupted

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible(ended: Callable[[str], Interrupted]) -> Iterator[None]:
    """What such a signal interrupts ends as ``ended`` tells it, given what was said of the interruption.

    :raises Interrupted: one came, or somebody asked to stop.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _NUMBERS}
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        raise ended(error.message if isinstance(error, Interrupted) else "interrupted") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
