"""What a night leaves for others, and whom it tells: the steps that the configuration asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from perfbisect.common.durations import stamp
from perfbisect.dashboard.build import build
from perfbisect.dashboard.collect import bisections, site
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import Clock
from perfbisect.nightly import notify
from perfbisect.nightly.config import Webhook
from perfbisect.nightly.context import Done, Scene, Step
from perfbisect.nightly.documents import night_document
from perfbisect.nightly.folders import NightFolder
from perfbisect.nightly.model import Night
from perfbisect.nightly.notify import json_message
from perfbisect.nightly.render import LARGEST, cut, night_markdown
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.export import export_files, series_for_export
from perfbisect.series.nightly_report import build_nightly_report, nightly_report
from perfbisect.series.publish import publish
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_whole


def reading_steps(
    scene: Scene, store: SeriesStore, seen: SeriesAnalysis, folder: NightFolder, clock: Clock
) -> Iterator[Step]:
    """The report, and the site where the configuration asks for one."""
    rules = scene.file.nightly

    def reported(night: Night) -> Done:
        document = build_nightly_report(seen, fdr=rules.alerts.fdr)
        into = scene.file.path(rules.report) or folder.path
        files = {
            "night": (into / "night.md", night_markdown(night_document(night))),
            "report": (into / "nightly.md", report_markdown(nightly_report(document))),
            "page": (into / "nightly.html", report_html(nightly_report(document))),
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


def telling_steps(
    scene: Scene,
    variables: Mapping[str, str],
    *,
    wait: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Step]:
    """Publishing, exports, Markdown, the summary of the job, the webhook: those that are asked for.

    ``variables``: the process environment, in which addresses and tokens stand.
    """
    rules, tell = scene.file.nightly, scene.file.nightly.tell
    folder = scene.file.path(rules.publish)
    if folder is not None:
        yield Step("publish", lambda night: _published(scene, folder, night))
    if rules.exports.csv or rules.exports.benchmark:
        yield Step("exports", lambda _: _exported(scene))
    path = scene.file.path(tell.markdown)
    if path is not None:
        yield Step("markdown", lambda night: _written(path, night))
    page = notify.summary_file(variables) if tell.job_summary else None
    if page is not None:
        yield Step("job summary", lambda night: _summed_up(page, night))
    hook = tell.webhook
    if hook is not None:
        yield Step("webhook", lambda night: _sent(hook, night, variables, wait, say))


def job_link(variables: Mapping[str, str]) -> str:
    """Where the CI shows the job that runs this; empty outside those that are known."""
    if url := variables.get("BUILDKITE_BUILD_URL", ""):
        return url
    server, repository, run = (
        variables.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")
    )
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""


def _published(scene: Scene, folder: Path, night: Night) -> Done:
    jobs = [Job(scene.jobs.folder / cell.job) for cell in night.cells if cell.job]
    done = publish(folder, [job for job in jobs if job.journal.exists()])
    told = f"{done.launches} launches, {len(done.written)} new files"
    return Done(told + "".join(f"; left out: {why}" for why in done.left_out), {"published": folder})


def _exported(scene: Scene) -> Done:
    asked, files = scene.file.nightly.exports, dict[str, Path]()
    with SeriesStore.of(scene.state) as store:
        series = series_for_export(store)
    if (path := scene.file.path(asked.csv)) is not None:
        files |= export_files(series, "csv", path)
    if (path := scene.file.path(asked.benchmark)) is not None:
        found = export_files(series, "github-action-benchmark", path)
        files |= {f"benchmark {name}": file for name, file in found.items()}
    return Done(f"{sum(len(points) for _, points in series)} points", files)


def _written(path: Path, night: Night) -> Done:
    write_whole(path, cut(night_markdown(night_document(night)), LARGEST))
    return Done("", {"markdown": path})


def _summed_up(path: Path, night: Night) -> Done:
    room = notify.room(path)
    if room < notify.LEAST:
        return Done("left out: earlier steps have filled it")
    notify.append(path, cut(night_markdown(night_document(night)), room, size=bytes))
    return Done("appended")


def _sent(
    hook: Webhook,
    night: Night,
    variables: Mapping[str, str],
    wait: Callable[[float], None],
    say: Callable[[str], None],
) -> Done:
    if hook.when == "findings" and not night.exit_code and not night.has_news:
        return Done("left out: there is nothing to tell")
    to = notify.target(hook.url, variables)
    notify.send(to, json_message(night_document(night), link=job_link(variables)), wait=wait, say=say)
    return Done(f"told {to.shown}")
