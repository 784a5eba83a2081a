"""A git repository whose ``vllm/`` is the pretend engine, with a planted slow commit and other traps."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfbisect.resources import shipped_folder
from tests.fakes.gitwriter import HistoryWriter

ENGINE = shipped_folder("pretend") / "engine"
"""Put this on PYTHONPATH, and ``vllm`` is the pretend engine."""

ENVIRONMENT = f"overlay:{sys.executable},base=any"
CLIENT = f"existing:{sys.executable},path={ENGINE}"
MEASURED_WITH = ("--env", ENVIRONMENT, "--client", CLIENT)
"""What a command measures the pretend engine with."""

CALM = {"LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}
"""Noise in which no search goes wrong by chance."""

HOSTILE_SUBJECT = (
    "Tidy \x1b[31mlogs\x1b[0m\x1b]0;owned\x07 \x9b2J\r| `code` <b>bold</b> [link](x) \u202egnp.exe"
)
"""Terminal escapes, a bell, a carriage return, Markdown, HTML and a right-to-left override."""

_HARMLESS = (
    "vllm/server.py",
    "vllm/noise.py",
    "vllm/prefix_cache.py",
    "vllm/processes.py",
    "vllm/entrypoints/cli/serve.py",
)


@dataclass(frozen=True)
class PretendHistory:
    """A written history; positions count from 0, the good end."""

    path: Path
    commits: tuple[str, ...]
    slow: int | None

    @property
    def good(self) -> str:
        return self.commits[0]

    @property
    def bad(self) -> str:
        return self.commits[-1]

    @property
    def culprit(self) -> str | None:
        """The full id of the planted commit."""
        return None if self.slow is None else self.commits[self.slow]


def engine_files() -> dict[str, bytes]:
    """Path in the repository -> content of the pretend engine's tree."""
    files = sorted((ENGINE / "vllm").rglob("*.py"))
    return {file.relative_to(ENGINE).as_posix(): file.read_bytes() for file in files}


def with_pace(source: bytes, name: str, value: float) -> bytes:
    """``pace.py`` with another value of a name."""
    changed, count = re.subn(
        rb"^%s = .*$" % name.encode(), b"%s = %r" % (name.encode(), value), source, flags=re.M
    )
    if count != 1:
        raise ValueError(f"pace.py has no {name}")
    return changed


def with_step(source: bytes, factor: float, name: str = "STEP_MS") -> bytes:
    """``pace.py`` with one of its numbers multiplied: by default the time of a step."""
    found = re.search(rb"^%s = ([0-9.]+)$" % name.encode(), source, re.MULTILINE)
    if found is None:
        raise ValueError(f"pace.py has no {name}")
    return source.replace(found[0], b"%s = %.4f" % (name.encode(), float(found[1]) * factor))


def make_history(
    path: Path,
    *,
    commits: int = 12,
    slow: int | None = 7,
    factor: float = 1.6,
    planted: str = "STEP_MS",
    broken: int | None = None,
    docs: Collection[int] = (),
    compiled: Collection[int] = (),
    hostile: int | None = None,
    faults: Mapping[int, str] | None = None,
    since: Mapping[int, str] | None = None,
    pace: Mapping[str, float] | None = None,
    checkout: bool = True,
) -> PretendHistory:
    """Write a repository of ``commits`` commits at ``path``, which must not exist.

    Each position that no other argument names is a harmless edit of a Python file.

    :param slow: position from which ``planted``, by default the time of a decoding step, is ``factor`` times
        as large (the culprit).
    :param broken: position that does not import; the next commit mends it.
    :param docs: positions that touch only ``docs/``; not after one of ``broken``, ``compiled``, ``faults``.
    :param compiled: positions that change ``csrc/``; the next commit takes it back.
    :param hostile: position whose subject is HOSTILE_SUBJECT.
    :param faults: position -> fault list of that commit alone.
    :param since: position -> fault list of that commit and all after it.
    :param pace: values of ``vllm/pace.py`` for the whole history, by name.
    """
    writer = HistoryWriter(path)
    files = engine_files()
    for name, value in (pace or {}).items():
        files["vllm/pace.py"] = with_pace(files["vllm/pace.py"], name, value)
    clean = dict(files)
    kernel, dependencies = b"int add(int a, int b) { return a + b; }\n", b"# none\n"
    start = {"csrc/ops.cpp": kernel, "requirements/common.txt": dependencies, "docs/notes.md": b"# Notes\n"}
    writer.commit("Import the engine", files | start)
    undo: dict[str, bytes | None] = {}
    for position in range(1, commits):
        changes, undo = undo, {}
        subject = f"Explain step {position}"
        if position in docs:
            if changes:
                raise ValueError(f"position {position} must take back {position - 1}: it cannot be docs only")
            subject = f"[Docs] Note {position}"
            changes["docs/notes.md"] = b"# Notes\n\nNote %d.\n" % position
        elif position == slow:
            subject = "[Core] Batch the bookkeeping of a step"
            clean["vllm/pace.py"] = changes["vllm/pace.py"] = with_step(
                clean["vllm/pace.py"], factor, planted
            )
        elif position == broken:
            subject = "[Refactor] Move the helpers"
            undo["vllm/__init__.py"] = clean["vllm/__init__.py"]
            changes["vllm/__init__.py"] = clean["vllm/__init__.py"].replace(
                b"from .faults import wanted", b"from .helpers.faults import wanted"
            )
        elif position in compiled:
            subject = "[Kernel] Add faster"
            changes["csrc/ops.cpp"], undo["csrc/ops.cpp"] = kernel.replace(b"a + b", b"b + a"), kernel
        elif since and position in since:
            subject = "[Core] Tidy the start"
            line = b'FAULT = "%s"' % since[position].encode()
            clean["vllm/faults.py"] = re.sub(rb'^FAULT = ".*"$', line, clean["vllm/faults.py"], flags=re.M)
            changes["vllm/faults.py"] = clean["vllm/faults.py"]
        elif faults and position in faults:
            subject = f"[Misc] Misbehave at {position}"
            undo["vllm/faults.py"] = clean["vllm/faults.py"]
            changes["vllm/faults.py"] = clean["vllm/faults.py"].replace(
                b'FAULT = ""', b'FAULT = "%s"' % faults[position].encode()
            )
        else:
            target = _HARMLESS[position % len(_HARMLESS)]
            clean[target] += b"\n# Step %d.\n" % position
            changes[target] = clean[target]
        writer.commit(HOSTILE_SUBJECT if position == hostile else subject, changes)
    return PretendHistory(path, writer.finish(checkout=checkout), slow)
