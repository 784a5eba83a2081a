"""`perfbisect track ingest` in a process of its own: what it costs, as JSON on standard output.

    python -m scripts.bench_ingest FOLDER STATE

CPU seconds from the process's start on, imports among them; the most memory that it had, in MB.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from tests.series.made import name_of, result, served

CELLS = 25


def make(folder: Path, files: int) -> None:
    """A kanban of nightlies with ``CELLS`` result files each, of the size of real ones."""
    filler = {
        f"p{percentile}_{name}_ms": 7.5 for percentile in (50, 90, 95) for name in ("ttft", "e2el", "itl")
    }
    for place in range(files):
        night, cell = divmod(place, CELLS)
        began = datetime(2025, 1, 1, 19) + timedelta(days=night, minutes=2 * cell)
        at = f"{began:%Y%m%d-%H%M%S}"
        concurrency = cell + 1
        document = served(date=at, max_concurrency=concurrency, duration=100.0 + place / 1000, **filler)
        name = name_of(load=str(concurrency), at=at)
        result(folder, str(1000 + night), name, json.dumps(document, indent=2))


def main(folder: str, state: str) -> int:
    """Ingests the folder and tells what it cost."""
    from perfbisect.cli.app import run

    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        code = run(["track", "ingest", folder, "--state", state])
    print(json.dumps({"cpu": time.process_time(), "memory": _most_memory()}))
    return code


def _most_memory() -> float:
    """MB of this program alone: the kernel's rusage counts what forked it as well."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
