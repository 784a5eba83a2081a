"""Reads objects of the repository under test by git; only :func:`fetch_remote` writes to it."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from perfbisect.common.text import hint
from perfbisect.errors import MachineError, RevisionError, ServerError
from perfbisect.model.change import Change
from perfbisect.system import commands
from perfbisect.system.logs import excerpt

_FORMAT = "--format=%H%x00%P%x00%ct%x00%an%x00%s"
_FIELDS = 5
_SETTINGS = (
    "core.quotepath=off",
    # fsmonitor and hooks are programs that the repository's own configuration names: reading must run none.
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    # It would run gpg for each commit.
    "log.showSignature=false",
    "color.ui=false",
)
_DIFFS = ("diff", "diff-files", "diff-index", "diff-tree", "log", "show")
_NO_DRIVERS = ("--no-ext-diff", "--no-textconv")
_NO_TRANSPORT = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
"""A missing object of a partial clone is an error: fetching it runs ``core.sshCommand`` and helpers."""

_PROGRAMS = r"^(filter\..*\.(clean|smudge|process|required)|merge\..*\.driver)$"
"""Settings that name programs, which attributes of files choose."""

_OWN_MERGE = "git merge-file %A %O %B"
_GONE = re.compile(
    r"not a git repository|cannot change to|[Nn]ot a valid object name '?[0-9a-f]{40}|bad object|"
    r"unable to (read|get)|could not (read|parse|fetch|get)|missing (blob|tree|commit|object)|"
    r"corrupt|is empty"
)
"""What git says if the repository or an object of it is gone."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_TIMEOUT = 900.0


def git_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Process environment of git without prompts, writes and variables of another repository."""
    kept = {
        name: value
        for name, value in base.items()
        # Git sets GIT_DIR and others for hooks and aliases: they would point to another repository.
        if not name.startswith("GIT_") or "SSL" in name or "SSH" in name
    }
    return kept | {
        # git status would otherwise refresh the index of the user and take its lock.
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        # A replacement would show other content under the name of a commit.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_PAGER": "cat",
        # Messages of git are searched for causes, so they must be in English.
        "LC_ALL": "C",
    }


@dataclass(frozen=True)
class FileChange:
    """A file that differs between two commits, with its object names; zeros where it does not exist."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class TreeEntry:
    """A file of a commit. ``mode``: ``100755`` executable, ``120000`` symbolic link, ``160000`` submodule."""

    mode: str
    blob: str
    path: str


@dataclass(frozen=True)
class CommitRecord:
    change: Change
    parents: tuple[str, ...]


@dataclass(frozen=True)
class Repository:
    """A work tree or bare repository. ``objects``: a further object folder, of reverted commits."""

    path: Path
    objects: Path | None = None

    @classmethod
    def open(cls, path: str | Path) -> Repository:
        """The repository that holds ``path``; RevisionError if there is none, or git refuses to read it."""
        folder = Path(path).expanduser().absolute()
        next_step = "give the repository under test by --repo PATH"
        if not folder.exists():
            raise RevisionError(f"no such folder: {folder}", next_step=next_step)
        here = cls(folder if folder.is_dir() else folder.parent)
        done = here.run("rev-parse", "--is-bare-repository", "--absolute-git-dir")
        if done.returncode:
            problem = error_text(done)
            if "dubious ownership" in problem:
                raise RevisionError(
                    f"git refuses to read {folder}: it belongs to another user",
                    next_step=f"git config --global --add safe.directory {folder}",
                )
            raise RevisionError(f"no git repository at {folder} (git says: {problem})", next_step=next_step)
        bare, directory = done.stdout.decode(errors="surrogateescape").splitlines()[:2]
        top = here.run("rev-parse", "--show-toplevel")
        # Inside of .git there is no work tree, either.
        if bare == "true" or top.returncode:
            return cls(Path(directory))
        return cls(Path(top.stdout.decode(errors="surrogateescape").rstrip("\n")))

    def resolve(self, revision: str) -> Change:
        """The commit that a branch, tag, hash or expression (``HEAD~3``) names, or RevisionError."""
        name = revision.strip()
        # Git would take a name that begins with a dash for an option.
        if not name or name.startswith("-") or re.search(r"[\x00-\x1f]", name):
            raise RevisionError(f"{revision!r} is not a revision", next_step=self.log_command())
        done = self.run("rev-parse", "--verify", f"{name}^{{commit}}")
        if done.returncode:
            raise self._unknown(name, error_text(done))
        return self.records("-1", done.stdout.decode().strip())[0].change

    def head(self) -> Change:
        return self.resolve("HEAD")

    def merge_base(self, a: str, b: str) -> str | None:
        """The best common ancestor of two commits; None if their histories share nothing."""
        done = self.run("merge-base", a, b)
        return done.stdout.decode().split()[0] if done.returncode == 0 else None

    def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """True if ``descendant`` contains ``ancestor`` (a commit contains itself)."""
        return self.run("merge-base", "--is-ancestor", ancestor, descendant).returncode == 0

    def is_shallow(self) -> bool:
        return self.text("rev-parse", "--is-shallow-repository").strip() == "true"

    def is_dirty(self, *paths: str) -> bool:
        """True if files (below ``paths``) differ from HEAD or are untracked; False if it is bare."""
        if self.text("rev-parse", "--is-bare-repository").strip() == "true":
            return False
        # git status runs the clean filters of changed files, which are programs of the user.
        return bool(
            self.text(
                "status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=dirty", "--",
                *paths, env=self.no_programs(),
            )
        )  # fmt: skip

    def remote(self) -> str:
        """Address of ``origin`` without credentials; empty if there is none."""
        done = self.run("remote", "get-url", "origin")
        address = done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
        return without_credentials(address)

    def remote_of(self, revision: str) -> str:
        """The remote of a revision (``origin`` of ``origin/main``); empty if it names none."""
        name = revision.removeprefix("refs/remotes/")
        remotes = self.text("remote").splitlines()
        named = [remote for remote in remotes if name == remote or name.startswith(f"{remote}/")]
        # The name of a remote may contain a slash: the longest that fits is meant.
        return max(named, key=len, default="")

    def tree_id(self, sha: str, path: str) -> str | None:
        """Object name of a file or folder at a commit; None if it does not exist."""
        return self.tree_ids((sha,), path)[sha]

    def tree_ids(self, shas: Iterable[str], path: str) -> dict[str, str | None]:
        """``tree_id`` of many commits by one git process."""
        wanted = tuple(dict.fromkeys(shas))
        inside = path.strip("/")
        asked = "".join(f"{sha}:{inside}\n" if inside else f"{sha}^{{tree}}\n" for sha in wanted)
        lines = self.text("cat-file", "--batch-check=%(objectname)", stdin=asked.encode()).splitlines()
        return {
            sha: None if line.endswith(" missing") else line for sha, line in zip(wanted, lines, strict=True)
        }

    def file_changes(
        self, pairs: Iterable[tuple[str, str]], pathspecs: Sequence[str]
    ) -> list[tuple[FileChange, ...]]:
        """Files that match pathspecs and differ between two commits, for each pair, by one git process."""
        # With --stdin a line is a commit and its parent, so the later one comes first.
        asked = "".join(f"{after} {before}\n" for before, after in pairs).encode()
        if not asked:
            return []
        words = self.text(
            "diff-tree", "--stdin", "-r", "-z", "--no-renames", "--always", "--", *pathspecs, stdin=asked
        ).split("\0")
        found: list[list[FileChange]] = []
        at = 0
        while at < len(words) - 1:
            if words[at].startswith(":"):
                _, _, before, after, _ = words[at].split()
                found[-1].append(FileChange(words[at + 1], before, after))
                at += 2
            else:
                found.append([])
                at += 1
        return [tuple(changes) for changes in found]

    def files_of(self, shas: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Files that differ from the first parent, per commit, by one git process."""
        wanted = "".join(f"{sha}\n" for sha in dict.fromkeys(shas)).encode()
        return self.file_rows("--name-only", "--stdin", "--no-walk=unsorted", stdin=wanted) if wanted else {}

    def file_rows(
        self, form: Literal["--name-only", "--numstat"], *arguments: str, stdin: bytes | None = None
    ) -> dict[str, tuple[str, ...]]:
        """A row for each file that differs from the first parent, per commit of ``git log``."""
        # git log shows no files of a merge without -m.
        text = self.text(
            "log", "-z", form, "--no-renames", "--first-parent", "-m", "--root", "--format=%x01%H",
            *arguments, stdin=stdin,
        )  # fmt: skip
        rows: dict[str, tuple[str, ...]] = {}
        for block in text.split("\x01")[1:]:
            sha, *words = (word.strip("\n") for word in block.split("\0"))
            rows[sha] = tuple(filter(None, words))
        return rows

    def entries(self, sha: str, path: str = "") -> tuple[TreeEntry, ...]:
        inside = path.strip("/")
        below = ("--", f"{inside}/") if inside else ()
        words = self.text("ls-tree", "-r", "-z", "--full-tree", sha, *below).split("\0")
        found = []
        for word in filter(None, words):
            meta, name = word.split("\t", 1)
            mode, _, blob = meta.split(" ")
            found.append(TreeEntry(mode, blob, name))
        return tuple(found)

    def read(self, sha: str, path: str) -> bytes:
        done = self.run("cat-file", "blob", f"{sha}:{path}")
        if done.returncode:
            raise self._failed(f"commit {sha[:12]} has no file {path}", done)
        return done.stdout

    def read_text(self, sha: str, path: str) -> str | None:
        """A file's text at a commit; None if the commit has no such file."""
        done = self.run("cat-file", "blob", f"{sha}:{path}")
        # A missing file is an answer; a repository that cannot be read is none.
        error = self._failed("", done) if done.returncode else None
        if isinstance(error, MachineError):
            raise error
        return None if error else done.stdout.decode("utf-8", errors="replace")

    def contents(self, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Read many objects by one git process; MachineError if one cannot be read."""
        asked = "".join(f"{blob}\n" for blob in blobs).encode()
        output = self.run("cat-file", "--batch", stdin=asked).stdout
        at = 0
        while at < len(output):
            start = output.index(b"\n", at) + 1
            words = output[at:start].decode().split()
            # The line of an object that cannot be read has two words: its name and the reason.
            if len(words) != 3:
                raise MachineError(
                    f"git cannot read object {words[0]} of {self.path}: {' '.join(words[1:])}",
                    next_step=f"git -C {self.path} fsck --connectivity-only",
                )
            at = start + int(words[2]) + 1
            yield words[0], output[start : at - 1]

    def records(self, *arguments: str) -> list[CommitRecord]:
        """Commits of ``git log`` with these arguments, newest first."""
        text = self.text(
            "log", "-z", "--no-notes", "--encoding=UTF-8", _FORMAT, *arguments, "--", errors="replace"
        )
        # The "--" at the end: without it a revision that is named like a file would be ambiguous.
        words = text.split("\0")
        records = []
        for start in range(0, len(words) - _FIELDS + 1, _FIELDS):
            sha, parents, seconds, author, subject = words[start : start + _FIELDS]
            date = datetime.fromtimestamp(int(seconds or 0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            records.append(CommitRecord(Change(sha, "commit", subject, date, author), tuple(parents.split())))
        return records

    def _unknown(self, name: str, problem: str) -> RevisionError:
        if "ambiguous" in problem:
            return RevisionError(
                f"revision {name!r} is ambiguous: {problem}", next_step="give more digits of the hash"
            )
        kind = self.run("cat-file", "-t", name).stdout.decode().strip()
        if kind in ("blob", "tree"):
            return RevisionError(f"revision {name!r} is a {kind}, not a commit", next_step=self.log_command())
        names = self.text("for-each-ref", "--format=%(refname:short)", errors="replace").splitlines()
        near = hint(name, names, 0.6)
        shallow = self.is_shallow()
        clone = ", a shallow clone: history ends early" if shallow else ""
        return RevisionError(
            f"revision {name!r} does not exist in {self.path}{clone}{near}",
            next_step=f"git -C {self.path} fetch {'--unshallow' if shallow else '--all'} --tags",
        )

    def log_command(self) -> str:
        return f"git -C {self.path} log --oneline --first-parent --decorate"

    def environment(self) -> dict[str, str]:
        """The process environment for reading."""
        environment = git_environment(os.environ) | _NO_TRANSPORT
        if self.objects is not None and self.objects.is_dir():
            environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(self.objects)
        return environment

    def no_programs(self) -> dict[str, str]:
        """Variables of the environment that take filters and merge drivers out of the configuration."""
        names = self.run("config", "--null", "--name-only", "--get-regexp", _PROGRAMS).stdout.decode()
        changed = {}
        for name in filter(None, names.split("\0")):
            # Without its program a required filter would fail for every file.
            changed[name] = "false" if name.endswith(".required") else ""
            if name.endswith(".driver"):
                changed[name] = _OWN_MERGE
        numbered = list(enumerate(changed.items()))
        return {
            "GIT_CONFIG_COUNT": str(len(numbered)),
            **{f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in numbered},
            **{f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in numbered},
        }

    def command(self, *arguments: str) -> list[str]:
        """The command line of git for reading: it runs no program that the configuration names."""
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        verb, *rest = arguments
        drivers = _NO_DRIVERS if verb in _DIFFS else ()
        return ["git", "--no-pager", "-C", str(self.path), *settings, verb, *drivers, *rest]

    def run(
        self, *arguments: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git, whatever its exit code.

        Raises:
            MachineError: git is missing, too slow, or was killed: its answer says nothing of the repository.
        """
        try:
            done = subprocess.run(
                self.command(*arguments),
                input=stdin or b"",
                capture_output=True,
                env=self.environment() | dict(env or {}),
                timeout=_TIMEOUT,
                check=False,
            )
        except FileNotFoundError as error:
            raise MachineError("the git command is not on PATH", next_step="install git") from error
        except subprocess.TimeoutExpired as error:
            message = f"git {arguments[0]} in {self.path} took more than {_TIMEOUT:.0f} s"
            raise MachineError(message) from error
        if done.returncode < 0:
            raise MachineError(f"git {arguments[0]} in {self.path} was ended by signal {-done.returncode}")
        return done

    def text(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        errors: str = "surrogateescape",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """What a command prints.

        Raises:
            RevisionError: git refuses.
            MachineError: the repository or an object of it is gone.
        """
        done = self.run(*arguments, stdin=stdin, env=env)
        if done.returncode:
            raise self._failed(f"git {arguments[0]} failed in {self.path}", done)
        return done.stdout.decode(errors=errors)

    def _failed(self, what: str, done: subprocess.CompletedProcess[bytes]) -> RevisionError | MachineError:
        problem = error_text(done)
        if _GONE.search(problem):
            return MachineError(
                f"the repository {self.path}, or a part of it, cannot be read: {problem}",
                next_step=f"git -C {self.path} fsck --connectivity-only; "
                "a partial clone needs all its files: fetch --refetch --no-filter",
            )
        return RevisionError(f"{what} (git says: {problem})", next_step=self.log_command())


def error_text(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").split("\n")
    text = " ".join(line.strip() for line in lines if line.strip() and not line.startswith("hint:"))
    return excerpt(without_credentials(text), 1000) or f"exit code {done.returncode}"


def without_credentials(text: str) -> str:
    """Remove user names and passwords from addresses."""
    return _CREDENTIALS.sub("", text)


FETCH_TIMEOUT_S = 600.0
_NO_MAINTENANCE = ("-c", "gc.auto=0", "-c", "maintenance.auto=false")
"""Maintenance in the background after a fetch would disturb measurements."""


def fetch_remote(
    repository: Repository, remote: str, log: Path, timeout_s: float = FETCH_TIMEOUT_S, *, refspec: str = ""
) -> None:
    """Fetch a remote without prompts; branches, index and work tree stay. Raises MachineError.

    ``refspec``: what of it, by default what the repository is configured to.
    """
    where, what = str(repository.path), (remote, refspec) if refspec else (remote,)
    command = f"git -C {where} fetch {' '.join(what)}"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # Logs are appended to: errors of an earlier fetch must not explain this one.
        log.unlink(missing_ok=True)
        done = commands.run(
            ["git", "-C", where, *_NO_MAINTENANCE, "fetch", "--no-recurse-submodules", "--", *what],
            env=git_environment(os.environ),
            cwd=log.parent,
            log=log,
            token=secrets.token_hex(16),
            timeout=timeout_s,
        )
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ServerError) as error:
        raise MachineError(f"{command} failed: {error}", where=log, next_step=command) from error
    if done.timed_out:
        raise MachineError(f"{command} took more than {timeout_s:.0f} s", where=log, next_step=command)
    if done.code:
        output = " ".join(line.strip() for line in lines if line.strip())
        raise MachineError(
            f"{command} failed: {excerpt(without_credentials(output), 1000)}", where=log, next_step=command
        )
