"""The steps of a night that show what its series say: the report and the site."""

from __future__ import annotations

from collections.abc import Iterator

from perfbisect.core.moments import stamp
from perfbisect.core.night_values import Night
from perfbisect.jobs.nightly_hands import Done, Scene, Step
from perfbisect.jobs.track_detect import SeriesAnalysis
from perfbisect.jobs.track_report import report
from perfbisect.jobs.track_site import bisections, site
from perfbisect.render.night_markdown import night_markdown
from perfbisect.render.nightly_documents import night_document
from perfbisect.render.nightly_report import nightly_html, nightly_markdown
from perfbisect.render.site import build
from perfbisect.store.events import Clock
from perfbisect.store.nights import NightFolder
from perfbisect.store.series import SeriesStore
from perfbisect.system.whole_file import write_whole


def reading_steps(
    scene: Scene, store: SeriesStore, seen: SeriesAnalysis, folder: NightFolder, clock: Clock
) -> Iterator[Step]:
    """The report, and the site where the configuration asks for one."""
    rules = scene.file.nightly

    def reported(night: Night) -> Done:
        document = report(seen, fdr=rules.alerts.fdr)
        into = scene.file.path(rules.report) or folder.path
        files = {
            "night": (into / "night.md", night_markdown(night_document(night))),
            "report": (into / "nightly.md", nightly_markdown(document)),
            "page": (into / "nightly.html", nightly_html(document)),
        }
        for path, text in files.values():
            write_whole(path, text)
        told = f"{len(document.rows)} series at another level"
        return Done(told, {kind: path for kind, (path, _) in files.items()})

    def shown(_: Night) -> Done:
        asked = rules.dashboard
        assert asked is not None
        document = site(
            store,
            seen,
            scene.table,
            title=asked.title,
            made=stamp(clock()),
            repository=scene.repository,
            reports=bisections(scene.jobs.all()),
            commit_url=asked.commit_url,
        )
        site_folder = scene.file.path(asked.folder)
        assert site_folder is not None
        made = build(document, site_folder)
        return Done(f"{len(document.cells)} cells, {len(document.alerts)} alerts", {"dashboard": made.index})

    yield Step("report", reported)
    if rules.dashboard is not None:
        yield Step("dashboard", shown)
