"""From a configuration and a commit to the plan of a night."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from perfbisect.config.nightly_cells import launches_of
from perfbisect.core import night as core
from perfbisect.core.cell import Cell
from perfbisect.jobs.capabilities import runs_per_launch
from perfbisect.jobs.nightly_hands import Hands, Scene
from perfbisect.jobs.nightly_plan import CellPlan, NightPlan, Past, setting_name
from perfbisect.jobs.plan import cell_data
from perfbisect.store.nights import NightFolder


def prepare(scene: Scene, before: Sequence[NightFolder], now: datetime, hands: Hands) -> NightPlan:
    """What a night that begins now measures, and what it leaves out. ``before``: the nights before it.

    :raises LocatedError: several runs a launch, of an engine whose caches cannot be emptied between them.
    """
    rules, file = scene.file.nightly, scene.file
    past = Past(before, [one for one in before if one.of(scene.commit.id)])
    where = setting_name(scene.setting)
    cells = []
    for found in scene.cells:
        cell = found.cell
        if rules.runs > 1 and runs_per_launch(cell) == 1:
            raise file.wrong(
                ("runs",), f"{cell.name}: its caches cannot be emptied between runs, so a launch has one run"
            )
        known, guess = past.each(cell.digest), hands.guess(cell)
        launches = launches_of(file, cell.name)
        night = past.measured(cell.digest, where, launches)
        cells.append(
            CellPlan(
                name=cell.name,
                source=found.source,
                cell=cell_data(cell),
                digest=cell.digest,
                metric=cell.headline,
                launches=launches,
                runs=rules.runs,
                each=known[0] if known else guess,
                foreseen=known[1] if known else "a guess: it was never measured",
                skip=f"measured at this commit in night {night}" if night else "",
            )
        )
    together = hands.together if rules.suite else alone
    return NightPlan(
        name=rules.name,
        file=str(file.file),
        branch=rules.branch,
        commit=scene.commit,
        setting=scene.setting,
        seed=core.seed_of(rules.name, scene.commit.id, f"{now.astimezone(timezone.utc):%Y-%m-%d}"),
        budget=rules.minutes,
        cells=tuple(cells),
        groups=tuple(together([found.cell for found in scene.cells])),
        ordered=rules.suite == "as_nightly",
        told=_told(scene),
    )


def alone(cells: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    """Every cell has launches of its own."""
    return tuple((cell.name,) for cell in cells)


def _told(scene: Scene) -> tuple[str, ...]:
    """What a reader must know of the setting."""
    rules = scene.file.nightly
    if rules.exclude_newer or rules.constraints or scene.setting.constraints:
        return ()
    return (
        f"dependencies are of {scene.setting.exclude_newer}: what changes between two nights may be theirs, "
        "unless exclude_newer or constraints fixes them",
    )
