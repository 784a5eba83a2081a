"""Environments that machines with the role ``build`` make, and that are brought here from there.

``FOLDER/repository.git`` on the machine has the commits of all drivers that use it; ``FOLDER/builds/KEY/``
has the request and the log of a build, the cache, at the path that it has here, the environment.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Literal

from pydantic import Field, ValidationError

import perfbisect
from perfbisect.changes.git import Repository
from perfbisect.common.checked import FileName
from perfbisect.environments.build import BuildRun
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.errors import BuildError, FaultCode, MachineError, RevisionError
from perfbisect.fleet.hosts import FleetHost
from perfbisect.jobs.documents import Document
from perfbisect.jobs.plans import MeasurementConfig, PlanPart
from perfbisect.model.change import Change
from perfbisect.system.logs import excerpt_lines

REQUEST = "request.json"
LOG = "build.log"

_COPY_S = 3600.0

_BUILD = """\
cd "$1" || exit 1
shift
exec 3<&0
"$@" < /dev/null 3<&- &
build=$!
(cat <&3; kill -s TERM "$build") > /dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$build"
code=$?
kill "$watch" 2> /dev/null
exit "$code"
"""
"""Runs a command in the folder $1 for as long as standard input is open: it ends with its driver."""

_KNOWN = 'git -C "$1" for-each-ref --format="%(objectname)" 2>/dev/null; true'

_RECEIVE = """\
[ -e "$1" ] || git init --quiet --bare "$1" || exit 1
git -C "$1" index-pack --stdin --fix-thin > /dev/null
"""

_REFER = 'git -C "$1" update-ref --stdin'

_LOG_END = 'tail -c 200000 "$1" 2>/dev/null; true'

_REVISION = re.compile(r"(?<=,)(base|client)=([^,]+)")
"""Options of an environment that name a commit."""


class BuildRequest(PlanPart):
    """A request to ``perfbisect agent build``.

    ``setting``: with the environment's own specification and the paths of the machine that builds.
    ``changes``: those of the job, in order, which builders look up together; ``key``: that the environment
    must have; ``limit``: minutes. ``constraints``: the content of that file.
    """

    setting: MeasurementConfig
    constraints: str = ""
    changes: tuple[Change, ...] = ()
    change: Change
    key: str = Field(pattern=r"^[0-9a-f]+$")
    limit: float = Field(gt=0)


class BuildFailureDocument(Document):
    """Why an environment was not built. ``part``: whether the build or the machine failed.

    ``output``: of the program that failed, by which its kind is told.
    """

    part: Literal["build", "machine"]
    message: str
    code: FaultCode | None
    output: str


class BuildDocument(Document):
    """``perfbisect agent build``. ``environments``: keys of what was asked for and of what it stands on."""

    schema_: Literal["perfbisect.agent-build/1"] = Field(default="perfbisect.agent-build/1", alias="schema")
    version: str
    key: str
    seconds: float
    environments: tuple[FileName, ...]
    failure: BuildFailureDocument | None


class BuildMachines:
    """Implements :class:`perfbisect.environments.base.BuildSite`; each machine builds one at a time.

    ``repository``: of the commits, None: only releases are built.
    """

    def __init__(
        self,
        hosts: Sequence[FleetHost],
        setting: MeasurementConfig,
        repository: Repository | None,
        cache: Path,
    ) -> None:
        self._setting, self._repository = setting, repository
        self._cache = EnvironmentCache(cache)
        self._changes: dict[str, Change] = {}
        self._free: SimpleQueue[FleetHost] = SimpleQueue()
        for host in hosts:
            self._free.put(host)
        self._sending = Lock()

    def prepare(self, changes: Iterable[Change]) -> None:
        self._changes |= {change.id: _bare(change) for change in changes}

    def build(self, spec: str, change: Change, key: str, *, log: Path, timeout: float) -> float:
        host = self._free.get()
        try:
            return self._build(host.below(host.home()), spec, change, key, BuildRun(log, timeout))
        finally:
            self._free.put(host)

    def _build(self, host: FleetHost, spec: str, change: Change, key: str, run: BuildRun) -> float:
        run.note(f"# built on {host.name}\n")
        spec = self._pin(spec)
        if self._repository is not None:
            with self._sending:
                self._send_commits(host, self._repository, change, spec)
        request, folder = self._request(host, spec, change, key, run.timeout), f"{host.folder}/builds/{key}"
        text = request.model_dump_json(exclude_defaults=True).encode()
        host.put_request(folder, text)
        command = host.agent("build", REQUEST, "--json")
        # Nothing is written to it: its end tells the machine that this driver is gone.
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as held, os.fdopen(writing, "wb"):
            # The limit there ends the build first, with a message of its own.
            limit = run.timeout + 60
            answer = host.connection.run_script(_BUILD, folder, *command, given=held, timeout=limit)
        run.note(host.connection.run_script(_LOG_END, f"{folder}/{LOG}").output.decode(errors="replace"))
        try:
            built = BuildDocument.model_validate_json(answer.output)
        except ValidationError:
            message = f"perfbisect cannot build on {host.name}: {answer.said}"
            raise MachineError(message, where=run.log) from None
        _require_same(built, key, host, run.log)
        for each in reversed(built.environments):  # what it stands on comes first
            self._cache.receive(each, partial(_copy, host, self._cache, each), _COPY_S)
        return built.seconds

    def _pin(self, spec: str) -> str:
        """A specification whose commits are named by their hash: the machine has no branches."""

        def pin(found: re.Match[str]) -> str:
            name, revision = found.groups()
            try:
                return f"{name}={self._repository.resolve(revision).id}" if self._repository else found[0]
            except RevisionError:
                return found[0]

        return _REVISION.sub(pin, spec)

    def _request(self, host: FleetHost, spec: str, change: Change, key: str, timeout: float) -> BuildRequest:
        constraints = self._setting.constraints
        repository = f"{host.folder}/repository.git" if self._repository is not None else ""
        return BuildRequest(
            setting=MeasurementConfig(
                repository=repository,
                cache=str(self._cache.path),
                environment=spec,
                exclude_newer=self._setting.exclude_newer,
                machine=self._setting.machine,
            ),
            constraints=Path(constraints).read_text() if constraints else "",
            changes=tuple(self._changes.values()),
            change=_bare(change),
            key=key,
            limit=timeout / 60,
        )

    def _send_commits(self, host: FleetHost, repository: Repository, change: Change, spec: str) -> None:
        """Send the commits that the machine lacks, with the tags, by which builds tell their version."""
        target = f"{host.folder}/repository.git"
        known = set(host.connection.run_script(_KNOWN, target).text.split())
        named = [found[1] for found in _REVISION.findall(spec)]
        commits = [each.id for each in (*self._changes.values(), change) if each.kind == "commit"]
        commits += [name for name in named if re.fullmatch(r"[0-9a-f]{40,64}", name)]
        wanted = {f"refs/perfbisect/{sha}": sha for sha in commits if sha not in known}
        if not wanted:
            return
        rows = repository.text("for-each-ref", "--format=%(objectname) %(refname)", "refs/tags")
        tags = [row.split(" ", 1) for row in rows.splitlines()]
        wanted |= {name: sha for sha, name in tags if sha not in known}
        # git fails on ^SHA of an object that is not here, which another driver may have sent.
        asked = "".join(f"{sha}\n" for sha in sorted(known)).encode()
        found = repository.text("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked)
        shared = [row.split()[0] for row in found.splitlines() if not row.endswith(" missing")]
        revisions = [*wanted.values(), *(f"^{sha}" for sha in shared)]
        arguments = ["pack-objects", "--quiet", "--revs", "--stdout", "--thin", "--delta-base-offset"]
        command = repository.command(*arguments)
        with subprocess.Popen(
            command, env=repository.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as packing:
            assert packing.stdin is not None and packing.stdout is not None
            packing.stdin.write("".join(f"{revision}\n" for revision in revisions).encode())
            packing.stdin.close()
            sent = host.connection.run_script(_RECEIVE, target, given=packing.stdout, timeout=_COPY_S)
        sent.checked(f"send the commits of {repository.path} to {host.name}", target)
        updates = "".join(f"update {name} {sha}\n" for name, sha in wanted.items()).encode()
        host.connection.run_script(_REFER, target, given=updates).checked(f"name commits on {host.name}")


def _bare(change: Change) -> Change:
    """A change without what only reports show."""
    return Change(change.id, change.kind)


def _require_same(built: BuildDocument, key: str, host: FleetHost, log: Path) -> None:
    """Require that a machine built, in this version, what this one would have built."""
    if built.version != perfbisect.__version__:
        raise MachineError(
            f"perfbisect {built.version} is on {host.name}, {perfbisect.__version__} is here",
            next_step=f"perfbisect agent install {host.name}",
        )
    failure = built.failure
    if failure is not None:
        kind = BuildError if failure.part == "build" else MachineError
        message = f"{failure.message} (on {host.name})"
        raise kind(message, where=log, code=failure.code, output=failure.output)
    if built.key != key:
        raise MachineError(
            f"{host.name} would build another environment, {built.key} and not {key}",
            where=log,
            next_step="give both the same Python, and name python= and variant= in --env",
        )


def _copy(host: FleetHost, cache: EnvironmentCache, key: str, into: Path) -> None:
    """Bring an environment; its compile and kernel caches are the machine's own."""
    folder = str(cache.folder(key))
    unpack = ["tar", "-C", str(into), "-xf", "-"]
    with subprocess.Popen(unpack, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as unpacking:
        assert unpacking.stdin is not None
        answer = host.connection.run(
            ["tar", "-C", folder, "--exclude=./caches/*", "-cf", "-", "."],
            into=unpacking.stdin,
            timeout=_COPY_S,
        )
        errors = excerpt_lines(unpacking.communicate()[1].decode(errors="replace"))
    if answer.code or unpacking.returncode:
        raise MachineError(
            f"environment {key} cannot be copied from {host.name}: {answer.errors or errors}",
            where=into,
            next_step="free space here, or set PERFBISECT_CACHE to a path that every machine has",
        )
