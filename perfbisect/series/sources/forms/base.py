"""What the forms share: a reported workload as that of a point."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfbisect.cells.reports.report import ReportedWorkload
from perfbisect.series.points import Workload

Record = Mapping[str, Any]


def workload_of(reported: ReportedWorkload, *, has_count: bool = True) -> Workload:
    """``has_count``: the number of prompts was asked for; a client that measures for a time sends others each
    night, and they are one cell."""
    said: Mapping[str, Any] = reported.fields
    model = str(said.get("model") or "")
    return Workload(
        # Its files have one name each night or each run: the model tells its cells apart.
        test=model.rpartition("/")[2],
        concurrency=said.get("max_concurrency"),
        rate=float(said.get("request_rate", math.inf)),
        prompts=said["num_prompts"] if has_count else 0,
        model=model,
        backend=str(said.get("backend") or ""),
    )
