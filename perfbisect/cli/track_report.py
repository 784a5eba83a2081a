"""``perfbisect track report``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options
from perfbisect.cli.track_suspects import FDR


@click.command(short_help="The nightly report, in the nightlies' own table.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "html", "json"]),
    default="md",
    show_default=True,
    help="Form; html is one page that opens from disk.",
)
@FDR
@options.state
@options.full
@options.as_json
def report(form: str, fdr: float, state: Path | None, full: bool, as_json: bool) -> int:
    """What is at another level than before on the last night, and the events of all nights, with evidence.

    Nothing is written down: only `track detect` tells.

    \b
    Examples:
      perfbisect track report > nightly.md
      perfbisect track report --format html > nightly.html
    """
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.config.suspect_table import load_suspect_table
    from perfbisect.jobs.track_detect import look
    from perfbisect.jobs.track_report import report as nightly
    from perfbisect.render.nightly_report import nightly_html, nightly_markdown
    from perfbisect.store.series import SeriesStore

    with SeriesStore.of(place(state=state).state) as store:
        document = nightly(look(store, load_suspect_table(), fdr), fdr=fdr)
    shown = nightly_html if form == "html" else nightly_markdown
    written = form == "json"
    emit(document, [shown(document).rstrip("\n")], as_json=as_json or written, full=full or written)
    return 0
