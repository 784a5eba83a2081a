"""Delivers a night: report, dashboard, publishing, exports, Markdown, job summary, webhook and channels.

The address and token of a webhook are secrets that are never shown, logged or raised. A message that was not
delivered is sent again, a few times; one that was refused is not. After a timeout the receiver may get it
twice, and recognises it by its ``night``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from perfbisect.commands.outcomes import load_bisections, measured_outcomes
from perfbisect.common.quantities import counted, stamp
from perfbisect.common.text import line
from perfbisect.dashboard.build import write_site
from perfbisect.dashboard.collect import collect_site
from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.folders import Jobs
from perfbisect.nightly.config import DashboardRules, NightlyFile
from perfbisect.nightly.model import Night, NightFindings
from perfbisect.nightly.night import NightlyContext, NightTask, OpenNight, StepResult
from perfbisect.nightly.notify import notify
from perfbisect.nightly.report import finding_texts, night_report
from perfbisect.redaction import REDACTED, without_secrets
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.summary import MAX_COMMENT_BYTES, append_summary, job_link, truncate
from perfbisect.series.detect import SeriesAnalysis
from perfbisect.series.export import export_files, series_for_export
from perfbisect.series.nightly_report import build_nightly_report
from perfbisect.series.publish import publish
from perfbisect.series.report import nightly_report
from perfbisect.series.store import SeriesStore
from perfbisect.system.files import write_atomic
from perfbisect.system.http import (
    FETCH_LIMIT_S,
    RetryPolicy,
    answer_within,
    failure_reason,
    is_safe_for_token,
    open_session,
)
from perfbisect.system.logs import excerpt

SCHEMA = "perfbisect.nightly-message/2"

_NO_FINDINGS = StepResult("skipped: no findings")

WEBHOOK_TRIES = 4
_MAX_RESPONSE_BYTES = 300
# Statuses that do not change by themselves: the address or the token is wrong.
_REFUSED = frozenset({401, 403, 404, 410})


def report_tasks(
    night: OpenNight, store: SeriesStore, analysis: SeriesAnalysis
) -> Iterator[tuple[str, NightTask]]:
    """The report, and the dashboard if it is configured."""
    context = night.context
    yield "report", partial(_write_reports, context, store, analysis, night.folder.path)
    dashboard = context.file.nightly.dashboard
    if dashboard is not None:
        yield "dashboard", lambda _: _build_dashboard(context, store, analysis, dashboard)


def delivery_tasks(
    file: NightlyFile,
    state: Path,
    variables: Mapping[str, str],
    retries: RetryPolicy,
) -> Iterator[tuple[str, NightTask]]:
    """The configured tasks.

    ``variables``: the process environment with addresses and tokens; ``retries``: of the webhook.
    """
    rules, tell = file.nightly, file.nightly.tell
    folder = file.path(rules.publish)
    if folder is not None:
        yield "publish", partial(_publish, Jobs(state), folder)
    if rules.exports.csv or rules.exports.benchmark:
        yield "exports", lambda _: _export(file, state)
    path = file.path(tell.markdown)
    if path is not None:

        def write_markdown(night: Night) -> StepResult:
            write_atomic(path, truncate(night_markdown(night), MAX_COMMENT_BYTES))
            return StepResult("", {"markdown": path})

        yield "markdown", write_markdown
    summary = variables.get("GITHUB_STEP_SUMMARY", "") if tell.job_summary else ""
    if summary:

        def write_summary(night: Night) -> StepResult:
            is_written = append_summary(Path(summary), night_markdown(night))
            return StepResult("appended" if is_written else "skipped: earlier steps have filled it")

        yield "job summary", write_summary
    hook = tell.webhook
    if hook is not None:

        def send_webhook(night: Night) -> StepResult:
            if hook.when == "findings" and not night.exit_code and not night.has_news:
                return _NO_FINDINGS
            target = read_target(hook.url, variables)
            send(target, message(night, link=job_link(variables)), retries)
            return StepResult(f"sent to {target.shown}")

        yield "webhook", send_webhook
    if tell.notify:

        def send_notifications(night: Night) -> StepResult:
            if not night.exit_code and not night.has_news:
                return _NO_FINDINGS
            title, _, text = message(night, link=job_link(variables))["text"].partition("\n")
            return StepResult(notify(tell.notify, variables, title, text or title, bad=bool(night.exit_code)))

        yield "notify", send_notifications


def night_markdown(night: Night) -> str:
    return report_markdown(night_report(night))


def _write_reports(
    context: NightlyContext, store: SeriesStore, analysis: SeriesAnalysis, folder: Path, night: Night
) -> StepResult:
    rules = context.file.nightly
    measured = measured_outcomes(store, analysis, context.jobs.all(), context.repository)
    document = build_nightly_report(analysis, fdr=rules.alerts.fdr, measured=measured)
    series_report = nightly_report(document)
    target = context.file.path(rules.report) or folder
    files = {"night": target / "night.md", "report": target / "nightly.md", "page": target / "nightly.html"}
    write_atomic(files["night"], night_markdown(night))
    write_atomic(files["report"], report_markdown(series_report))
    write_atomic(files["page"], report_html(series_report))
    return StepResult(f"{counted(len(document.rows), 'series')} at a new level", files)


def _build_dashboard(
    context: NightlyContext, store: SeriesStore, analysis: SeriesAnalysis, rules: DashboardRules
) -> StepResult:
    folder = context.file.path(rules.folder)
    assert folder is not None
    site = collect_site(
        store,
        analysis,
        context.table,
        title=rules.title,
        made=stamp(context.clock()),
        repository=context.repository,
        reports=load_bisections(context.jobs.all()),
        commit_url=rules.commit_url,
    )
    index = write_site(site, folder).index
    return StepResult(
        f"{counted(len(site.cells), 'cell')}, {counted(len(site.alerts), 'alert')}", {"dashboard": index}
    )


def _publish(jobs: Jobs, folder: Path, night: Night) -> StepResult:
    measured = [jobs.named(cell.job) for cell in night.cells if cell.job]
    published = publish(folder, [job for job in measured if job.journal.exists()])
    summary = f"{counted(published.launches, 'launch')}, {counted(len(published.written), 'new file')}"
    skipped = "".join(f"; skipped: {reason}" for reason in published.left_out)
    return StepResult(summary + skipped, {"published": folder})


def _export(file: NightlyFile, state: Path) -> StepResult:
    rules, files = file.nightly.exports, dict[str, Path]()
    points = 0
    with SeriesStore.of(state) as store:
        if (path := file.path(rules.csv)) is not None:
            points = export_files(series_for_export(store), "csv", path).points
            files["csv"] = path
        if (path := file.path(rules.benchmark)) is not None:
            exported = export_files(series_for_export(store), "github-action-benchmark", path)
            points = exported.points
            files |= {f"benchmark {kind}": Path(written) for kind, written in exported.files.items()}
    return StepResult(counted(points, "point"), files)


@dataclass(frozen=True)
class WebhookTarget:
    """Where a message goes. ``name``: the variable with the address."""

    name: str
    url: str = field(repr=False)
    token: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """The address without its secret part."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}/{REDACTED}"

    def redact(self, text: str) -> str:
        """Remove everything of address and token from a text."""
        parts = urlsplit(self.url)
        long = [word for word in parts.path.split("/") if len(word) > 5]
        return without_secrets(text, (self.url, self.token, parts.path.strip("/"), parts.query, *long))


def read_target(name: str, variables: Mapping[str, str]) -> WebhookTarget:
    """Read the address from the variable ``name``, and an optional token from ``NAME_TOKEN``."""
    url = variables.get(name, "").strip()
    if not url:
        raise UsageError(
            f"{name} is not set: the address of the webhook", next_step=f"export {name}=https://..."
        )
    if not is_safe_for_token(url):
        raise UsageError(f"{name} is no https address", next_step=f"export {name}=https://...")
    return WebhookTarget(name, url, variables.get(f"{name}_TOKEN", "").strip())


def send(
    target: WebhookTarget,
    payload: Mapping[str, Any],
    retries: RetryPolicy,
    timeouts_s: tuple[float, float] = (5.0, 30.0),
) -> None:
    """Post ``payload`` as JSON. ``timeouts_s``: to connect, and between bytes."""

    def post() -> tuple[int, bytes]:
        with (
            open_session(target.url, token=target.token, retries=retries) as session,
            session.post(
                target.url, json=dict(payload), timeout=timeouts_s, stream=True, allow_redirects=False
            ) as response,
        ):
            # A delivered message must not be sent again because its response cannot be read.
            content = b"" if response.ok else next(response.iter_content(_MAX_RESPONSE_BYTES), b"")
            return response.status_code, content

    try:
        status, content = answer_within(FETCH_LIMIT_S, post)
    except (requests.RequestException, OSError, ValueError) as error:
        # Status 0: there was no response.
        status, reason = 0, failure_reason(error, timeouts_s[1])
    else:
        text = excerpt(" ".join(target.redact(content.decode("utf-8", "replace")).split()), 200)
        reason = f"status {status}" + (f": {text}" if text else "")
    if 200 <= status < 300:
        return
    if status in _REFUSED:
        raise UsageError(
            f"the webhook refuses the message: {reason}",
            where=target.shown,
            next_step=f"set {target.name} again",
        )
    problem, next_step = "did not take the message", "the report of the night has the same content"
    if 300 <= status < 500 and status != 429:
        problem, next_step = "redirects" if status < 400 else "refuses the message", ""
    raise MachineError(f"the webhook {problem}: {reason}", where=target.shown, next_step=next_step or None)


_MESSAGE_EVENTS = 8
"""Events in the text of a message; the report of the night has all."""

_ALERT_FIELDS = {
    "id",
    "event",
    "change",
    "cell",
    "metric",
    "effect",
    "worse",
    "cause",
    "shape",
    "first",
    "measured",
}
_PROFILE_FIELDS = {"job", "conclusion", "sentence", "why", "next"}


def message(night: Night, *, link: str = "") -> dict[str, Any]:
    """The night for a program; ``night`` identifies repeated messages. ``link``: the CI job."""
    findings = NightFindings(alerts=tuple(alert for alert in night.alerts if alert.counts))
    texts = finding_texts(night)
    left = len(texts) - _MESSAGE_EVENTS
    # For a chat: the outcome, then a line for each event that is new, named or resolved.
    rows = [
        f"{night.name}: {night_report(night).verdict.text}",
        *texts[:_MESSAGE_EVENTS],
        *([f"and {counted(left, 'more event')}"] if left > 0 else []),
        *([link] if link and texts else []),
    ]
    commits: list[dict[str, Any]] = []
    # Of which one made the step.
    narrowed: list[dict[str, Any]] = []
    for bisection in night.bisections:
        event, probability = bisection.event, bisection.probability
        if bisection.candidates:
            named = [(x.position.changes[0], x.probability) for x in bisection.candidates]
            among = [{"id": c.id, "subject": c.subject, "probability": p} for c, p in named]
            narrowed.append({"event": event, "probability": probability, "commits": among})
        if bisection.culprit is not None:
            profile = bisection.profile
            commits.append(
                {
                    "event": event,
                    "id": bisection.culprit.id,
                    "subject": bisection.culprit.subject,
                    "probability": probability,
                    "how": bisection.state,
                    "phases": list(bisection.phases),
                    "profile": None if profile is None else profile.model_dump(include=_PROFILE_FIELDS),
                }
            )
    return {
        "schema": SCHEMA,
        "nightly": night.name,
        "night": night.night,
        "text": "\n".join(map(line, rows)),
        "exit_code": night.exit_code,
        "commit": night.commit.id,
        "branch": night.branch,
        "engine_version": night.engine_version,
        "hardware": night.hardware,
        "alerts": findings.model_dump(include={"alerts": {"__all__": _ALERT_FIELDS}})["alerts"],
        "commits": commits,
        "narrowed": narrowed,
        "failed": [{"what": name, "reason": reason} for name, reason in night.failed()],
        "link": link,
    }
