"""Which living processes belong to what we started: by token, session, log and descent (Linux).

The process table is read here and not with psutil, which takes five times as long (it is read many times an
attempt, beside what is measured) and has no session and no start time in seconds after boot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from perfbisect.system.logs import neutral

TOKEN_VARIABLE = "PERFBISECT_TOKEN"
"""The variable in the process environment that marks every process of one owner."""

_TICKS = os.sysconf("SC_CLK_TCK")
_DEAD = frozenset("ZXx")


@dataclass(frozen=True)
class Process:
    """A row of the process table. ``created``: seconds after boot, immune to changes of the clock."""

    pid: int
    created: float
    parent: int
    group: int
    session: int
    state: str
    name: str
    cpu_seconds: float
    waited_seconds: float = 0.0
    """CPU time of the children it has waited for."""

    @property
    def living(self) -> bool:
        """False for what only waits to be reaped."""
        return self.state not in _DEAD

    @property
    def identity(self) -> tuple[int, float]:
        """What no other process of this boot shares: an id is used again, with its start time it is not."""
        return self.pid, self.created

    def __str__(self) -> str:
        return f"{neutral(self.name)} (pid {self.pid})"


def process(pid: int) -> Process | None:
    """The row of one process id; None if nobody has it."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - as often as processes are
            stat = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return None
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        created=int(fields[19]) / _TICKS,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        state=fields[0],
        name=head.partition("(")[2],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        waited_seconds=(int(fields[13]) + int(fields[14])) / _TICKS,
    )


def table() -> dict[int, Process]:
    """Every process that can be seen now."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {row.pid: row for row in map(process, pids) if row is not None}


def alive(pid: int, created: float) -> bool:
    """True if this very process lives: same id, same start time, not waiting to be reaped."""
    row = process(pid)
    return row is not None and row.living and row.created == created


def tree(
    token: str, pid: int, created: float, *, log: Path | None = None, known: Iterable[tuple[int, float]] = ()
) -> tuple[Process, ...]:
    """All living processes of the owner that started as ``pid`` at ``created``; also long after it died.

    A process belongs if it is the owner, carries the token (or ``token.anything``) in its environment, writes
    to ``log``, was seen before (``known``), or descends from or shares a session with one who belongs.
    Several signs, since each can be lost: a daemon leaves its session, an orphan has no parent, a title that
    a process sets overwrites its environment (then the owner's session is enough). Never the caller and its
    ancestors.
    """
    rows = {row.pid: row for row in table().values() if row.living}
    spared = _lineage(rows)
    here = process(os.getpid())
    foreign_sessions = {rows[p].session for p in spared if p in rows} | ({here.session} if here else set())
    sessions: set[int] = set()
    seen = {*known, (pid, created)}
    mark = f"{TOKEN_VARIABLE}={token}".encode() if token else b""
    inode = _inode(log)

    members: set[int] = set()
    candidates = [row for row in rows.values() if row.pid not in spared and row.created >= created]
    for row in candidates:
        if (
            row.identity in seen
            or _marked(row.pid, mark, blank=row.session == pid)
            or _writes(row.pid, inode)
        ):
            members.add(row.pid)
    while True:
        # A session is made by its first process and inherited from there: who shares one with ours is ours.
        sessions |= {rows[member].session for member in members} - foreign_sessions
        more = {
            row.pid
            for row in candidates
            if row.pid not in members and (row.parent in members or row.session in sessions)
        }
        if not more:
            return tuple(rows[member] for member in sorted(members))
        members |= more


def _lineage(rows: dict[int, Process]) -> set[int]:
    """This process and all its ancestors."""
    found, pid = {1}, os.getpid()
    while pid in rows and pid not in found:
        found.add(pid)
        pid = rows[pid].parent
    return found


def _marked(pid: int, mark: bytes, blank: bool) -> bool:
    """True if it carries the mark; where ``blank`` says so, an environment that was overwritten will do."""
    if not mark:
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
    if blank and not environment[0]:  # a title is written over the start
        return True
    return any(entry == mark or entry.startswith(mark + b".") for entry in environment)


def _inode(log: Path | None) -> tuple[int, int] | None:
    try:
        found = None if log is None else log.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _writes(pid: int, inode: tuple[int, int] | None) -> bool:
    """True if standard output or error of the process is this file."""
    if inode is None:
        return False
    for descriptor in (1, 2):
        try:
            found = Path(f"/proc/{pid}/fd/{descriptor}").stat()
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == inode:
            return True
    return False


def opened(pid: int) -> Iterator[str]:
    """What the process has open: link texts of its descriptors (``socket:[123]``, paths)."""
    folder = f"/proc/{pid}/fd"
    try:
        links = os.listdir(folder)  # noqa: PTH208 - read for every process many times an attempt
    except OSError:
        return
    for link in links:
        try:
            yield os.readlink(f"{folder}/{link}")  # noqa: PTH115
        except OSError:
            continue


def mapped(pid: int) -> Iterator[str]:
    """Paths of the files that the process has mapped into its memory."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            yield parts[5]
