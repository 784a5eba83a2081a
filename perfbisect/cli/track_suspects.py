"""``perfbisect track suspects``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options

FDR = click.option(
    "--fdr", type=float, default=0.05, show_default=True, help="The rate with which the alert was told."
)


@click.command(short_help="The ranked commits behind an alert, with the evidence.")
@click.argument("alert")
@options.repo
@click.option(
    "--top", type=click.IntRange(1), default=20, show_default=True, help="So many commits, at most."
)
@click.option(
    "--cell", metavar="CELL", help="Cell of ours for the bisection.  [default: the one that agrees]"
)
@click.option("--md", "markdown", is_flag=True, help="As Markdown, for an issue.")
@FDR
@options.state
@options.as_json
def suspects(
    alert: str,
    repo: Path | None,
    top: int,
    cell: str | None,
    markdown: bool,
    fdr: float,
    state: Path | None,
    as_json: bool,
) -> int:
    """Rank the commits of ALERT's window by how likely each is behind it, with every piece of evidence.

    ALERT is the name of an alert, its beginning, or an event. Last comes the command of the bisection that
    settles it; the ranking is its prior. Nothing is measured.

    \b
    Examples:
      perfbisect track suspects 20260412-product --repo vllm-omni
      perfbisect track suspects 20260412-3f1a --repo vllm-omni --top 5 --json
    """
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.config.suspect_table import load_suspect_table
    from perfbisect.jobs.track_detect import look
    from perfbisect.jobs.track_suspects import cell_of_ours, ranked, the_alert, track_suspects
    from perfbisect.render.suspects import suspects_lines, suspects_markdown
    from perfbisect.store.series import SeriesStore

    here, table = place(repo=repo, state=state), load_suspect_table()
    repository = here.needed_repository()
    with SeriesStore.of(here.state) as store:
        seen = look(store, table, fdr)
        found = ranked(store, seen, the_alert(store, seen, alert), repository, table)
    document = track_suspects(
        found,
        top=top,
        repo=str(repo or repository.path),
        cell=cell or cell_of_ours(found.finding),
        weights=here.state / "track" / "suspects" / f"{found.alert.id}.yaml",
    )
    lines = [suspects_markdown(document)] if markdown else suspects_lines(document)
    emit(document, lines, as_json=as_json)
    return 0
