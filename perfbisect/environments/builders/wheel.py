"""Wheels that a project's CI built for each commit, from an index whose address holds the commit.

The wheel is installed by its own address, so no other version can take its place, and the day before which
dependencies must have been published does not apply to it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments import uv
from perfbisect.environments.base import Environment, Refusal
from perfbisect.environments.builders.wheel_index import Answer, Asker, choose, links, page_of, supported
from perfbisect.environments.cache import Built, Cabinet, KeptBuilder, bytes_of, unread
from perfbisect.environments.health import check_built, fill
from perfbisect.environments.packages import BACKEND, Package
from perfbisect.environments.tree_digest import tree_digests
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from perfbisect.system.files import replace_file

CPU = "cpu"
DEFAULT = "default"
"""As the index has it at the commit's own address, whatever that was built for."""

_TABLE: tuple[tuple[tuple[int, int], tuple[str, ...]], ...] = (
    ((13, 0), ("cu130", "cu129", "cu128", "cu126")),
    ((12, 0), ("cu129", "cu128", "cu126", "cu124", "cu121")),
    ((11, 8), ("cu118",)),
)
"""CUDA version that a driver supports, at least -> builds that run on it, best first.

Within a major version a newer build runs on an older driver (CUDA's minor version compatibility), and a
driver runs what was built for an earlier major version.
"""
_DRIVERS: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (
    ((580, 0), (13, 0)),
    ((525, 60), (12, 0)),
    ((520, 61), (11, 8)),
)
"""Driver for Linux, at least -> the CUDA version it supports (NVIDIA's release notes of the CUDA toolkit)."""


def variants(cuda: tuple[int, int] | None) -> tuple[str, ...]:
    """Builds that a machine can run, best first; ``cuda``: what its driver supports, None without one."""
    if cuda is None:
        return (CPU,)
    return next((names for least, names in _TABLE if cuda >= least), (CPU,))


def cuda_of(told: str) -> tuple[int, int] | None:
    """The CUDA version that a driver supports, from ``nvidia-smi -q``; by the driver's number if need be."""
    said = re.search(r"^CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", told, re.MULTILINE)
    if said:
        return int(said[1]), int(said[2])
    driver = re.search(r"^Driver Version\s*:\s*(\d+)\.(\d+)", told, re.MULTILINE)
    if driver is None:
        return None
    number = (int(driver[1]), int(driver[2]))
    return next((cuda for least, cuda in _DRIVERS if number >= least), None)


def driver_cuda() -> tuple[int, int] | None:
    """The CUDA version that this machine's driver supports; None without a driver that answers."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "-q"], capture_output=True, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return cuda_of(done.stdout) if done.returncode == 0 else None


_UNPACKED = 3
"""A wheel of compiled files takes about so many times its size when it is unpacked."""


class WheelBuilder(KeptBuilder):
    """``wheel:URL``: the change is a commit; ``variants`` are the builds that may be taken, best first."""

    name = "wheel"

    def __init__(
        self,
        spec: str,
        template: str,
        variants: tuple[str, ...],
        package: Package,
        cabinet: Cabinet,
        limits: uv.Limits,
        python: str,
        repository: Repository,
        client: Change | None,
        asker: Asker | None = None,
    ) -> None:
        self.spec = spec
        self.template = template
        self.variants = variants
        self.package = package
        self.cabinet = cabinet
        self.limits = limits
        self.python = python
        self.repository = repository
        self.client_commit = client
        self.asker = asker or Asker()
        self._variant: str | None = None
        self._answers: dict[str, Answer] = {}
        self._trees: dict[str, str | None] = {}

    def prepare(self, changes: Iterable[Change]) -> None:
        """Choose the variant, once, and ask the index for every commit.

        :raises MachineError: the index answers for none of them.
        """
        changes = list(changes)
        unknown = unread(changes, self._trees)
        if unknown:
            self._trees |= tree_digests(self.repository, unknown, "", whole=False)
        unknown = unread(changes, self._answers)
        if not unknown:
            return
        if self._variant is None:
            self._variant = self._choose(unknown[0], unknown[-1])
        found = self._ask(unknown, self._variant)
        self._must_answer(found.values())
        self._answers |= found

    def refuses(self, change: Change) -> Refusal | None:
        if change.kind != "commit":
            return Refusal(f"{self.spec} has commits; {change.id} is a release", error=True)
        self.prepare((change,))
        answer = self._answers[change.id]
        return Refusal(f"no wheel: {answer.why}") if answer.state == "hole" else None

    def key(self, change: Change) -> str:
        if self.refuses(change) is not None:
            return environment_key("wheel refused/1", self.template, self._variant, change.id)
        return environment_key(
            "wheel/1",
            self.template,
            self._variant,
            self.package.name,
            self.package.module,
            self.package.drop,
            self._trees[change.id],
            self.python or uv.base_python_version(),
            *self.limits.digested(),
        )

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:

        def make(staging: Path) -> None:
            fill(
                staging,
                [f"{self.package.name} @ {self._wheel(change).url}"],
                package=self.package,
                limits=self.limits,
                python=self.python,
                log=log,
                timeout=timeout,
                torch_backend=self._variant if self._variant and BACKEND.match(self._variant) else "",
            )

        def check(folder: Path) -> Built:
            answer = self._wheel(change)
            facts = {"wheel": answer.url, "variant": self._variant or DEFAULT, **self.limits.facts()}
            return check_built(
                folder, self.package, self.repository, change, inside=self.package.folder,
                what=f"{change.short} ({answer.file})", facts=facts, log=log, timeout=timeout,
            )  # fmt: skip

        return self.kept(change, make=make, check=check, timeout=timeout)

    def notes(self) -> tuple[str, ...]:
        told = []
        rest = ", ".join(name for name in self.variants if name and name != self._variant)
        if self._variant:
            others = f" (it also runs {rest}: variant=NAME)" if rest else ""
            told.append(f"wheels of the variant {self._variant}, which this machine runs{others}")
        elif self._variant is not None and rest:
            told.append(
                f"the index does not have {rest}, which this machine runs, for both ends: wheels are those "
                "at the commit's own address, whatever they were built for"
            )
        for state, words in (("hole", "has no wheel for"), ("silent", "did not answer for")):
            rows: dict[str, list[str]] = {}
            for sha, answer in self._answers.items():
                if answer.state == state:
                    rows.setdefault(answer.problem, []).append(sha[:12])
            if rows:
                named = "; ".join(f"{', '.join(shas)} ({why})" for why, shas in rows.items())
                count = sum(map(len, rows.values()))
                told.append(f"the index {words} {count} of {len(self._answers)} commits: {named}")
        return tuple(told)

    def disk(self, changes: Iterable[Change]) -> int | None:
        missing = self.missing(changes)
        known = bytes_of(self.stamps(), missing)
        if known is not None:
            return known
        url = self._answers[next(iter(missing.values())).id].url
        size = self.asker.size(url) if url else None
        return None if size is None else size * _UNPACKED * len(missing)

    def page(self, sha: str, variant: str) -> str:
        """Address of the page that lists a commit's wheels."""
        return page_of(self.template, sha, variant, self.package.distribution)

    def _wheel(self, change: Change) -> Answer:
        """:raises MachineError: the index still does not answer."""
        answer = self._answers[change.id]
        if answer.state == "silent":
            found = self._ask([change.id], self._variant or "")
            self._must_answer(found.values())
            self._answers |= found
            answer = self._answers[change.id]
        if answer.state == "hole":
            raise BuildError(f"{change.short}: no wheel: {answer.why}")
        return answer

    def _ask(self, shas: Iterable[str], variant: str) -> dict[str, Answer]:
        fits = supported(self.python)
        return self.asker.pages(
            {sha: self.page(sha, variant) for sha in shas},
            lambda sha, url, text: choose(links(text, url), self.package.distribution, sha, fits),
        )

    def _must_answer(self, answers: Iterable[Answer], *, each: bool = False) -> None:
        """:raises MachineError: none of them is an answer (``each``: one of them is not)."""
        rows = list(answers)
        silent = [answer for answer in rows if answer.state == "silent"]
        if silent and (each or len(silent) == len(rows)):
            raise MachineError(
                f"the wheel index {self.template} does not answer: {silent[0].why}",
                next_step="check network, proxy and address, then start again",
                code="hub_unreachable",
            )

    def _choose(self, first: str, last: str) -> str:
        """The first variant that both ends have, or one of them; remembered for the same ends."""
        if len(self.variants) == 1:
            return self.variants[0]
        memory = (
            self.cabinet.cache
            / "indices"
            / environment_key(self.template, self.package.name, self.variants, first, last)
        )
        if memory.is_file() and memory.read_text().strip() in self.variants:
            return memory.read_text().strip()
        ends = list(dict.fromkeys((first, last)))
        best, most = self.variants[0], 0
        for variant in self.variants:
            found = self._ask(ends, variant)
            self._must_answer(found.values(), each=True)
            count = sum(answer.state == "found" for answer in found.values())
            if count > most:
                best, most = variant, count
            if count == len(ends):
                break
        if most:
            memory.parent.mkdir(parents=True, exist_ok=True)
            replace_file(memory, f"{best}\n")
        return best
