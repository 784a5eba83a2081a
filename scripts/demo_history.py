"""Make a git repository with a slow commit in it, from the Python tree of an installed vLLM.

Commit 0 is the package as it was released, less what a build makes. Each later commit is a small harmless
edit, but for one that slows the scheduler, one that does not import, and one of documentation.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter

SHARE = 0.58
"""The planted commit spends this share of each measured step once more: +50 to 70 % time per output token."""

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
BROKEN = "vllm/env_override.py"

TARGETS = (
    "vllm/v1/core/kv_cache_manager.py",
    "vllm/v1/engine/core.py",
    "vllm/v1/worker/gpu_model_runner.py",
    "vllm/entrypoints/openai/api_server.py",
    "vllm/v1/core/block_pool.py",
    "vllm/sampling_params.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/engine/output_processor.py",
    "vllm/model_executor/models/llama.py",
    "vllm/v1/worker/cpu_worker.py",
    "vllm/v1/engine/detokenizer.py",
    "vllm/v1/core/sched/request_queue.py",
    "vllm/v1/request.py",
    "vllm/v1/worker/gpu_input_batch.py",
    "vllm/v1/engine/async_llm.py",
    "vllm/v1/executor/multiproc_executor.py",
    "vllm/v1/worker/cpu_model_runner.py",
    "vllm/v1/sample/sampler.py",
    "vllm/v1/core/kv_cache_utils.py",
    "vllm/v1/core/sched/utils.py",
)

GENERATED = ("vllm/_version.py", "vllm_omni/_version.py")
"""What a build writes and no repository tracks."""

BUILD_FILES = {
    "CMakeLists.txt": b"project(vllm_extensions LANGUAGES CXX)\n",
    "csrc/README.md": b"The sources of the compiled files are not part of this demonstration.\n",
    "requirements/cpu.txt": b"torch\n",
    "docs/usage.md": b"# Usage\n\nSee `vllm serve --help`.\n",
}


@dataclass(frozen=True)
class Places:
    """Positions of the planted commits, from 1; 0: there is none."""

    planted: int
    broken: int = 0
    docs: int = 0


@dataclass(frozen=True)
class Demo:
    """A written demonstration; ids are full commit ids."""

    path: Path
    commits: tuple[str, ...]
    places: Places

    @property
    def planted(self) -> str:
        return self.commits[self.places.planted]

    def facts(self) -> dict[str, object]:
        """What was planted, for a machine."""
        named = {name: self.commits[at] for name, at in asdict(self.places).items() if at}
        return {"repo": str(self.path), "good": self.commits[0], "bad": self.commits[-1], **named}


def package_files(site_packages: Path) -> dict[str, bytes]:
    """The tracked files of vLLM by path."""
    files = tracked_files(site_packages, "vllm")
    if SCHEDULER not in files:
        raise SystemExit(f"{site_packages} holds no vLLM: {SCHEDULER} is not there")
    return files


def tracked_files(site_packages: Path, package: str) -> dict[str, bytes]:
    """A package's files by path: all but compiled files and what a build generates."""
    files: dict[str, bytes] = {}
    for file in sorted((site_packages / package).rglob("*")):
        name = file.relative_to(site_packages).as_posix()
        skipped = file.suffix in (".so", ".pyc") or "__pycache__" in file.parts or name in GENERATED
        if file.is_file() and not skipped:
            files[name] = file.read_bytes()
    return files


def draw_places(commits: int, seed: int) -> Places:
    """Where the planted, the broken and the documentation commit stand among ``commits`` after the release.

    The planted one may be any, the first and the last too. The culprit can be told from its neighbours: it
    does not mend the broken commit, nor come before the documentation.
    """
    draw = random.Random(seed)
    planted = draw.randrange(1, commits + 1)
    others = [p for p in range(2, commits - 1) if abs(p - planted) > 1]
    broken = draw.choice(others)
    docs = draw.choice([p for p in others if abs(p - broken) > 1])
    return Places(planted, broken, docs)


def comment(source: str, number: int) -> str:
    """A remark at the end of the module."""
    return f"{source.rstrip()}\n\n# NOTE: reviewed for step {number} of the tidy-up.\n"


def docstring(source: str, number: int) -> str:
    """A docstring for the first undocumented function whose body starts on a line of its own."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is not None:
            continue
        first = node.body[0]
        above = lines[first.lineno - 2].rstrip()
        if first.lineno > node.lineno and above.endswith(":") and not getattr(first, "decorator_list", ()):
            text = f'{" " * first.col_offset}"""{node.name.strip("_").replace("_", " ").capitalize()}."""\n'
            return "".join([*lines[: first.lineno - 1], text, *lines[first.lineno - 1 :]])
    return comment(source, number)


def log_line(source: str, number: int) -> str:
    """A debug line when the module has been read."""
    if "\nlogger = init_logger(__name__)\n" not in source:
        return comment(source, number)
    return f'{source.rstrip()}\n\nlogger.debug("Module loaded (%s)", __name__)\n'


def helper(source: str, number: int) -> str:
    """A private helper that nothing calls yet."""
    body = f'def _tidy_{number}() -> str:\n    """Name of this module."""\n    return __name__\n'
    return f"{source.rstrip()}\n\n\n{body}"


EDITS: tuple[tuple[str, Callable[[str, int], str]], ...] = (
    ("[Doc] Document a function of {name}", docstring),
    ("[Misc] Debug line in {name}", log_line),
    ("[Refactor] Prepare {name} for the tidy-up", helper),
    ("[Misc] Remark in {name}", comment),
)


def _insert(source: str, before: str, text: str) -> str:
    if source.count(before) != 1:
        raise SystemExit(
            f"{SCHEDULER} is not the one this demonstration knows: {before.strip()!r} is not there once"
        )
    return source.replace(before, text + before)


def slow(source: str, share: float = SHARE) -> str:
    """The planted change: check the block accounting of the running requests after every step, at length."""
    source = _insert(
        source,
        "        # Clear the finished and preempted request IDs.\n",
        "        self._scheduled_at = time.perf_counter()\n\n",
    )
    head = "    def _update_request_as_session(\n"
    source = _insert(
        source,
        head,
        "    def _check_block_accounting(self) -> None:\n"
        '        """Check that every running request holds the blocks of its tokens.\n'
        "\n"
        "        The check may take a share of the step that it checks.\n"
        '        """\n'
        '        started = getattr(self, "_scheduled_at", None)\n'
        "        if started is None:\n"
        "            return\n"
        "        now = time.perf_counter()\n"
        f"        until = now + {share} * min(now - started, 0.1)\n"
        "        checked = 0\n"
        "        while time.perf_counter() < until:\n"
        "            for request in self.running:\n"
        "                checked += request.num_computed_tokens <= request.num_tokens\n"
        "\n",
    )
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "update_from_output":
            at = node.body[0].lineno - 1
            return "".join([*lines[:at], "        self._check_block_accounting()\n", *lines[at:]])
    raise SystemExit(f"{SCHEDULER} is not the one this demonstration knows: no update_from_output")


def broken(source: str) -> str:
    """An import of a module that is not there."""
    line = "from vllm.utils.environment_compat import apply_overrides  # noqa: E402, F401"
    return f"{source.rstrip()}\n\n{line}\n"


FAILURES = {
    "start": ("__init__", 'raise ValueError(f"no room for 3 tables of {kv_cache_config.num_blocks} blocks")'),
    "load": (
        "schedule",
        'self._steps = getattr(self, "_steps", 0) + 1\n'
        "        if self._steps > 40:\n"
        '            raise RuntimeError(f"step {self._steps} has no place in the table")',
    ),
    "hang": ("schedule", "while self.waiting:\n            time.sleep(1.0)"),
}
"""Kind of failure -> the method of the scheduler that brings it, and its new first lines."""


def failing(source: str, kind: str) -> str:
    """The scheduler with one of the failures."""
    method, text = FAILURES[kind]
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == "Scheduler":
            found = next(x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == method)
            at = found.body[0].lineno - 1
            return "".join([*lines[:at], f"        {text}\n", *lines[at:]])
    raise SystemExit(f"{SCHEDULER} is not the one this demonstration knows: no class Scheduler")


def make(
    site_packages: Path,
    path: Path,
    *,
    commits: int,
    places: Places,
    share: float = SHARE,
    failure: str = "",
) -> Demo:
    """Write the repository; ``commits`` counts those after the release.

    ``failure``: what the planted commit brings in place of slowness, by its kind.
    """
    files = package_files(site_packages)
    writer = HistoryWriter(path)
    writer.commit("Import the released package", {**BUILD_FILES, **files})
    turn = 0
    mend: dict[str, bytes | None] = {}
    for position in range(1, commits + 1):
        changes: dict[str, bytes | None] = dict(mend)
        mend = {}
        if position == places.planted:
            subject, target = "[Core] Check block accounting after each step", SCHEDULER
            source = files[target].decode()
            edited = failing(source, failure) if failure else slow(source, share)
        elif position == places.broken:
            subject, target = "[Refactor] Move the environment overrides", BROKEN
            edited = broken(files[target].decode())
            mend = {BROKEN: files[BROKEN]}
        elif position == places.docs:
            subject, target = "[Doc] Say more about usage", "docs/usage.md"
            edited = BUILD_FILES[target].decode() + "\nStart with a small model.\n"
        else:
            target = TARGETS[turn % len(TARGETS)]
            template, edit = EDITS[turn % len(EDITS)]
            turn += 1
            subject, edited = template.format(name=Path(target).stem), edit(files[target].decode(), position)
        if target.endswith(".py"):
            compile(edited, target, "exec")
            if position != places.broken:
                files[target] = edited.encode()
        changes[target] = edited.encode()
        writer.commit(subject, changes)
    return Demo(path, writer.finish(), places)
