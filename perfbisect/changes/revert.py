"""Makes commits with another one reverted or a patch applied; the user's repository is not written.

New objects go to the ``objects`` folder of a :class:`Repository`. Author and date are fixed, so that equal
inputs make the same commit.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfbisect.changes.git import Repository, error_text
from perfbisect.errors import MachineError, RevisionError
from perfbisect.model.change import Change

_MERGES_TREES = (2, 38)
"""The first git whose ``merge-tree`` writes a tree; before it a plain patch is applied."""


class ConflictError(RevisionError):
    """A commit cannot be taken out of another, or a patch not be applied."""


def revert_commit(repository: Repository, head: Change, culprit: Change) -> Change:
    """``head`` with what ``culprit`` changed taken back; of a merge, what it brought to its first parent.

    Raises:
        ConflictError: it does not revert cleanly, or nothing of it is left.
    """
    parents = repository.records("-1", culprit.id)[0].parents
    if not parents:
        raise ConflictError(f"{culprit.short} is the first commit: there is nothing before it")
    writer = _object_writer(repository)
    tree = writer.revert(head.id, culprit.id, parents[0])
    if tree == repository.tree_id(head.id, ""):
        raise ConflictError(f"nothing of {culprit.short} is left in {head.short}")
    subject = f'Revert "{culprit.subject}"'
    sha = writer.commit(tree, (head.id,), f"{subject}\n\nThis reverts commit {culprit.id}.\n", head.date)
    return Change(sha, "commit", subject, head.date, "perfbisect")


def apply_patch(repository: Repository, head: Change, patch: bytes, name: str) -> Change:
    """``head`` with a patch applied, as ``git diff`` writes one; ``name`` is what it is called.

    Raises:
        ConflictError: it does not apply, or changes nothing.
    """
    writer = _object_writer(repository)
    tree = writer.apply(head.id, patch, "it does not apply")
    if tree == repository.tree_id(head.id, ""):
        raise ConflictError(f"it changes nothing of {head.short}")
    subject = f"{head.subject} + {name}"
    return Change(writer.commit(tree, (head.id,), f"{subject}\n", head.date), "commit", subject, head.date)


@dataclass(frozen=True)
class FileState:
    """Mode and content of a file of a commit."""

    mode: str
    content: bytes


def edit_files(
    repository: Repository, head: Change, files: Mapping[str, FileState | None], name: str
) -> Change:
    """``head`` with files replaced, or deleted where there is None; ``name`` is what it is called.

    Raises:
        ConflictError: that changes nothing.
    """
    writer = _object_writer(repository)
    tree = writer.edit(head.id, files)
    if tree == repository.tree_id(head.id, ""):
        raise ConflictError(f"it changes nothing of {head.short}")
    subject = f"{head.subject} + {name}"
    return Change(writer.commit(tree, (head.id,), f"{subject}\n", head.date), "commit", subject, head.date)


def _object_writer(repository: Repository) -> _ObjectWriter:
    if repository.objects is None:
        raise RevisionError(f"there is no folder for objects beside {repository.path}")
    return _ObjectWriter(repository, repository.objects)


@dataclass(frozen=True)
class _ObjectWriter:
    """Runs git with a separate folder for new objects."""

    repository: Repository
    objects: Path

    def revert(self, head: str, culprit: str, parent: str) -> str:
        """The tree of ``head`` without what ``culprit`` changed of ``parent``."""
        refused = "it does not revert cleanly"
        found = re.search(r"(\d+)\.(\d+)", self.repository.text("--version"))
        if found is None or (int(found[1]), int(found[2])) < _MERGES_TREES:
            patch = self._git("diff-tree", "-p", "--binary", "--full-index", "--no-renames", culprit, parent)
            return self.apply(head, patch.stdout, refused)
        root = self.commit(self._tree(culprit), (), "base\n", "")
        ours = self.commit(self._tree(head), (root,), "ours\n", "")
        theirs = self.commit(self._tree(parent), (root,), "theirs\n", "")
        done = self._git("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", ours, theirs)
        words = done.stdout.decode(errors="surrogateescape").split("\0")
        if done.returncode == 1:
            files = dict.fromkeys(filter(None, words[1:]))
            raise ConflictError(f"{refused}: {', '.join([*files][:5])}")
        if done.returncode:
            raise RevisionError(f"git merge-tree failed in {self.repository.path}: {error_text(done)}")
        return words[0].strip()

    def apply(self, head: str, patch: bytes, refused: str) -> str:
        """The tree of ``head`` with a patch applied, in an index of our own."""
        with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._done("read-tree", head, env=index)
            done = self._git("apply", "--cached", "-", stdin=patch, env=index)
            if done.returncode:
                errors = done.stderr.decode(errors="replace")
                files = dict.fromkeys(re.findall(r"^error: patch failed: (.+):\d+$", errors, re.M))
                raise ConflictError(f"{refused}: {', '.join([*files][:5]) or error_text(done)}")
            return self._done("write-tree", env=index)

    def edit(self, head: str, files: Mapping[str, FileState | None]) -> str:
        """The tree of ``head`` with files replaced or deleted, in an index of our own."""
        rows = []
        # Deletions first: a file may take the place of a folder.
        for path, state in sorted(files.items(), key=lambda item: (item[1] is not None, item[0])):
            blob = "0" * len(head)
            if state is not None:
                blob = self._done("hash-object", "-w", "--stdin", "--no-filters", stdin=state.content)
            rows.append(f"{state.mode if state else 0} {blob}\t{path}\0")
        with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._done("read-tree", head, env=index)
            text = "".join(rows).encode(errors="surrogateescape")
            self._done("update-index", "-z", "--index-info", stdin=text, env=index)
            return self._done("write-tree", env=index)

    def commit(self, tree: str, parents: tuple[str, ...], message: str, date: str) -> str:
        """Make a commit with a fixed author and time."""
        who = {
            f"GIT_{role}_{field}": value
            for role in ("AUTHOR", "COMMITTER")
            for field, value in (
                ("NAME", "perfbisect"),
                ("EMAIL", "perfbisect@localhost"),
                ("DATE", date or "2000-01-01T00:00:00Z"),
            )
        }
        above = [word for parent in parents for word in ("-p", parent)]
        text = message.encode(errors="surrogateescape")
        return self._done("-c", "i18n.commitEncoding=UTF-8", "commit-tree", tree, *above, stdin=text, env=who)

    def _tree(self, sha: str) -> str:
        found = self.repository.tree_id(sha, "")
        if found is None:
            raise RevisionError(f"commit {sha[:12]} cannot be read in {self.repository.path}")
        return found

    def _done(self, *arguments: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> str:
        done = self._git(*arguments, stdin=stdin, env=env)
        if done.returncode:
            message = f"git {arguments[0]} failed for {self.repository.path}: {error_text(done)}"
            raise MachineError(message, where=self.objects)
        return done.stdout.decode().strip()

    def _git(
        self, *arguments: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        own = self.repository.text("rev-parse", "--git-path", "objects").strip()
        try:
            self.objects.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(f"no folder for git objects: {error}", where=self.objects) from error
        where = {
            "GIT_OBJECT_DIRECTORY": str(self.objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.repository.path / own),
        }
        return self.repository.run(*arguments, stdin=stdin, env={**where, **(env or {})})
