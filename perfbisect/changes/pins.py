"""The vLLM that a vLLM-Omni commit pins, and the other packages that its image replaces.

The pin is in ``docker/Dockerfile.ci``: the tag of the base image, the index of a commit's wheel, or a
variable that names a commit's precompiled wheel. A wheel is installed over the image and wins. Comments are
ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

DOCKERFILE = "docker/Dockerfile.ci"

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::?-[^}]*)?\}|(?P<plain>\w+))")
_ASSIGNED = re.compile(r"""(?P<name>\w+)=(?P<value>"[^"]*"|'[^']*'|\S*)""")
_INDEX = re.compile(r"https?://wheels\.vllm\.ai/(?P<commit>[0-9a-f]{40})")
_PRECOMPILED = re.compile(r"\bVLLM_PRECOMPILED_WHEEL_COMMIT=[\"']?(?P<commit>[0-9a-f]{40})")
_IMAGE_TAG = re.compile(r"^(?:--platform=\S+\s+)?\S*vllm\S*:(?P<tag>v?\d[\w.+-]*)", re.IGNORECASE)
_PINNED = re.compile(r"(?<![\w.-])(?P<name>[A-Za-z][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?P<version>[\w.+!-]+)")
_REMOVED = re.compile(r"\bpip\s+uninstall\b(?P<words>[^&|;]*)")


@dataclass(frozen=True)
class ReplacedPackage:
    """A package that the image replaces; ``version`` is empty if it is removed."""

    name: str
    version: str


@dataclass(frozen=True)
class Pins:
    """``tag``: of the base image; ``commit``: of the wheel over it; empty if there is none."""

    tag: str
    commit: str
    packages: tuple[ReplacedPackage, ...] = ()

    @property
    def kind(self) -> Literal["commit", "release", "unknown"]:
        return "commit" if self.commit else "release" if self.tag else "unknown"

    @property
    def release(self) -> str:
        """Version of the base image (0.20.0 of ``v0.20.0-cu130``); empty without a tag."""
        found = re.match(r"v?(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?)", self.tag)
        return found[1] if found else ""

    @property
    def group(self) -> str:
        """``v0.21.0``, or twelve digits of the pinned commit; empty if nothing is pinned."""
        return self.commit[:12] or (f"v{self.release}" if self.tag else "")

    @property
    def text(self) -> str:
        if self.commit:
            return f"vLLM commit {self.commit[:12]}" + (
                f" (over the image of {self.tag})" if self.tag else ""
            )
        return f"vLLM {self.tag}" if self.tag else "an unknown vLLM"


def parse_pins(dockerfile: str) -> Pins:
    """Parse the pins of a ``Dockerfile.ci``; missing ones are empty."""
    known: dict[str, str] = {}
    tag = commit = ""
    packages: dict[str, ReplacedPackage] = {}
    # Comments are left out: at times the header named another version than the ARG below it.
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    instructions = [line.strip().split(None, 1) for line in joined.splitlines() if line.strip()]
    for keyword, rest in (parts for parts in instructions if len(parts) == 2):
        words = _VARIABLE.sub(lambda name: known.get(name["braced"] or name["plain"], name[0]), rest)
        if keyword.upper() in ("ARG", "ENV"):
            for found in _ASSIGNED.finditer(words):
                known[found["name"]] = found["value"].strip("\"'")
            if keyword.upper() == "ENV" and (named := _PRECOMPILED.search(words)):
                commit = named["commit"]
        elif keyword.upper() == "FROM" and (image := _IMAGE_TAG.match(words)):
            tag = image["tag"]
        elif keyword.upper() == "RUN":
            # In February 2026 the tag said v0.15.0 while a wheel of main was installed over it.
            if index := _INDEX.search(words) or _PRECOMPILED.search(words):
                commit = index["commit"]
            if re.search(r"\bpip\b", words):
                removed = [word for found in _REMOVED.finditer(words) for word in found["words"].split()]
                versions = [(word, "") for word in removed if not word.startswith("-")]
                versions += [(found["name"], found["version"]) for found in _PINNED.finditer(words)]
                for name, version in versions:
                    packages[name.lower()] = ReplacedPackage(name.lower(), version)
    packages.pop("vllm", None)
    return Pins(tag, commit, tuple(packages.values()))
