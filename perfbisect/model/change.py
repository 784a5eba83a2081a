"""Changes under test and their order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import ConfigDict, computed_field

from perfbisect.common.checked import require_argument

Kind = Literal["commit", "release"]

_SWAP = "+pip:"
_HEX = re.compile(r"^g([0-9a-f]{7,64})$")


def commit_in_version(version: str) -> str:
    """The abbreviated commit in a local version (``1.2.dev5+gabcdef123.cu129``); empty if there is none."""
    for word in re.split(r"[.\-_]", version.partition("+")[2].lower()):
        if match := _HEX.match(word):
            return match[1]
    return ""


@dataclass(frozen=True)
class Change:
    """A commit of the repository under test, or a release of a package.

    ``id`` is the full commit hash or ``name==version``, followed by ``+pip:NAME==VERSION`` for each package
    that is swapped in its environment; ``date``: of the commit, ISO 8601 in UTC, or empty; ``subject`` is
    unescaped.
    """

    # Its JSON has more than its fields: derived values are written and not read back.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    id: str
    kind: Kind = "commit"
    subject: str = ""
    date: str = ""
    author: str = ""

    def __post_init__(self) -> None:
        require_argument(self.id)  # git and package installers take it as an argument

    @classmethod
    def of(cls, change_id: str) -> Change:
        """A change of which the id alone is known."""
        return cls(change_id, "release" if "==" in change_id.partition(_SWAP)[0] else "commit")

    @computed_field
    @property
    def short(self) -> str:
        """Twelve digits of the hash, or the release, with swapped packages."""
        if self.kind == "release":
            return self.id
        return self.source[:12] + self.id[len(self.source) :]

    @property
    def source(self) -> str:
        """The commit or release alone, as git or a package index knows it."""
        return self.id.partition(_SWAP)[0]

    @property
    def pips(self) -> tuple[str, ...]:
        """``NAME==VERSION`` of each swapped package."""
        return tuple(self.id.split(_SWAP)[1:])

    @property
    def unswapped(self) -> Change:
        return replace(self, id=self.source)

    def swapped(self, pips: Iterable[str]) -> Change:
        """The same change with these packages swapped, in sorted order."""
        return replace(self, id="".join((self.source, *(f"{_SWAP}{pip}" for pip in sorted(pips)))))


@dataclass(frozen=True)
class History:
    """Changes from the good end to the bad end, oldest first."""

    changes: tuple[Change, ...]

    def __post_init__(self) -> None:
        if len(self.changes) < 2:
            raise ValueError("a history has at least a good and a bad end")
        if len({change.id for change in self.changes}) != len(self.changes):
            raise ValueError("a history names each change once")

    @property
    def good(self) -> Change:
        return self.changes[0]

    @property
    def bad(self) -> Change:
        return self.changes[-1]

    def index(self, change_id: str) -> int:
        """Position of a change. :raises KeyError: it is not in this history."""
        positions = {change.id: position for position, change in enumerate(self.changes)}
        return positions[change_id]
