"""``perfbisect dashboard``: the static site of the series."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli.track import FDR
from perfbisect.commands import options
from perfbisect.commands.options import PATH, Verbs
from perfbisect.commands.output import CommandResult


@click.group("dashboard", cls=Verbs, short_help="A static site of series, alerts, suspects and bisections.")
def dashboard() -> None:
    """A static site: what is wrong now, every cell's series, alerts with their suspects, bisections.

    \b
    Example:
      perfbisect dashboard build -o site --repo vllm-omni
    """


@dashboard.command("build", short_help="Write the site into a folder.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the site."
)
@click.option("--title", default="Nightly performance", show_default=True, help="Title of the site.")
@click.option(
    "--commit-url", default="", metavar="URL", help="Address of a commit with {sha}.  [default: no links]"
)
@options.repo
@FDR
@options.state
@options.as_json
def build(
    out: Path, title: str, commit_url: str, repo: Path | None, fdr: float, state: Path | None
) -> CommandResult:
    """Write the site of the stored series, their alerts, and the bisections in the state folder.

    It opens from disk and from any web host and loads nothing else. With --repo it ranks the suspects.

    \b
    Examples:
      perfbisect dashboard build -o site --repo vllm-omni
      perfbisect dashboard build -o site --commit-url https://github.com/vllm-project/vllm-omni/commit/{sha}
    """
    from perfbisect.commands.documents import DashboardDocument
    from perfbisect.commands.workspace import open_workspace
    from perfbisect.common.quantities import counted, stamp
    from perfbisect.dashboard.build import write_site
    from perfbisect.dashboard.collect import collect_site
    from perfbisect.dashboard.outcomes import load_bisections
    from perfbisect.errors import UsageError
    from perfbisect.series.detect import analyze_series
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table
    from perfbisect.system.clock import now

    if commit_url and ("{sha}" not in commit_url or not commit_url.startswith("https://")):
        raise UsageError(f"--commit-url {commit_url!r} is not a commit address: https://...{{sha}}")
    workspace, table = open_workspace(repo=repo, state=state), load_suspect_table()
    with SeriesStore.of(workspace.state) as store:
        site = collect_site(
            store,
            analyze_series(store, table, fdr),
            table,
            title=title,
            made=stamp(now()),
            repository=workspace.needed_repository() if repo else None,
            reports=load_bisections(workspace.jobs.all()),
            commit_url=commit_url,
        )
    written = write_site(site, out)
    document = DashboardDocument(
        index=str(written.index),
        cells=len(site.cells),
        alerts=len(site.alerts),
        bisections=len(site.bisections),
        first_page_bytes=written.first_page,
        bytes=written.all,
    )
    summary = (
        f"{written.index}: {counted(document.cells, 'cell')}, {counted(document.alerts, 'alert')}, "
        f"{document.bisections} bisections, {written.all / 1e6:.1f} MB, "
        f"{written.first_page / 1e3:.0f} kB before anything is opened"
    )
    return CommandResult(document, [summary])


@dashboard.command("open", short_help="Open a site in the browser.")
@click.argument("folder", type=PATH, default="site")
@options.as_json
def open_site(folder: Path) -> CommandResult:
    """Open the site in FOLDER in the browser.  [default: site]

    \b
    Example:
      perfbisect dashboard open site
    """
    import webbrowser

    from perfbisect.commands.documents import DashboardOpenDocument
    from perfbisect.errors import UsageError

    index = folder / "index.html"
    if not index.is_file():
        raise UsageError(f"{folder} contains no site", next_step=f"perfbisect dashboard build -o {folder}")
    address = index.resolve().as_uri()
    document = DashboardOpenDocument(address=address, opened=webbrowser.open(address))
    summary = address if document.opened else f"no browser was found: open {address}"
    return CommandResult(document, [summary])
