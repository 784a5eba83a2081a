"""The command line: thin shells over jobs."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``perfbisect`` command. :raises SystemExit: always, with its exit code."""
    from perfbisect.cli.app import run

    raise SystemExit(run(arguments))
