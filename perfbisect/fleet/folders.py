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
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from pydantic import ValidationError

import perfbisect
from perfbisect.common.json_text import WRONG_SHAPE
from perfbisect.environments.base import Environment
from perfbisect.environments.cache import STAMP, read_stamp
from perfbisect.errors import MachineError, UsageError
from perfbisect.fleet.agent import MANIFEST
from perfbisect.fleet.bundle import Bundle, BundleDocument, BundleState, Ticket, UnreachableError
from perfbisect.fleet.hosts import FleetHost
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.phases import PhaseRecord, read_phase
from perfbisect.system.logs import excerpt_lines

RUN = "run"
"""The agent's own folder in that of a bundle."""

# A code above 128 is 128 and the number of the signal that ended the program.
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

_Kind = Literal["absent", "waiting", "running", "ended", "failed", "killed"]
_OPEN = ("absent", "waiting", "running")

_NEVER_START = 'cd "$1" 2>/dev/null && mkdir started 2>/dev/null; true'

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


Hosts = Callable[[], Iterable[FleetHost]]
"""Lists the machines of an engine. :raises UnreachableError: the engine does not answer."""


class FolderFleet:
    """Makes bundles on the machines of engines, which ``spec`` names."""

    def __init__(self, spec: str, *engines: Hosts) -> None:
        self.spec, self._engines = spec, engines
        self._homes: dict[str, str] = {}

    def hosts(self) -> Iterator[FleetHost]:
        """The machines.

        Raises:
            UnreachableError: an engine does not answer; the machines of the others come first.
            MachineError: an engine does not list them.
        """
        silent: UnreachableError | None = None
        for engine in self._engines:
            try:
                yield from engine()
            except UnreachableError as error:
                silent = error
        if silent is not None:
            raise silent

    def host(self, name: str) -> FleetHost:
        """A machine, with absolute paths. :raises UnreachableError: it does not answer."""
        found = next((host for host in self.hosts() if host.name == name), None)
        if found is None:
            raise MachineError(f"{self.spec} has no machine {name} any more")
        return self._absolute(found)

    def _absolute(self, host: FleetHost) -> FleetHost:
        if not host.settings.is_relative:
            return host
        if host.name not in self._homes:
            self._homes[host.name] = host.home()
        return host.below(self._homes[host.name])

    def machines(
        self, *, devices: int = 0, workers: int | None = None, checks: bool = False
    ) -> Sequence[MachineDocument]:
        """All machines; one that cannot be used has no slots and says why in ``problem``.

        ``devices``: of a slot, ``workers``: slots of a machine, None: as many as it has. ``checks``: check
        each as ``perfbisect doctor`` does, which takes a second of it.

        Raises:
            UnreachableError: an engine does not answer.
            UsageError: two machines have one name.
        """
        words = ["look", "--json", "--gpus", str(devices)]
        words += ["--workers", str(workers)] if workers else []
        words += ["--checks"] if checks else []
        hosts = tuple(self.hosts())
        for name, count in Counter(host.name for host in hosts).items():
            if count > 1:
                raise UsageError(
                    f"--fleet {self.spec}: two machines are called {name}",
                    next_step="give one of them another name in the file of hosts",
                )
        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            return tuple(pool.map(partial(self._look, words=words), hosts))

    def _look(self, host: FleetHost, *, words: Sequence[str]) -> MachineDocument:
        asked = time.time()
        try:
            profile = ["--machine", host.settings.profile] if host.settings.profile else []
            answer = host.ask(self._absolute(host).agent(*words, *profile))
            document = MachineDocument.model_validate_json(answer.output)
        except ValidationError:
            problem = f"perfbisect does not answer there: {answer.said}"
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
        return MachineDocument.unusable(host.name, problem)

    def place(self, machine: str, environments: Sequence[Environment]) -> None:
        """Bring environments to a machine, by key; those that it has stay.

        Raises:
            MachineError: no disk there, or another path.
        """
        host = self.host(machine)
        folders = {folder.name: folder for each in environments for folder in with_bases(each.folder)}
        root = next((folder.parent for folder in folders.values()), None)
        if root is None:
            return
        answer = host.connection.run_script(_KEYS, str(root), *folders)
        for key in folders.keys() - set(answer.text.split()):
            _send(host, folders[key], root)

    def submit(self, ticket: Ticket, bundle: Bundle) -> None:
        """Start a bundle; submitting it twice starts it once.

        Raises:
            MachineError: it cannot be started there.
        """
        host = self.host(ticket.machine)
        host.put_request(host.bundle(ticket.token), bundle.model_dump_json(by_alias=True).encode())
        host.start(bundle, host.agent("run", "request.json", "--folder", RUN, "--json"))

    def state(self, ticket: Ticket) -> BundleState:
        host = self.host(ticket.machine)
        kind, _, beat = self._seen(host, ticket)
        if kind in _OPEN and not host.lives(ticket.token):
            kind, _, beat = self._seen(host, ticket)  # it may have ended in between
            if kind in _OPEN:
                return BundleState("gone", beat.phase, f"the agent on {host.name} is gone")
        if kind == "killed":
            return BundleState("gone", beat.phase, f"the agent on {host.name} was killed")
        if kind == "failed":
            log = host.connection.run_script(_LOG, host.bundle(ticket.token)).text
            return BundleState("failed", beat.phase, error_in(log))
        return BundleState("waiting" if kind == "absent" else kind, beat.phase, detail=beat.detail)

    def _seen(self, host: FleetHost, ticket: Ticket) -> tuple[_Kind, str, PhaseRecord]:
        """How far a bundle is, its machine, and its heartbeat; an empty one where none is written yet."""
        answer = host.connection.run_script(_STATE, host.bundle(ticket.token))
        kind, machine, heartbeat = (*answer.text.split("\n", 2), "", "")[:3]
        return cast(_Kind, kind), machine, read_phase(heartbeat) or PhaseRecord()

    def fetch(self, ticket: Ticket, into: Path) -> bool:
        """Copy the folder of a bundle that has ended; what is there already is not copied again.

        Returns True if all files have the digests of the manifest.
        """
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
        # What did not arrive whole is missing again at the next call: fetching can be repeated.
        if any(_digest(into, name) != digest for name, digest in manifest.files.items()):
            return False
        (into / MANIFEST).write_bytes(answer.output)
        return True

    def cancel(self, ticket: Ticket, grace: float) -> None:
        """End a bundle; returns once none of its processes lives and it can be fetched, as far as it came.

        Raises:
            UnreachableError: the machine does not answer.
        """
        host = self.host(ticket.machine)
        folder = host.bundle(ticket.token)
        host.connection.run_script(_NEVER_START, folder)
        host.end(ticket.token, grace)
        # End what a killed agent left, and write the manifest: a second call of the agent does both.
        if host.connection.run_script(_IS_CUT, folder).code == 0:
            words = host.agent("run", f"{folder}/request.json", "--folder", f"{folder}/{RUN}", "--json")
            answer = host.ask(words)
            if answer.code:
                why = error_in(answer.text) if answer.text else answer.errors
                raise MachineError(
                    f"bundle {ticket.token} cannot be closed on {host.name}: {why}", where=folder
                )

    def find(self, token: str) -> Ticket | None:
        """The bundle that was submitted with a token; None if there is none.

        Raises:
            UnreachableError: a machine that may have it does not answer.
        """
        silent: UnreachableError | None = None
        for host in self.hosts():
            ticket = Ticket(token, host.name)
            try:
                kind, machine, _ = self._seen(self._absolute(host), ticket)
                # Machines may share the folder of the bundles: each would find what another measures.
                if kind != "absent" and machine in ("", host.name):
                    return ticket
            except UnreachableError as error:
                silent = error
        if silent is not None:
            raise silent
        return None


def error_in(output: str) -> str:
    """The message in what an agent printed before it failed; other output as it is."""
    try:
        return excerpt_lines(str(json.loads(output)["error"]))
    except WRONG_SHAPE:
        return excerpt_lines(output) or "the agent ended without output"


def with_bases(folder: Path) -> list[Path]:
    """An environment's folder, and those of the environments that it stands on."""
    found = [folder]
    for each in found:
        stamp = read_stamp(each)
        if stamp is None:
            continue
        links = [each / path for path in (stamp.interpreter, *stamp.python_path, Path(stamp.engine_file))]
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
    # Streamed: an environment has gigabytes, for which no second place may be free.
    with subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as packing:
        assert packing.stdout is not None
        answer = host.connection.run_script(
            _UNPACK, str(root), folder.name, given=packing.stdout, timeout=3600
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
