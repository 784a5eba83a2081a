"""``perfbisect track reproduce``, ``fixed``: alerts that are measured on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from perfbisect.cli.alerts import Alert, Fdr, rank_window
from perfbisect.commands.options import BlockOptions, MeasureOptions
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Option, prints
from perfbisect.commands.workspace import Workspace

if TYPE_CHECKING:
    from perfbisect.experiments.compare import CompareResult
    from perfbisect.series.findings import SeriesChange


OurCell = Annotated[
    str | None, Option("Cell of ours to measure.", metavar="CELL", default="the one that agrees")
]


def _chosen_cell(named: str | None, finding: SeriesChange, configured: str | None) -> str:
    """The cell of ours by which an alert is measured: named, agreeing, or configured."""
    from perfbisect.errors import UsageError
    from perfbisect.series.suspects.job import cell_of_ours

    chosen = named or cell_of_ours(finding) or configured
    if not chosen:
        raise UsageError(
            f"no cell of ours is known to be {finding.series.cell}",
            next_step="--cell CELL; perfbisect cells import makes cells of vLLM-Omni's specifications",
        )
    return chosen


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
    cell: OurCell = None
    fdr: Fdr = 0.05

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.cli.compare import CompareRequest
        from perfbisect.commands.settings import resolve_values
        from perfbisect.common.text import line

        found, _ = rank_window(workspace, self.alert, self.fdr)
        ours = found.alert
        configured = resolve_values(CompareRequest, {}, workspace.settings).get("cell")
        chosen = _chosen_cell(self.cell, found.finding, configured)
        metrics = self.metrics if "metric" in self.record.options else (ours.metric,)
        options = self.options_of(MeasureOptions, BlockOptions) | {"cell": chosen, "metrics": metrics}
        request = CompareRequest(**options, a=found.good, b=found.bad)
        direction = "worse" if ours.worse else "better"
        question = f"alert {ours.id}: {ours.metric} of {ours.cell} became {direction} there; does it here?"
        return request.measure(workspace, line(question, 400))


@prints("perfbisect.series.fixed:TrackFixedDocument", "perfbisect.experiments.dry_run:ComparePlanDocument")
@dataclass(frozen=True, kw_only=True)
class FixedRequest(MeasureOptions, BlockOptions):
    """Whether ALERT is over, what is left of it, and since which commits, from the stored nights.

    ALERT is the name of an alert, its beginning, or an event, of which its leading alert is judged. With
    --measure the commit before the alert is compared with HEAD on this machine where the nights do not
    decide, or show a part of the change; --dry-run shows the plan of that. With --repo the commits of builds
    that do not report theirs are found too.

    \b
    Examples:
      perfbisect track fixed 20260412-3f1a
      perfbisect track fixed 20260412-3f1a --measure --repo vllm-omni --cell qwen3_tts --budget 2h

    Exit code: 0 over, 3 not or only partly over, 4 not decided.
    """

    alert: Alert
    measure: Annotated[bool, Option("Compare on this machine where the nights do not decide.")] = False
    cell: OurCell = None
    fdr: Fdr = 0.05

    def run(self, workspace: Workspace) -> CommandResult:
        from perfbisect.cli.compare import CompareRequest
        from perfbisect.commands.comparisons import run_comparisons
        from perfbisect.commands.output import report_result
        from perfbisect.commands.settings import resolve_values
        from perfbisect.errors import UsageError
        from perfbisect.series.detect import analyze_series
        from perfbisect.series.fixed import TrackFixedDocument, track_fixed
        from perfbisect.series.report import series_report
        from perfbisect.series.store import SeriesStore
        from perfbisect.series.suspects.job import find_alert
        from perfbisect.series.suspects.table import load_suspect_table

        measures = self.measure or self.dry_run
        with SeriesStore.of(workspace.state) as store:
            analysis = analyze_series(store, load_suspect_table(), self.fdr)
            found = find_alert(store, analysis, self.alert)
            # The folder that one happens to be in may be of another project.
            repository = workspace.repository if self.repo or measures else None
            document = track_fixed(store, analysis, found, repository)

        def result(document: TrackFixedDocument) -> CommandResult:
            return report_result(document, series_report("fixed", document=document), document.exit_code)

        if not measures or not document.is_open:
            return result(document)
        if not document.before:
            raise UsageError(
                f"the commit before alert {found.id} is not known, which --measure compares with HEAD",
                next_step="--repo PATH finds commits by the times of builds",
            )
        configured = resolve_values(CompareRequest, {}, workspace.settings).get("cell")
        chosen = _chosen_cell(self.cell, analysis.findings[found.id], configured)
        options = self.options_of(MeasureOptions, BlockOptions) | {"cell": chosen, "metrics": (found.metric,)}
        planned = CompareRequest(**options, a=document.before, b="HEAD").plan(workspace)

        def conclude(comparisons: list[CompareResult]) -> CommandResult:
            (made,) = comparisons
            row = made.headline
            is_known = row.effect is not None and row.low is not None and row.high is not None
            measured = document.measured_by(
                (row.effect or 0.0, row.low or 0.0, row.high or 0.0) if is_known else None,
                smallest_effect=made.metric.smallest_effect,
                job=made.job,
                compared=(made.a.change.short, made.b.change.short),
                following=made.next,
            )
            return result(measured)

        return run_comparisons(workspace, [planned], self, conclude, dry_run=self.dry_run)
