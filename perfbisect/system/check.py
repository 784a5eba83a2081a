"""One thing that ``perfbisect doctor`` looks at."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from perfbisect.errors import PerfbisectError

State = Literal["good", "warning", "bad"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``advice``: what to do about it; empty where it is good."""

    name: str
    state: State
    found: str
    advice: str = ""


def guarded(name: str, check: Callable[[], Check]) -> Check:
    """A check that cannot be made is a bad one."""
    try:
        return check()
    except PerfbisectError as error:
        return _failed(name, error.message, error.next_step)
    except (OSError, subprocess.SubprocessError) as error:
        return _failed(name, str(error) or type(error).__name__, None)


def _failed(name: str, said: str, advice: str | None) -> Check:
    return Check(
        name, "bad", " ".join(said.split()), advice or "this could not be looked at; see the message"
    )
