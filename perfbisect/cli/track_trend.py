"""``perfbisect track trend``: the table of nights."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from perfbisect.cli import options


@click.command(short_help="The nights of a cell: date, build, value, change.")
@click.argument("cells", nargs=-1, metavar="[CELL...]")
@click.option("--metric", metavar="M", help="Metric to show, e.g. ttft:p99.  [default: the first of latency]")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), metavar="DAY", help="Leave older nights.")
@options.state
@options.as_json
def trend(
    cells: tuple[str, ...], metric: str | None, since: datetime | None, state: Path | None, as_json: bool
) -> int:
    """The nights of each CELL: date, build, value, change against the night before, and what marks them.

    Without a cell one line for every cell. A CELL may be the beginning of names, up to one of / @ -:
    qwen3_omni, qwen3_omni/random, qwen3_omni/random@c4; none of these is of qwen3_omni_chunk.

    \b
    Examples:
      perfbisect track trend
      perfbisect track trend qwen3_tts/random@c4-n40 --metric audio_rtf
    """
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.jobs.track_state import marks
    from perfbisect.jobs.track_trend import trend as table
    from perfbisect.render.track_lines import trend_lines
    from perfbisect.store.series import SeriesStore

    with SeriesStore.of(place(state=state).state) as store:
        first = f"{since:%Y-%m-%d}" if since else ""
        document = table(store, cells, metric=metric or "", since=first, marks=marks(store))
    emit(document, trend_lines(document), as_json=as_json)
    return 0
