"""A pretend GitHub on the loopback: a pull request with comments, and the faults of an API."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests import loopback

REPOSITORY = "vllm-project/vllm"
BOT = "github-actions[bot]"
TOKEN = "ghs_0123456789abcdefghijABCDEFGHIJ012345"
HOOK_SECRET = "a secret of the hook"
NUMBER = 7

Fault = tuple[int, dict[str, str], str]
"""Status, headers and message of an answer; status 0: none, with a broken connection."""


@dataclass
class PretendGitHub:
    """``faults``: (method, times) -> answers in place of the right one; ``lost``: POSTs that are done and
    not answered. ``pages``: comments on a page."""

    head: str = "0" * 40
    base: str = "1" * 40
    comments: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    lost: int = 0
    pages: int = 2
    pause_s: float = 0.0
    fork: dict[str, Any] | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    edits: list[str] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, body: str, login: str = "someone") -> int:
        """A comment that is there."""
        number = 1000 + len(self.comments)
        self.comments.append({"id": number, "body": body, "user": {"login": login}})
        return number

    @property
    def ours(self) -> list[str]:
        """The comments that perfbisect wrote."""
        return [one["body"] for one in self.comments if one["user"]["login"] == BOT]

    @property
    def written(self) -> int:
        """Requests that write."""
        return sum(method != "GET" for method, _ in self.calls)

    def answer(self, method: str, path: str, body: Any) -> loopback.Answer:
        """What the API says."""
        url = urlsplit(path)
        home = f"/repos/{REPOSITORY}"
        if method == "GET" and url.path == f"{home}/pulls/{NUMBER}":
            repo = self.fork if self.fork is not None else {"full_name": REPOSITORY}
            return self._json({"head": {"sha": self.head, "repo": repo}, "base": {"sha": self.base}})
        if url.path == f"{home}/issues/{NUMBER}/comments":
            if method == "POST":
                return self._json(self.comments[self.add(body["body"], BOT) - 1000], 201)
            page = int(parse_qs(url.query).get("page", ["1"])[0])
            shown = self.comments[(page - 1) * self.pages : page * self.pages]
            more = {"Link": f'<{self.url}{url.path}?page={page + 1}>; rel="next"'}
            return self._json(shown, headers=more if page * self.pages < len(self.comments) else {})
        if method == "PATCH" and (found := re.fullmatch(rf"{home}/issues/comments/(\d+)", url.path)):
            for one in self.comments:
                if one["id"] == int(found[1]):
                    one["body"] = body["body"]
                    self.edits.append(body["body"])
                    return self._json(one)
        return self._json({"message": "Not Found"}, 404)

    @staticmethod
    def _json(value: object, code: int = 200, headers: dict[str, str] | None = None) -> loopback.Answer:
        return code, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}


@contextlib.contextmanager
def pretend_github(**facts: Any) -> Iterator[PretendGitHub]:
    github = PretendGitHub(**facts)

    class Api(loopback.Handler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            time.sleep(github.pause_s)
            with github.lock:
                github.calls.append((self.command, self.path))
                github.tokens.add(self.headers.get("Authorization"))
                if faults := github.faults.get(self.command):
                    code, headers, message = faults.pop(0)
                    if not code:
                        self.close_connection = True
                        return
                    self.answer(code, json.dumps({"message": message}).encode(), headers)
                    return
                answer = github.answer(self.command, self.path, body)
                if self.command == "POST" and github.lost:
                    github.lost -= 1
                    self.close_connection = True
                    return
            self.answer(*answer)

        do_POST = do_PATCH = do_GET

    with loopback.serving(Api) as address:
        github.url = f"http://{address}"
        yield github


def event_of(body: str, **changed: Any) -> dict[str, Any]:
    """The payload of an ``issue_comment``; ``user``, ``comment``, ``action`` ... replace parts of it."""
    return {
        "action": changed.get("action", "created"),
        "repository": {
            "full_name": changed.get("repository", REPOSITORY),
            "url": "https://evil.example/repos/x",
        },
        "issue": {"number": NUMBER, **({"pull_request": {}} if changed.get("pull", True) else {})},
        "comment": {
            "id": changed.get("comment", 4711),
            "body": body,
            "created_at": "2026-11-28T10:00:00Z",
            "author_association": changed.get("association", "CONTRIBUTOR"),
            "user": changed.get("user", {"login": "alice", "type": "User"}),
        },
        "sender": {"login": "alice"},
    }


def write_event(path: Path, body: str, **changed: Any) -> Path:
    """The payload as a file."""
    path.write_text(json.dumps(event_of(body, **changed)))
    return path


def signature_of(path: Path, secret: str = HOOK_SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), path.read_bytes(), hashlib.sha256).hexdigest()


RULES = """\
repositories: [vllm-project/vllm]
cells: [chat_*]
start:
  - {who: [MEMBER, "@alice"], verbs: [compare, check, bisect], minutes: 60m}
  - {who: ["@bob"], verbs: [compare], minutes: 10m, requests_a_day: 2}
"""


def write_rules(path: Path, github: PretendGitHub, text: str = RULES, more: str = "") -> Path:
    path.write_text(f"{text}api: {github.url}\n{more}")
    return path
