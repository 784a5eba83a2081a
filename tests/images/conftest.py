"""A container tool that works here, and images of the pretend engine's commits.

podman with a storage of its own; ``IMAGE_TOOL=docker`` takes the daemon that the ``docker`` command finds.
"""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder, Environment
from perfbisect.environments.container import LABEL
from perfbisect.environments.factory import make_builder
from perfbisect.model.change import Change
from tests.fakes.history import PretendHistory, make_history

TOOL = os.environ.get("IMAGE_TOOL", "podman")
BASE = "localhost/pretend-base:1"
NAME = "localhost/pretend"
OURS = "perfbisect.test=images"
GOOD, MISSING, LAST_GOOD, SLOW, BAD = range(5)
"""Commits of the history; the second has no image."""
_UNUSED = re.compile(r"/(site-packages|test|idlelib|ensurepip|tkinter|config-[^/]*|__pycache__)(/|$)")


def tool(*arguments: str) -> str:
    done = subprocess.run([TOOL, *arguments], capture_output=True, check=False, timeout=100)
    assert done.returncode == 0, f"{TOOL} {arguments}: {done.stderr.decode()}"
    return done.stdout.decode()


def image_id(name: str) -> str:
    return f"sha256:{tool('image', 'inspect', '--format', '{{.Id}}', name).strip().removeprefix('sha256:')}"


def python_root() -> bytes:
    """This Python with its libraries, as a root file system."""
    python, library = Path(os.path.realpath(sys.executable)), Path(sysconfig.get_path("stdlib"))
    modules = [*(library / "lib-dynload").glob("*.so"), python]
    listed = subprocess.run(["ldd", *modules], capture_output=True, text=True, check=False).stdout
    needed = {Path(found) for found in re.findall(r"(?:=> |^\t)(/\S+) \(0x", listed, re.MULTILINE)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in (python, *sorted(needed)):
            archive.add(path.resolve(), str(path))
        archive.add(library, filter=lambda entry: None if _UNUSED.search(entry.name) else entry)
        for name, kind, target in (
            ("usr/bin/python3", tarfile.SYMTYPE, str(python)),
            ("tmp", tarfile.DIRTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = kind, target, 0o1777
            archive.addfile(entry)
    return packed.getvalue()


@dataclass(frozen=True)
class ImageWorld:
    """A history of the pretend engine, with images of its commits."""

    history: PretendHistory

    @property
    def repository(self) -> Repository:
        return Repository.open(self.history.path)

    def change(self, position: int) -> Change:
        return Change(self.history.commits[position])

    def builder(self, cache: Path, argument: str = f"{NAME}:{{sha}}", more: str = "") -> Builder:
        return make_builder(f"image:{argument},tool={TOOL}{more}", repository=self.repository, cache=cache)

    def environment(self, cache: Path, position: int = 0, more: str = "") -> Environment:
        builder = self.builder(cache, more=more)
        return builder.ensure(self.change(position), log=cache / "build.log", timeout=60)

    def build(self, tag: str, *, of: int = 0, label: str = "", files: Mapping[str, str] | None = None) -> str:
        """An image of a commit under a tag; ``files``: of the engine, beside or in place of the commit's."""
        sha = self.history.commits[of]
        with tempfile.TemporaryDirectory() as name:
            command = ["git", "-C", str(self.history.path), "archive", sha, "vllm"]
            tree = subprocess.run(command, capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
                archive.extractall(name)
            for path, text in (files or {}).items():
                (Path(name) / "vllm" / path).write_text(text)
            site = Path(sysconfig.get_path("stdlib")) / "site-packages" / "vllm"
            lines = [f"FROM {BASE}", f"COPY vllm {site}"]
            lines += [f"LABEL org.opencontainers.image.revision={label}"] if label else []
            (Path(name) / "Containerfile").write_text("\n".join(lines))
            words = ("--file", f"{name}/Containerfile", "--tag", f"{NAME}:{tag}", "--label", OURS)
            tool("build", "--quiet", *words, name)
        return f"{NAME}:{tag}"


def containers() -> list[str]:
    """Containers of perfbisect, running or ended, as their users find them."""
    return tool("ps", "--all", "--quiet", "--filter", f"label={LABEL}").split()


def await_no_container() -> None:
    """A killed container is removed a moment after its last process."""
    deadline = time.monotonic() + 20.0
    while containers():
        assert time.monotonic() < deadline, tool("ps", "--all")
        time.sleep(0.05)


def problem_of_a_container(root: bytes) -> str:
    """Why the tool runs none; empty if it does. ``root``: the file system of :data:`BASE`, which is made."""
    command = [TOOL, "import", "--change", "ENV PATH=/usr/bin", "-", BASE]
    done = subprocess.run(command, input=root, capture_output=True, check=False)
    if done.returncode == 0:
        command = [TOOL, "run", "--rm", "--network=host", "--init", BASE, "python3", "-V"]
        done = subprocess.run(command, capture_output=True, check=False)
    return (done.stderr.decode().strip() or f"exit code {done.returncode}") if done.returncode else ""


@pytest.fixture(scope="session")
def working_tool() -> Iterator[None]:
    """The tool, with a driver and a runtime that work here. Fails, and says so, where none does."""
    if shutil.which(TOOL) is None:
        pytest.fail(f"there is no {TOOL}: make test-images installs podman", pytrace=False)
    problems = yield from (podmans() if TOOL == "podman" else daemon())
    if problems:
        needs = (
            "podman needs user namespaces, or root that may mount" if TOOL == "podman" else "is it running?"
        )
        pytest.fail(f"{TOOL} runs no container here ({needs}):\n" + "\n".join(problems), pytrace=False)


def daemon() -> Generator[None, None, list[str]]:
    if problem := problem_of_a_container(python_root()):
        return [problem]
    yield
    names = tool("images", "--format={{.Repository}}:{{.Tag}}", f"--filter=reference={NAME}*").split()
    tool("image", "rm", *names)
    tool("image", "prune", "--force", f"--filter=label={OURS}")
    return []


def podmans() -> Generator[None, None, list[str]]:
    """Try each driver with each runtime, in a storage of its own; the problems, if none works."""
    # Sockets are made below it, whose paths must be short.
    folder = Path(tempfile.mkdtemp(prefix="pbi-"))
    patch, root = pytest.MonkeyPatch(), python_root()
    nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    nproc = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 32768)
    patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
    problems: list[str] = []
    try:
        for driver, runtime in product(("overlay", "vfs"), ("crun", "runc")):
            if shutil.which(runtime) is None:
                continue
            store = folder / f"{driver}-{runtime}"
            (folder / "storage.conf").write_text(
                f'[storage]\ndriver = "{driver}"\ngraphroot = "{store}/graph"\nrunroot = "{store}/run"\n'
            )
            (folder / "containers.conf").write_text(
                f'[containers]\ndefault_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]\n'
                f'[engine]\nruntime = "{runtime}"\nevents_logger = "file"\n'
            )
            problem = problem_of_a_container(root)
            if not problem:
                yield
                return []
            problems.append(f"{driver}, {runtime}: {problem}")
        return problems or ["no crun and no runc"]
    finally:
        subprocess.run(["podman", "system", "reset", "--force"], capture_output=True, check=False)
        patch.undo()
        mounts = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
        for place in [place for place in mounts if Path(place).is_relative_to(folder)]:
            subprocess.run(["umount", place], check=False)  # podman leaves its overlay's
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def images(working_tool: None, tmp_path_factory: pytest.TempPathFactory) -> ImageWorld:
    del working_tool
    folder = tmp_path_factory.mktemp("images")
    pace = {"LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}
    world = ImageWorld(make_history(folder / "repo", commits=5, slow=SLOW, factor=2.5, pace=pace))
    for position in (GOOD, LAST_GOOD, SLOW, BAD):
        sha = world.history.commits[position]
        world.build(sha, of=position, label=sha)
    return world


@pytest.fixture(autouse=True)
def no_container_is_left(images: ImageWorld) -> Iterator[None]:
    del images
    yield
    await_no_container()
