"""``suite`` of a nightly: cells that one server can serve share its starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.replay import launches
from tests.cli.test_nightly import Scene


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
