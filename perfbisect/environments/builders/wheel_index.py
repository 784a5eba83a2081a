"""Per-commit wheel indices: which wheel an index has for a commit, asked for many commits at once."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Literal
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging import tags as tagging
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from perfbisect.environments.health import commit_in_version
from perfbisect.errors import MachineError
from perfbisect.system.http import RetryPolicy, failure_reason, open_session, public_url, send_request

_TRIES = 4
_PAUSE = 0.5
"""Seconds, doubled before each later try; the second one comes at once."""
_TIMEOUT = (10.0, 30.0)
_AT_ONCE = 16
_LARGEST = 64 * 1024 * 1024
_GONE = frozenset({403, 404, 410})
"""An object store that may not be listed says 403 of what it does not have."""

State = Literal["found", "hole", "silent"]


@dataclass(frozen=True)
class Answer:
    """What an index said of one commit; ``problem`` where there is no wheel, at ``page`` if that matters.

    ``found``: ``url`` is its wheel's. ``hole``: it has none that fits. ``silent``: no answer that may be
    believed, after several tries.
    """

    state: State
    url: str = ""
    file: str = ""
    problem: str = ""
    page: str = ""

    @property
    def why(self) -> str:
        """The problem and its page, for a message."""
        return f"{self.problem} at {self.page}" if self.page else self.problem

    @property
    def version(self) -> str:
        """Version of the wheel, as its file name has it; empty if there is none."""
        return str(parse_wheel_filename(self.file)[1]) if self.file else ""


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href and urlsplit(href).path.endswith(".whl"):
            self.found.append(href)


def links(page: str, base: str) -> tuple[str, ...]:
    """Addresses of the wheels that a page of a simple index lists, absolute, their digests kept."""
    parser = _Links()
    parser.feed(page)
    return tuple(urljoin(base, link) for link in parser.found)


def page_of(template: str, sha: str, variant: str, distribution: str) -> str:
    """Address of the page that lists a commit's wheels; without a variant at the commit's own address."""
    address = template.replace("{sha}", sha).replace("{variant}", variant).rstrip("/")
    if variant and "{variant}" not in template:
        address += f"/{variant}"
    return f"{address}/{distribution}/"


def supported(python: str = "") -> tuple[tagging.Tag, ...]:
    """Wheel tags that this machine installs for a Python (``3.12``; our own if it names no version)."""
    named = re.match(r"^(?:python|cpython|py)?@?(\d+)\.(\d+)", python.strip().lower())
    if named is None:
        return tuple(tagging.sys_tags())
    version = (int(named[1]), int(named[2]))
    platforms = list(tagging.platform_tags())
    interpreter = f"cp{version[0]}{version[1]}"
    return (
        *tagging.cpython_tags(version, platforms=platforms),
        *tagging.compatible_tags(version, interpreter, platforms),
    )


def choose(urls: Iterable[str], package: str, sha: str, fits: Iterable[tagging.Tag]) -> Answer:
    """The wheel for a commit among those of a page.

    Of wheels that fit the machine, one whose version names the commit; else the newest that names none. If
    all name other commits there is none for this one.
    """
    rank = {tag: place for place, tag in enumerate(fits)}
    rows: list[tuple[str, Version, int, str, str]] = []
    others: list[str] = []
    for url in urls:
        file = unquote(urlsplit(url).path.rpartition("/")[2])
        try:
            name, version, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        if name != canonicalize_name(package):
            continue
        places = [rank[tag] for tag in tags if tag in rank]
        if places:
            rows.append((commit_in_version(str(version)), version, -min(places), url, file))
        else:
            others.append(file)
    if not rows:
        told = f": it has {', '.join(sorted(others)[:3])}" if others else ""
        return Answer(
            "hole", problem=f"no wheel of {package} that fits this machine ({platform.machine()}){told}"
        )
    ours = [row for row in rows if row[0] and sha.startswith(row[0])]
    silent = [row for row in rows if not row[0]]
    if not ours and not silent:
        return Answer("hole", problem=f"the index serves commit {rows[0][0]} ({rows[0][4]})")
    best = max(ours or silent, key=lambda row: row[1:3])
    return Answer("found", best[3], best[4])


class Asker:
    """Asks pages of an index, each up to ``tries`` times, after growing pauses of ``pause`` seconds."""

    def __init__(self, *, pause: float = _PAUSE, tries: int = _TRIES) -> None:
        self._retries = RetryPolicy("wheel index", tries, backoff_s=pause)
        self._sessions: dict[str, requests.Session] = {}

    def pages(self, urls: Mapping[str, str], read: Callable[[str, str, str], Answer]) -> dict[str, Answer]:
        """Key -> what ``read(key, address, text)`` makes of the page at its address; all at once."""
        if not urls:
            return {}
        with ThreadPoolExecutor(min(_AT_ONCE, len(urls))) as pool:
            answers = pool.map(lambda item: self.page(item[0], item[1], read), urls.items())
            return dict(zip(urls, answers, strict=True))

    def page(self, key: str, url: str, read: Callable[[str, str, str], Answer]) -> Answer:
        """What one page says; a server that fails or is silent is asked again, after a pause."""
        shown = public_url(url)
        try:
            reply = send_request(
                self._session(url), "GET", url, _LARGEST, timeout=_TIMEOUT, headers={"Accept": "text/html"}
            )
        except requests.RequestException as error:
            return Answer("silent", problem=failure_reason(error, _TIMEOUT[1]), page=shown)
        except MachineError as error:
            return Answer("silent", problem=error.message, page=shown)
        if reply.status in _GONE:
            return Answer("hole", problem=f"HTTP {reply.status}", page=shown)
        if reply.status != 200:
            return Answer("silent", problem=f"HTTP {reply.status}", page=shown)
        if reply.is_cut:
            return Answer("silent", problem=f"more than {_LARGEST >> 20} MB", page=shown)
        return read(key, reply.url, reply.text)

    def size(self, url: str) -> int | None:
        """Bytes of a file, as its server tells; None where it does not."""
        with contextlib.suppress(requests.RequestException, MachineError, ValueError):
            response = self._session(url).head(url, timeout=_TIMEOUT, allow_redirects=True)
            if response.ok and "Content-Length" in response.headers:
                return int(response.headers["Content-Length"])
        return None

    def _session(self, url: str) -> requests.Session:
        """The session with the host of ``url``; its connections are shared by all threads."""
        host = urlsplit(url).netloc
        if host not in self._sessions:
            self._sessions.setdefault(host, open_session(url, retries=self._retries))
        return self._sessions[host]
