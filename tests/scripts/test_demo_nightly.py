"""`make demo-nightly`: its world is what it says, and found is compared with planted as it must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfbisect.jobs.replay import Launch
from perfbisect.model.attempt import Attempt, Provenance
from perfbisect.model.change import Change
from perfbisect.nightly.config import find_cells, load_nightly
from scripts.demo_nightly_judge import Found, judge
from scripts.demo_nightly_world import (
    BROKEN,
    CELLS,
    COMMITS,
    LAUNCHES,
    NIGHTS,
    OPENS,
    SLOW,
    World,
    change_the_client,
    make,
    moment,
)
from tests.fakes.gitwriter import run_git


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make(tmp_path_factory.mktemp("world"), seed=1)


def test_each_night_has_the_commits_that_it_says(world: World) -> None:
    def between(night: int) -> list[str]:
        span = f"{world.heads[night - 2]}..{world.heads[night - 1]}"
        return run_git(world.repository, "rev-list", "--reverse", span).split()

    assert len(world.heads) == NIGHTS
    assert [len(between(night)) for night in range(2, NIGHTS + 1)] == list(COMMITS.values())[1:]
    assert world.slow in between(SLOW)[1:-1]
    assert run_git(world.repository, "show", "--name-only", "--format=", world.slow).split() == [
        "vllm/pace.py"
    ]
    broken = "from .helpers.faults import"
    texts = {
        night: run_git(world.repository, "show", f"{head}:vllm/__init__.py")
        for night, head in enumerate(world.heads, 1)
    }
    assert [night for night, text in texts.items() if broken in text] == [BROKEN]
    dates = run_git(world.repository, "log", "--format=%ct", world.heads[-1]).split()
    assert max(map(int, dates)) < moment(2).timestamp(), "a night measures what was committed before it"


def test_the_alert_cannot_open_earlier_than_is_said() -> None:
    """Five nights of the level before it and two of the new one; the broken night has no value."""
    values = [night for night in range(1, NIGHTS + 1) if night != BROKEN]
    assert len([night for night in values if night < SLOW]) == 5
    assert [night for night in values if night >= SLOW][1] == OPENS


def test_the_configuration_names_the_cells(world: World) -> None:
    assert [found.cell.name for found in find_cells(load_nightly(world.config))] == list(CELLS)


def test_the_client_changes_one_number(world: World) -> None:
    path = world.folder / "client" / "vllm" / "benchmarks" / "report.py"
    before = path.read_text()
    change_the_client(world)
    pairs = zip(before.splitlines(), path.read_text().splitlines(), strict=True)
    ((old, new),) = [(a, b) for a, b in pairs if a != b]
    assert (new, "output.latency - output.ttft" in old) == (old.replace("tokens - 1", "tokens - 2"), True)
    path.write_text(before)


def launch(number: int, commit: str, cell: str, purpose: Any = "run", outcome: Any = "measured") -> Launch:
    identity = f"j-{number:03d}"
    made = Attempt(identity, commit, purpose, Provenance(cell, "toy", "client"))
    return Launch(
        number, identity, 0, Change(commit), purpose, 1, "", "", "2026-03-02T02:00:00+00:00", outcome=outcome,
        token=f"token {number}", pid=1, attempt=made if outcome == "measured" else None,
    )  # fmt: skip


def alert(cell: str, metric: str, cause: str, effect: float, first: int) -> dict[str, Any]:
    return {
        "cell": cell, "metric": metric, "cause": cause, "effect": effect, "change": "opened", "worse": True,
        "first": f"{moment(first):%Y-%m-%d}T02:00:00Z", "event": f"{first}-{cause}",
        "counts": cause == "product",
    }  # fmt: skip


def as_planted(world: World) -> Found:
    """Ten nights as they must end."""
    nights: list[dict[str, Any]] = []
    launches: list[Launch] = []
    for night in range(1, NIGHTS + 1):
        state = "failed" if night == BROKEN else "measured" if COMMITS[night] else "skipped"
        cells = [{"name": name, "state": state, "reason": "import vllm failed"} for name in CELLS]
        head = world.heads[night - 1]
        nights.append({"cells": cells, "alerts": [], "bisections": [], "commit": {"id": head}})
        nights[-1]["ended_with"] = {BROKEN: 5, OPENS: 3}.get(night, 0)
        for name in CELLS if state == "measured" else ():
            launches += [launch(len(launches) + k, head, name) for k in range(LAUNCHES)]
    nights[OPENS - 1]["alerts"] = [alert(cell, "ttft", "product", 0.29, SLOW) for cell in CELLS]
    nights[OPENS]["alerts"] = [alert(cell, "tpot", "instrument", 0.2, OPENS) for cell in CELLS]
    culprit = {"id": world.slow, "short": world.slow[:12]}
    nights[OPENS - 1]["bisections"] = [
        {"event": f"{SLOW}-product", "state": "measured", "outcome": "found", "culprit": culprit,
         "commits": 5, "probability": 0.99, "minutes": 1.0, "why": ""},
    ]  # fmt: skip
    measured = len(launches)
    launches.append(launch(measured + 1, world.heads[4], "wide", outcome="abandoned"))
    launches.append(launch(measured + 2, world.slow, "wide", purpose="search"))
    return Found(
        world=world,
        nights=tuple(nights),
        launches=tuple(launches),
        kept=frozenset({launches[0].id}),
        started=len(launches),
        points=measured,
        report=f"instrument {' '.join(CELLS)}",
        site=f"culprit {world.slow[:12]}",
    )


def failed(found: Found) -> list[str]:
    return [check.what for check in judge(found) if not check.holds]


def test_ten_nights_as_planted_are_good(world: World) -> None:
    assert failed(as_planted(world)) == []


def spoil(found: Found, spoilt: str) -> Found:
    """Change one thing in ten nights as planted."""
    opened, after = found.nights[OPENS - 1], found.nights[OPENS]
    match spoilt:
        case "other night":
            for one in opened["alerts"]:
                one["first"] = f"{moment(SLOW - 1):%Y-%m-%d}T02:00:00Z"
        case "other size":
            opened["alerts"][0]["effect"] = 0.6
        case "other culprit":
            opened["bisections"][0]["culprit"]["id"] = found.world.heads[3]
        case "blamed client":
            after["alerts"][0]["cause"] = "product"
        case "wrong exit code":
            found.nights[0]["ended_with"] = 1
        case "measured broken head":
            found.nights[BROKEN - 1]["cells"][0]["state"] = "measured"
        case "measured again":
            found.nights[-1]["cells"][0]["state"] = "measured"
        case "another launch":
            more = (*found.launches, launch(999, found.world.heads[0], "wide"))
            found = replace(found, launches=more, started=found.started + 1, points=found.points + 1)
        case "lost launch":
            found = replace(found, kept=found.kept | {"j-777"})
        case "unknown server":
            found = replace(found, started=found.started + 1)
        case "silent site":
            found = replace(found, site="")
    return found


@pytest.mark.parametrize(
    ("spoilt", "what"),
    [
        ("other night", "the alert opened on the right night"),
        ("other size", "it reports the planted size"),
        ("other culprit", "no other commit is named"),
        ("blamed client", "the client's change is the instrument's, and no commit is named"),
        ("another launch", "each cell was measured 2 times a night, not once more"),
        ("lost launch", "what had been measured when it was killed is kept"),
        ("unknown server", "journals, series and the engine's own count agree"),
        ("silent site", "report and site say so"),
        ("wrong exit code", "every night ended as its worst finding says"),
        ("measured broken head", "the head that does not import is reported, and measures nothing"),
        ("measured again", "a night without a new commit measures nothing"),
    ],
)
def test_what_is_not_as_planted_is_told(world: World, spoilt: str, what: str) -> None:
    assert what in failed(spoil(as_planted(world), spoilt))
