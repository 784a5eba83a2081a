"""The command line: thin shells over jobs."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``perfbisect`` command."""
    raise SystemExit(1)
