"""``perfbisect track``: what a series of nights says."""

from __future__ import annotations

import click

from perfbisect.cli.groups import Verbs
from perfbisect.cli.track_detect import ack, close, detect, reopen
from perfbisect.cli.track_export import export, publish
from perfbisect.cli.track_ingest import ingest
from perfbisect.cli.track_rebaseline import rebaseline
from perfbisect.cli.track_report import report
from perfbisect.cli.track_repro import repro
from perfbisect.cli.track_suspects import suspects
from perfbisect.cli.track_trend import trend


@click.group("track", cls=Verbs, short_help="What the nightly series say.")
def track() -> None:
    """What the nightly series say: results made elsewhere, brought in and read.

    \b
    Example:
      perfbisect track ingest vllm-omni-kanban
    """


for verb in (
    *(ingest, trend, detect, suspects, report, repro, ack, close, reopen, rebaseline),
    *(export, publish),
):
    track.add_command(verb)
