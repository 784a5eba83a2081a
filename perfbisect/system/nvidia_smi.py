"""``nvidia-smi`` asked with a time limit: rows of named fields, whatever the driver's version calls them."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.system import environ

_PATIENCE = 20.0
"""Seconds. Without persistence mode the driver initialises every device at each call."""

_NOT_VALID = re.compile(r'Field "([^"]+)" is not a valid field to query')
_NOTHING = re.compile(r"^\[.*\]$|^(?:N/A|ERR!|)$", re.IGNORECASE)

Row = Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """Rows in the order told, or why there are none.

    A field that the driver does not know or tell (``[N/A]``, ``[Not Supported]``, ``[Insufficient
    Permissions]``, ``[Unknown Error]``) is missing in its row.
    """

    rows: tuple[Row, ...] = ()
    problem: str = ""


@dataclass
class Smi:
    """The command of the driver. ``command``: its path; None where there is none: then nothing is started.

    Remembers which fields this driver does not have, so that each is refused once.
    """

    command: str | None = field(default_factory=lambda: shutil.which("nvidia-smi"))
    patience: float = _PATIENCE
    _unknown: set[str] = field(default_factory=set, repr=False)

    def devices(self, fields: Sequence[str], only: Sequence[str] = ()) -> Answer:
        """A row for each device, or for those of these UUIDs."""
        return self._query("--query-gpu", fields, only)

    def processes(self, fields: Sequence[str]) -> Answer:
        """A row for each process that computes on a device, where the driver tells them."""
        return self._query("--query-compute-apps", fields)

    def listing(self) -> str:
        """What ``nvidia-smi -L`` prints: devices and, below them, their MIG instances; empty if it fails."""
        return self._run("-L").stdout

    def topology(self) -> str:
        """What ``nvidia-smi topo -m`` prints; empty if it fails."""
        return self._run("topo", "-m").stdout

    def _query(self, option: str, fields: Sequence[str], only: Sequence[str] = ()) -> Answer:
        while True:
            asked = [name for name in fields if name not in self._unknown]
            told = self._run(
                f"{option}={','.join(asked)}",
                "--format=csv,noheader,nounits",
                *((f"--id={','.join(only)}",) if only else ()),
            )
            unknown = _NOT_VALID.search(told.stdout + told.said)
            if unknown is None or unknown[1] not in asked or len(asked) == 1:
                break
            self._unknown.add(unknown[1])
        if told.said:
            return Answer(problem=told.said)
        return Answer(parse_rows(told.stdout, asked))

    def _run(self, *arguments: str) -> Told:
        if self.command is None:
            return Told("", "no nvidia-smi")
        return ask((self.command, *arguments), self.patience)


@dataclass(frozen=True)
class Told:
    """What a command printed; ``said``: why it is of no use, empty if it is."""

    stdout: str
    said: str


def ask(argv: Sequence[str], patience: float) -> Told:
    """What a command that tells of devices prints within so many seconds."""
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**environ.allowed(os.environ), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Told("", f"{name} did not answer within {patience:.0f} s")
    except OSError as error:
        return Told("", f"{name} cannot be started: {error.strerror or error}")
    if done.returncode != 0:
        said = " ".join((done.stdout + " " + done.stderr).split())
        return Told("", said or f"{name} ended with exit code {done.returncode}")
    return Told(done.stdout, "")


def parse_rows(text: str, fields: Sequence[str]) -> tuple[Row, ...]:
    """Lines of ``--format=csv,noheader,nounits`` -> rows; a line of another length is none."""
    rows = []
    for values in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(values) == len(fields):
            told = {name: value.strip() for name, value in zip(fields, values, strict=True)}
            rows.append({name: value for name, value in told.items() if not _NOTHING.match(value)})
    return tuple(rows)


def number(row: Row, name: str) -> float | None:
    """The value of a field; None if it is missing or no number."""
    try:
        return float(row[name])
    except (KeyError, ValueError):
        return None
