"""Values of files that become a path, a command, an address or a signal's target: where each is checked.

A new place is added to ``PLACES`` with a hostile value, a new deletion or signal to ``SINKS``.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

import perfbisect
from perfbisect.dashboard.pages import address
from perfbisect.environments.builders.wheel_index import links
from perfbisect.environments.kept import KeptFile
from perfbisect.errors import LocatedError, MachineError, PerfbisectError, UsageError
from perfbisect.fleet.agent import MANIFEST, read_manifest
from perfbisect.fleet.building import BuildDocument
from perfbisect.fleet.bundle import Bundle, BundleDocument
from perfbisect.fleet.folders import _unpack
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import Journal, JournalEvent
from perfbisect.jobs.replay import launches
from perfbisect.jobs.runner import recover_interrupted
from perfbisect.measure.attempt import from_dict, to_dict
from perfbisect.measure.profiling import ProfileFiles
from perfbisect.model.attempt import Attempt, Provenance, RunResult
from perfbisect.model.change import Change
from perfbisect.nightly.journal import NightJobs, NightRecord
from perfbisect.series.publish import publish
from perfbisect.system import processes
from perfbisect.system.files import scratch_folder
from perfbisect.system.http import RestClient
from tests.jobs.world import Clock

OUTSIDE = "../../victim"
STARTED = {
    "attempt": "j-001", "position": 0, "change": "ab" * 20, "purpose": "run", "runs": 1, "why": "",
    "folder": "attempts/001", "token": "0" * 32, "slot": "", "at": 0.0,
}  # fmt: skip
ATTEMPT = to_dict(Attempt("j-001", "ab" * 20, "run", Provenance("d", "m", "c"), seconds={"bench": 1.0}))


def replayed(kind: str, **changed: object) -> None:
    """Replay a launch of which one value of an event is another."""
    time, data = "2026-01-02T03:04:05+00:00", STARTED | (changed if kind == "started" else {})
    events = [JournalEvent(0, time, "started", data)]
    if kind == "launched":
        server = {"attempt": "j-001", "token": "0" * 32, "pid": 0, "created": 0.0} | changed
        events.append(JournalEvent(1, time, "launched", server))
    if kind == "failed":
        events.append(JournalEvent(1, time, "failed", {"attempt": ATTEMPT | changed}))
    with pytest.raises(LocatedError) as caught:
        launches(events)
    assert caught.value.where == f"journal.jsonl:{len(events)}"
    raise caught.value


def manifest(folder: Path, **changed: object) -> None:
    launch = {"change": "c", "outcome": "measured", "folder": "attempts/001"} | changed.pop("launch", {})  # type: ignore[operator]
    fields = {"token": "0" * 32, "state": "ended", "machine": "m", "leased": None, "launches": [launch]}
    (folder / MANIFEST).write_text(json.dumps(fields | changed))
    read_manifest(folder)


def night(**data: object) -> None:
    event = JournalEvent(0, "2026-01-02T03:04:05+00:00", "job", {"cell": "c", "job": OUTSIDE} | data)
    NightRecord((event,), NightJobs(Jobs(Path("/nowhere")))).jobs  # noqa: B018


def bundle(**changed: object) -> None:
    fields = {"cell": {}, "digest": "d", "setting": {"environment": "existing:x"}, "metric": "tpot",
              "token": "0" * 32, "launches": [{"change": {"id": "c"}, "runs": 1}], "limit": 1}  # fmt: skip
    Bundle.model_validate(fields | changed)


def rest(address: str) -> None:
    RestClient("https://api.example/v2", "secret", "Example", wait=lambda _: None).text(address)


@dataclass(frozen=True)
class Place:
    """Where a value enters, a value that must not, and what refuses it."""

    name: str
    enter: Callable[[Path], object]
    refusal: type[Exception]
    says: str


def kept_file(_: Path, **changed: str) -> KeptFile:
    given = {"name": "a.whl", "digest": "0" * 64, "bytes": 1, "origin": "https://example.invalid/a.whl"}
    return TypeAdapter(KeptFile).validate_python(given | changed)


PLACES = (
    Place(
        "journal: token of a launch",
        lambda _: replayed("started", token="/../victim"),
        LocatedError,
        "no token",
    ),
    Place(
        "journal: token of a server",
        lambda _: replayed("launched", token="/../victim"),
        LocatedError,
        "no token",
    ),
    *(
        Place(
            f"record of a kept file: its {field}",
            partial(kept_file, **{field: OUTSIDE}),
            ValidationError,
            field,
        )
        for field in ("name", "digest")
    ),
    Place("journal: process of a server", lambda _: replayed("launched", pid=-1), LocatedError, "pid"),
    Place(
        "journal: start of a server", lambda _: replayed("launched", created=-1.0), LocatedError, "created"
    ),
    Place(
        "journal: folder of a launch",
        lambda _: replayed("started", folder=OUTSIDE),
        LocatedError,
        "no path below",
    ),
    Place(
        "journal: absolute folder",
        lambda _: replayed("started", folder="/etc"),
        LocatedError,
        "no path below",
    ),
    Place("journal: position", lambda _: replayed("started", position=-1), LocatedError, "position"),
    Place("journal: runs of a launch", lambda _: replayed("started", runs=10**12), LocatedError, "runs"),
    Place("journal: time", lambda _: replayed("failed", seconds={"bench": 1e300}), LocatedError, "beyond"),
    Place(
        "journal: change, which git takes", lambda _: Change("--output=/etc/passwd"), ValueError, "no name"
    ),
    Place("journal: release, which uv takes", lambda _: Change("x @ file:///x.whl"), ValueError, "no name"),
    Place("night: id of a job", lambda _: night(), UsageError, "no id of a job"),
    Place(
        "attempt: stacks of a profile",
        lambda _: profiled(windows=[{"file": OUTSIDE, "seconds": 1, "steps": 1}]),
        ValidationError,
        "no name of a file",
    ),
    Place(
        "attempt: trace of a profile",
        lambda _: profiled(traces=[OUTSIDE]),
        ValidationError,
        "no name of a file",
    ),
    Place("bundle: token", lambda _: bundle(token="/../victim"), ValidationError, "no token"),
    Place("bundle: no token", lambda _: bundle(token=""), ValidationError, "token"),
    Place(
        "bundle: key of an environment",
        lambda _: bundle(environments={"c": OUTSIDE}),
        ValidationError,
        "no name",
    ),
    Place(
        "bundle: change",
        lambda _: bundle(launches=[{"change": {"id": "-x"}, "runs": 1}]),
        ValidationError,
        "no name",
    ),
    Place(
        "build: key of an environment",
        lambda _: BuildDocument(version="1", key="a", seconds=1, environments=(OUTSIDE,), failure=None),
        ValidationError,
        "no name of a file",
    ),
    Place("manifest: file", lambda p: manifest(p, files={OUTSIDE: "ab"}), MachineError, "no path below"),
    Place(
        "manifest: folder of a launch",
        lambda p: manifest(p, launch={"folder": OUTSIDE}),
        MachineError,
        "manifest",
    ),
    Place(
        "build of a nightly: artifact of another host",
        lambda _: rest("https://evil.example/a"),
        MachineError,
        "another host",
    ),
    Place("scratch folder", lambda _: scratch_folder("/../victim"), ValueError, "no token"),
)


def profiled(**changed: object) -> ProfileFiles:
    return TypeAdapter(ProfileFiles).validate_python(changed)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_hostile_value_is_refused_where_it_enters(place: Place, tmp_path: Path) -> None:
    with pytest.raises(place.refusal, match=place.says):
        place.enter(tmp_path)


def test_the_same_values_enter_if_they_are_ours(tmp_path: Path) -> None:
    time = "2026-01-02T03:04:05+00:00"
    server = {"attempt": "j-001", "token": "0" * 32, "pid": 17, "created": 1.5}
    events = [JournalEvent(0, time, "started", STARTED), JournalEvent(1, time, "launched", server)]
    (launch,) = launches(events)
    assert (launch.token, launch.pid, launch.created) == ("0" * 32, 17, 1.5)
    bundle(environments={"c": "0123abcd"})
    manifest(tmp_path, files={"attempts/001/attempt.json": "ab"})
    assert kept_file(tmp_path).name == "a.whl"
    assert from_dict(ATTEMPT).seconds == {"bench": 1.0}


def test_a_journal_without_a_token_names_no_process() -> None:
    time = "2026-01-02T03:04:05+00:00"
    server = {"attempt": "j-001", "token": "", "pid": os.getpid(), "created": 1.5}
    started = JournalEvent(0, time, "started", STARTED | {"token": ""})
    (launch,) = launches([started, JournalEvent(1, time, "launched", server)])
    assert launch.pid == 0


def test_no_wheel_is_taken_from_a_file_or_a_repository() -> None:
    page = "".join(
        f'<a href="{address}/x-1.0-py3-none-any.whl">x</a>'
        for address in ("file:///tmp", "git+ssh://host", "https://wheels.example", "beside")
    )
    assert links(page, "https://index.example/x/") == (
        "https://wheels.example/x-1.0-py3-none-any.whl",
        "https://index.example/x/beside/x-1.0-py3-none-any.whl",
    )


@pytest.mark.parametrize(
    "text", ["javascript:alert(1)", "file:///etc/passwd", "//host/x", "data:text/html,x"]
)
def test_an_address_in_a_result_is_a_link_only_if_it_is_of_the_web(text: str) -> None:
    assert address(text) == ""
    assert address("https://buildkite.com/vllm/ci/builds/7") != ""


def test_an_archive_of_a_machine_writes_only_what_its_manifest_names(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("inside", "../outside", "/absolute"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "into").mkdir()
    _unpack(packed.getvalue(), tmp_path / "into", {"inside", "../outside", "/absolute"})
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["inside"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user, which is nobody's leftover."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    ) as child:
        yield child
        child.kill()


def test_resume_neither_deletes_nor_signals_what_is_not_a_launch_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "pb-").mkdir()
    row = processes.process(sleeper.pid)
    assert row is not None
    assert processes.stop_leftovers("/../victim", 0, 0.0, grace=0.0) == ()
    assert victim.exists()
    job = Job(tmp_path / "job")
    (job.path / "attempts" / "001").mkdir(parents=True)
    with Journal(job.journal, clock=Clock()) as journal:
        journal.append("started", STARTED)
        server = {"attempt": "j-001", "token": "0" * 32, "pid": row.pid, "created": row.created}
        journal.append("launched", server)
        recover_interrupted(job, journal, lambda _: None, processes.stop_leftovers)
        assert journal.events[-1].kind == "abandoned"
    assert sleeper.poll() is None


def test_stop_signals_only_the_process_that_has_the_lock(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    job, row = Job(tmp_path), processes.process(sleeper.pid)
    assert row is not None
    (tmp_path / "holder.json").write_text(json.dumps({"pid": row.pid, "created": row.created}))
    (tmp_path / "lock").touch()
    assert job.request_stop() is not None
    assert sleeper.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.3)


def test_a_journal_names_no_file_outside_the_job_for_what_is_published(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    attempt = replace(from_dict(ATTEMPT), runs=(RunResult(1, 1, {}, raw=str(secret)),), folder="../..")
    job = Job(tmp_path / "jobs" / "one")
    job.path.mkdir(parents=True)
    cell = {"name": "a", "family": "text", "model": "b", "num_prompts": 8, "client": "vllm_bench"}
    change = {"id": "ab" * 20, "kind": "commit"}
    with Journal(job.journal, clock=Clock()) as journal:
        journal.append("plan", {"verb": "run", "cell": cell, "change": change})
        journal.append("finished", {"attempt": to_dict(attempt)})
    assert publish(tmp_path, [job]).left_out == (f"{attempt.id}: the client's own result was not kept",)


def test_an_error_of_a_journal_is_one_of_usage(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", clock=Clock()) as journal:
        journal.append("started", STARTED | {"token": "/../victim"})
        with pytest.raises(PerfbisectError) as caught:
            launches(journal.events)
    assert (caught.value.exit_code, caught.value.where) == (2, f"{tmp_path / 'journal.jsonl'}:1")


SINKS = {
    "changes/git.py": "the log of a fetch",
    "clients/fork_server.py": "its own child",
    "clients/runner.py": "its own log",
    "comment/answer.py": "its own child",
    "fleet/command.py": "its own log",
    "dashboard/build.py": "files of the site that it lists",
    "environments/build.py": "its own log",
    "environments/builders/cached.py": "an environment, by its key",
    "environments/builders/source.py": "the work tree of a build, by its key",
    "environments/cache.py": "an environment, by its key",
    "environments/gc.py": "an environment, by its key",
    "environments/images.py": "its own links",
    "environments/kept.py": "a kept file, by its digest and a name without folders; its own record",
    "environments/source_tree.py": "files of an environment, as git lists them",
    "fleet/connection.py": "its own sockets",
    "fleet/ray_cluster.py": "its own socket",
    "fleet/ray_relay.py": "its own socket and child",
    "jobs/folders.py": "the record of a holder; a process that has the job's lock",
    "jobs/workers.py": "files of an attempt, whose folder the job numbers",
    "machine/leases.py": "the folder of locks",
    "machine/torch_probe.py": "its own log",
    "mcp/server.py": "its own child",
    "measure/bench.py": "the result of a run, in the attempt's folder",
    "measure/local.py": "the scratch folder of its own token",
    "measure/preparation.py": "its own log",
    "series/publish.py": "files that it has published",
    "system/commands.py": "the log of its own command, before it starts",
    "system/files.py": "its own temporary file",
    "system/held_files.py": "shared memory of a launch, by its inode",
    "system/shim.py": "the group of its own child",
    "system/processes.py": "shared memory of a launch; processes by identity; the scratch folder of a token",
}
"""Files that delete or signal, and what: none of it is a path or a process that a file names unchecked."""

_SINKS = re.compile(r"\b(rmtree|unlink|rmdir|kill|killpg|pidfd_send_signal|send_signal|removedirs)\(")


def test_every_place_that_deletes_or_signals_is_listed() -> None:
    root = Path(perfbisect.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if _SINKS.search(source) and any(
            isinstance(node, ast.Call) and _SINKS.match(f"{ast.unparse(node.func).rpartition('.')[2]}(")
            for node in ast.walk(ast.parse(source))
        ):
            found.add(str(path.relative_to(root)))
    assert found == set(SINKS)


_CHECKED = re.compile(r"\b(Token|FileName|InnerPath|InnerPathOrNone|is_token|is_name|require_argument)\b")


def test_every_checked_type_has_a_place() -> None:
    """A model that takes a checked value from a file is named in ``PLACES`` by its file."""
    root = Path(perfbisect.__file__).parent
    users = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if _CHECKED.search(path.read_text("utf-8"))
    }
    assert users == {
        "common/checked.py",
        "fleet/building.py",
        "fleet/bundle.py",
        "jobs/folders.py",
        "jobs/replay.py",
        "measure/profiling.py",
        "model/change.py",
        "system/files.py",
        "system/processes.py",
    }


def test_a_document_of_a_machine_that_is_ours_enters(tmp_path: Path) -> None:
    manifest(tmp_path)
    document = read_manifest(tmp_path)
    assert isinstance(document, BundleDocument)
    assert document.launches[0].folder == "attempts/001"
