"""Which parts of a repository can reach an environment, and their digest for many commits at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from perfbisect.changes.git import Entry, Repository
from perfbisect.common.digests import environment_key
from perfbisect.errors import RevisionError

_ASIDE = frozenset({"docs", "doc", "tests", "test", "examples", "benchmarks", "mkdocs.yaml", "mkdocs.yml"})


def matters(path: str) -> bool:
    """False for what stands beside a product: documentation, tests, CI; by the first part of its path."""
    first = path.partition("/")[0]
    return first not in _ASIDE and not first.startswith(".")


def matching(entries: Iterable[Entry], folder: str, whole: bool) -> tuple[Entry, ...]:
    """The files below ``folder`` that matter, or all of them."""
    cut = len(folder) + 1 if folder else 0
    return tuple(entry for entry in entries if whole or matters(entry.path[cut:]))


def tree_digests(
    repository: Repository, shas: Collection[str], folder: str, *, whole: bool
) -> dict[str, str | None]:
    """Digest of the parts that matter below ``folder``, of many commits; None where it is no folder there.

    Two git processes for all of them.

    :raises RevisionError: the repository does not have a commit.
    """
    trees = repository.tree_ids(shas, folder)
    for sha, tree in trees.items():
        if tree is None and not folder:
            raise RevisionError(f"the repository {repository.path} does not have commit {sha[:12]}")
    wanted = {tree for tree in trees.values() if tree is not None}
    digests = {
        tree: environment_key(
            [(name, name_id) for name, name_id in _rows(data, len(tree) // 2) if whole or matters(name)]
        )
        for tree, data in repository.contents(sorted(wanted))
    }
    return {sha: None if tree is None else digests[tree] for sha, tree in trees.items()}


def blobs_inside(repository: Repository, sha: str, folder: str) -> dict[str, str]:
    """Path inside a folder -> object name, of a commit's files."""
    return {path[len(folder) + 1 :]: blob for path, blob in repository.blobs(sha, folder).items()}


def _rows(data: bytes, width: int) -> Iterator[tuple[str, str]]:
    """Name, and mode with object name, of each row of a git tree object; ``width`` of a hash in bytes."""
    at = 0
    while at < len(data):
        space, zero = data.index(b" ", at), data.index(b"\0", at)
        mode, name = data[at:space].decode(), data[space + 1 : zero].decode(errors="surrogateescape")
        at = zero + 1 + width
        yield name, f"{mode} {data[zero + 1 : at].hex()}"
