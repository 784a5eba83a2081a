"""`make demo-track`: its nights are results that count, and planted is compared with found as it must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfbisect.series.ingest import ingest
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from scripts import demo_nights
from scripts.demo_nights import COMMITS, LOADS, PLANTS, SERVERS, SLOW, history, ran, write
from scripts.demo_track import compare, unplanted
from tests.fakes.gitwriter import run_git

STEP = next(p for p in PLANTS if p.name == "step")
BAD = next(p for p in PLANTS if p.name == "bad night")


def test_every_result_counts_and_says_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_nights, "NIGHTS", 2)
    commits = history(tmp_path / "repo")
    assert write(tmp_path / "nights", commits, seed=1) == 2 * len(SERVERS) * len(LOADS)
    with SeriesStore.of(tmp_path / "state") as store:
        done = ingest(store, [str(tmp_path / "nights")], IngestOptions(zone="UTC"))
        assert (done.points, done.rejected) == (80, ())
        builds = {build.name: build.commit for build in store.builds()}
        assert builds == {f"night-{n:03d}": ran(commits, n) for n in range(2)}
        assert {p.covariates["warmups"] for p in store.points()} == {0}


def test_the_slow_commit_ran_first_on_the_first_slow_night(tmp_path: Path) -> None:
    assert STEP.night * COMMITS <= SLOW < (STEP.night + 1) * COMMITS
    commits = history(tmp_path / "repo")
    touched = run_git(tmp_path / "repo", "show", "--name-only", "--format=", commits[SLOW])
    assert touched.strip() == "vllm_omni/engine/orchestrator.py"


def test_the_shapes_that_are_planted() -> None:
    sizes = {p.name: np.array([p.size(n) for n in range(90)]) for p in PLANTS}
    assert set(sizes["step"][STEP.night :]) == {STEP.factor} and set(sizes["step"][: STEP.night]) == {1.0}
    assert np.flatnonzero(sizes["bad night"] > 1).tolist() == [BAD.night]
    drift = sizes["drift"]
    assert drift[29] == 1.0 and drift[89] == 1.25 and (np.diff(drift[30:71]) > 0).all()


def alert(name: str, server: str, day: str, shape: str = "step", cause: str = "product") -> dict[str, Any]:
    return {
        "id": name,
        "cell": f"{server}/random@c1",
        "first": f"{day}T19:00:00Z",
        "shape": shape,
        "cause": cause,
    }


def test_found_is_the_right_shape_and_cause_at_the_night() -> None:
    alerts = [
        alert("a", "omni_chunk", "2026-02-18"),
        alert("b", "omni_chunk", "2026-02-18", shape="drift"),
        alert("c", "omni_chunk", "2026-03-20"),
        alert("d", "text_small", "2026-02-18"),
        alert("e", "text_small", "2026-03-02", "transient"),
    ]
    found = [compare(plant, json.loads(json.dumps(alerts))) for plant in PLANTS]
    step = next(one for one in found if one.plant is STEP)
    assert (step.right, step.ids, step.enough) == (1, {"a", "b"}, False)
    assert [one["id"] for one in unplanted(found, alerts)] == ["c", "d", "e"], "e is no product's change"
