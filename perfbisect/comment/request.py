"""From the event of a comment to the command line that it stands for. All of it is data of others."""

from __future__ import annotations

import hashlib
import hmac
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from perfbisect.comment.rules import FORMS, CommentVerb
from perfbisect.common.json_text import parse_json
from perfbisect.common.text import hint, line
from perfbisect.common.yaml_source import read_text
from perfbisect.errors import LocatedError, UsageError

PREFIX: Final = "/perfbisect"
_LONGEST_LINE = 500

_OPTIONS: Final[Mapping[CommentVerb, tuple[str, ...]]] = {
    "compare": ("a", "metric", "budget"),
    "check": ("max-regression", "metric", "budget"),
    "bisect": ("since", "metric", "budget"),
}
"""Nothing else of a command can be typed in a comment: no path, no environment, no patch."""

_PATTERNS: Final = {
    # No plus sign, equals sign or colon: a patch, a pip or a release would be another's code.
    "revision": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,98}[A-Za-z0-9_])?(?:[~^]\d{0,4}){0,4}"),
    "share": re.compile(r"\d{1,2}(?:\.\d{1,4})?%"),
    "metric": re.compile(r"[a-z][a-z0-9_.]{0,60}(?::[a-z0-9.]{1,10})?"),
    "cell": re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@-]{0,120}"),
}
_KINDS = {"a": "revision", "since": "revision", "metric": "metric", "max-regression": "share"}


@dataclass(frozen=True)
class CommentEvent:
    """What an event of GitHub says of a comment on a pull request, or of the pull request itself.

    ``comment``: its id, 0 where the event is of no comment. ``created_at``: ISO 8601.
    """

    repository: str
    number: int
    action: str
    comment: int = 0
    user: str = ""
    association: str = ""
    is_bot: bool = False
    created_at: str = ""
    body: str = field(default="", repr=False)

    @property
    def why_ignored(self) -> str:
        """Why it starts nothing; empty where it may."""
        if not self.comment:
            return "the event is of no comment on a pull request"
        if self.action != "created":
            return f"the comment was {line(self.action, 20)}: only a new one starts something"
        if self.is_bot or not self.user:
            return "the comment is of a bot or of a deleted user"
        return "" if typed_line(self.body) else f"no line of the comment begins with {PREFIX}"

    def parse(self) -> tuple[CommentVerb, str, dict[str, str]]:
        """Verb, cell and options of the request. :raises UsageError: what may not be typed."""
        text = typed_line(self.body)

        def refused(problem: str, verb: CommentVerb | None = None) -> UsageError:
            return UsageError(problem, next_step=FORMS[verb] if verb else "; ".join(FORMS.values()))

        if len(text) > _LONGEST_LINE or not text.isprintable():
            raise refused(f"a request is one line of at most {_LONGEST_LINE} printable characters")
        try:
            words = shlex.split(text)[1:]
        except ValueError as error:
            raise refused(f"the request cannot be read: {error}") from None
        verb = next((known for known in FORMS if words[:1] == [known]), None)
        if verb is None:
            said = (
                f"{words[0]!r} cannot be started by a comment{hint(words[0], FORMS)}"
                if words
                else "no command"
            )
            raise refused(said)
        options: dict[str, str] = {}
        cells: list[str] = []
        rest = iter(words[1:])
        for word in rest:
            if not word.startswith("-"):
                cells.append(word)
                continue
            name, equals, value = word.removeprefix("--").partition("=")
            if not word.startswith("--") or name not in _OPTIONS[verb]:
                raise refused(f"{verb} takes no {word.partition('=')[0]!r} in a comment", verb)
            if name in options:
                raise refused(f"--{name} stands twice", verb)
            options[name] = value if equals else next(rest, "")
        if len(cells) != 1:
            raise refused(f"{verb} takes one CELL, not {len(cells)}", verb)
        for kind, value in (
            ("cell", cells[0]),
            *((_KINDS.get(name, ""), value) for name, value in options.items()),
        ):
            is_inner = ".." not in value and not value.startswith("pr/") and "@{" not in value
            if kind and not (_PATTERNS[kind].fullmatch(value) and is_inner):
                raise refused(f"{value!r} is no {kind} that a comment may name", verb)
        if verb == "bisect" and "since" not in options:
            raise refused("--since is missing: the last good revision", verb)
        return verb, cells[0], options


def read_event(path: Path, signature: str, secret: str) -> CommentEvent:
    """Read the payload of a webhook, and hold it against its ``X-Hub-Signature-256`` where there is a secret.

    Raises:
        UsageError: the signature is missing or wrong, or one was given without a secret.
        LocatedError: it is no event of GitHub on a pull request.
    """
    text = read_text(path)
    if secret or signature:
        made = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        if not secret or not hmac.compare_digest(f"sha256={made}".encode(), signature.strip().encode()):
            raise UsageError(
                "the signature of the event is missing or wrong: nothing of it was used",
                where=path,
                next_step="--signature takes X-Hub-Signature-256, PERFBISECT_WEBHOOK_SECRET the secret",
            )
    try:
        found: Any = parse_json(text)
        comment, pull = found.get("comment"), found.get("pull_request") or {}
        issue = found.get("issue") or {}
        user = (comment or {}).get("user") or {}
        is_of_pull = bool(pull) or "pull_request" in issue
        event = CommentEvent(
            repository=found["repository"]["full_name"],
            number=pull["number"] if pull else issue["number"],
            action=str(found.get("action") or ""),
            comment=comment["id"] if comment and is_of_pull else 0,
            user=str(user.get("login") or ""),
            association=str((comment or {}).get("author_association") or ""),
            is_bot=user.get("type") != "User",
            created_at=str((comment or {}).get("created_at") or ""),
            body=str((comment or {}).get("body") or ""),
        )
        # They become parts of an address.
        is_usable = all(type(number) is int and number >= 0 for number in (event.number, event.comment))
    except (AttributeError, KeyError, TypeError, ValueError):
        is_usable = False
    if not is_usable or not isinstance(event.repository, str):
        raise LocatedError(
            "it is no event of GitHub on a pull request",
            file=path,
            next_step="--event takes the payload of issue_comment or pull_request: $GITHUB_EVENT_PATH",
        )
    return event


def typed_line(body: str) -> str:
    """The first line that begins with ``/perfbisect``; empty without one."""
    for text in body.splitlines():
        if text.split(maxsplit=1)[:1] == [PREFIX]:
            return text.strip()
    return ""


def command_words(
    verb: CommentVerb, cell: str, options: Mapping[str, str], budget: float, ends: tuple[str, str]
) -> list[str]:
    """The command line without the program. ``ends``: base and head of the pull request."""
    base, head = ends
    own = {
        "compare": [f"--a={options.get('a', base)}", f"--b={head}"],
        "check": [f"--against={base}", f"--at={head}", f"--max-regression={options.get('max-regression')}"],
        "bisect": [f"--good={options.get('since')}", f"--bad={head}"],
    }[verb]
    # Joined, so that no text is taken for an option.
    metric = [f"--metric={options['metric']}"] if "metric" in options else []
    return [verb, *own, *metric, f"--budget={budget:g}m", "--", cell]
