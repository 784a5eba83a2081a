"""Profiles as a job: launches in turn, resuming, what is compared, and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfbisect.engine.experiment import run_experiment
from perfbisect.errors import Interrupted
from perfbisect.experiments.measure import SidePlan
from perfbisect.explain.profile_job import PROFILE, ProfileDocument, ProfilePlan, profile_document
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import MeasurementConfig, cell_data, write_plan
from perfbisect.measure.attempt import write_attempt
from perfbisect.measure.executor import AttemptRequest, Sink, Started
from perfbisect.measure.profiling import FOLDER
from perfbisect.model.attempt import Attempt, Provenance
from perfbisect.model.change import Change
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from scripts.bench_explain import compare_launches
from tests.changes.repositories import write_commits
from tests.explain.test_attribution import AFTER, BEFORE, PATH
from tests.jobs.world import Clock, Watch, cell
from tests.report.test_flames import balanced

ROOT = "/x/environments/ab12/layer"
MAIN = f'process 7:"VLLM::EngineCore";thread (7): MainThread;Core.loop ({ROOT}/vllm/v1/core.py:5);'


def folded(times: dict[str, int]) -> str:
    """800 samples: those named, the rest waits."""
    lines = [f"{MAIN}{stack.replace('@', f'{ROOT}/{PATH}')} {count}" for stack, count in times.items()]
    idle = 800 - sum(times.values())
    return "\n".join(
        [*lines, f"{MAIN}Poller.poll (/x/lib/python3.11/site-packages/zmq/sugar/poll.py:9) {idle}"]
    )


STACKS = {
    "a": folded({"Scheduler.choose (@:6)": 80}),
    "b": folded({"Scheduler.choose (@:10)": 80, "Scheduler.schedule (@:3);Scheduler.check (@:7)": 240}),
}


@dataclass
class Recorder:
    """An executor whose launches leave recordings; ``interrupt``: the launch that is interrupted once."""

    sides: dict[str, str]
    interrupt: int = 0
    empty: bool = False
    requests: list[AttemptRequest] = field(default_factory=list)
    now: float = 0.0

    def run(self, request: AttemptRequest, *, started: Started, sink: Sink) -> Attempt:
        del sink
        self.requests.append(request)
        started(token=request.token, pid=1, created=1.0, port=8000)
        if len(self.requests) == self.interrupt:
            raise Interrupted("interrupted")
        side = self.sides[request.change.id]
        folder = request.folder / FOLDER
        folder.mkdir()
        files: dict[str, Any] = {"windows": [], "traces": ["rank0.1.pt.trace.json.gz"], "problems": []}
        if not self.empty:
            (folder / "stacks-1.collapsedstack.txt").write_text(STACKS[side])
            files["windows"].append({"file": "stacks-1.collapsedstack.txt", "seconds": 8.0, "steps": 400.0})
        (folder / "rank0.1.pt.trace.json.gz").write_bytes(b"not a trace")
        attempt = Attempt(
            id=request.id,
            change_id=request.change.id,
            purpose=request.purpose,
            provenance=Provenance(
                request.cell.digest,
                "toy",
                "client",
                facts={
                    "profile": files,
                    "engine": {
                        "file": f"{ROOT}/vllm/__init__.py",
                        "packages": ["numpy==1", f"x=={side}", "vllm==9"],
                    },
                    "engine_log": {"attention": "FLASH" if side == "a" else "SDPA"},
                },
            ),
            seconds={"launch": 30.0, "bench": 60.0},
            folder=str(request.folder),
            started_at="2026-01-01T00:00:00+00:00",
        )
        write_attempt(request.folder, attempt)
        return attempt


@pytest.fixture
def changes(tmp_path: Path) -> tuple[Change, Change]:
    _, (before, after) = write_commits(
        tmp_path / "repo", *({PATH: text.encode()} for text in (BEFORE, AFTER))
    )
    return Change(before), Change(after)


@pytest.fixture
def job(tmp_path: Path, changes: tuple[Change, Change]) -> Job:
    return new_job(tmp_path, changes)


def new_job(folder: Path, changes: tuple[Change, Change], **changed: Any) -> Job:
    measured = cell()
    fields: dict[str, Any] = {
        "cell": cell_data(measured),
        "digest": measured.digest,
        "setting": MeasurementConfig(environment="fake:it", repository=str(folder / "repo")),
        "metric": "tpot",
        "source": "20260101-000000-0000",
        "a": SidePlan(typed="main~1", change=changes[0]),
        "b": SidePlan(typed="main", change=changes[1]),
        "is_slower": True,
        "budget": 600.0,
    }
    job = Jobs(folder / "state").new(Clock()(), "abcd")
    write_plan(job, ProfilePlan(**fields | changed), Clock())
    return job


def profiled(job: Job, recorder: Recorder) -> ProfileDocument:
    with job.held():
        return run_experiment(PROFILE, job, Watch().tools(recorder))  # type: ignore[arg-type]


def recorder(changes: tuple[Change, Change], **options: Any) -> Recorder:
    return Recorder({changes[0].id: "a", changes[1].id: "b"}, **options)


def test_both_sides_in_turn_to_a_sentence(job: Job, changes: tuple[Change, Change]) -> None:
    world = recorder(changes)
    document = profiled(job, world)
    assert [world.sides[request.change.id] for request in world.requests] == ["a", "b", "b", "a"]
    assert {request.purpose for request in world.requests} == {"profile"}
    result = document.result
    assert result is not None and document.finished
    assert (result.kind, result.place) == ("in the diff", f"{PATH}:7 Scheduler.check")
    assert (
        result.sentence
        == f"100 % of the growth beyond noise is in {PATH}:7 Scheduler.check, which this commit added."
    )
    assert result.growth_ms == pytest.approx(240 * 8000 / 800 / 400)
    (row, *_) = result.functions
    assert (row.function, row.place, row.new, row.significant) == (
        "Scheduler.check",
        "changed line",
        True,
        True,
    )
    # The version of the engine itself differs between any two changes.
    assert result.settings == (("attention", "FLASH", "SDPA"), ("x", "a", "b"))
    assert result.problems == ("rank0.1.pt.trace.json.gz: Not a gzipped file (b'no')",)
    assert ProfileDocument.model_validate_json(document.text()) == document
    status = PROFILE.status(document)
    assert (status.outcome, status.next) == ("in the diff", document.next)
    assert document.next.endswith("--hunks --dry-run")


def test_a_profile_that_was_interrupted_goes_on(job: Job, changes: tuple[Change, Change]) -> None:
    world = recorder(changes, interrupt=3)
    with pytest.raises(Interrupted):
        profiled(job, world)
    unfinished = profile_document(job, read(job.journal).events)
    assert (unfinished.finished, unfinished.result) == (False, None)
    assert report_lines(PROFILE.report(unfinished))[0].endswith("unfinished")
    document = profiled(job, world)
    assert [x.outcome for x in document.launches] == [
        "measured",
        "measured",
        "abandoned",
        "measured",
        "measured",
    ]
    assert document.result is not None and document.result.kind == "in the diff"
    # What was compared once is not compared again.
    count = len(world.requests)
    assert profiled(job, world) == document
    assert len(world.requests) == count


def test_recordings_may_go_after_the_comparison(job: Job, changes: tuple[Change, Change]) -> None:
    document = profiled(job, recorder(changes))
    for path in job.path.rglob("stacks-*.txt"):
        path.unlink()
    assert profile_document(job, read(job.journal).events) == document


def test_sides_without_stacks_are_not_compared_by_them(job: Job, changes: tuple[Change, Change]) -> None:
    document = profiled(job, recorder(changes, empty=True))
    assert document.result is not None
    assert (document.result.kind, document.result.functions) == ("no stacks", ())
    assert document.result.sentence.startswith("No stacks were sampled on both sides.")


def test_releases_have_no_diff(tmp_path: Path) -> None:
    changes = Change("vllm==1", "release"), Change("vllm==2", "release")
    made = new_job(tmp_path, changes)
    document = profiled(made, recorder(changes))
    assert document.result is not None and document.result.kind == "no diff"
    assert any("no two commits" in problem for problem in document.result.problems)


def test_a_budget_ends_a_profile_after_one_launch_of_each_side(
    tmp_path: Path, changes: tuple[Change, Change]
) -> None:
    made = new_job(tmp_path, changes, budget=3.5)
    document = profiled(made, recorder(changes))
    assert document.result is not None
    assert document.result.launches == (1, 1)


def test_the_report_has_the_functions(job: Job, changes: tuple[Change, Change]) -> None:
    report = PROFILE.report(profiled(job, recorder(changes)))
    text = "\n".join(report_lines(report))
    assert "Scheduler.check, which this commit added" in text
    assert f"{PATH} Scheduler.check" in report_markdown(report)
    assert "changed line, new" in report_html(report)


def test_every_rendering_has_the_stacks_and_the_marked_lines(
    job: Job, changes: tuple[Change, Change]
) -> None:
    document = profiled(job, recorder(changes))
    report = PROFILE.report(document)
    for text in ("\n".join(report_lines(report)), report_markdown(report)):
        assert f"+6.00    Scheduler.check ({PATH})" in text
        assert "+ >     7          assert len(set(self.blocks))" in text
    page = report_html(report)
    parser = balanced(page)
    assert parser.seen.count("script") == 1 and "svg" in parser.seen  # of the copy button
    assert not [value for _, value in parser.attributes if "//" in value]
    assert f"Scheduler.check, {PATH}: 0.00 before, 6.00 after, +6.00 ms a step" in page
    assert document.result is not None and document.result.flames is not None
    assert document.result.flames.after == pytest.approx(document.result.total_after)


def test_recordings_are_named_by_their_paths_in_the_job(job: Job, changes: tuple[Change, Change]) -> None:
    document = profiled(job, recorder(changes))
    assert [(file.launch, file.side, file.format) for file in document.files] == [
        (number, side, kind)
        for number, side in ((1, "a"), (2, "b"), (3, "b"), (4, "a"))
        for kind in ("collapsed stacks", "Chrome trace")
    ]
    for file in document.files:
        assert (job.path / file.path).is_file()
        assert file.path in report_markdown(PROFILE.report(document))


def test_a_brief_document_has_the_marked_hunk_alone(job: Job, changes: tuple[Change, Change]) -> None:
    document = profiled(job, recorder(changes))
    brief = document.brief()
    assert brief.left_out == {"result.flames": 1, "result.diff": 1}
    assert brief.result is not None and brief.result.flames is None
    assert brief.result.diff is not None
    (file,) = brief.result.diff.files
    assert [line.number for hunk in file.hunks for line in hunk if line.marked] == [6, 7]
    assert ProfileDocument.model_validate_json(brief.text()) == brief


def test_sides_of_profiles_are_compared_as_if_an_ab_had_shown_them_slower(
    tmp_path: Path, changes: tuple[Change, Change]
) -> None:
    made = new_job(tmp_path, changes, is_slower=False)
    result = profiled(made, recorder(changes)).result
    assert result is not None and result.kind == "no growth seen"
    assert compare_launches((made, 0), (made, 1)).kind == "in the diff"
    assert compare_launches((made, 1), (made, 0)).kind == "no growth seen"
    assert compare_launches((made, 1), (made, 1)).kind == "no growth seen"
