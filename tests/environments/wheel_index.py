"""A per-commit wheel index on the loopback, honest or lying, as vLLM's is laid out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from perfbisect.changes.git import Repository
from tests import loopback
from tests.changes.repositories import blobs
from tests.environments.tiny import COMPILED, version_file, write_wheel


@dataclass
class Index:
    """``files``: path -> bytes; ``failing``: path -> status codes that it answers first, ``*``: one for all.

    ``asked``: every path that was asked for, in order.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    failing: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(
        self, sha: str, wheel: Path, *, variant: str = "", name: str = "", data: bytes | None = None
    ) -> str:
        """Serve a wheel as a commit's, under its own name or another; returns the path of its page."""
        file = name or wheel.name
        self.files[f"/{sha}/{file}"] = wheel.read_bytes() if data is None else data
        up = "../../" if variant else "../"
        link = f'<a href="{up}{quote(file)}">{file}</a>'
        project = wheel.name.partition("-")[0].replace("_", "-")
        page = f"/{sha}/{variant}/{project}/" if variant else f"/{sha}/{project}/"
        self.files[page] = f"<!DOCTYPE html><html><body>{link}<br/></body></html>".encode()
        return page

    def add_root(self, sha: str, variant: str, *wheels: Path) -> None:
        """Serve the list of a variant's packages, with these wheels beside the engine's own."""
        names = [wheel.name.partition("-")[0].replace("_", "-") for wheel in wheels]
        rows = "".join(f'<a href="{name}/">{name}/</a>' for name in ("..", "tiny-engine", *names))
        self.files[f"/{sha}/{variant}/"] = f"<!DOCTYPE html><html><body>{rows}</body></html>".encode()
        for wheel in wheels:
            self.add(sha, wheel, variant=variant)

    def add_release(self, wheel: Path, uploaded: str = "") -> None:
        """Serve a wheel as a registry does; without ``uploaded`` as a mirror that has no dates."""
        name = wheel.name.partition("-")[0].replace("_", "-")
        self.files[f"/files/{wheel.name}"] = wheel.read_bytes()
        file = {"filename": wheel.name, "url": f"/files/{wheel.name}", "hashes": {}}
        if uploaded:
            file["upload-time"] = f"{uploaded}T12:00:00Z"
        page = self.files.get(f"/{name}/")
        listed = [*(json.loads(page)["files"] if page else ()), file]
        document = {"meta": {"api-version": "1.1"}, "name": name, "files": listed}
        self.files[f"/{name}/"] = json.dumps(document).encode()

    def answer(self, path: str) -> loopback.Answer:
        path = unquote(path)
        self.asked.append(path)
        code, body = (200, self.files[path]) if path in self.files else (404, b"")
        if first := self.failing.get(path) or self.failing.get("*"):
            code, body = first[0], b""
            if len(first) > 1 or path in self.failing:
                first.pop(0)
        page = "application/vnd.pypi.simple.v1+json" if body.startswith(b"{") else "text/html"
        return code, body, {"Content-Type": page if path.endswith("/") else "application/octet-stream"}


@contextmanager
def serving() -> Iterator[Index]:
    """An empty index that answers until the block ends."""
    index = Index()
    with loopback.answering(index.answer) as address:
        index.address = f"http://{address}"
        yield index


def wheel_of(
    folder: Path,
    repository: Repository,
    sha: str,
    *,
    version: str = "",
    says: str = "",
    more: Mapping[str, bytes] | None = None,
    requires: tuple[str, ...] = ("tiny-helper",),
) -> Path:
    """A wheel with the package that a commit has; ``says``: the commit that its engine claims to be."""
    number = version or f"1.0.dev7+g{sha[:9]}"
    files = {path: repository.read(sha, path) for path in blobs(repository, sha, "tiny_engine")}
    built = {"tiny_engine/_version.py": version_file(number, says), "tiny_engine/_ops.abi3.so": COMPILED}
    return write_wheel(folder, "tiny-engine", number, files | built | dict(more or {}), requires)
