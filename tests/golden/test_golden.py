"""Frozen journals of every kind give the results and reports that are kept beside them.

``pytest tests/golden --update`` writes them anew: read the diff.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from perfbisect.bisect.plan import BisectPlan
from perfbisect.bisect.policy import bisect_policy
from perfbisect.commands.experiments import EXPERIMENTS, experiment_of
from perfbisect.commands.wings import wings
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.loop import JobState, SlotView
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import LaunchRequest, launches
from perfbisect.machine.slots import Slot
from perfbisect.report.markdown import report_markdown
from tests.golden.worlds import FROZEN, JOURNAL, PLACE, WORLDS
from tests.jobs.world import Clock

NAMES = sorted(WORLDS)
NUMBER = re.compile(r"\d[\d.]*")


def thawed(name: str, folder: Path) -> Job:
    job = Jobs(folder).new(Clock()(), "abcd")
    shutil.copyfile(FROZEN / name / JOURNAL, job.journal)
    return job


def round_numbers(text: str) -> str:
    """A JSON text with eight digits a number: the last ones depend on the processor's vector instructions."""
    return json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):.8g}")), indent=1)


def check_golden(path: Path, text: str, update: bool) -> None:
    if update:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_job_has_its_result_and_report(name: str, tmp_path: Path, update: bool) -> None:
    job = thawed(name, tmp_path)
    events = read(job.journal).events
    kind = experiment_of(events)
    result = kind.result(job, events)
    markdown = report_markdown(kind.report(result))
    shown = {
        "result.json": round_numbers(result.model_dump_json(by_alias=True)) + "\n",
        "report.md": f"<!-- exit code {kind.status(result).exit_code} -->\n\n{markdown}",
    }
    for file, text in shown.items():
        check_golden(FROZEN / name / file, text.replace(str(tmp_path), PLACE), update)


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_job_has_a_result_before_its_end(name: str, tmp_path: Path) -> None:
    """What ``status`` shows while it runs, and after kill -9."""
    job = thawed(name, tmp_path)
    events = read(job.journal).events
    kind = experiment_of(events)
    for count in range(1, len(events), 7):
        result = kind.result(job, events[:count])
        assert kind.status(result).outcome == kind.report(result).verdict.text == "unfinished"


# One was frozen when its ends had ten rounds, not twelve: it went on to search in the eleventh.
@pytest.mark.parametrize("name", [x for x in NAMES if x.startswith("bisect-") and x != "bisect-too-small"])
def test_a_frozen_bisection_decides_as_it_did(name: str, tmp_path: Path) -> None:
    """After kill -9 at any event the journal up to there is all that the next decision is made from."""
    job = thawed(name, tmp_path)
    events = read(job.journal).events
    started = [(count, event.data) for count, event in enumerate(events) if event.kind == "started"]
    slots = tuple(Slot(name) for name in dict.fromkeys(str(data["slot"]) for _, data in started))
    compared = 0
    for count, data in started:
        # Each is decided anew by a policy that saw nothing before; a revert needs the repository.
        if data["purpose"] == "revert":
            continue
        before = events[:count]
        policy = bisect_policy(job, require_plan(job, before, BisectPlan), None)
        slot = next(slot for slot in slots if slot.name == data["slot"])
        decision = policy.next(JobState(before, launches(before)), SlotView(slot, slots, slots))
        if not isinstance(decision, LaunchRequest):
            # The decision that wrote the journal needed more launches; it may not have needed others.
            assert {x["purpose"] for n, x in started if n >= count} <= {"search", "revert"}
            break
        assert [decision.position, decision.purpose, decision.runs] == [
            data[field] for field in ("position", "purpose", "runs")
        ], count
        # Bits and probabilities are those of the decision that wrote the journal, to a hundredth or so.
        assert NUMBER.sub("#", decision.why) == NUMBER.sub("#", data["why"]), count
        compared += 1
    assert compared > 5


def test_there_is_a_frozen_job_of_each_kind_and_state() -> None:
    assert {path.name for path in FROZEN.iterdir()} == set(WORLDS)
    begun = [read(FROZEN / name / JOURNAL).events for name in NAMES]
    assert {str(events[0].data["verb"]) for events in begun} == {
        *EXPERIMENTS,
        *(verb for wing in wings() for verb in wing.experiments),
    }
    seen = {event.kind for events in begun for event in events}
    assert seen >= {"abandoned", "discarded", "failed", "finished", "machine", "revert", "verdict"}
    assert any([event.kind for event in events].count("plan") > 1 for events in begun), "an amended plan"
