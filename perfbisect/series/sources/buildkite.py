"""Buildkite: the builds of a pipeline and their artifacts, over its REST API.

A build says its commit and branch, and when it was made: the commit was chosen then. Nightly builds are
those that a schedule started, or whose message says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.common.quantities import counted, moment, stamp
from perfbisect.common.text import line
from perfbisect.errors import MachineError, UsageError
from perfbisect.series.points import Build
from perfbisect.series.sources.base import IngestOptions, SourceBuild, SourceFile
from perfbisect.system.http import MissingResourceError, RestClient

NAME = "buildkite"
ACCEPTS = "an address of a pipeline or a build, https://buildkite.com/ORGANISATION/PIPELINE[/builds/N]"
IS_REMOTE = True

TOKENS = ("BUILDKITE_TOKEN", "BUILDKITE_API_TOKEN")
API = "https://api.buildkite.com/v2"

_PAGE = 100
_UNFINISHED = frozenset({"scheduled", "running", "failing", "canceling", "creating", "blocked", "waiting"})
_WEB = re.compile(r"^/(?P<org>[\w-]+)/(?P<pipe>[\w-]+)(?:/builds/(?P<build>\d+))?/?$")
_REST = re.compile(
    r"^(?P<base>.*/v2)/organizations/(?P<org>[\w-]+)/pipelines/(?P<pipe>[\w-]+)(?:/builds(?:/(?P<build>\d+))?)?/?$"
)
_BUILD_NUMBER = re.compile(r"[0-9]{1,15}")
_NIGHTLY = re.compile(r"nightly", re.IGNORECASE)
# perf-eval is a repository of its own: the commit of its build is that of the harness.
_TESTED = {"perf-eval": "VLLM_COMMIT"}
"""Pipelines that test another repository -> the variable of a build with the commit of that."""


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


def parse_address(text: str) -> PipelineAddress | None:
    """An address of Buildkite's pages or of its API; None if it is none."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        return None
    if match := _REST.match(parts.path):
        base = f"{parts.scheme}://{parts.netloc}{match['base']}"
    elif parts.hostname in ("buildkite.com", "www.buildkite.com") and (match := _WEB.match(parts.path)):
        base = API
    else:
        return None
    return PipelineAddress(base, match["org"], match["pipe"], match["build"] or "")


def takes(place: str) -> bool:
    return parse_address(place) is not None


def builds(place: str, options: IngestOptions) -> Iterator[SourceBuild]:
    """Every nightly build, oldest first, without those that had ended when they were read."""
    pipeline = parse_address(place)
    if pipeline is None:
        raise UsageError(f"{place} is no address of Buildkite", next_step=f"give {ACCEPTS}")
    token = next((options.variables[name] for name in TOKENS if options.variables.get(name)), "")
    if not token:
        raise UsageError(
            f"Buildkite needs a token, and {TOKENS[0]} is not set",
            next_step=f"export {TOKENS[0]}=..., of one that may read builds and artifacts",
        )
    rest = RestClient(pipeline.api, token, "Buildkite", say=options.say, wait=options.wait)
    listed, unreadable = _list_builds(rest, pipeline, options), 0
    for fields in listed:
        try:
            build = _build(pipeline, fields)
            if build.key in options.finished:
                continue
            found = _source_build(rest, pipeline, fields, build, options)
        except WRONG_SHAPE as error:
            reason = line(f"{type(error).__name__}: {error}")
            # One build that Buildkite describes in another form must not keep the others out.
            options.say(f"Buildkite: build {_number(fields)} is left out, it cannot be read ({reason})")
            unreadable += 1
            continue
        yield found
    if listed and unreadable == len(listed):
        raise MachineError("Buildkite answered with what is no build", where=pipeline.url)


def _list_builds(
    rest: RestClient, pipeline: PipelineAddress, options: IngestOptions
) -> list[Mapping[str, Any]]:
    if pipeline.build:
        return _check_builds([rest.json(f"{pipeline.url}/builds/{pipeline.build}")], pipeline, options)
    query: dict[str, str | int] = {"per_page": _PAGE}
    if options.branch:
        # Builds of pull requests run the same pipeline, on code that is not that of main.
        query["branch"] = options.branch
    if options.since:
        query["created_from"] = f"{options.since}T00:00:00Z"
    builds = _check_builds(list(rest.pages(f"{pipeline.url}/builds", query)), pipeline, options)
    # Only nightlies run the benchmarks; those that no schedule started say so in their message.
    nightly = [
        fields
        for fields in builds
        if fields.get("source") == "schedule" or _NIGHTLY.search(str(fields.get("message") or ""))
    ]
    if not nightly:
        branch, since = options.branch or "any branch", options.since or "the beginning"
        among = counted(len(builds), "build")
        options.say(f"Buildkite: no nightly build among {among} of {branch} since {since}")
    return sorted(nightly, key=_number)


def _check_builds(
    listed: list[Any], pipeline: PipelineAddress, options: IngestOptions
) -> list[Mapping[str, Any]]:
    """What has a number. :raises MachineError: nothing of the list has one."""
    builds = [fields for fields in listed if isinstance(fields, Mapping) and _number(fields)]
    if listed and not builds:
        raise MachineError("Buildkite answered with what is no build", where=pipeline.url)
    if len(builds) < len(listed):
        options.say(f"Buildkite: left out without a number: {counted(len(listed) - len(builds), 'build')}")
    return builds


def _number(fields: Mapping[str, Any]) -> int:
    """The number of a build; 0 without one."""
    text = str(fields.get("number"))
    return int(text) if _BUILD_NUMBER.fullmatch(text) else 0


def _build(pipeline: PipelineAddress, fields: Mapping[str, Any]) -> Build:
    created, commit = str(fields.get("created_at") or ""), str(fields.get("commit") or "")
    if variable := _TESTED.get(pipeline.pipeline):
        commit = str((fields.get("env") or {}).get(variable) or "")
    return Build(
        source="buildkite",
        pipeline=f"{pipeline.organisation}/{pipeline.pipeline}",
        name=str(_number(fields)),
        # The commit is "HEAD" until an agent has resolved it.
        commit=commit if re.fullmatch(r"[0-9a-f]{40}", commit) else "",
        branch=str(fields.get("branch") or ""),
        # The commit of a scheduled build is chosen when it is made, hours before a machine is free.
        fixed=stamp(moment(created)) if created else "",
        url=str(fields.get("web_url") or ""),
    )


def _source_build(
    rest: RestClient,
    pipeline: PipelineAddress,
    fields: Mapping[str, Any],
    build: Build,
    options: IngestOptions,
) -> SourceBuild:
    listed = (job for job in fields.get("jobs") or () if isinstance(job, Mapping) and "id" in job)
    jobs: dict[str, Mapping[str, Any]] = {str(job["id"]): job for job in listed}
    artifacts = [
        (artifact, jobs.get(str(artifact.get("job_id")), {}))
        for artifact in rest.pages(f"{pipeline.url}/builds/{build.name}/artifacts", {"per_page": _PAGE})
        if str(artifact.get("filename", "")).endswith(".json")
        and artifact.get("state", "finished") == "finished"
    ]
    # A step that was run again has uploaded its files again: the later ones count.
    artifacts.sort(key=lambda pair: str(pair[1].get("started_at")))
    files = {str(artifact["path"]): _file(rest, artifact, job) for artifact, job in artifacts}
    # A build that still runs is read again: its results come one by one.
    is_whole = bool(fields.get("state")) and fields["state"] not in _UNFINISHED
    return SourceBuild(build, tuple(files.values()), options.zone or "UTC", is_whole)


def _file(rest: RestClient, artifact: Mapping[str, Any], job: Mapping[str, Any]) -> SourceFile:
    path, address = str(artifact["path"]), str(artifact["download_url"])
    agent = job.get("agent") or {}
    # Nights run on pools of machines: the agent is all that says which one.
    host = str(agent.get("hostname") or agent.get("name") or "")

    def read() -> str:
        try:
            return rest.text(address)
        # Artifacts are removed after their retention, and the list still names them.
        except MissingResourceError:
            rest.say(f"Buildkite: {path} was removed, and is left out")
            return ""

    return SourceFile(
        name=path,
        place=address,
        version=f"{artifact.get('file_size') or 0} {artifact.get('sha1sum') or artifact['id']}",
        read=read,
        facts={"job": str(job.get("name") or job.get("id") or ""), "host": host} if job else {},
    )
