"""Bundles in folders of the machines: what every engine does that reaches a machine's files.

``FOLDER/bundles/TOKEN/`` on the machine has ``request.json``, the agent's folder ``run/``, its output
``agent.log``, and ``exit`` with its exit code. ``started`` is created once: whoever creates it starts the
agent, so a bundle that is submitted twice, or that an engine starts again, is measured once. ``machine`` has
the machine's name, because several may share the folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import signal
import subprocess
import tarfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import ValidationError

import perfbisect
from perfbisect.environments.base import Environment
from perfbisect.environments.cache import STAMP, read_stamp
from perfbisect.errors import MachineError
from perfbisect.fleet.agent import MANIFEST
from perfbisect.fleet.base import BundleState, Ticket, UnreachableError
from perfbisect.fleet.bundle import Bundle, BundleDocument, MachineDocument
from perfbisect.fleet.connection import Answer, Connection, run_script
from perfbisect.jobs.phases import PhaseRecord, read_phase

KILLED_WITHIN_S = 30.0
"""Seconds that an agent may take to end after SIGKILL."""

RUN = "run"
"""The agent's own folder in that of a bundle."""

PUT_REQUEST = """\
umask 077
mkdir -p "$1" && cd "$1" || exit 1
echo "$2" > machine && cat > request.part && mv request.part request.json
"""
"""Writes standard input to request.json in the folder $1, for the machine $2."""

AGENT_SCRIPT = """\
cd "$1" || exit 1
shift
mkdir started 2>/dev/null || exit 0
echo $$ > pid
trap : TERM INT
"$@" > agent.log 2>&1 < /dev/null
echo $? > exit.part
mv exit.part exit
"""
"""Runs the agent in the folder $1, once; a signal to the whole session ends the agent, not this script."""

_STATE = """\
cd "$1" 2>/dev/null || { echo absent; exit 0; }
if [ -e run/manifest.json ]; then echo ended
elif [ -e exit ]; then
  code=$(cat exit)
  if [ "${code:-0}" -gt 128 ] && [ "$code" -ne 130 ]; then echo killed; else echo failed; fi
elif [ ! -e request.json ]; then echo absent
elif [ ! -e started ]; then echo waiting
else echo running
fi
cat machine 2>/dev/null || echo
cat run/heartbeat.json 2>/dev/null
true
"""
"""Prints how far a bundle is, its machine, and the heartbeat. 130 is the agent's own code: it was ended."""

_LOG = 'tail -c 2000 "$1/agent.log" 2>/dev/null; true'

_IS_CUT = 'cd "$1/run" 2>/dev/null && [ ! -e manifest.json ] && [ "$(wc -l < journal.jsonl)" -gt 0 ]'
"""Whether an agent that is gone had begun: one that had not would measure now."""

_KEYS = """\
cd "$1" 2>/dev/null || exit 0
shift
for key; do [ -e "$key/stamp.json" ] && echo "$key"; done
true
"""

_CONTENTS = ("--dereference", "--hard-dereference")
"""A link is packed as the file that the manifest's digest is of."""

_UNPACK = """\
umask 022
mkdir -p "$1/.staging" && staging=$(mktemp -d "$1/.staging/$2.XXXXXX") || exit 1
tar -C "$staging" -xf - && chmod 755 "$staging" && rm -rf "$1/$2" && mv -T "$staging" "$1/$2" && exit 0
rm -rf "$staging"
exit 1
"""
"""Puts the files of standard input at $1/$2, whole or not at all."""


@dataclass(frozen=True)
class FleetHost:
    """A machine of a fleet.

    ``folder``: perfbisect's folder on it; ``command``: how perfbisect is called there; ``profile``: its
    machine profile, empty: detected there; ``builds``: it makes environments and launches nothing.
    """

    name: str
    connection: Connection
    folder: str
    command: tuple[str, ...] = ("perfbisect",)
    profile: str = ""
    builds: bool = False

    @property
    def is_relative(self) -> bool:
        """Whether its paths are below the user's home folder there."""
        return not self.folder.startswith("/") or _is_below(self.command[0])

    def home(self) -> str:
        """The user's home folder there. :raises UnreachableError: it does not answer."""
        return self.connection.run(["pwd"]).checked(f"use {self.name}").text

    def below(self, home: str) -> FleetHost:
        """With the home folder in its paths."""
        folder = self.folder if self.folder.startswith("/") else f"{home}/{self.folder}"
        program, *words = self.command
        return replace(
            self, folder=folder, command=(f"{home}/{program}" if _is_below(program) else program, *words)
        )

    def bundle(self, token: str) -> str:
        return f"{self.folder}/bundles/{token}"

    def agent(self, *words: str) -> tuple[str, ...]:
        return (*self.command, "agent", *words)


def _is_below(program: str) -> bool:
    """Whether a program is named by a relative path; a bare name is looked up."""
    return "/" in program and not program.startswith("/")


class FolderFleet(ABC):
    """Implements :class:`perfbisect.fleet.base.Fleet` but for how an agent is started, seen and ended.

    ``devices``: of a slot, ``workers``: slots of a machine, None: as many as it has.
    """

    name: str

    def __init__(self, *, devices: int = 0, workers: int | None = None) -> None:
        self._devices, self._workers = devices, workers
        self._homes: dict[str, str] = {}

    @abstractmethod
    def hosts(self) -> Sequence[FleetHost]:
        """The machines. :raises MachineError: the engine does not list them."""

    @abstractmethod
    def start(self, host: FleetHost, ticket: Ticket, argv: Sequence[str], bundle: Bundle) -> None:
        """Start the agent's command in its bundle's folder by :data:`AGENT_SCRIPT`."""

    @abstractmethod
    def lives(self, host: FleetHost, ticket: Ticket) -> bool:
        """Whether an agent that was started, and has not ended, is still there."""

    @abstractmethod
    def end(self, host: FleetHost, ticket: Ticket, grace: float) -> None:
        """End the agent: a signal, ``grace`` seconds, and force; returns once it is gone."""

    def host(self, name: str) -> FleetHost:
        """A machine, with absolute paths. :raises UnreachableError: it does not answer."""
        found = next((host for host in self.hosts() if host.name == name), None)
        if found is None:
            raise MachineError(f"{self.name} has no machine {name} any more")
        return self._absolute(found)

    def _absolute(self, host: FleetHost) -> FleetHost:
        if not host.is_relative:
            return host
        if host.name not in self._homes:
            self._homes[host.name] = host.home()
        return host.below(self._homes[host.name])

    def machines(self, *, checks: bool = False) -> Sequence[MachineDocument]:
        hosts = self.hosts()
        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            return tuple(pool.map(partial(self._look, checks=checks), hosts))

    def _look(self, host: FleetHost, *, checks: bool) -> MachineDocument:
        words = ["look", "--json", "--gpus", str(self._devices)]
        words += ["--workers", str(self._workers)] if self._workers else []
        words += ["--machine", host.profile] if host.profile else []
        words += ["--checks"] if checks else []
        asked = time.time()
        try:
            answer = self.ask(host, self._absolute(host).agent(*words))
            document = MachineDocument.model_validate_json(answer.output)
        except ValidationError:
            problem = f"perfbisect does not answer there: {answer.errors or answer.text or 'no output'}"
        except MachineError as error:
            problem = error.message
        else:
            problem = document.problem
            if document.version != perfbisect.__version__:
                problem = f"perfbisect {document.version} there, {perfbisect.__version__} here"
            slots = () if problem else document.slots
            # It read its clock between the question and the answer.
            skew = max(0.0, asked - document.time, document.time - time.time())
            return document.model_copy(
                update={"name": host.name, "problem": problem, "slots": slots, "skew": skew}
            )
        return unusable(host.name, problem)

    def ask(self, host: FleetHost, argv: Sequence[str]) -> Answer:
        """Run a command of the agent's on a machine."""
        return host.connection.run(argv)

    def place(self, machine: str, environments: Sequence[Environment]) -> None:
        host = self.host(machine)
        folders = {folder.name: folder for each in environments for folder in with_bases(each.folder)}
        root = next((folder.parent for folder in folders.values()), None)
        if root is None:
            return
        answer = run_script(host.connection, _KEYS, str(root), *folders)
        for key in folders.keys() - set(answer.text.split()):
            _send(host, folders[key], root)

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        host = self.host(ticket.machine)
        folder = host.bundle(ticket.token)
        request = bundle.model_dump_json(by_alias=True).encode()
        written = run_script(host.connection, PUT_REQUEST, folder, host.name, given=request)
        written.checked(f"write {folder} on {host.name}")
        command = host.agent("run", "request.json", "--folder", RUN, "--json")
        self.start(host, ticket, command, bundle)

    def state(self, ticket: Ticket) -> BundleState:
        host = self.host(ticket.machine)
        kind, _, beat = self._seen(host, ticket)
        if kind in ("running", "waiting", "absent") and not self.lives(host, ticket):
            kind, _, beat = self._seen(host, ticket)  # it may have ended in between
            if kind in ("running", "waiting", "absent"):
                return BundleState("gone", beat.phase, f"the agent on {host.name} is gone")
        if kind == "killed":
            return BundleState("gone", beat.phase, f"the agent on {host.name} was killed")
        if kind == "failed":
            log = run_script(host.connection, _LOG, host.bundle(ticket.token)).text
            return BundleState("failed", beat.phase, error_in(log))
        known: Literal["ended", "running", "waiting"] = (
            "ended" if kind == "ended" else "running" if kind == "running" else "waiting"
        )
        return BundleState(known, beat.phase, detail=beat.detail)

    def _seen(self, host: FleetHost, ticket: Ticket) -> tuple[str, str, PhaseRecord]:
        """How far a bundle is, its machine, and its heartbeat; an empty one where none is written yet."""
        answer = run_script(host.connection, _STATE, host.bundle(ticket.token))
        kind, machine, heartbeat = (*answer.text.split("\n", 2), "", "")[:3]
        return kind, machine, read_phase(heartbeat) or PhaseRecord()

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        host = self.host(ticket.machine)
        folder = f"{host.bundle(ticket.token)}/{RUN}"
        answer = host.connection.run(["cat", f"{folder}/{MANIFEST}"])
        if answer.code:
            return False
        try:
            manifest = BundleDocument.model_validate_json(answer.output)
        except ValidationError:
            return False
        missing = [name for name, digest in manifest.files.items() if _digest(into, name) != digest]
        if missing:
            names = "\0".join(missing).encode()
            packed = host.connection.run(
                ["tar", "-C", folder, *_CONTENTS, "-cf", "-", "--null", "-T", "-"], names, timeout=3600
            )
            _unpack(packed.output, into, set(missing))
        if any(_digest(into, name) != digest for name, digest in manifest.files.items()):
            return False
        (into / MANIFEST).write_bytes(answer.output)
        return True

    def cancel(self, ticket: Ticket, grace: float) -> None:
        host = self.host(ticket.machine)
        run_script(
            host.connection,
            'cd "$1" 2>/dev/null && mkdir started 2>/dev/null; true',
            host.bundle(ticket.token),
        )
        self.end(host, ticket, grace)
        self.close(host, ticket)

    def close(self, host: FleetHost, ticket: Ticket) -> None:
        """End what a killed agent left, and write the manifest: a second call of the agent does both."""
        folder = host.bundle(ticket.token)
        if run_script(host.connection, _IS_CUT, folder).code == 0:
            words = host.agent("run", f"{folder}/request.json", "--folder", f"{folder}/{RUN}", "--json")
            answer = self.ask(host, words)
            if answer.code:
                why = error_in(answer.text) if answer.text else answer.errors
                raise MachineError(
                    f"bundle {ticket.token} cannot be closed on {host.name}: {why}", where=folder
                )

    def find(self, token: str) -> Ticket | None:
        silent: UnreachableError | None = None
        for host in self.hosts():
            ticket = Ticket(token, host.name)
            try:
                kind, machine, _ = self._seen(self._absolute(host), ticket)
                if kind != "absent" and machine in ("", host.name):
                    return ticket
            except UnreachableError as error:
                silent = error
        if silent is not None:
            raise silent
        return None


def unusable(name: str, problem: str) -> MachineDocument:
    """A machine that cannot be used, and why."""
    return MachineDocument(
        name=name,
        version="",
        machine_class="",
        devices=(),
        slots=(),
        leased=(),
        problem=problem,
        environments=(),
    )


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Wait until something happened, for at most so many seconds; returns whether it did."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True


def escalate(send: Callable[[int], object], is_gone: Callable[[], bool], *waits: float) -> bool:
    """End something by SIGTERM, then by SIGKILL, each with so many seconds; returns whether it is gone."""
    for number, seconds in zip((signal.SIGTERM, signal.SIGKILL), waits, strict=True):
        send(int(number))
        if wait_until(is_gone, seconds):
            return True
    return False


def error_in(output: str) -> str:
    """The message in what an agent printed before it failed; other output as it is."""
    try:
        return str(json.loads(output)["error"])
    except (ValueError, KeyError, TypeError):
        return output or "the agent ended without output"


def with_bases(folder: Path) -> list[Path]:
    """An environment's folder, and those of the environments that it stands on."""
    found = [folder]
    for each in found:
        stamp = read_stamp(each)
        if stamp is None:
            continue
        links = [each / path for path in (stamp.interpreter, *stamp.python_path, stamp.engine_file)]
        links += [path.readlink() for path in links if path.is_symlink()]
        for path in links:
            if path.is_absolute() and path.is_relative_to(folder.parent):
                base = folder.parent / path.relative_to(folder.parent).parts[0]
                if base not in found and (base / STAMP).exists():
                    found.append(base)
    return found


def _send(host: FleetHost, folder: Path, root: Path) -> None:
    """Copy an environment; its compile and kernel caches are the machine's own."""
    pack = ["tar", "-C", str(folder), "--exclude=./caches/*", "-cf", "-", "."]
    with subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as packing:
        assert packing.stdout is not None
        answer = run_script(
            host.connection, _UNPACK, str(root), folder.name, given=packing.stdout, timeout=3600
        )
    if answer.code:
        raise MachineError(
            f"environment {folder.name} cannot be copied to {host.name}: {answer.errors}",
            where=root,
            next_step=f"free space on {host.name}, or set PERFBISECT_CACHE to a path that every machine has",
        )


def _digest(folder: Path, name: str) -> str:
    try:
        return hashlib.sha256((folder / name).read_bytes()).hexdigest()
    except OSError:
        return ""


def _unpack(packed: bytes, into: Path, names: set[str]) -> None:
    """Write the named regular files of a tar archive; everything else in it is left out."""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive:
                name = str(PurePosixPath(member.name))
                file = archive.extractfile(member) if member.isfile() and name in names else None
                if file is None or ".." in PurePosixPath(name).parts or name.startswith("/"):
                    continue
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                (into / name).write_bytes(file.read())
    except tarfile.TarError as error:
        raise UnreachableError(f"the results arrived in part: {error}") from error
    except OSError as error:
        raise MachineError(f"the results cannot be written: {error}", where=into) from error
