"""A container registry on the loopback; images as ``podman save --format docker-dir`` writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import loopback

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


@dataclass
class Registry:
    """``manifests``: ``NAME:TAG`` or ``NAME@DIGEST`` -> media type and content. ``failing``: answer 500."""

    address: str = ""
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, Path] = field(default_factory=dict)
    failing: bool = False
    asked: list[str] = field(default_factory=list)

    def add(self, name: str, tag: str, folder: Path, *, listed: bool = False) -> None:
        """Serve an image under a tag; ``listed``: as one platform of a list."""
        data = (folder / "manifest.json").read_bytes()
        digest = self._serve(name, tag, _MANIFEST, data)
        self.blobs |= {f"sha256:{file.name}": file for file in folder.iterdir()}
        if listed:
            platforms = [
                {"mediaType": _MANIFEST, "digest": f"sha256:{'0' * 64}", "size": 1,
                 "platform": {"architecture": "s390x", "os": "linux"}},
                {"mediaType": _MANIFEST, "digest": digest, "size": len(data),
                 "platform": {"architecture": "amd64", "os": "linux"}},
            ]  # fmt: skip
            document = {"schemaVersion": 2, "mediaType": _LIST, "manifests": platforms}
            self._serve(name, tag, _LIST, json.dumps(document).encode())

    def _serve(self, name: str, tag: str, kind: str, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.manifests |= {f"{name}:{tag}": (kind, data), f"{name}@{digest}": (kind, data)}
        return digest

    def answer(self, path: str) -> loopback.Answer:
        self.asked.append(path)
        name, _, reference = path.removeprefix("/v2/").rpartition("/manifests/")
        blob = self.blobs.get(path.rpartition("/blobs/")[2])
        manifest = f"{name}{'@' if ':' in reference else ':'}{reference}"
        code, kind, body = 200, "application/json", b"{}"
        if self.failing:
            code, kind, body = 500, "text/plain", b""
        elif blob is not None:
            kind, body = "application/octet-stream", blob.read_bytes()
        elif manifest in self.manifests:
            kind, body = self.manifests[manifest]
        elif path != "/v2/":
            error = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}
            code, body = 404, json.dumps({"errors": [error]}).encode()
        return code, body, {"Content-Type": kind}


@contextmanager
def serving() -> Iterator[Registry]:
    """An empty registry that answers until the block ends."""
    registry = Registry()
    with loopback.answering(registry.answer) as registry.address:
        yield registry
