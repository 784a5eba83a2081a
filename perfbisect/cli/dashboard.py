"""``perfbisect dashboard``: the static site of the series."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli.groups import Verbs
from perfbisect.cli.track import FDR
from perfbisect.commands import options


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
@click.option("--title", default="Nightly performance", show_default=True, help="What stands above it.")
@click.option(
    "--commit-url", default="", metavar="URL", help="Address of a commit, with {sha} in it; none: no links."
)
@options.repo
@FDR
@options.state
@options.as_json
def build(
    out: Path,
    title: str,
    commit_url: str,
    repo: Path | None,
    fdr: float,
    state: Path | None,
    as_json: bool,
) -> int:
    """Write the site of the store's series, of the alerts in them and of the bisections in the state folder.

    It opens from disk and from any web host, and asks nobody. With --repo it has the ranked suspects.

    \b
    Examples:
      perfbisect dashboard build -o site --repo vllm-omni
      perfbisect dashboard build -o site --commit-url https://github.com/vllm-project/vllm-omni/commit/{sha}
    """
    from perfbisect.commands.documents import DashboardDocument
    from perfbisect.commands.output import print_document
    from perfbisect.commands.workspace import open_workspace
    from perfbisect.common.durations import stamp
    from perfbisect.dashboard.build import write_site as write
    from perfbisect.dashboard.collect import build_site_document, load_bisections
    from perfbisect.errors import UsageError
    from perfbisect.series.detect import analyze_series
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table
    from perfbisect.system.clock import now

    if commit_url and ("{sha}" not in commit_url or not commit_url.startswith("https://")):
        raise UsageError(f"--commit-url {commit_url!r} is no address of a commit: https://...{{sha}}")
    here, table = open_workspace(repo=repo, state=state), load_suspect_table()
    with SeriesStore.of(here.state) as store:
        document = build_site_document(
            store,
            analyze_series(store, table, fdr),
            table,
            title=title,
            made=stamp(now()),
            repository=here.needed_repository() if repo else None,
            reports=load_bisections(here.jobs.all()),
            commit_url=commit_url,
        )
    made = write(document, out)
    shown = DashboardDocument(
        index=str(made.index),
        cells=len(document.cells),
        alerts=len(document.alerts),
        bisections=len(document.bisections),
        first_page_bytes=made.first_page,
        bytes=made.all,
    )
    lines = [
        f"{made.index}: {shown.cells} cells, {shown.alerts} alerts, {shown.bisections} bisections, "
        f"{made.all / 1e6:.1f} MB, {made.first_page / 1e3:.0f} kB of it before anything is opened"
    ]
    print_document(shown, lines, as_json=as_json)
    return 0


@dashboard.command("open", short_help="Open a site in the browser.")
@click.argument("folder", type=click.Path(path_type=Path), default="site")
@options.as_json
def open_site(folder: Path, as_json: bool) -> int:
    """Open the site in FOLDER (site, where none is named) in the browser.

    \b
    Example:
      perfbisect dashboard open site
    """
    import webbrowser

    from perfbisect.commands.documents import DashboardOpenDocument
    from perfbisect.commands.output import print_document
    from perfbisect.errors import UsageError

    index = folder / "index.html"
    if not index.is_file():
        raise UsageError(f"{folder} holds no site", next_step=f"perfbisect dashboard build -o {folder}")
    address = index.resolve().as_uri()
    shown = DashboardOpenDocument(address=address, opened=webbrowser.open(address))
    print_document(
        shown, [address if shown.opened else f"no browser was found: open {address}"], as_json=as_json
    )
    return 0
