"""``perfbisect track rebaseline``: new baselines from the last nights."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from perfbisect.cli import options


@click.command(short_help="New baselines: old, 7-day mean, new, n, status.")
@click.argument("cells", nargs=-1, metavar="[CELL...]")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="The last of these nights.  [default: the last in the store]",
)
@options.state
@options.as_json
def rebaseline(
    cells: tuple[str, ...],
    until: datetime | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """What the baselines of each CELL (none named: of all) would be: the mean of the last seven nights.

    A mean that is worse by more than 7 % does not become the baseline. Left out are the nights of a
    transient, of a regression that was not accepted (closed), and those before the newest change of
    workload, instrument or level. A CELL may be the beginning of names, as in track trend.

    \b
    Example:
      perfbisect track rebaseline qwen_image_single_device
    """
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.config.suspect_table import load_suspect_table
    from perfbisect.jobs.track_detect import look
    from perfbisect.jobs.track_rebaseline import rebaseline as proposals
    from perfbisect.render.track_lines import rebaseline_lines
    from perfbisect.store.series import SeriesStore

    with SeriesStore.of(place(state=state).state) as store:
        last = f"{until:%Y-%m-%d}" if until else ""
        document = proposals(store, look(store, load_suspect_table()), cells, until=last)
    emit(document, rebaseline_lines(document), as_json=as_json)
    return 0
