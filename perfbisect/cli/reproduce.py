"""``perfbisect track reproduce``: the ends of an alert's window, compared on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from perfbisect.cli.alerts import Alert, Fdr, rank_window
from perfbisect.commands.options import BlockOptions, MeasureOptions
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Option, prints
from perfbisect.commands.workspace import Workspace


@prints("perfbisect.experiments.compare:CompareResult", "perfbisect.experiments.dry_run:ComparePlanDocument")
@dataclass(frozen=True, kw_only=True)
class ReproduceRequest(MeasureOptions, BlockOptions):
    """Compare the ends of ALERT's window on this machine, before anything is bisected.

    A is the last commit that the night before may have run, B the last that the first slow night may have
    run. A nightly's machine may show what this one does not: then a bisection here finds nothing.

    \b
    Examples:
      perfbisect track reproduce 20260412-3f1a --repo vllm-omni --cell my_cell.yaml --dry-run
      perfbisect track reproduce 20260412-product --repo vllm-omni --cell qwen3_tts --machine cuda

    Exit code: 3 it is there (a regression), 0 it is not, 4 inconclusive.
    """

    alert: Alert
    cell: Annotated[
        str | None, Option("Cell of ours to measure.", metavar="CELL", default="the one that agrees")
    ] = None
    fdr: Fdr = 0.05

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.cli.compare import CompareRequest
        from perfbisect.commands.settings import resolve_values
        from perfbisect.common.text import line
        from perfbisect.errors import UsageError
        from perfbisect.series.suspects.job import cell_of_ours

        found, _ = rank_window(workspace, self.alert, self.fdr)
        ours = found.alert
        configured = resolve_values(CompareRequest, {}, workspace.settings).get("cell")
        chosen = self.cell or cell_of_ours(found.finding) or configured
        if not chosen:
            raise UsageError(
                f"no cell of ours is known to be {ours.cell}",
                next_step="--cell CELL; perfbisect cells import makes cells of vLLM-Omni's specifications",
            )
        metrics = self.metrics if "metric" in self.record.options else (ours.metric,)
        options = self.options_of(MeasureOptions, BlockOptions) | {"cell": chosen, "metrics": metrics}
        request = CompareRequest(**options, a=found.good, b=found.bad)
        direction = "worse" if ours.worse else "better"
        question = f"alert {ours.id}: {ours.metric} of {ours.cell} became {direction} there; does it here?"
        return request.measure(workspace, line(question, 400))
