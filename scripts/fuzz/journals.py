"""Journals of jobs: bent lines, reported and continued."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from perfbisect.bisect.plan import BisectPlan, make_plan
from perfbisect.commands.experiments import experiment_of
from perfbisect.engine.experiment import run_experiment
from perfbisect.errors import Interrupted, ServerError, UsageError
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read, replaying, with_checksum
from perfbisect.jobs.plans import write_plan
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.change import History
from perfbisect.model.metric import parse_metric
from perfbisect.report.markdown import report_markdown
from scripts.fuzz.mutate import bend_bytes, bend_json
from tests.experiments.factory import CHANGES, compare_plan, run_plan
from tests.fixtures.jobs import SETTING
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell, history, verdict

Lines = list[bytes]


@dataclass(frozen=True)
class _Sample:
    """A journal, finished or cut short, with the world that it was measured in."""

    world: Callable[[], World]
    lines: tuple[bytes, ...]


@functools.cache
def _samples() -> tuple[_Sample, ...]:
    with tempfile.TemporaryDirectory() as folder:
        return tuple(_made(Path(folder)))


def _made(folder: Path) -> list[_Sample]:
    def bisected() -> World:
        return World(history(8).changes, slow=5, tau=0.005)

    def compared() -> World:
        return World(CHANGES, 1, factor=1.3, tau=0.005)

    found = []
    for name, world in (("bisect", bisected), ("compare", compared), ("run", compared)):
        job, watch = Job(folder / name), Watch()
        job.path.mkdir()
        (job.path / "attempts").mkdir()
        plans = {"bisect": _bisect_plan, "compare": lambda _: compare_plan(), "run": run_plan}
        write_plan(job, plans[name](world()), Clock())
        if name == "bisect":
            verdict(job, watch, world())
        else:
            with job.held():
                run_experiment(experiment_of(job.events()), job, watch.tools(world()))
        lines = tuple(job.journal.read_bytes().splitlines(keepends=True))
        found += [_Sample(world, lines), _Sample(world, lines[: len(lines) * 2 // 3])]
    return found


def _bisect_plan(world: World) -> BisectPlan:
    return make_plan(
        BisectPlan,
        cell=cell(),
        history=History(world.changes),
        builder=FakeBuilder(),
        metric=parse_metric("tpot"),
        setting=SETTING,
        budget=600.0,
    )


def replay_bent_journal(random: Random, folder: Path) -> None:
    """Report a job with a bent journal, then continue it to its next launch.

    Each gives a result or an error for the user; an error of ours, or one without a place, is a fault.
    """
    sample = random.choice(_samples())
    folder.mkdir(exist_ok=True)
    job = Job(Path(tempfile.mkdtemp(dir=folder)))
    (job.path / "attempts").mkdir(parents=True)
    job.journal.write_bytes(b"".join(bend_journal(random, [*sample.lines])))
    has_document = _refused(functools.partial(_report, job))
    if has_document:
        _refused(functools.partial(_continue, job, sample.world()))


def _refused(step: Callable[[], None]) -> bool:
    """Make a step; False if the journal is refused, with its place."""
    try:
        step()
    except Interrupted:
        return True
    except (ServerError, UsageError) as error:  # the first: a range that cannot be bisected
        if error.where is None:
            raise AssertionError(f"an error without a place: {error.message}") from error
        return False
    return True


def _report(job: Job) -> None:
    events = read(job.journal).events
    kind = experiment_of(events)
    with replaying(job.journal):
        result = kind.result(job, events)
        kind.status(result)
        report_markdown(kind.report(result))


def _continue(job: Job, world: World) -> None:
    world.hold = _interrupt  # before the world looks for a change that may be bent
    with job.held():
        run_experiment(experiment_of(job.events()), job, Watch().tools(world))


def _interrupt(_: AttemptRequest) -> None:
    raise Interrupted("the launch begins")


def bend_journal(random: Random, lines: Lines) -> Lines:
    """Lines with one fault."""
    return random.choice(_FAULTS)(random, lines)


def _flip(random: Random, lines: Lines) -> Lines:
    """Bytes of a line are others."""
    at = random.randrange(len(lines))
    line = bytearray(lines[at])
    for _ in range(random.randint(1, 3)):
        line[random.randrange(len(line))] ^= 1 << random.randrange(8)
    return [*lines[:at], bytes(line), *lines[at + 1 :]]


def _spoil(random: Random, lines: Lines) -> Lines:
    at = random.randrange(len(lines))
    return [*lines[:at], bend_bytes(random, lines[at]), *lines[at + 1 :]]


def _move(random: Random, lines: Lines) -> Lines:
    """A line is dropped, doubled or swapped."""
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(3)
    if kind == 0:
        return [*lines[:at], *lines[at + 1 :]]
    if kind == 1:
        return [*lines[:at], lines[at], *lines[at:]]
    lines[at], lines[other] = lines[other], lines[at]
    return lines


def _bend(random: Random, lines: Lines) -> Lines:
    """Values of a line are others, with a checksum that fits, or in a journal without checksums."""
    is_signed = random.random() < 0.7
    at = random.randrange(len(lines))
    documents = [json.loads(line) for line in lines]
    for document in documents:
        del document["crc32"]
    part = random.random()
    if part < 0.9:
        documents[at]["data"] = bend_json(random, documents[at]["data"])
    else:
        documents[at] = bend_json(random, documents[at])
    return [_line(document, is_signed) for document in documents]


def _line(document: Any, is_signed: bool) -> bytes:
    text = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return with_checksum(text) if is_signed else text + b"\n"


_FAULTS = (_flip, _spoil, _move, _bend, _bend, _bend, _bend)
