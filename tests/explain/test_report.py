"""What an explanation of launches that were made says."""

from __future__ import annotations

from pathlib import Path

from perfbisect.explain.report import explain_comparison
from perfbisect.jobs.folders import Jobs
from perfbisect.report.markdown import report_markdown
from tests.experiments.factory import CHANGES, measured
from tests.experiments.test_compare import Logging
from tests.jobs.world import Clock


def test_what_a_stage_logs_differently_is_explained_by_stage(tmp_path: Path) -> None:
    """Stage 1 logs the same on both sides: no row of it."""
    job = Jobs(tmp_path).new(Clock()(), "0000")
    explained = explain_comparison(measured(job, Logging(CHANGES, 1, factor=1.3, tau=0.02)))
    row = ("stage 0 scheduler", "OmniARScheduler", "OmniARAsyncScheduler")
    assert explained.log_differences == (row,)
    told = report_markdown(explained.report())
    assert "| `stage 0 scheduler` | `OmniARScheduler` | `OmniARAsyncScheduler` |" in told
