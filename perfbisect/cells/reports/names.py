"""Names of result files -> the workload that they are of."""

from __future__ import annotations

import math
import re

from perfbisect.cells.reports.report import WORKLOAD_PARTS, ReportedWorkload
from perfbisect.errors import UsageError

_RESULT = re.compile(
    r"^result_(?P<test>.+)_(?P<dataset>[^_]+)_(?P<flow>\d{1,15}(?:\.\d{1,15})?|inf)_(?P<prompts>\d{1,15})"
    r"(?:_in(?P<input>\d{1,15}|na)_out(?P<output>\d{1,15}|na))?_(?P<time>\d{8}-\d{6})\.json$"
)
_DIFFUSION = re.compile(r"^(?:benchmark_results|diffusion_result)_(?P<test>.+)_(?P<time>\d{8}-\d{6})\.json$")


def parse_result_name(name: str) -> ReportedWorkload:
    """Read the name of a result file of any era. :raises UsageError: it is not one.

    A load with a point is a request rate (``2.0``), one without a concurrency (``2``). The name is read from
    its end, since a test's own name may contain what looks like a load.
    """
    if found := _DIFFUSION.match(name):
        test = found["test"].removeprefix("test_")
        return ReportedWorkload({}, WORKLOAD_PARTS, test, found["time"])
    found = _RESULT.match(name)
    if found is None:
        raise UsageError(
            f"{name!r} is no name of a result file",
            next_step="such as result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json",
        )
    is_rate = "." in found["flow"] or found["flow"] == "inf"
    known: dict[str, object] = {
        "dataset_name": found["dataset"],
        "num_prompts": int(found["prompts"]),
        "request_rate": float(found["flow"]) if is_rate else math.inf,
        "max_concurrency": None if is_rate else int(found["flow"]),
    }
    lengths = {f"random-{side}-len": found[side] for side in ("input", "output")}
    arguments = {option: int(length) for option, length in lengths.items() if length not in (None, "na")}
    missing = ("model", "task", "deploy YAML", "warm-ups")
    test = found["test"].removeprefix("test_")
    return ReportedWorkload(known, missing, test, found["time"], arguments)
