"""A server on the loopback that answers as Buildkite's REST API does: pages, limits, moods, redirects."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests import loopback

TOKEN = "bkua_0123456789abcdef"
PIPELINE = "/v2/organizations/vllm/pipelines/vllm-omni"


@dataclass
class Service:
    """What it knows, and what was asked of it. ``moods``: answers to give first: (status, headers)."""

    builds: list[dict[str, Any]] = field(default_factory=list)
    artifacts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    moods: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    seen_by_storage: list[str | None] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    """Artifacts that are not there any more."""
    circle: bool = False
    """Its last page leads to the first."""
    per_page: int = 2
    api: str = ""
    storage: str = ""

    def add(self, number: int, files: dict[str, object], **told: Any) -> dict[str, Any]:
        """A nightly build with one job and its artifacts."""
        job = {
            "id": f"job-{number}",
            "name": "Omni Perf Test",
            "state": "passed",
            "started_at": f"2026-04-{number % 100:02d}T17:00:00.000Z",
            "agent": {"hostname": f"node-{number}"},
        }
        build = {
            "number": number,
            "state": "passed",
            "branch": "main",
            "commit": hashlib.sha1(str(number).encode()).hexdigest(),
            "message": "Scheduled nightly build\nmore",
            "source": "schedule",
            "created_at": f"2026-04-{number % 100:02d}T16:00:00.000Z",
            "web_url": f"https://buildkite.com/vllm/vllm-omni/builds/{number}",
            "jobs": [job, {"type": "waiter", "id": f"wait-{number}"}],
            **told,
        }
        self.builds.insert(0, build)
        for path, document in files.items():
            self.artifact(number, path, document)
        return build

    def artifact(self, number: int, path: str, document: object, job: str = "") -> None:
        content = json.dumps(document).encode() if not isinstance(document, bytes) else document
        identity = f"artifact-{len(self.contents)}"
        self.contents[identity] = content
        job, base = job or f"job-{number}", f"{self.api}{PIPELINE}/builds/{number}"
        self.artifacts.setdefault(str(number), []).append(
            {
                "id": identity,
                "job_id": job,
                "path": path,
                "filename": path.rsplit("/", 1)[-1],
                "state": "finished",
                "file_size": len(content),
                "sha1sum": hashlib.sha1(content).hexdigest(),
                "download_url": f"{base}/jobs/{job}/artifacts/{identity}/download",
            }
        )


class _Handler(loopback.Handler):
    service: Service

    def do_GET(self) -> None:
        service, parts = self.service, urlsplit(self.path)
        service.asked.append(self.path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"message": "Authentication required"})
        if service.moods:
            status, headers = service.moods.pop(0)
            return self._answer(status, {"message": "not now"}, headers)
        words = parts.path.removeprefix(PIPELINE).strip("/").split("/")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if not parts.path.startswith(PIPELINE):
            return self._answer(404, {"message": "No pipeline found"})
        if words == ["builds"]:
            since = query.get("created_from", "")
            branch = query.get("branch")
            found = [b for b in service.builds if b["created_at"] >= since and branch in (None, b["branch"])]
            return self._page(found, parts.path, query)
        build = next((b for b in service.builds if str(b["number"]) == words[1]), None)
        if build is None:
            return self._answer(404, {"message": "Not found"})
        if len(words) == 2:
            return self._answer(200, build)
        if words[-2] in service.removed:
            return self._answer(404, {"message": "Not found"})
        if words[2:] == ["artifacts"]:
            return self._page(service.artifacts.get(words[1], []), parts.path, query)
        if words[-1] == "download":
            return self._answer(
                302, {"url": "..."}, {"Location": f"{service.storage}/{words[-2]}?signature=x"}
            )
        return self._answer(404, {"message": "Not found"})

    def _page(self, items: list[dict[str, Any]], path: str, query: dict[str, str]) -> None:
        page, size = int(query.get("page", 1)), min(int(query["per_page"]), self.service.per_page)
        headers = {}
        if page * size < len(items) or self.service.circle:
            after = urlencode(query | {"page": str(page + 1 if page * size < len(items) else 1)})
            headers["Link"] = f'<{self.service.api}{path}?{after}>; rel="next", <{path}>; rel="last"'
        self._answer(200, items[(page - 1) * size : page * size], headers)

    def _answer(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
        kind = {"Content-Type": "application/json"}
        self.answer(status, json.dumps(document).encode(), {**(headers or {}), **kind})


class _Storage(loopback.Handler):
    service: Service

    def do_GET(self) -> None:
        self.service.seen_by_storage.append(self.headers.get("Authorization"))
        self.answer(200, self.service.contents[urlsplit(self.path).path.strip("/")])


@contextlib.contextmanager
def buildkite() -> Iterator[Service]:
    """The API, and the storage of artifacts on another port."""
    service = Service()
    api, storage = (type(base.__name__, (base,), {"service": service}) for base in (_Handler, _Storage))
    with loopback.serving(api) as at, loopback.serving(storage) as stored:
        service.api, service.storage = f"http://{at}", f"http://{stored}"
        yield service
