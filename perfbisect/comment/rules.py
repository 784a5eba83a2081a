"""Who may start what by a comment, and for how many minutes: the file of ``--rules``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from perfbisect.common.checked import Minutes, required
from perfbisect.common.quantities import minutes, parse_minutes
from perfbisect.common.text import hint
from perfbisect.errors import UsageError
from perfbisect.system.http import is_safe_for_token

CommentVerb = Literal["compare", "check", "bisect"]
FORMS: Final[Mapping[CommentVerb, str]] = {
    "compare": "/perfbisect compare CELL [--a REV] [--metric M] [--budget 30m]",
    "check": "/perfbisect check CELL [--max-regression 5%] [--metric M] [--budget 30m]",
    "bisect": "/perfbisect bisect CELL --since REV [--metric M] [--budget 2h]",
}
"""What may be typed."""

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
# A login, as GitHub has them: a bot's ends in [bot].
_WHO = re.compile(
    r"@[A-Za-z0-9][A-Za-z0-9-]*|OWNER|MEMBER|COLLABORATOR|CONTRIBUTOR|FIRST_TIME_CONTRIBUTOR|NONE"
)

RepositoryName = Annotated[str, required(lambda text: bool(_REPOSITORY.fullmatch(text)), "OWNER/NAME")]
Who = Annotated[
    str, required(lambda text: bool(_WHO.fullmatch(text)), "@LOGIN, OWNER, MEMBER, COLLABORATOR, ...")
]


class Grant(BaseModel):
    """What some users may start; ``minutes``: of one request, its budget at most."""

    model_config = _STRICT

    who: Annotated[tuple[Who, ...], Field(min_length=1, strict=False)]
    """``@LOGIN``, or GitHub's ``author_association``."""
    verbs: Annotated[tuple[CommentVerb, ...], Field(min_length=1, strict=False)]
    minutes: Minutes
    requests_a_day: int = Field(default=5, ge=1)
    """Of each user."""

    def includes(self, user: str, association: str) -> bool:
        """Whether it speaks of a user."""
        return association in self.who or f"@{user}".lower() in (name.lower() for name in self.who)

    def budget(self, verb: CommentVerb, typed: str | None) -> float:
        """The minutes of a request; by default all it may have. :raises UsageError: it is none, or more."""
        try:
            budget = self.minutes if typed is None else parse_minutes(typed)
        except ValueError as error:
            raise UsageError(str(error), next_step=FORMS[verb]) from None
        if budget > self.minutes:
            raise UsageError(
                f"a budget of {minutes(budget)} is more than the {minutes(self.minutes)} of a request",
                next_step=f"--budget {self.minutes:g}m",
            )
        return budget


class CommentRules(BaseModel):
    """The rules of a repository's comments. ``cells``: names, or patterns of names."""

    model_config = _STRICT

    repositories: Annotated[tuple[RepositoryName, ...], Field(min_length=1, strict=False)]
    cells: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    start: Annotated[tuple[Grant, ...], Field(min_length=1, strict=False)]
    max_regression: Annotated[str, Field(pattern=r"^\d{1,2}(\.\d{1,4})?%$")] = "5%"
    """Of ``check``, where the comment says none."""
    requests_a_day: int = Field(default=20, ge=1)
    """Of all users together."""
    minutes_a_day: Minutes = 600.0
    author: str = "github-actions[bot]"
    """The login that the token writes as: comments of others are never edited."""
    api: Annotated[str, required(is_safe_for_token, "https address")] = "https://api.github.com"
    """The only host that gets the token."""

    def grant(self, user: str, association: str, verb: str) -> Grant:
        """The most generous grant of a user for a verb. :raises UsageError: there is none."""
        own = [grant for grant in self.start if grant.includes(user, association)]
        found = [grant for grant in own if verb in grant.verbs]
        if not found:
            verbs = sorted({known for grant in own for known in grant.verbs})
            raise UsageError(
                f"{user} may not start {verb} here",
                next_step=f"what {user} may start: {', '.join(verbs)}" if verbs else "ask a maintainer to",
            )
        return max(found, key=lambda grant: grant.minutes)

    def require_cell(self, cell: str) -> None:
        """:raises UsageError: it is none that a comment may name."""
        if not any(fnmatchcase(cell, pattern) for pattern in self.cells):
            raise UsageError(
                f"{cell} is no cell that a comment may name{hint(cell, self.cells)}",
                next_step=f"one of: {', '.join(self.cells)}",
            )
