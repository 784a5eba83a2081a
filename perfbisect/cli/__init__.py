"""The command line: thin shells over jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from perfbisect.errors import EXIT_INTERRUPTED

BLAS = ("OPENBLAS", "OMP", "MKL", "BLIS")
"""Libraries that numpy may use for its matrices; each reads ``*_NUM_THREADS`` when it is loaded."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``perfbisect`` command. :raises SystemExit: always, with its exit code."""
    # Our matrices are small, and other launches may be measuring: no thread of ours spins on their cores,
    # also where the shell asks for more. Servers and clients do not get these (``system/environ.py``).
    for library in BLAS:
        os.environ[f"{library}_NUM_THREADS"] = "1"
    _open_streams()
    try:
        from perfbisect.cli.app import run
    except KeyboardInterrupt:  # nothing has begun
        raise SystemExit(EXIT_INTERRUPTED) from None
    raise SystemExit(run(arguments))


def _open_streams() -> None:
    """Open the standard streams that are closed: a journal with the number of one would get its text."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
