"""A mark of a launch that no descendant can shed: the resource limit of file locks (RLIMIT_LOCKS).

The kernel copies resource limits at fork and keeps them at exec. A daemon changes its parent, session,
environment and descriptors, but nothing sets this limit, which Linux has not enforced since 2.4.25. So it
tells whose an orphan is after the shim of its launch was killed. The parent of an orphan does not tell:
init adopts all, and perfbisect as a subreaper would adopt those of git and ssh (a ControlMaster) too.
"""

from __future__ import annotations

import resource
import zlib
from contextlib import suppress

_RLIMIT_LOCKS = 10
_PART_BITS = 30


def set_mark(token: str) -> None:
    """Mark this process and all that it starts; without effect below another launch that may not raise it."""
    # Both limits: a process may lower its hard limit and not raise it, so a descendant cannot restore it.
    mark = _mark(token)
    with suppress(OSError, ValueError):
        resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def has_mark(pid: int, token: str) -> bool:
    """Whether a process has the mark of ``token`` or of ``token.anything``."""
    try:
        found = resource.prlimit(pid, _RLIMIT_LOCKS)[1]
    except OSError:
        # Gone, or another user's.
        return False
    # A token without a part stands for all parts of its owner: the low bits do not count.
    shift = 0 if "." in token else _PART_BITS
    return found != resource.RLIM_INFINITY and found >> shift == _mark(token) >> shift


def _mark(token: str) -> int:
    owner, _, part = token.partition(".")
    return zlib.crc32(owner.encode()) << _PART_BITS | zlib.crc32(part.encode()) >> 2
