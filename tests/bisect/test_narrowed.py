"""A job that ends as `narrowed`, on every surface that shows it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from perfbisect.bisect.job import BISECT
from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult
from perfbisect.dashboard.build import write_site
from perfbisect.dashboard.pages import page_of
from perfbisect.measure.executor import AttemptRequest
from perfbisect.nightly.delivery import message
from perfbisect.nightly.model import NightBisection
from perfbisect.nightly.report import night_report
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from tests.command_line import type_command, type_json
from tests.dashboard.site_world import site
from tests.fixtures.jobs import BegunJob, Start
from tests.jobs.world import World, history
from tests.nightly.night_factory import make_night, search

MEANING = "more launches of these builds do not tell which of a few commits made"


def begin(start: Start, seed: int, last: int, slow: int) -> BegunJob:
    """A step of 5 % among builds that differ by themselves by 1 %."""
    offsets = np.random.default_rng(seed).normal(0, 0.01, last + 1)
    changes = history(last + 1).changes
    positions = {change.id: index for index, change in enumerate(changes)}

    def pace(request: AttemptRequest) -> float:
        return math.exp(offsets[positions[request.change.id]])

    world = World(changes, slow=slow, factor=1.05, sigma=0.02, tau=0.015, seed=seed, pace=pace)
    return start(world, min_effect=0.02)


@pytest.mark.processes
def test_every_surface_names_the_commits_of_a_narrowed_range(start: Start, tmp_path: Path) -> None:
    begun = begin(start, 32, 16, 8)
    report = begun.run()
    assert len(report.candidates) > 1
    assert (report.outcome, report.culprit, BISECT.status(report).exit_code) == ("narrowed", None, 4)
    named = [(of.position.changes[0], of.probability) for of in report.candidates]
    assert begun.world.changes[8].id in [change.id for change, _ in named]
    assert report.beliefs is not None
    for of in report.candidates:
        assert of.probability == pytest.approx(report.beliefs.p[of.position.index])
    each = [(change.short, f"{p:.2f}") for change, p in named]
    assert all(f"{short} {p}" in report.summary[0] for short, p in each)

    job, state = begun.job, ("--state", str(tmp_path))
    told = type_json("report", job.id, *state)
    assert told["outcome"] == "narrowed"
    assert [of["position"]["changes"][0]["id"] for of in told["candidates"]] == [
        change.id for change, _ in named
    ]
    (row,) = type_json("status", *state)["jobs"]
    assert row["outcome"] == "narrowed" and row["verdict"].startswith(
        f"one of {len(each)}: {' '.join(each[0])}"
    )
    shown = type_command(["status", *state]).out
    assert "narrowed" in shown and all(f"{short} {p}" in shown for short, p in each)
    html, markdown = report_html(build_report(report)), type_command(["report", job.id, *state]).out
    for page in (html, markdown):
        assert "narrowed" in page and MEANING in page
        assert all(short in page and p in page for short, p in each)

    unsure = build_report(report.model_copy(update={"outcome": "too small", "candidates": ()}))
    assert "leave open whether a change made it" in report_markdown(unsure)

    night = make_night(alerts=(), bisections=(of_night(report),))
    for text in (report_markdown(night_report(night)), message(night)["text"]):
        assert all(
            change.id[:12] in text and p in text for (change, _), (_, p) in zip(named, each, strict=True)
        )
    (sent,) = message(night)["narrowed"]
    assert [(commit["id"], commit["probability"]) for commit in sent["commits"]] == [
        (change.id, p) for change, p in named
    ]

    write_site(site(report), tmp_path / "site")
    assert MEANING in (tmp_path / "site" / page_of(report)).read_text()


def of_night(report: BisectResult) -> NightBisection:
    return search(
        outcome=report.outcome,
        culprit=report.culprit,
        candidates=report.candidates,
        probability=report.probability,
        summary=report.summary,
        exit_code=BISECT.status(report).exit_code,
    )
