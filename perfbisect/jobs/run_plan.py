"""The plan of ``perfbisect run``."""

from __future__ import annotations

from typing import ClassVar, Literal

from perfbisect.core.change import Change
from perfbisect.jobs.plan import JobPlan


class RunPlan(JobPlan):
    """``perfbisect run``: launches of one change."""

    noun: ClassVar[str] = "run"
    verb: Literal["run"] = "run"
    change: Change
    launches: int
    runs: int
    told: tuple[str, ...] = ()
