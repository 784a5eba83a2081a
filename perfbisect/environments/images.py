"""Container images by reference: whether a registry has them, their digests, and how they are fetched.

Registries are asked by the tools (podman, docker, enroot), with their own settings and logins.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfbisect.common.json_text import parse_json
from perfbisect.environments.base import Artifact
from perfbisect.environments.build import BuildRun
from perfbisect.environments.builders.wheel_index import State
from perfbisect.environments.kept import LINKS, KeptArtifact, KeptArtifacts
from perfbisect.errors import BuildError, FaultCode, MachineError
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
    unknown. ``problem``: why there is no image; ``silent``: the registry did not answer. ``kept``: its files
    here, found though the registry has the ``problem``.
    """

    state: State
    digest: str = ""
    bytes: int | None = None
    problem: str = ""
    kept: KeptArtifact | None = None


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
    """The images that a tool can run.

    ``program``: its command. ``kept``: images for when the registry has them no longer, or does not answer.
    """

    program: str
    kept: KeptArtifacts | None = None

    def find(self, references: Collection[str]) -> dict[str, ImageLookup]:
        """Look up references in parallel.

        Raises:
            MachineError: no registry answers.
        """
        local = self.local()
        absent = [name for name in references if name not in local]
        with ThreadPoolExecutor(min(_AT_ONCE, len(absent) or 1)) as pool:
            found = {
                name: self._or_kept(name, lookup)
                for name, lookup in zip(absent, pool.map(self.look_up, absent), strict=True)
            }
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
    def save(self, build: BuildRun, image: str, folder: Path) -> dict[str, str]:
        """Write an image that was fetched to a folder; returns its file, and the name that it is run by.

        Raises:
            MachineError: the tool or disk failed.
        """

    def artifact(self, reference: str, digest: str) -> Artifact:
        """An image, to be kept."""

        def save(build: BuildRun, folder: Path) -> dict[str, str]:
            return self.save(build, self.fetch(build, reference, digest, folder), folder)

        return Artifact(self._source(reference), save, digest)

    def _source(self, reference: str) -> str:
        return f"{self.program} {reference}"

    def _or_kept(self, reference: str, lookup: ImageLookup) -> ImageLookup:
        """A lookup; of an image that the registry does not have or say, what is kept of it."""
        kept = self.kept.find(self._source(reference)) if self.kept and lookup.state != "found" else None
        return replace(lookup, state="found", digest=kept.digest, bytes=0, kept=kept) if kept else lookup

    def _restore(self, build: BuildRun, reference: str, digest: str, folder: Path) -> tuple[Path, str] | None:
        """A link to what is kept of an image with this digest, and the name that it is run by.

        Raises:
            BuildError: it is damaged, and the registry does not have the image.
        """
        kept = self.kept.find(self._source(reference)) if self.kept else None
        if kept is None or kept.digest != digest or self.kept is None:
            return None
        build.note(f"# {reference} is taken from what was kept of it, {digest}")
        if links := self.kept.link(kept, folder):
            return links[0], kept.files[0].origin
        build.note("# what was kept is damaged: it is removed, and the registry asked")
        lookup = self.look_up(reference)
        if lookup.state == "hole":
            raise BuildError(f"no image: {lookup.problem}", where=build.log, code="image_missing")
        return None

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

    def _run(self, build: BuildRun, *argv: str, code: FaultCode = "hub_unreachable") -> None:
        output = build.run(argv, env=dict(os.environ), cwd=build.log.parent)
        if output.code or output.timed_out:
            what = f"{' '.join(argv)} ended with {output.ending}: {output.last_line}"
            raise MachineError(what, where=build.log, code=code, output=output.text)


class DaemonStore(ImageStore):
    """Images of podman or docker, which have the same commands for them."""

    FILE = "image.tar"

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
        """Pull what is neither there nor kept; a tag that moved since it was looked up is refused."""
        if self.has(digest):
            return digest
        links = folder / LINKS
        try:
            if restored := self._restore(build, reference, digest, links):
                archive, name = restored
                self._run(build, self.program, "load", "--input", str(archive), code="container_failed")
                if not self.has(name):
                    raise MachineError(f"{archive.name} of {reference} did not give {name}", where=build.log)
                return name
        finally:
            shutil.rmtree(links, ignore_errors=True)
        self._run(build, self.program, "pull", "--quiet", reference)
        image = _plain(str(self._inspect(reference).get("Id", "")))
        # Docker's containerd store names images by their manifest, so the registry is asked again.
        if image != digest and self.look_up(reference).digest != digest:
            raise MachineError(f"the tag of {reference} moved: {digest} is now {image}", where=build.log)
        return image

    def save(self, build: BuildRun, image: str, folder: Path) -> dict[str, str]:
        # Another form than its own would change an image's configuration, whose digest names it.
        is_oci = "oci" in str(self._inspect(image).get("ManifestType", ""))
        form = ("--format", "oci-archive" if is_oci else "docker-archive")
        words = form if self.program == "podman" else ()
        argv = (self.program, "save", *words, "--output", str(folder / self.FILE), image)
        self._run(build, *argv, code="container_failed")
        return {self.FILE: image}

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

    def save(self, build: BuildRun, image: str, folder: Path) -> dict[str, str]:
        del build, folder
        return {self.FILE: image}

    def _source(self, reference: str) -> str:
        # Both tools run the same file.
        return f"enroot {reference}"

    def fetch(self, build: BuildRun, reference: str, digest: str, folder: Path) -> str:
        if restored := self._restore(build, reference, digest, folder):
            return restored[1]
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
