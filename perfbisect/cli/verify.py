"""``perfbisect verify``."""

from __future__ import annotations

from dataclasses import replace

import click

from perfbisect.cli import options
from perfbisect.cli.durations import Minutes
from perfbisect.cli.invocation import Measuring


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
    from perfbisect.cli.claims import cells_of, find_claim, verified
    from perfbisect.cli.contest import TypedContest, contest, planned_all
    from perfbisect.cli.detach import leave
    from perfbisect.cli.ending import hand_out
    from perfbisect.cli.output import UNDONE, emit
    from perfbisect.cli.place import place_of
    from perfbisect.cli.settle import settle_all
    from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
    from perfbisect.render.compare_documents import CompareDocument, VerifyDocument
    from perfbisect.render.compare_lines import plan_lines, verify_lines

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

    def conclude(told: list[CompareDocument]) -> tuple[VerifyDocument, int]:
        whole = verified(found, told)
        return whole, {"holds": EXIT_OK, "refuted": EXIT_REGRESSION}.get(whole.word, EXIT_INCONCLUSIVE)

    document, code, first = settle_all(here, asked, measuring, conclude)
    return hand_out(document, verify_lines(document), code, measuring, first)
