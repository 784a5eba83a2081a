"""``perfbisect track ingest``: results made elsewhere, into the store."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from perfbisect.cli import options


@click.command(short_help="Bring results in: a kanban, folders, Buildkite, our journals.")
@click.argument("places", nargs=-1, required=True, metavar="PATH_OR_URL...")
@click.option("--zone", metavar="ZONE", help="Time zone of times that say none, e.g. UTC, Asia/Shanghai.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="Leave older builds.  [default for Buildkite: 90 days ago]",
)
@click.option("--branch", default="main", show_default=True, help="Of Buildkite: whose builds; '' for all.")
@click.option("--logs/--no-logs", default=True, help="Of Buildkite: keep the ends of the jobs' logs, or not.")
@click.option(
    "--from", "source", metavar="SOURCE", help="What it must be: buildkite, kanban, journals, folder."
)
@options.state
@options.as_json
def ingest(
    places: tuple[str, ...],
    zone: str | None,
    since: datetime | None,
    branch: str,
    logs: bool,
    source: str | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """Bring in what is new at each PATH_OR_URL: a kanban checkout, a folder of result files, a pipeline or
    build of Buildkite (token in BUILDKITE_TOKEN), a state folder of ours. Nothing is brought in twice.

    What is no measurement is left out and told with its reason: broken files, forms of zeros, runs with
    failed requests, the same file in another layout.

    \b
    Examples:
      perfbisect track ingest vllm-omni-kanban
      perfbisect track ingest nightly-results/ --zone UTC
      perfbisect track ingest https://buildkite.com/vllm/vllm-omni --since 2026-04-01
    """
    import os
    from datetime import timedelta

    from perfbisect.cli.output import emit, say
    from perfbisect.cli.place import place
    from perfbisect.jobs.track_ingest import ingest as bring_in
    from perfbisect.jobs.track_ingest import ingest_document, zone_of
    from perfbisect.render.track_lines import ingest_lines
    from perfbisect.sources import Asked
    from perfbisect.store.series import SeriesStore
    from perfbisect.system.clock import now

    here = now()
    recent = (here - timedelta(days=90)).date().isoformat()
    remote = any("://" in text for text in places)
    asked = Asked(
        zone=zone_of(zone) if zone else None,
        since=f"{since:%Y-%m-%d}" if since else recent if remote else "",
        branch=branch,
        logs=logs,
        now=here,
        variables=os.environ,
        say=say,
    )
    with SeriesStore.of(place(state=state).state) as store:
        document = ingest_document(store, bring_in(store, places, asked, source=source))
    emit(document, ingest_lines(document), as_json=as_json)
    return 0
