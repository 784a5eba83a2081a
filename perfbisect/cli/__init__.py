"""The command line: thin shells over jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``perfbisect`` command. :raises SystemExit: always, with its exit code."""
    # Our matrices are small, and other launches may be measuring: no thread of ours spins on their cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from perfbisect.cli.app import run

    raise SystemExit(run(arguments))
