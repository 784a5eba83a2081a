"""Whatever a journal holds, it is replayed, or refused with the place of the fault."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perfbisect.errors import LocatedError
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import Journal, read, with_checksum
from perfbisect.jobs.replay import launches
from scripts.fuzz.journals import replay_bent_journal
from tests.command_line import type_command, type_json
from tests.fixtures.jobs import BegunJob, Start
from tests.jobs.world import Clock, World, history


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 500), marks=pytest.mark.processes)])
def test_bent_journals(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        replay_bent_journal(Random(seed), tmp_path / str(seed))


@pytest.fixture
def finished(start: Start) -> BegunJob:
    begun = start(World(history(8).changes, slow=5))
    begun.run()
    return begun


def bent(begun: BegunJob, kind: str, number: int = 0, **changed: Any) -> int:
    """Change values of an event, with a checksum that fits; returns its line."""
    lines = begun.job.journal.read_bytes().splitlines(keepends=True)
    at = [event.seq for event in begun.events if event.kind == kind][number]
    document = json.loads(lines[at])
    del document["crc32"]
    for place, value in changed.items():
        *above, last = place.split("__")
        inner = document["data"]
        for step in above:
            inner = inner[int(step) if isinstance(inner, list) else step]
        inner[last] = value
    lines[at] = with_checksum(json.dumps(document).encode())
    begun.job.journal.write_bytes(b"".join(lines))
    return at + 1


def test_a_changed_digit_is_told_with_its_line(finished: BegunJob) -> None:
    path, lines = finished.job.journal, finished.job.journal.read_bytes().splitlines(keepends=True)
    at = next(event.seq for event in finished.events if event.kind == "finished")
    lines[at] = lines[at].replace(b'"bench":20.0', b'"bench":21.0')
    path.write_bytes(b"".join(lines))
    with pytest.raises(LocatedError, match="its checksum is another: the line was changed") as caught:
        read(path)
    assert caught.value.where == f"{path}:{at + 1}"


def test_journals_of_before_are_read_and_continued_with_checksums(tmp_path: Path, finished: BegunJob) -> None:
    before, path = finished.events, tmp_path / "old.jsonl"
    documents = [json.loads(line) for line in finished.job.journal.read_text().splitlines()]
    for document in documents:
        del document["crc32"]
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    assert read(path).events == before
    with Journal(path, clock=Clock()) as journal:
        journal.append("verdict", {"verdict": "again"})
        journal.append("verdict", {"verdict": "more"})
    assert len(read(path).events) == len(before) + 2
    lines = path.read_bytes().splitlines(keepends=True)
    stripped = json.loads(lines[-2])
    del stripped["crc32"]
    path.write_bytes(b"".join([*lines[:-2], json.dumps(stripped).encode() + b"\n", lines[-1]]))
    assert len(read(path).events) == len(before) + 2, "nothing before it has a checksum"
    path.write_bytes(
        b"".join(
            [*lines[:-2], lines[-2], json.dumps(json.loads(lines[-1]) | {"seq": len(before) + 1}).encode()]
        )
    )
    assert read(path).torn, "its checksum is another"


def test_a_line_without_a_checksum_after_one_with_it_is_refused(finished: BegunJob) -> None:
    path, lines = finished.job.journal, finished.job.journal.read_bytes().splitlines(keepends=True)
    document = json.loads(lines[2])
    del document["crc32"]
    path.write_bytes(b"".join([*lines[:2], json.dumps(document).encode() + b"\n", *lines[3:]]))
    with pytest.raises(LocatedError, match="it has no checksum") as caught:
        read(path)
    assert caught.value.where == f"{path}:3"


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("started", {"change": "ef" * 20}, "which the plan does not have"),
        ("started", {"position": 99}, "at position 99, which the plan does not have"),
        ("started", {"position": "x"}, "position: Input should be a valid integer"),
        ("launched", {"pid": 10**400}, "pid: "),
        ("launched", {"created": 10**400}, "created: "),
        ("finished", {"attempt__seconds__bench": 1e300}, "not finite, or beyond 1e+15"),
        ("finished", {"attempt__seconds__bench": 1e999}, "is no number of JSON"),
        ("finished", {"attempt__runs__0__values__tpot:median": 10**400}, "not an attempt"),
        ("verdict", {"culprits": [99]}, "the journal cannot be replayed: IndexError"),
        ("verdict", {"confirmed__culprit": 10**30}, "cannot be re"),
        ("plan", {"budget": 10**400}, "plan cannot be read"),
        (
            "plan",
            {"cell__client__name": "loadgen"},
            "has the client 'loadgen', which this version does not have",
        ),
    ],
)
def test_what_cannot_be_replayed_is_one_located_error(
    kind: str, changed: dict[str, Any], said: str, finished: BegunJob
) -> None:
    number = bent(finished, kind, **changed)
    for verb in ("status", "report", "resume"):
        told = type_json(verb, finished.job.id, "--state", str(finished.job.path.parents[1]), code=2)
        assert said in told["error"]
        path, _, line = told["where"].partition(".jsonl")
        assert f"{path}.jsonl" == str(finished.job.journal)
        assert line in ("", f":{number}")


def test_a_step_without_launches_is_a_located_error(finished: BegunJob) -> None:
    """A verdict that names a step of which the journal has no launch."""
    lines = finished.job.journal.read_bytes().splitlines(keepends=True)
    kept = [json.loads(lines[0]), json.loads(lines[-1])]
    for seq, document in enumerate(kept):
        document["seq"] = seq
        del document["crc32"]
    finished.job.journal.write_bytes(b"".join(with_checksum(json.dumps(d).encode()) for d in kept))
    told = type_json("report", finished.job.id, "--state", str(finished.job.path.parents[1]), code=2)
    assert told["where"] == str(finished.job.journal)
    assert "the journal cannot be replayed: LookupError: no launch of position 5" in told["error"]


def test_a_damaged_last_line_is_cut_and_the_job_goes_on(finished: BegunJob) -> None:
    lines = finished.job.journal.read_bytes().splitlines(keepends=True)
    finished.job.journal.write_bytes(b"".join(lines[:-1]) + lines[-1].replace(b'"verdict"', b'"verdicT"', 1))
    document = finished.run()
    assert document.outcome == "found"
    assert read(finished.job.journal).torn == b""
    assert launches(finished.events) == finished.records


def test_a_job_that_cannot_be_read_stands_in_the_way_of_no_other(start: Start, tmp_path: Path) -> None:
    one, state = start(World(history(8).changes, slow=5)), str(tmp_path)
    strange = Jobs(tmp_path).new(Clock()(), "ffff")
    lines = one.job.journal.read_bytes().splitlines(keepends=True)
    document = json.loads(lines[0])
    del document["crc32"]
    document["data"]["cell"]["client"]["name"] = "loadgen"
    strange.journal.write_bytes(with_checksum(json.dumps(document).encode()))
    broken = Jobs(tmp_path).new(Clock()(), "eeee")
    broken.journal.write_text("nonsense\n\n")
    assert type_json("status", "--state", state)["job"] == one.job.id, "the only one that can be continued"
    one.run()
    rows = {row["job"]: row for row in type_json("status", "--state", state)["jobs"]}
    assert rows[one.job.id]["outcome"] == "found"
    assert rows[strange.id]["state"] == rows[broken.id]["state"] == "broken"
    assert "has the client 'loadgen'" in rows[strange.id]["problem"]
    shown = type_command(["status", "--state", state]).out
    assert "loadgen" in shown and "not an event of a journal" in shown
    assert type_json("report", one.job.id, "--state", state)["outcome"] == "found"
