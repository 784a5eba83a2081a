"""Checkouts as users have them: vLLM with release tags, vLLM-Omni with its pins, a plug-in, another."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter, run_git
from tests.fakes.history import engine_files, with_step

PIN = "0123456789abcdef0123456789abcdef01234567"
"""A commit of vLLM."""

_IMAGE = "ARG VLLM_BASE_TAG=v0.24.0\nFROM vllm/vllm-openai:${VLLM_BASE_TAG} AS base\n"

DOCKERFILES = {
    "tag": "# vLLM v0.9.9, says a comment\n" + _IMAGE,
    "index": _IMAGE
    + f"RUN uv pip install --system vllm \\\n    --extra-index-url https://wheels.vllm.ai/{PIN}\n",
    "variable": _IMAGE + f"ENV VLLM_PRECOMPILED_WHEEL_COMMIT={PIN}\n",
    "unknown": "FROM scratch\n",
}
"""How a commit of vLLM-Omni names its vLLM; the last in no way that is known."""

PYPROJECT = b"""[build-system]
requires = ["setuptools"]

[project]
name = "vllm"  # the engine

[project.entry-points."vllm.general_plugins"]
resolver = "vllm.plugins:resolver"
"""

PLUGIN = b"""[project]
name = "vllm-toaster"

[project.entry-points."vllm.platform_plugins"]
toaster = "vllm_toaster:register"
"""


def vllm(path: Path, *, tags: bool = True, slow: int = 4) -> tuple[str, ...]:
    """Six commits of vLLM, as the pretend engine, slower from ``slow`` on.

    v0.31.0 and v0.32.0 are the first two. There are tags that are no releases, too, and
    one of a release that is younger than HEAD.
    """
    writer = HistoryWriter(path)
    start = {"pyproject.toml": PYPROJECT, "csrc/ops.cpp": b"int one() { return 1; }\n"}
    pace = engine_files()["vllm/pace.py"]
    writer.commit("Import the engine", engine_files() | start)
    for position in range(1, 6):
        step = {"vllm/pace.py": with_step(pace, 2.0)} if position == slow else {}
        name = f"vllm/note_{position}.py"
        writer.commit(f"[Core] Step {position} (#{100 + position})", {name: b"# A step.\n", **step})
    commits = writer.finish()
    if tags:
        who = ("-c", "user.name=Tester", "-c", "user.email=t@example.invalid", "-c", "tag.gpgsign=false")
        run_git(path, "tag", "v0.31.0", commits[0])
        run_git(path, *who, "tag", "-a", "-m", "A release", "v0.32.0", commits[1])
        for name in ("v0.33.0rc1", "nightly", "2026"):
            run_git(path, "tag", name, commits[2])
        later = HistoryWriter(path.with_name(f"{path.name}-later"))
        for _ in range(9):
            later.commit("A later line", {"vllm/__init__.py": b""})
        later.finish(checkout=False)
        run_git(path, "fetch", "--quiet", str(later.path), "main:refs/heads/later")
        run_git(path, "tag", "v9.0.0", "later")
        run_git(path, "branch", "-D", "later")
    return commits


def omni(path: Path, pin: str = "tag") -> tuple[str, ...]:
    """Two commits of vLLM-Omni on a vLLM that is named in one of the ways of ``DOCKERFILES``."""
    writer = HistoryWriter(path)
    setup = b'from setuptools import setup\n\nsetup(\n    name="vllm-omni",\n)\n'
    start = {"vllm_omni/__init__.py": b"", "setup.py": setup, "requirements/cuda.txt": b"# none\n"}
    if pin in DOCKERFILES:
        start["docker/Dockerfile.ci"] = DOCKERFILES[pin].encode()
    writer.commit("Import", start)
    writer.commit("[Perf] Faster talker (#2)", {"vllm_omni/talker.py": b"# fast\n"})
    commits = writer.finish()
    run_git(path, "tag", "v0.24.0", commits[0])
    return commits


def plugin(path: Path) -> tuple[str, ...]:
    """A hardware plug-in of vLLM."""
    writer = HistoryWriter(path)
    writer.commit("Import", {"pyproject.toml": PLUGIN, "vllm_toaster/__init__.py": b""})
    return writer.finish()


def another(path: Path, files: dict[str, bytes]) -> tuple[str, ...]:
    """A repository of something else."""
    writer = HistoryWriter(path)
    writer.commit("Import", files)
    return writer.finish()
