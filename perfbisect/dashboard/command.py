"""``perfbisect dashboard``: the static site of the series."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from perfbisect.cli.alerts import Fdr
from perfbisect.commands.options import InRepositoryAndState, Repo
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, Option, prints


@prints("perfbisect.commands.documents:DashboardDocument")
def build(
    workspace: InRepositoryAndState,
    *,
    out: Annotated[
        Path,
        Option("Folder of the site.", ("-o", "--out"), type=click.Path(path_type=Path, file_okay=False)),
    ],
    title: Annotated[str, Option("Title of the site.")] = "Nightly performance",
    commit_url: Annotated[
        str, Option("Address of a commit with {sha}.", metavar="URL", default="no links")
    ] = "",
    fdr: Fdr = 0.05,
    repo: Repo = None,
) -> CommandResult:
    """Write the site of the stored series, their alerts, and the bisections in the state folder.

    It opens from disk and from any web host and loads nothing else. With --repo it ranks the suspects.

    \b
    Examples:
      perfbisect dashboard build -o site --repo vllm-omni
      perfbisect dashboard build -o site --commit-url https://github.com/vllm-project/vllm-omni/commit/{sha}
    """
    from perfbisect.commands.documents import DashboardDocument
    from perfbisect.commands.outcomes import load_bisections
    from perfbisect.common.quantities import counted, stamp
    from perfbisect.dashboard.build import write_site
    from perfbisect.dashboard.collect import collect_site
    from perfbisect.errors import UsageError
    from perfbisect.series.detect import analyze_series
    from perfbisect.series.store import SeriesStore
    from perfbisect.series.suspects.table import load_suspect_table
    from perfbisect.system.clock import now

    url, table = commit_url, load_suspect_table()
    if url and ("{sha}" not in url or not url.startswith("https://")):
        raise UsageError(f"--commit-url {url!r} is not a commit address: https://...{{sha}}")
    with SeriesStore.of(workspace.state) as store:
        site = collect_site(
            store,
            analyze_series(store, table, fdr),
            table,
            title=title,
            made=stamp(now()),
            repository=workspace.needed_repository() if repo else None,
            reports=load_bisections(workspace.jobs.all()),
            commit_url=url,
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


@prints("perfbisect.commands.documents:DashboardOpenDocument")
def open_site(
    *,
    folder: Annotated[Path, Argument()] = Path("site"),
) -> CommandResult:
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
