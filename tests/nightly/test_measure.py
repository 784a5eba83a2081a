"""Nights on this machine: the branch that is fetched, and cells that share server starts."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from perfbisect.commands.options import MeasureOptions
from perfbisect.errors import LocatedError, MachineError
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from perfbisect.nightly.measure import build_context
from tests.cli.test_nightly import Scene
from tests.fakes.remote import Cloned, cloned

CONFIG = """\
name: n
cells: [text_cpu_llama100m]
repository: clone
branch: {branch}
fetch: true
environment: existing:{python}
client: existing:{python}
exclude_newer: "2026-01-01"
budget: 1h
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloned:
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PERFBISECT_CACHE", str(tmp_path / "cache"))
    found = cloned(tmp_path)
    configured(found)
    return found


def configured(there: Cloned, branch: str = "origin/main") -> Path:
    path = there.clone.parent / "nightly.yaml"
    path.write_text(CONFIG.format(branch=branch, python=sys.executable))
    return path


def test_the_night_is_of_what_was_pushed_since(there: Cloned) -> None:
    config, pushed = configured(there), there.push(2)
    context = build_context(config, MeasureOptions(), fetch=True)
    assert context.commit.id == pushed
    assert context.fetch is not None
    assert context.fetch().reported == f"origin/main is {pushed[:12]}, was {there.commits[0][:12]}"
    again = build_context(config, MeasureOptions(), fetch=True)
    assert again.fetch is not None
    assert again.fetch().reported == f"origin/main is {pushed[:12]}, unchanged"


def test_a_dry_run_asks_nobody(there: Cloned) -> None:
    there.push(2)
    context = build_context(configured(there), MeasureOptions())
    assert (context.commit.id, context.fetch) == (there.commits[0], None)


def test_without_the_net_it_is_of_what_is_there(there: Cloned) -> None:
    shutil.rmtree(there.origin)
    context = build_context(configured(there), MeasureOptions(), fetch=True)
    assert context.commit.id == there.commits[0]
    assert context.fetch is not None
    with pytest.raises(MachineError, match="fetch origin failed"):
        context.fetch()


@pytest.mark.parametrize("branch", ["HEAD", "main"])
def test_a_branch_that_no_fetch_moves_is_refused(there: Cloned, branch: str) -> None:
    with pytest.raises(LocatedError, match=f"fetch: '{branch}' is not a remote branch") as caught:
        build_context(configured(there, branch), MeasureOptions(), fetch=True)
    assert caught.value.line == 5


def test_cells_of_one_server_share_its_starts_in_the_order_of_the_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with (tmp_path / "nightly.yaml").open("a") as config:
        config.write("suite: as_nightly\n")
    process = scene.start()
    output, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    document = json.loads(output)
    assert [(cell["name"], cell["state"], cell["launches"]) for cell in document["cells"]] == [
        ("quick", "measured", 2), ("other", "measured", 2),
    ]  # fmt: skip
    shared: dict[str, list[Any]] = {}
    for job in Jobs(scene.state).all():
        events = read(job.journal).events
        plan = events[0].data
        (other,) = {"quick", "other"} - {plan["cell"]["name"]}
        assert f"its server launches are shared with {other}" in plan["notes"]
        assert job.report.is_file()
        shared[plan["cell"]["name"]] = [
            launch.attempt.provenance.facts["launch"] for launch in launches(events) if launch.attempt
        ]
    starts = [fact["id"] for fact in shared["quick"]]
    assert len(set(starts)) == 2
    assert [fact["id"] for fact in shared["other"]] == starts
    assert [fact["after"] for fact in shared["quick"]] == [[], []]
    assert [fact["after"] for fact in shared["other"]] == [["quick"], ["quick"]]
