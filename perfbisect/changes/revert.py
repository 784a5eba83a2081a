"""Makes commits with another one reverted or a patch applied; the user's repository is not written.

New objects go to the ``objects`` folder of a :class:`Repository`. Author and date are fixed, so that equal
inputs make the same commit.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.changes.git import Repository, error_text
from perfbisect.errors import MachineError, RevisionError
from perfbisect.model.change import Change

_MERGES_TREES = (2, 38)
"""The first git whose ``merge-tree`` writes a tree; before it a plain patch is applied."""


class ConflictError(RevisionError):
    """A commit cannot be taken out of another, or a patch not be applied."""


def first_parent(repository: Repository, commit: Change) -> str:
    """The first parent of a commit; ConflictError if it has none."""
    parents = repository.records("-1", commit.source)[0].parents
    if not parents:
        raise ConflictError(f"{commit.short} is the first commit: there is nothing before it")
    return parents[0]


def revert_commit(repository: Repository, head: Change, culprit: Change) -> Change:
    """``head`` with what ``culprit`` changed taken back; of a merge, what it brought to its first parent.

    Raises:
        ConflictError: it does not revert cleanly, or nothing of it is left.
    """
    parent, writer = first_parent(repository, culprit), _object_writer(repository)
    tree = writer.revert(head.id, culprit.id, parent)
    subject = f'Revert "{culprit.subject}"'
    body, unchanged = f"\nThis reverts commit {culprit.id}.\n", f"nothing of {culprit.short} is left in"
    return replace(writer.child(head, tree, subject, unchanged, body), author="perfbisect")


def apply_patch(repository: Repository, head: Change, patch: bytes, name: str) -> Change:
    """``head`` with a patch applied, as ``git diff`` writes one; ``name`` is what it is called.

    Raises:
        ConflictError: it does not apply, or changes nothing.
    """
    writer = _object_writer(repository)
    return writer.child(head, writer.apply(head.id, patch, "it does not apply"), f"{head.subject} + {name}")


File = tuple[str, bytes]
"""Mode and content of a file of a commit."""


def edit_files(repository: Repository, head: Change, files: Mapping[str, File | None], name: str) -> Change:
    """``head`` with files replaced, or deleted where there is None; ``name`` is what it is called.

    Raises:
        ConflictError: that changes nothing.
    """
    writer = _object_writer(repository)
    return writer.child(head, writer.edit(head.id, files), f"{head.subject} + {name}")


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
        # A three-way merge with the culprit as base: merge-tree takes commits and finds the base by their
        # parents.
        root = self.commit(self._tree(culprit), (), "base\n", "")
        ours = self.commit(self._tree(head), (root,), "ours\n", "")
        theirs = self.commit(self._tree(parent), (root,), "theirs\n", "")
        merge = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", ours, theirs)
        done = self._git(*merge, env=self.repository.no_programs())
        words = done.stdout.decode(errors="surrogateescape").split("\0")
        # merge-tree ends with 1 for conflicts and with more for errors.
        if done.returncode == 1:
            files = dict.fromkeys(filter(None, words[1:]))
            raise ConflictError(f"{refused}: {', '.join([*files][:5])}")
        if done.returncode:
            raise RevisionError(f"git merge-tree failed in {self.repository.path}: {error_text(done)}")
        return words[0].strip()

    def apply(self, head: str, patch: bytes, refused: str) -> str:
        """The tree of ``head`` with a patch applied."""
        with self._index_of(head) as index:
            done = self._git("apply", "--cached", "-", stdin=patch, env=index)
            if done.returncode:
                errors = done.stderr.decode(errors="replace")
                files = dict.fromkeys(re.findall(r"^error: patch failed: (.+):\d+$", errors, re.M))
                raise ConflictError(f"{refused}: {', '.join([*files][:5]) or error_text(done)}")
            return self._done("write-tree", env=index)

    def edit(self, head: str, files: Mapping[str, File | None]) -> str:
        """The tree of ``head`` with files replaced or deleted."""
        deleted = (f"0 {'0' * len(head)}\t{path}\0" for path in sorted(files) if files[path] is None)
        # Deleted paths come first: a file may take the place of a folder.
        rows = [*deleted]
        for path, (mode, content) in sorted((path, file) for path, file in files.items() if file):
            # Filters are programs that the configuration names.
            blob = self._done("hash-object", "-w", "--stdin", "--no-filters", stdin=content)
            rows.append(f"{mode} {blob}\t{path}\0")
        with self._index_of(head) as index:
            text = "".join(rows).encode(errors="surrogateescape")
            self._done("update-index", "-z", "--index-info", stdin=text, env=index)
            return self._done("write-tree", env=index)

    @contextmanager
    def _index_of(self, head: str) -> Iterator[dict[str, str]]:
        """Variables of an index of our own that holds the files of a commit."""
        with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._done("read-tree", head, env=index)
            yield index

    def child(
        self, head: Change, tree: str, subject: str, unchanged: str = "it changes nothing of", body: str = ""
    ) -> Change:
        """A commit above ``head``; ConflictError, which says what is ``unchanged``, if its tree is equal."""
        if tree == self.repository.tree_id(head.id, ""):
            raise ConflictError(f"{unchanged} {head.short}")
        sha = self.commit(tree, (head.id,), f"{subject}\n{body}", head.date)
        return Change(sha, "commit", subject, head.date)

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
        # A user's encoding would be written into the commit and change its name.
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
        # A linked work tree has its objects in another folder.
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
