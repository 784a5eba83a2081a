"""``perfbisect track detect``, ``ack``, ``close`` and ``reopen``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

import click

from perfbisect.cli import options

Mark = Literal["open", "acknowledged", "closed"]


@click.command(short_help="Change points, drifts, transients, instrument changes.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="Tell changes from this night on; all nights are judged.",
)
@click.option(
    "--fdr",
    type=float,
    default=0.05,
    show_default=True,
    help="Share of false ones among the series that are alarmed, at most.",
)
@click.option("--all", "everything", is_flag=True, help="Tell in full what was told before, too.")
@options.state
@options.full
@options.as_json
def detect(
    since: datetime | None, fdr: float, everything: bool, state: Path | None, full: bool, as_json: bool
) -> int:
    """Judge every series in the store: what changed, since when, by how much, of what shape and cause.

    Medians and single numbers are judged together; means and percentiles by themselves. What was told before
    keeps its name and state, and is not told again.

    \b
    Examples:
      perfbisect track detect
      perfbisect track detect --since 2026-04-01 --json
    """
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.config.suspect_table import load_suspect_table
    from perfbisect.core.moments import stamp
    from perfbisect.jobs.track_detect import detect as judge
    from perfbisect.render.detect_lines import detect_lines
    from perfbisect.store.series import SeriesStore
    from perfbisect.system.clock import now

    day = f"{since:%Y-%m-%d}" if since else ""
    with SeriesStore.of(place(state=state).state) as store:
        document = judge(store, load_suspect_table(), now=stamp(now()), since=day, fdr=fdr)
    emit(document, detect_lines(document, everything=everything), as_json=as_json, full=full)
    return 0


def _verb(name: str, mark: Mark, short: str, told: str) -> click.Command:
    @click.command(name, short_help=short, help=told)
    @click.argument("alert")
    @click.option(
        "--why", required=True, metavar="TEXT", help="Kept with the alert: who, which issue, what for."
    )
    @options.state
    @options.as_json
    def verb(alert: str, why: str, state: Path | None, as_json: bool) -> int:
        return _mark(alert, mark, why, state, as_json)

    return verb


def _mark(alert: str, mark: Mark, why: str, state: Path | None, as_json: bool) -> int:
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.jobs.track_state import mark as said
    from perfbisect.render.detect_lines import state_lines
    from perfbisect.store.series import SeriesStore

    with SeriesStore.of(place(state=state).state) as store:
        document = said(store, alert, mark, why)
    emit(document, state_lines(document), as_json=as_json)
    return 0


_EXAMPLE = """

\b
Example:
  perfbisect track {name} 20260412-3f1a --why "{why}"
"""

ack = _verb(
    "ack",
    "acknowledged",
    "Somebody knows of an alert.",
    "ALERT, or all alerts of an event, is known: somebody looks at it, and it is not told again."
    + _EXAMPLE.format(name="ack", why="issue 2711"),
)
close = _verb(
    "close",
    "closed",
    "An alert is fixed or accepted.",
    "ALERT, or all alerts of an event, is fixed, or accepted as it is. A later change of the series is an "
    "alert of its own." + _EXAMPLE.format(name="close", why="fixed by #2716"),
)
reopen = _verb(
    "reopen",
    "open",
    "An alert is not settled after all.",
    "ALERT, or all alerts of an event, is open again." + _EXAMPLE.format(name="reopen", why="still slow"),
)
