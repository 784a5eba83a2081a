"""Container images by reference: whether a registry has them, their digests, and how they are fetched.

Registries are asked by the tools (podman, docker, enroot), with their own settings and logins.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.common.json_text import parse_json
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.wheel_index import State
from perfbisect.errors import MachineError
from perfbisect.system.commands import capture
from perfbisect.system.logs import excerpt

_AT_ONCE = 16
_TIMEOUT_S = 60.0
_ABSENT = re.compile(
    r"manifest unknown|no such manifest|name unknown|(?:artifact|repository) \S+ not found|error code: 404",
    re.IGNORECASE,
)
"""How registries and tools say that there is no such image; whatever else they say is no answer."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class ImageLookup:
    """Result of looking up a reference.

    ``digest``: of the image's configuration, which names its content. ``bytes``: to download, None if
    unknown. ``problem``: why there is no image; ``silent``: the registry did not answer.
    """

    state: State
    digest: str = ""
    bytes: int | None = None
    problem: str = ""


def full_reference(reference: str) -> str:
    """A reference with its registry: ``vllm/vllm-openai:v1`` -> ``docker.io/vllm/vllm-openai:v1``."""
    first, slash, _ = reference.partition("/")
    if slash and (set(first) & {".", ":"} or first == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"


def run_tool(*argv: str, timeout: float = _TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a tool's command with the user's environment; as :func:`capture` does."""
    return capture(argv, timeout, {**os.environ, "LC_ALL": "C"})


def _checked(*argv: str) -> subprocess.CompletedProcess[str]:
    """Like ``run_tool``; MachineError if it fails."""
    done = run_tool(*argv)
    if done.returncode:
        raise MachineError(f"{' '.join(argv[:2])}: {problem_of(done)}", code="container_failed")
    return done


def problem_of(done: subprocess.CompletedProcess[str]) -> str:
    """Why a container tool failed."""
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return excerpt(lines[-1]) if lines else f"{done.args[0]} ended with exit code {done.returncode}"


def _failed(done: subprocess.CompletedProcess[str]) -> ImageLookup:
    return ImageLookup("hole" if _ABSENT.search(done.stderr) else "silent", problem=problem_of(done))


@dataclass
class ImageStore(ABC):
    """The images that a tool can run. ``program``: its command."""

    program: str

    def find(self, references: Collection[str]) -> dict[str, ImageLookup]:
        """Look up references in parallel.

        Raises:
            MachineError: no registry answers.
        """
        local = self.local()
        absent = [name for name in references if name not in local]
        with ThreadPoolExecutor(min(_AT_ONCE, len(absent) or 1)) as pool:
            found = dict(zip(absent, pool.map(self.look_up, absent), strict=True))
        silent = [lookup.problem for lookup in found.values() if lookup.state == "silent"]
        if silent and len(silent) == len(references):
            raise MachineError(
                f"no registry answers {self.program}: {silent[0]}",
                next_step=f"check network, proxy and login: {self.program} login REGISTRY",
                code="hub_unreachable",
            )
        return {name: found.get(name) or local[name] for name in references}

    @abstractmethod
    def local(self) -> Mapping[str, ImageLookup]:
        """The images that are on this machine, by reference."""

    @abstractmethod
    def look_up(self, reference: str) -> ImageLookup:
        """Ask the registry."""

    @abstractmethod
    def fetch(self, build: BuildRun, reference: str, digest: str, folder: Path) -> str:
        """Bring an image with this digest to this machine; returns the name by which the tool runs it.

        Raises:
            MachineError: the registry, network or disk failed.
        """

    @abstractmethod
    def version(self) -> str:
        """What the tool says of itself; MachineError if it does not work for this user."""

    def has(self, image: str) -> bool:
        """Whether an image that was fetched is still there."""
        del image
        return True

    def labels(self, image: str) -> Mapping[str, str]:
        """Labels of an image that was fetched, as far as the tool knows them."""
        del image
        return {}

    def _run(self, build: BuildRun, *argv: str) -> None:
        output = build.run(argv, env=dict(os.environ), cwd=build.log.parent)
        if output.code or output.timed_out:
            what = f"{' '.join(argv)} ended with {output.ending}: {output.last_line}"
            raise MachineError(what, where=build.log, code="hub_unreachable", output=output.text)


class DaemonStore(ImageStore):
    """Images of podman or docker, which have the same commands for them."""

    def local(self) -> Mapping[str, ImageLookup]:
        row = "{{.Repository}}:{{.Tag}} {{.ID}}"
        done = _checked(self.program, "images", "--no-trunc", "--format", row)
        rows = (line.split(" ") for line in done.stdout.splitlines() if line.count(" ") == 1)
        return {full_reference(name): ImageLookup("found", _plain(image), 0) for name, image in rows}

    def look_up(self, reference: str) -> ImageLookup:
        """Read the manifest; of a list, the one for this machine's processor."""
        if reference.startswith("localhost/"):
            # localhost/ names an image of this machine, which no registry has.
            return ImageLookup("hole", problem=f"{self.program} has no image {reference}")
        document = self._manifest(reference)
        if isinstance(document, Mapping) and isinstance(document.get("manifests"), list):
            wanted = _ARCHITECTURES.get(platform.machine(), platform.machine())
            digests = [
                str(row.get("digest"))
                for row in document["manifests"]
                if row.get("platform", {}).get("architecture") == wanted
                and row["platform"].get("os") == "linux"
            ]
            if not digests:
                return ImageLookup("hole", problem=f"no image for {wanted} at {reference}")
            untagged = re.sub(r":[^:/]*$", "", reference)
            document = self._manifest(f"{untagged}@{digests[0]}")
        if isinstance(document, ImageLookup):
            return document
        try:
            size = sum(int(layer["size"]) for layer in document["layers"])
            return ImageLookup("found", _plain(document["config"]["digest"]), size)
        except (KeyError, TypeError, ValueError):
            return ImageLookup("silent", problem=f"the manifest of {reference} names no configuration")

    def _manifest(self, reference: str) -> Any:
        """The document; a lookup if there is none."""
        done = run_tool(self.program, "manifest", "inspect", reference)
        if done.returncode:
            return _failed(done)
        try:
            return parse_json(done.stdout)
        except ValueError:
            return ImageLookup("silent", problem=problem_of(done))

    def fetch(self, build: BuildRun, reference: str, digest: str, folder: Path) -> str:
        """Pull what is not there; a tag that moved since it was looked up is refused."""
        del folder
        if self.has(digest):
            return digest
        self._run(build, self.program, "pull", "--quiet", reference)
        image = _plain(str(self._inspect(reference).get("Id", "")))
        # Docker's containerd store names images by their manifest, so the registry is asked again.
        if image != digest and self.look_up(reference).digest != digest:
            raise MachineError(f"the tag of {reference} moved: {digest} is now {image}", where=build.log)
        return image

    def has(self, image: str) -> bool:
        return bool(self._inspect(image))

    def labels(self, image: str) -> Mapping[str, str]:
        return self._inspect(image).get("Config", {}).get("Labels") or {}

    def version(self) -> str:
        """``info`` needs a daemon, or user namespaces and a storage."""
        _checked(self.program, "info")
        return _checked(self.program, "--version").stdout.strip()

    def _inspect(self, image: str) -> dict[str, Any]:
        """What the tool knows of a local image; empty if it is not there."""
        done = run_tool(self.program, "image", "inspect", image)
        with suppress(ValueError):
            rows = parse_json(done.stdout) if done.returncode == 0 else []
            if isinstance(rows, list) and rows and isinstance(rows[0], dict):
                return rows[0]
        return {}


class SquashStore(ImageStore):
    """Images as files that enroot makes, which Slurm's pyxis runs as well."""

    FILE = "image.sqsh"

    def local(self) -> Mapping[str, ImageLookup]:
        return {}

    def look_up(self, reference: str) -> ImageLookup:
        done = run_tool("enroot", "digest", _uri(reference))
        digest = done.stdout.strip()
        return _failed(done) if done.returncode or not digest else ImageLookup("found", digest)

    def version(self) -> str:
        own = [_checked(self.program, "--version").stdout.strip()] if self.program != "enroot" else []
        return ", ".join(["enroot " + _checked("enroot", "version").stdout.strip(), *own])

    def fetch(self, build: BuildRun, reference: str, digest: str, folder: Path) -> str:
        del digest
        self._run(build, "enroot", "import", "--output", str(folder / self.FILE), _uri(reference))
        return self.FILE


def _plain(digest: str) -> str:
    return f"sha256:{digest.removeprefix('sha256:')}"


def _uri(reference: str) -> str:
    """As enroot writes it: ``docker://REGISTRY#NAME:TAG``, without the registry for Docker's own."""
    registry, _, name = reference.partition("/")
    return f"docker://{name}" if registry == "docker.io" else f"docker://{registry}#{name}"


STORES: dict[str, tuple[type[ImageStore], str]] = {
    "podman": (DaemonStore, "podman"),
    "docker": (DaemonStore, "docker"),
    "enroot": (SquashStore, "enroot"),
    "pyxis": (SquashStore, "srun"),
}
"""How each tool's images are found, and its command; in the order in which tools are looked for."""
