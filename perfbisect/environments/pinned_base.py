"""The engine that a pin names, with the requirements of what stands on it: one environment for each pair.

It is made as the project's own image is: the engine, then the requirements over it, then the packages that
the image replaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from perfbisect.core.pins import DOCKERFILE, Pins
from perfbisect.environments import Environment, uv
from perfbisect.environments.base import Built, Cabinet, as_environment
from perfbisect.environments.declared import Declared
from perfbisect.environments.experience import earlier, median_bytes, median_minutes
from perfbisect.environments.identity import said_commit
from perfbisect.environments.index import Answer, Asker, choose, links, page_of, supported
from perfbisect.environments.keys import digest
from perfbisect.environments.packages import BACKEND, Package
from perfbisect.environments.release import add_alias, same_version
from perfbisect.environments.variants import DEFAULT
from perfbisect.environments.venv import PACKAGES_FILE, as_built, fill, look, site_packages
from perfbisect.errors import BuildError, MachineError

_NAME = "pinned base"


@dataclass(frozen=True)
class Origin:
    """Where the engine of a pin comes from.

    ``release``: its distribution in the registry. ``template``: the address of an index of wheels with
    ``{sha}`` in it, empty: none. ``variants``: builds that may be taken of it, best first.
    """

    release: Package
    template: str = ""
    variants: tuple[str, ...] = ("",)
    python: str = ""


class PinnedBases:
    """Environments of pins."""

    def __init__(self, spec: str, origin: Origin, cabinet: Cabinet, limits: uv.Limits, asker: Asker) -> None:
        self.spec = spec
        self.origin = origin
        self.cabinet = cabinet
        self.limits = limits
        self.asker = asker
        self._wheels: dict[str, tuple[str, Answer]] = {}

    def refuses(self, asked: Declared) -> str:
        """Why there is no environment for what a commit declares; empty if there may be one."""
        pins = asked.pins
        if pins is None:
            return f"it has no {DOCKERFILE}, which names its {self.origin.release.name}"
        if pins.kind == "unknown":
            return f"its {DOCKERFILE} names no {self.origin.release.name} of a form that is known"
        if not pins.commit:
            return ""
        if not self.origin.template:
            return (
                f"it needs the wheel of {self.origin.release.name} commit {pins.commit[:12]}: "
                "add wheel=URL with {sha} in it"
            )
        answer = self._wheel(pins.commit)[1]
        return f"no wheel of {pins.commit[:12]}: {answer.why}" if answer.state == "hole" else ""

    def key(self, asked: Declared) -> str:
        return digest(
            "pinned base/1",
            self.origin.release.name,
            self.origin.release.drop,
            self._engine(asked.pins),
            [(package.name, package.version) for package in asked.pins.packages] if asked.pins else [],
            asked.requirements,
            self.origin.python or uv.base_python_version(),
            *self.limits.digested(),
        )

    def cached(self, asked: Declared) -> bool:
        return self.cabinet.stamp(self.key(asked)) is not None

    def ensure(self, asked: Declared, *, log: Path, timeout: float) -> Environment:
        """:raises BuildError: it cannot be built, or holds another engine than the pin's.

        :raises MachineError: no disk, no registry, no answer of the index.
        """
        key, package = self.key(asked), self.origin.release
        pins = asked.pins
        assert pins is not None
        replaced: list[str] = []

        def make(staging: Path) -> None:
            requirement, backend = self._requirement(pins)
            fill(
                staging,
                [requirement],
                package=package,
                limits=self.limits,
                python=self.origin.python,
                log=log,
                timeout=timeout,
                torch_backend=backend,
            )
            interpreter = staging / "venv" / "bin" / "python"
            if asked.requirements:
                listed = staging / "requirements.txt"
                listed.write_text("".join(f"{line}\n" for line in asked.requirements))
                self._add(interpreter, ["-r", str(listed)], staging, log, timeout)
            replaced.extend(_replaced(pins, uv.listed(interpreter, log=log)))
            if replaced:
                self._add(interpreter, replaced, staging, log, timeout)
            if package.alias is not None and not pins.commit:
                add_alias(site_packages(staging / "venv"), *package.alias, pins.release)
            (staging / PACKAGES_FILE).write_text(uv.listed(interpreter, log=log))

        def check(folder: Path) -> Built:
            found = look(folder, package, what=asked.group, log=log, timeout=timeout)
            if not pins.commit:
                same_version(found, pins.release, asked.group, log)
            elif (said := said_commit(found)) and not pins.commit.startswith(said):
                raise BuildError(
                    f"the wheel of {package.name} {pins.commit[:12]} says it is commit {said}", where=log
                )
            facts = {"pin": pins.text, "replaced": replaced, **self.limits.facts()}
            return as_built(folder, found, pins.commit, facts)

        stamp, seconds = self.cabinet.ensure(
            key,
            builder=_NAME,
            spec=self.spec,
            change=f"{package.name} {asked.group}",
            make=make,
            check=check,
            timeout=timeout,
        )
        return as_environment(stamp, self.cabinet.folder(key), seconds=seconds)

    def minutes(self, asked: Declared) -> float | None:
        return 0.0 if self.cached(asked) else median_minutes(earlier(self.cabinet, _NAME, self.spec))

    def disk(self) -> int | None:
        """Bytes of one."""
        return median_bytes(earlier(self.cabinet, _NAME, self.spec))

    def _add(self, interpreter: Path, words: list[str], staging: Path, log: Path, timeout: float) -> None:
        uv.install(
            interpreter,
            words,
            limits=self.limits,
            drop=self.origin.release.drop,
            torch_backend=self.origin.release.torch_backend,
            folder=staging,
            log=log,
            timeout=timeout,
        )

    def _engine(self, pins: Pins | None) -> tuple[str, ...]:
        if pins is None or not pins.commit:
            return ("release", pins.release if pins else "")
        return ("wheel", self.origin.template, pins.commit, self._wheel(pins.commit)[0])

    def _requirement(self, pins: Pins) -> tuple[str, str]:
        """What uv is told to install, and which build of torch with it."""
        name = self.origin.release.name
        if not pins.commit:
            return f"{name}=={pins.release}", ""
        variant, answer = self._wheel(pins.commit)
        if answer.state != "found":
            raise BuildError(f"no wheel of {name} {pins.commit[:12]}: {answer.why}")
        return f"{name} @ {answer.url}", variant if BACKEND.match(variant) else ""

    def _wheel(self, sha: str) -> tuple[str, Answer]:
        """The first variant of which the index has a wheel of a commit, and that wheel; or why it has none.

        :raises MachineError: the index does not answer.
        """
        if sha not in self._wheels:
            self._wheels[sha] = self._asked(sha)
        return self._wheels[sha]

    def _asked(self, sha: str) -> tuple[str, Answer]:
        distribution, fits = self.origin.release.distribution, supported(self.origin.python)
        answer = Answer("hole", problem="no variant was asked for")
        for variant in self.origin.variants:
            address = page_of(self.origin.template, sha, variant, distribution)
            answer = self.asker.page(
                sha,
                address,
                lambda key, url, text: choose(links(text, url), distribution, key, fits),
            )
            if answer.state == "found":
                return variant, answer
            if answer.state == "silent":
                raise MachineError(
                    f"the wheel index {self.origin.template} does not answer: {answer.why}",
                    next_step="check network, proxy and address, then start again",
                    code="hub_unreachable",
                )
        return self.origin.variants[-1] or DEFAULT, answer


def _replaced(pins: Pins, listed: str) -> list[str]:
    """The packages that the image replaces, of those that are installed here: a CPU has no CUDA libraries."""
    there = {canonicalize_name(line.partition("==")[0]) for line in listed.splitlines()}
    return [
        f"{package.name}=={package.version}"
        for package in pins.packages
        if package.version and canonicalize_name(package.name) in there
    ]
