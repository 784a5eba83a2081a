"""Grammar of changes: ``REV``, ``NAME==V`` or ``pr/N``, with edits after plus signs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from perfbisect.errors import UsageError

FORMS = "REV, REV+VARIANT, REV+patch:FILE, REV+revert:SHA, REV+pip:NAME==V, NAME==V, pr/N"

_VERSION = re.compile(r"==[\w.!]+$")
_LOCAL = re.compile(r"^(cpu|cu\d+|rocm[\d.]+|g[0-9a-f]{7,40})([.]|$)")
"""Builds of one version, as package indices mark them."""

_PULL = re.compile(r"^pr/(?P<number>\d+)$")


@dataclass(frozen=True)
class ChangeText:
    """A parsed change. ``base``: a revision, ``NAME==V`` or ``pr/N``. Edits apply in this order: ``reverts``
    and ``patches`` to the source, ``pips`` to the environment, ``variant`` to the server.
    """

    text: str
    base: str
    variant: str = ""
    patches: tuple[str, ...] = ()
    reverts: tuple[str, ...] = ()
    pips: tuple[str, ...] = ()

    @property
    def release(self) -> tuple[str, str] | None:
        """Name and version if the base is a release."""
        name, equals, version = self.base.partition("==")
        return (name, version) if equals else None

    @property
    def pull(self) -> int | None:
        """Number if the base is a pull request."""
        found = _PULL.match(self.base)
        return int(found["number"]) if found else None


def parse_change_text(text: str) -> ChangeText:
    """Parse a change.

    :raises UsageError: an empty part, two variants, a pip that pins nothing, or a release with source edits.
    """
    base, *words = [word.strip() for word in _split(text.strip())]
    if not base or not all(words):
        raise _bad(text, "has an empty part")
    variants: list[str] = []
    kinds: dict[str, list[str]] = {"patch": [], "revert": [], "pip": []}
    for word in words:
        kind, colon, value = word.partition(":")
        if not colon:
            variants.append(word)
        elif kind not in kinds:
            raise _bad(text, f"has {kind!r}, which is none of {', '.join(kinds)}")
        elif not value:
            raise _bad(text, f"says {kind}: of nothing")
        else:
            kinds[kind].append(value)
    if len(variants) > 1:
        raise _bad(text, f"has several variants, {' and '.join(variants)}: a cell is served as one")
    pips = [_pip(text, pip) for pip in kinds["pip"]]
    names = [pip.partition("==")[0] for pip in pips]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise _bad(text, f"swaps {twice[0]} twice")
    name, equals, version = base.partition("==")
    if equals and not (name and version):
        raise _bad(text, f"names no release: {base!r}")
    if equals and (kinds["patch"] or kinds["revert"]):
        raise _bad(text, "edits the source of a release; name a revision of the repository instead")
    return ChangeText(
        text=text.strip(),
        base=base,
        variant=variants[0] if variants else "",
        patches=tuple(kinds["patch"]),
        reverts=tuple(kinds["revert"]),
        pips=tuple(pips),
    )


def _split(text: str) -> list[str]:
    """Parts between plus signs; a plus sign inside a version (``==2.13.0+cpu``) belongs to it."""
    parts: list[str] = []
    for word in text.split("+"):
        if parts and _VERSION.search(parts[-1]) and _LOCAL.match(word):
            parts[-1] += f"+{word}"
        else:
            parts.append(word)
    return parts


def _pip(text: str, pip: str) -> str:
    """``NAME==VERSION`` as it is normally written."""
    try:
        requirement = Requirement(pip)
    except InvalidRequirement:
        raise _bad(text, f"swaps {pip!r}, which is no NAME==VERSION") from None
    name, pins = canonicalize_name(requirement.name), list(requirement.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version:
        raise _bad(text, f"swaps {pip!r}: one version, as in {name}==1.2.3")
    if requirement.extras or requirement.marker:
        raise _bad(text, f"swaps {pip!r}: a name and a version, no more, as in {name}=={pins[0].version}")
    return f"{name}=={Version(pins[0].version)}"


def _bad(text: str, message: str) -> UsageError:
    return UsageError(f"the change {text!r} {message}", next_step=f"write it as one of: {FORMS}")
