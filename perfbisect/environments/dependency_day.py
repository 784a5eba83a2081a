"""The days as of which dependencies are resolved: the servers' and that of a client that is pinned apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from packaging.version import InvalidVersion, Version

from perfbisect.changes.git import Repository
from perfbisect.environments import uv
from perfbisect.environments.packages import package
from perfbisect.environments.spec import NO_DAY, parse_chain, pinned_client
from perfbisect.errors import RevisionError, UsageError
from perfbisect.model.change import Change


def require_day(typed: str) -> None:
    """:raises UsageError: neither a date nor :data:`NO_DAY`."""
    if typed != NO_DAY and not re.match(r"\d{4}-\d\d-\d\d(T|$)", typed):
        raise UsageError(f"{typed!r} is not a day for --exclude-newer", next_step="2026-11-01, or none")


def newest_day(changes: Iterable[Change], repository: Repository | None = None) -> str:
    """The last day on which one of the changes was made; empty if no day is known.

    A commit's day is that of its committer, in UTC. A release's is that of its tag in its repository, else of
    its upload, which the registry is asked for.
    """
    days = [""]
    releases: dict[str, Version] = {}
    for change in changes:
        if change.kind == "commit":
            days.append(change.date[:10])
            continue
        name, _, text = change.source.partition("==")
        with suppress(InvalidVersion):
            version = Version(text)
            releases[name] = max(version, releases.get(name, version))
    for name, version in releases.items():
        day = None
        if repository is not None:
            with suppress(RevisionError):
                tag = repository.resolve(f"refs/tags/v{version}")
                is_of_it = repository.tree_id(tag.id, package(name).folder) is not None
                day = tag.date[:10] if is_of_it else None
        days.append(uv.upload_day(name, version) if day is None else day)
    return max(days)


def base_changes(environment: str, repository: Repository | None) -> Iterator[Change]:
    """The bases of overlays, in whose dependencies every change runs."""
    for spec in parse_chain(environment) if environment else ():
        revision = spec.option("base")
        if revision and revision != "any" and repository is not None:
            yield repository.resolve(revision)


def client_day(environment: str, client: str, repository: Repository | None) -> str:
    """The day of a pinned client's dependencies; empty where they are the servers', or no day is known.

    The client of an overlay runs in the overlay's base. ``client``: the specification of ``--client``.
    """
    pinned = pinned_client(environment, client)
    specs = parse_chain(pinned) if pinned else ()
    if not client and any(spec.name == "overlay" for spec in specs):
        return ""
    changes = list(base_changes(pinned, repository)) if client else []
    for spec in specs:
        revision = spec.option("client")
        if spec.name == "release" and revision:
            changes.append(Change(f"{spec.argument}=={revision}", "release"))
        elif revision and repository is not None:
            changes.append(repository.resolve(revision))
    return newest_day(changes, repository)


def dependency_notes(environment: str, day: str, client: str = "") -> tuple[str, ...]:
    """A plan's note on the days, if the environment installs anything; ``client``: the client's own day."""
    if not day or not any(spec.installs for spec in parse_chain(environment)):
        return ()
    if day == NO_DAY:
        return ("dependencies are the newest ones at the time of each build (--exclude-newer)",)
    apart = f", the client's those of {client}" if client else ""
    return (f"dependencies are those of {day} (--exclude-newer){apart}",)
