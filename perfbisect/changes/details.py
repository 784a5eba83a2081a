"""Reads the commits of a range with message, changed files and moved pins, for suspect ranking."""

from __future__ import annotations

from perfbisect.changes.git import CommitRecord, Repository
from perfbisect.changes.pins import DOCKERFILE, parse_pins
from perfbisect.errors import RevisionError
from perfbisect.model.commit_details import ChangedFile, Commit


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
    bodies = _bodies(repository, selected)
    rows = repository.file_rows("--numstat", *selected, "--")
    files = {sha: tuple(map(_changed_file, found)) for sha, found in rows.items()}
    return tuple(
        Commit(
            sha=record.change.id,
            subject=record.change.subject,
            date=record.change.date,
            body=bodies.get(record.change.id, ""),
            files=files[record.change.id],
            pins=_moved_pins(repository, record, files[record.change.id]),
        )
        for record in reversed(records)
    )


def _bodies(repository: Repository, selected: tuple[str, ...]) -> dict[str, str]:
    text = repository.text(
        "log", "-z", "--no-notes", "--encoding=UTF-8", "--format=%H%x00%b", *selected, "--", errors="replace"
    )
    words = text.split("\0")
    return {words[i].strip(): words[i + 1].strip() for i in range(0, len(words) - 1, 2)}


def _changed_file(row: str) -> ChangedFile:
    added, removed, path = row.split("\t", 2)
    return ChangedFile(path, *(None if count == "-" else int(count) for count in (added, removed)))


def _moved_pins(
    repository: Repository, record: CommitRecord, files: tuple[ChangedFile, ...]
) -> tuple[str, str] | None:
    """The pin before and after a commit; None if it did not move."""
    if not record.parents or all(file.path != DOCKERFILE for file in files):
        return None
    texts = (repository.read_text(sha, DOCKERFILE) for sha in (record.parents[0], record.change.id))
    before, after = (None if text is None else parse_pins(text) for text in texts)
    if before is None or after is None or (before.tag, before.commit) == (after.tag, after.commit):
        return None
    return before.text, after.text
