"""Client of per-commit wheel indices: finds the wheel of a commit, for many commits at once."""

from __future__ import annotations

import contextlib
import platform
import re
import zipfile
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging import tags as tagging
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from perfbisect.environments.base import Artifact
from perfbisect.environments.build import BuildRun
from perfbisect.environments.kept import FILE_NAME, LINKS, KeptArtifact, KeptArtifacts, file_sha256
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import commit_in_version
from perfbisect.system.http import (
    FETCH_LIMIT_S,
    Reply,
    RetryPolicy,
    answer_within,
    failure_reason,
    open_session,
    public_url,
    send_request,
)
from perfbisect.system.logs import excerpt

_TRIES = 4
_TIMEOUT = (10.0, 30.0)
_AT_ONCE = 16
_LARGEST = 64 * 1024 * 1024
_DOWNLOAD_LIMIT_S = 3600.0
_GONE = frozenset({403, 404, 410})
"""Statuses of a missing page; an object store that may not be listed returns 403."""

State = Literal["found", "hole", "silent"]


@dataclass(frozen=True)
class WheelLookup:
    """Result of looking up a commit's wheel; ``problem`` at ``page`` if there is none.

    ``hole``: the index has none that fits. ``silent``: no valid response after retries. ``kept``: its files
    here, found though the index has the ``problem``.
    """

    state: State
    url: str = ""
    file: str = ""
    problem: str = ""
    page: str = ""
    kept: KeptArtifact | None = None

    @property
    def reason(self) -> str:
        return f"{self.problem} at {self.page}" if self.page else self.problem


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.found.append(href)


def links(page: str, base: str, ending: str = ".whl") -> tuple[str, ...]:
    """Absolute addresses of the wheels on a simple index page, with their digests; ``/``: of its pages.

    Addresses of files and of repositories are left out: an installer would take them.
    """
    parser = _Links()
    parser.feed(page)
    found = (urljoin(base, link) for link in parser.found if urlsplit(link).path.endswith(ending))
    return tuple(url for url in found if urlsplit(url).scheme in ("http", "https"))


def page_of(template: str, sha: str, variant: str, distribution: str = "") -> str:
    """Address of the page that lists a commit's wheels; without a distribution of that which lists these."""
    address = template.replace("{sha}", sha).replace("{variant}", variant).rstrip("/")
    if variant and "{variant}" not in template:
        address += f"/{variant}"
    return f"{address}/{distribution}/" if distribution else f"{address}/"


def supported(python: str = "") -> tuple[tagging.Tag, ...]:
    """Wheel tags that this machine supports for a Python (``3.12``; default: our own)."""
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


def choose_wheel(urls: Iterable[str], package: str, sha: str, tags: Iterable[tagging.Tag]) -> WheelLookup:
    """The wheel that fits the machine and names the commit, else the newest that names no commit.

    ``sha``: empty for a package that is not of the repository.
    """
    rank = {tag: position for position, tag in enumerate(tags)}
    rows: list[tuple[str, Version, int, str, str]] = []
    others: list[str] = []
    for url in urls:
        file = unquote(urlsplit(url).path.rpartition("/")[2])
        try:
            name, version, _, wheel_tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        if name != canonicalize_name(package):
            continue
        ranks = [rank[tag] for tag in wheel_tags if tag in rank]
        if ranks:
            rows.append((commit_in_version(str(version)), version, -min(ranks), url, file))
        else:
            others.append(file)
    if not rows:
        available = f": it has {', '.join(sorted(others)[:3])}" if others else ""
        return WheelLookup(
            "hole", problem=f"no wheel of {package} that fits this machine ({platform.machine()}){available}"
        )
    matching = [row for row in rows if row[0] and sha.startswith(row[0])]
    unnamed = [row for row in rows if not (row[0] and sha)]
    if not matching and not unnamed:
        return WheelLookup("hole", problem=f"the index serves commit {rows[0][0]} ({rows[0][4]})")
    # The commit in a wheel's name proves more than the page that lists it.
    best = max(matching or unnamed, key=lambda row: row[1:3])
    return WheelLookup("found", best[3], best[4])


@dataclass
class WheelIndex:
    """A per-commit index of the wheels of a distribution.

    ``variants``: builds that may be taken, best first.
    ``pause_s``: before the third try; ``limit_s``: for an answer, with all tries.
    ``optional``: of a plan: an index that does not answer raises nothing and is not asked again.
    ``kept``: wheels for when the index has them no longer, or does not answer.
    """

    template: str
    distribution: str
    python: str = ""
    variants: tuple[str, ...] = ("",)
    pause_s: float = 0.5
    limit_s: float = FETCH_LIMIT_S
    optional: bool = False
    kept: KeptArtifacts | None = None
    no_answer: WheelLookup | None = None
    """The first lookup of all that were without an answer, where that is no error."""
    _sessions: dict[str, requests.Session] = field(default_factory=dict, init=False)
    _lookups: dict[tuple[str, str], WheelLookup] = field(default_factory=dict, init=False)

    def find(self, shas: Collection[str], variant: str, *, each: bool = False) -> dict[str, WheelLookup]:
        """Look up the wheels of commits in parallel; of those known only the silent ones again.

        Raises:
            MachineError: the index answers for none of them (``each``: not for all).
        """
        tags = supported(self.python)
        wanted = [sha for sha in shas if self._state(sha, variant) == "silent"]
        if self.no_answer is not None:
            self._lookups |= {(sha, variant): self._or_kept(self.no_answer, sha, variant) for sha in wanted}
            wanted = []
        with ThreadPoolExecutor(min(_AT_ONCE, len(wanted) or 1)) as pool:
            pages = (page_of(self.template, sha, variant, self.distribution) for sha in wanted)
            lookups = pool.map(
                lambda page, sha: self._choose(page, self.distribution, sha, tags), pages, wanted
            )
            self._lookups |= {
                (sha, variant): self._or_kept(lookup, sha, variant)
                for sha, lookup in zip(wanted, lookups, strict=True)
            }
        found = {sha: self._lookups[sha, variant] for sha in shas}
        silent = [lookup for lookup in found.values() if lookup.state == "silent"]
        if silent and (each or len(silent) == len(found)):
            if not self.optional:
                raise self._no_answer(silent[0])
            self.no_answer = self.no_answer or silent[0]
        return found

    def choose_variant(self, shas: Collection[str]) -> tuple[str, bool]:
        """The first variant of which all commits have a wheel, else the most; False if none has any.

        Raises:
            MachineError: the index does not answer for each commit.
        """
        counts: dict[str, int] = {}
        for variant in self.variants:
            try:
                lookups = self.find(shas, variant, each=True)
            except MachineError:
                # An index that does not answer does not hide a variant of which all wheels are kept.
                none = WheelLookup("silent")
                for one in self.variants:
                    if all(self._or_kept(none, sha, one).kept for sha in shas):
                        return one, True
                raise
            counts[variant] = sum(lookup.state == "found" for lookup in lookups.values())
            if counts[variant] == len(shas):
                break
        best = max(counts, key=lambda variant: counts[variant])
        return best, counts[best] > 0

    def _state(self, sha: str, variant: str) -> State:
        lookup = self._lookups.get((sha, variant))
        return lookup.state if lookup else "silent"

    def requirements(self, sha: str, variant: str, build: BuildRun, staging: Path) -> list[str]:
        """What to install of a commit, by its address, or by a link in ``staging`` to what is kept.

        Raises:
            BuildError: there is no wheel that fits, or none of what it is pinned to.
            MachineError: the index does not answer.
        """
        found = self.find((sha,), variant, each=True)[sha]
        if found.kept is None or self.kept is None:
            return [f"{name} @ {wheel.url}" for name, wheel in self._wheels(sha, variant).items()]
        build.note(f"# {found.reason}: what was kept of it is installed, {found.kept.digest}")
        if links := self.kept.link(found.kept, staging / LINKS):
            return [f"{parse_wheel_filename(link.name)[0]} @ {link.as_uri()}" for link in links]
        build.note("# what was kept is damaged: it is removed, and the index asked again")
        del self._lookups[sha, variant]
        return self.requirements(sha, variant, build, staging)

    def artifact(self, sha: str, variant: str) -> Artifact:
        """A commit's wheel, to be kept with all that is installed with it."""

        def save(_build: BuildRun, folder: Path) -> dict[str, str]:
            wheels = self._wheels(sha, variant).values()
            for wheel in wheels:
                self._download(wheel, folder)
            return {wheel.file: public_url(wheel.url) for wheel in wheels}

        return Artifact(self._source(sha, variant), save)

    def _source(self, sha: str, variant: str) -> str:
        return public_url(page_of(self.template, sha, variant, self.distribution))

    def _or_kept(self, lookup: WheelLookup, sha: str, variant: str) -> WheelLookup:
        """A lookup; of a wheel that the index does not have or say, what is kept of it."""
        kept = self.kept.find(self._source(sha, variant)) if self.kept and lookup.state != "found" else None
        if kept is None:
            return lookup
        origins = (file.origin for file in kept.files)
        found = choose_wheel(origins, self.distribution, sha, supported(self.python))
        if found.state != "found":
            return lookup
        return replace(found, problem=lookup.problem, page=lookup.page, kept=kept)

    def _download(self, wheel: WheelLookup, folder: Path) -> None:
        """Write a wheel to a folder. :raises MachineError: it does not come in whole."""
        path, where = folder / wheel.file, public_url(wheel.url)
        if not re.fullmatch(FILE_NAME, wheel.file):
            raise MachineError(f"{excerpt(wheel.file)!r} is no name of a wheel that can be kept", where=where)
        session = self._session(wheel.url)

        def fetch() -> str:
            plain = {"Accept-Encoding": "identity"}
            with session.get(wheel.url, stream=True, timeout=_TIMEOUT, headers=plain) as reply:
                if reply.status_code != 200:
                    return f"HTTP {reply.status_code}"
                with path.open("wb") as file:
                    file.writelines(reply.iter_content(1 << 20))
            promised = urlsplit(wheel.url).fragment.removeprefix("sha256=")
            is_whole = zipfile.is_zipfile(path) and (len(promised) != 64 or file_sha256(path) == promised)
            return "" if is_whole else "it is cut or damaged"

        try:
            problem = answer_within(_DOWNLOAD_LIMIT_S, fetch)
        except requests.RequestException as error:
            problem = failure_reason(error, _TIMEOUT[1])
        if problem:
            raise MachineError(
                f"the wheel {wheel.file} cannot be fetched: {problem}",
                where=where,
                next_step="the same command again",
                code="hub_unreachable",
            )

    def _wheels(self, sha: str, variant: str) -> dict[str, WheelLookup]:
        """A commit's wheel, and of ROCm all that its index has beside it.

        Wheels for ROCm are pinned to builds of torch, triton and others that are in no registry.

        Raises:
            BuildError: there is no wheel that fits, or none of what it is pinned to.
            MachineError: the index does not answer.
        """
        wheels = {self.distribution: self.find((sha,), variant, each=True)[sha]}
        if variant.startswith("rocm"):
            wheels |= self._wheels_beside(sha, variant)
        for lookup in wheels.values():
            if lookup.state == "silent":
                raise self._no_answer(lookup)
            if lookup.state == "hole":
                raise BuildError(f"{self.distribution} {sha[:12]}: no wheel: {lookup.reason}")
        return wheels

    def _wheels_beside(self, sha: str, variant: str) -> dict[str, WheelLookup]:
        """The wheels of the other packages of a variant, by name."""
        root = self._read(page_of(self.template, sha, variant))
        if isinstance(root, WheelLookup):
            return {variant: root}
        pages = [page for page in links(root.text, root.url, "/") if page.startswith(root.url)]
        names = {page.removeprefix(root.url).rstrip("/"): page for page in pages}
        tags = supported(self.python)
        others = {name: page for name, page in names.items() if name not in ("", self.distribution)}
        return {name: self._choose(page, name, "", tags) for name, page in others.items()}

    def notes(self) -> tuple[str, ...]:
        """A plan's note where the index did not answer."""
        if self.no_answer is None:
            return ()
        return (f"the wheel index {self.template} could not be asked: {self.no_answer.reason}",)

    def _no_answer(self, lookup: WheelLookup) -> MachineError:
        return MachineError(
            f"the wheel index {self.template} does not answer: {lookup.reason}",
            next_step="check network, proxy and address, then start again",
            code="hub_unreachable",
        )

    def _choose(self, page: str, name: str, sha: str, tags: tuple[tagging.Tag, ...]) -> WheelLookup:
        """The wheel of a commit on a page; without a commit the newest."""
        reply = self._read(page)
        if isinstance(reply, WheelLookup):
            return reply
        return choose_wheel(links(reply.text, reply.url), name, sha, tags)

    def _read(self, url: str) -> Reply | WheelLookup:
        """A page, or why there is none; a server that fails or does not respond is asked again."""
        shown = public_url(url)
        try:
            reply = send_request(
                self._session(url),
                "GET",
                url,
                _LARGEST,
                self.limit_s,
                timeout=_TIMEOUT,
                headers={"Accept": "text/html"},
            )
        except requests.RequestException as error:
            return WheelLookup("silent", problem=failure_reason(error, _TIMEOUT[1]), page=shown)
        except MachineError as error:
            return WheelLookup("silent", problem=error.message, page=shown)
        if reply.status != 200:
            # A missing page is an answer; a failing server is none, and is asked again.
            state: State = "hole" if reply.status in _GONE else "silent"
            return WheelLookup(state, problem=f"HTTP {reply.status}", page=shown)
        if reply.is_cut:
            return WheelLookup("silent", problem=f"more than {_LARGEST >> 20} MB", page=shown)
        return reply

    def size(self, url: str) -> int | None:
        """Size of a file in bytes; None if the server does not report it."""
        with contextlib.suppress(requests.RequestException, MachineError, ValueError):
            session = self._session(url)
            response = answer_within(
                self.limit_s, lambda: session.head(url, timeout=_TIMEOUT, allow_redirects=True)
            )
            if response.ok and "Content-Length" in response.headers:
                return int(response.headers["Content-Length"])
        return None

    def _session(self, url: str) -> requests.Session:
        host = urlsplit(url).netloc
        if host not in self._sessions:
            retries = RetryPolicy("wheel index", _TRIES, backoff_s=self.pause_s)
            self._sessions.setdefault(host, open_session(url, retries=retries))
        return self._sessions[host]
