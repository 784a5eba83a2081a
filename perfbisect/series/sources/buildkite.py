"""Buildkite: the builds of a pipeline, their artifacts and the ends of their jobs' logs, over its REST API.

A build says its commit and branch, and when it was made: the commit was chosen then. Nightly builds are
those that a schedule started, or whose message says so. The token is ``BUILDKITE_TOKEN``; it must be allowed
to read builds, artifacts and logs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timezone
from typing import Any
from urllib.parse import quote, urlsplit

from perfbisect.common.durations import moment, stamp
from perfbisect.errors import MachineError, UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources import IngestOptions, SourceBuild, SourceFile
from perfbisect.system.http import MissingResourceError, RestClient

TOKENS = ("BUILDKITE_TOKEN", "BUILDKITE_API_TOKEN")
API = "https://api.buildkite.com/v2"

_PAGE = 100
_LOG = 64 * 1024
"""Characters of a job's log that are kept: its end."""

_UNDER_WAY = frozenset({"scheduled", "running", "failing", "canceling", "creating", "blocked", "waiting"})
_WEB = re.compile(r"^/(?P<org>[\w-]+)/(?P<pipe>[\w-]+)(?:/builds/(?P<build>\d+))?/?$")
_REST = re.compile(
    r"^(?P<base>.*/v2)/organizations/(?P<org>[\w-]+)/pipelines/(?P<pipe>[\w-]+)(?:/builds(?:/(?P<build>\d+))?)?/?$"
)
_NIGHTLY = re.compile(r"nightly", re.IGNORECASE)


@dataclass(frozen=True)
class PipelineAddress:
    """A pipeline, or one build of it. ``api``: where its REST API is."""

    api: str
    organisation: str
    pipeline: str
    build: str = ""

    @property
    def url(self) -> str:
        return f"{self.api}/organizations/{quote(self.organisation)}/pipelines/{quote(self.pipeline)}"


class Buildkite:
    """See :class:`perfbisect.series.sources.Source`."""

    name = "buildkite"
    what = "an address of a pipeline or a build, https://buildkite.com/ORGANISATION/PIPELINE[/builds/N]"
    remote = True

    def takes(self, argument: str) -> bool:
        """True for an address of Buildkite's pages or of its API."""
        return target(argument) is not None

    def batches(self, argument: str, asked: IngestOptions) -> Iterator[SourceBuild]:
        """A batch for every nightly build, oldest first; builds that had ended when they were read are left.

        :raises UsageError: no token, one that is refused, an address with nothing behind it.
        :raises MachineError: the service gives no answer.
        """
        found = target(argument)
        if found is None:
            raise UsageError(f"{argument} is no address of Buildkite", next_step=f"give {self.what}")
        token = next((asked.variables[name] for name in TOKENS if asked.variables.get(name)), "")
        if not token:
            raise UsageError(
                f"Buildkite needs a token, and {TOKENS[0]} is not set",
                next_step=f"export {TOKENS[0]}=..., of one that may read builds, artifacts and build logs",
            )
        rest = RestClient(found.api, token, "Buildkite", say=asked.say, wait=asked.wait)
        try:
            for told in _builds(rest, found, asked):
                build = _build(found, told)
                if build.key not in asked.finished:
                    yield _batch(rest, found, told, build, asked)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MachineError(
                f"Buildkite answered with what is no build ({type(error).__name__}: {error})", where=found.url
            ) from error


def target(argument: str) -> PipelineAddress | None:
    """What an address leads to; None if it is none of Buildkite's."""
    parts = urlsplit(argument)
    if parts.scheme not in ("http", "https"):
        return None
    if match := _REST.match(parts.path):
        base = f"{parts.scheme}://{parts.netloc}{match['base']}"
        return PipelineAddress(base, match["org"], match["pipe"], match["build"] or "")
    if parts.hostname in ("buildkite.com", "www.buildkite.com") and (match := _WEB.match(parts.path)):
        return PipelineAddress(API, match["org"], match["pipe"], match["build"] or "")
    return None


def _builds(rest: RestClient, found: PipelineAddress, asked: IngestOptions) -> Iterator[Mapping[str, Any]]:
    if found.build:
        yield rest.json(f"{found.url}/builds/{found.build}")
        return
    limits: dict[str, str | int] = {"per_page": _PAGE}
    if asked.branch:
        limits["branch"] = asked.branch
    if asked.since:
        limits["created_from"] = f"{asked.since}T00:00:00Z"
    every = list(rest.pages(f"{found.url}/builds", limits))
    nightly = [told for told in every if _is_nightly(told)]
    if not nightly:
        of, since = asked.branch or "any branch", asked.since or "the beginning"
        asked.say(f"Buildkite: no nightly build among the {len(every)} builds of {of} since {since}")
    yield from sorted(nightly, key=lambda told: int(told["number"]))


def _is_nightly(told: Mapping[str, Any]) -> bool:
    return told.get("source") == "schedule" or bool(_NIGHTLY.search(str(told.get("message") or "")))


def _build(found: PipelineAddress, told: Mapping[str, Any]) -> Build:
    created = str(told.get("created_at") or "")
    commit = str(told.get("commit") or "")
    return Build(
        source="buildkite",
        pipeline=f"{found.organisation}/{found.pipeline}",
        name=str(told["number"]),
        commit=commit if re.fullmatch(r"[0-9a-f]{40}", commit) else "",
        branch=str(told.get("branch") or ""),
        fixed=stamp(moment(created)) if created else "",
        state=str(told.get("state") or ""),
        url=str(told.get("web_url") or ""),
        message=str(told.get("message") or "").partition("\n")[0],
    )


def _batch(
    rest: RestClient, found: PipelineAddress, told: Mapping[str, Any], build: Build, asked: IngestOptions
) -> SourceBuild:
    jobs = {str(job["id"]): job for job in told.get("jobs") or () if isinstance(job, Mapping) and "id" in job}
    artifacts = [
        item
        for item in rest.pages(f"{found.url}/builds/{build.name}/artifacts", {"per_page": _PAGE})
        if str(item.get("filename", "")).endswith(".json") and item.get("state", "finished") == "finished"
    ]
    # A step that was run again has uploaded its files again: the later ones count.
    by_path: dict[str, Mapping[str, Any]] = {}
    for item in sorted(
        artifacts, key=lambda item: str(jobs.get(str(item.get("job_id")), {}).get("started_at"))
    ):
        by_path[str(item["path"])] = item
    files = tuple(
        _file(rest, path, item, jobs.get(str(item.get("job_id")), {})) for path, item in by_path.items()
    )
    used = {str(item.get("job_id")) for item in by_path.values()}
    logs = {}
    if asked.logs:
        for identity in sorted(used & set(jobs)):
            with contextlib.suppress(MissingResourceError):  # It was removed: the results count without it.
                log = rest.json(f"{found.url}/builds/{build.name}/jobs/{quote(identity)}/log")
                logs[_name(jobs[identity])] = str(log.get("content") or "")[-_LOG:]
    return SourceBuild(
        build,
        files,
        asked.zone or timezone.utc,
        logs,
        whole=build.state not in _UNDER_WAY and bool(build.state),
    )


def _file(rest: RestClient, path: str, item: Mapping[str, Any], job: Mapping[str, Any]) -> SourceFile:
    address = str(item["download_url"])
    agent = job.get("agent") or {}

    def read() -> tuple[str, str]:
        try:
            return rest.text(address), ""
        except MissingResourceError:
            rest.say(f"Buildkite: {path} was removed, and is left out")
            return "", ""

    return SourceFile(
        name=path,
        place=address,
        size=int(item.get("file_size") or 0),
        version=str(item.get("sha1sum") or item["id"]),
        read=read,
        facts={"job": _name(job), "host": str(agent.get("hostname") or agent.get("name") or "")}
        if job
        else {},
    )


def _name(job: Mapping[str, Any]) -> str:
    return str(job.get("name") or job.get("id") or "")


SOURCE = Buildkite()
