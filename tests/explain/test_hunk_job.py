"""The search of hunks as a job: a planted hunk among decoys; resumed, out of budget, with broken groups."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfbisect.changes.hunk_groups import group_hunks
from perfbisect.changes.hunks import HunkId, hunk_patch
from perfbisect.engine.experiment import Amendment, run_experiment
from perfbisect.environments.base import Refusal
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_REGRESSION, BuildError, ServerError, UsageError
from perfbisect.explain.hunk_job import HUNKS, PATCH, HunksDocument, amend, hunks_document
from perfbisect.explain.hunk_plan import HunksPlan, HunksPlanDocument, make_hunks_plan
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import resolve_metric, write_plan
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Costs, Failure
from perfbisect.model.change import Change
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.template import render_report
from perfbisect.report.terminal import report_lines
from tests.changes.repositories import repository_of
from tests.fixtures.jobs import SETTING
from tests.jobs.world import Clock, FakeBuilder, PowerCut, Watch, World, cell, history, kinds

FUNCTIONS = "abcdef"
GUILTY = "m.py: d"


def module_of(value: int) -> str:
    """Functions of a line each."""
    return "".join(f"def {name}():\n    x = {value}\n    return x\n\n\n" for name in FUNCTIONS)


@dataclass
class Bench:
    """A commit that changes six functions of a module and two files, in a world where some hunks are slow.

    ``slow``: label of a group -> by what factor it makes the culprit slower.
    """

    folder: Path
    slow: dict[str, float]
    builder: FakeBuilder = field(default_factory=FakeBuilder)
    world: World = field(default_factory=lambda: World(history(2).changes, slow=None, tau=0.005))
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        before = {"m.py": module_of(1), "k.json": "{}\n", "README.md": "a\n"}
        after = {"m.py": module_of(2), "k.json": '{"a": 1}\n', "README.md": "b\n"}
        self.repository, self.culprit, self.diff = repository_of(self.folder, dict(before), dict(after))
        self.groups, self.left_out = group_hunks(self.diff)
        self.world.changes = (self.culprit,)
        self.factors: dict[str, float] = {}
        self.world.pace = self._pace

    def _pace(self, request: AttemptRequest) -> float:
        return self.factors.get(request.change.id, self._factor(()))

    def _factor(self, reverted: Sequence[HunkId]) -> float:
        factor = 1.0
        for group in self.groups:
            if not set(group.ids) <= set(reverted):
                factor *= self.slow.get(group.label, 1.0)
        return factor

    def revert(self, commit: Change, reverted: Sequence[HunkId]) -> Change | str:
        assert commit == self.culprit
        change = Change(hashlib.sha1(repr(sorted(reverted)).encode()).hexdigest(), "commit", "taken back")
        if change.id not in self.factors:
            self.world.changes = (*self.world.changes, change)
            self.factors[change.id] = self._factor(reverted)
        return change

    def plan(self, **changed: object) -> HunksPlan:
        measured = cell()
        known: dict[str, object] = {"budget": 600.0, "costs": Costs(), "step": 0.2, "revert": self.revert}
        return make_hunks_plan(
            source="20260101-000000-aaaa",
            culprit=self.culprit,
            diff=self.diff,
            groups=self.groups,
            left_out=self.left_out,
            cell=measured,
            setting=SETTING,
            metric=resolve_metric(measured, None),
            builder=self.builder,
            patch_of=lambda commit, change: f"{commit.short} less {change.short}",
            **known | changed,  # type: ignore[arg-type]
        )

    def job(self, **changed: object) -> Job:
        job = Jobs(self.folder).new(Clock()(), "abcd")
        write_plan(job, self.plan(**changed), Clock())
        return job

    def run(self, job: Job) -> HunksDocument:
        return run_experiment(HUNKS, job, self.watch.tools(self.world, revert_hunks=self.revert))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, {GUILTY: 1.2})


def test_the_planted_hunk_is_named_among_decoys(bench: Bench) -> None:
    job = bench.job()
    document = bench.run(job)
    assert (document.verdict, document.reason, document.finished) == ("found", "", True)
    assert [group.label for group in document.groups if group.guilty] == [GUILTY]
    assert document.share is not None and document.share.effect is not None
    assert document.share.effect == pytest.approx(1 / 1.2 - 1, abs=0.02)
    assert document.share.share == pytest.approx(1.0, abs=0.15)
    assert document.summary[0].startswith("The step is in m.py: d: -1")
    assert document.excluded == ("documentation and examples: README.md",)
    assert HUNKS.status(document).exit_code == EXIT_REGRESSION
    purposes = [request.purpose for request in bench.world.requests]
    assert set(purposes) == {"end", "search", "revert"} and purposes.count("revert") == 6
    assert HunksDocument.model_validate_json(document.text()) == document
    assert bench.run(job) == document, "done is done"
    patch = job.path / PATCH
    assert patch.read_text() == bench.plan().groups[4].patch
    assert f"+patch:{patch}" in document.next and document.next.startswith("perfbisect compare tiny")


def test_the_report_marks_the_guilty_lines(bench: Bench) -> None:
    document = bench.run(bench.job())
    report = document.report()
    text = report_markdown(report)
    assert text.startswith(f"# Hunks of {bench.culprit.short}: found, m.py: d")
    guilty = "--- m.py\n@@ line 17 @@ d\n-    x = 1\n+    x = 2\n"
    assert f"```diff\n{guilty}```" in text
    assert ">> +    x = 2" in text and "   +    x = 2" in text
    assert text.count(">> ") == 5
    assert "README.md" in text
    assert "x = 2" in report_html(report)
    assert any("+    x = 2" in line for line in report_lines(report))
    status = HUNKS.status(document)
    assert (status.outcome, status.verdict[:8]) == ("found", "m.py: d,")


def test_a_cut_search_goes_on_and_ends_alike(bench: Bench, tmp_path: Path) -> None:
    whole = bench.run(bench.job())
    (tmp_path / "again").mkdir()
    again = Bench(tmp_path / "again", bench.slow)
    cuts = iter((2, 3, 6, 9))
    cut_at = next(cuts)

    def cut(number: int, _: AttemptRequest) -> BaseException | None:
        nonlocal cut_at
        if number != cut_at:
            return None
        cut_at = next(cuts, 0)
        return PowerCut()

    again.world.fault = cut
    job = again.job()
    assert hunks_document(job, read(job.journal).events).verdict == "unfinished"
    for _ in range(4):
        with pytest.raises(PowerCut):
            again.run(job)
        seen = hunks_document(job, read(job.journal).events)
        assert (seen.verdict, seen.next) == ("unfinished", f"perfbisect resume {job.id}")
        assert HUNKS.status(seen).outcome == "unfinished"
        assert report_markdown(seen.report())
    document = again.run(job)
    assert [group.label for group in document.groups if group.guilty] == [GUILTY]
    assert [launch.outcome for launch in document.launches].count("abandoned") == 4
    assert [x.groups for x in document.asked] == [x.groups for x in whole.asked]


def test_a_budget_that_ends_is_said_and_more_goes_on(bench: Bench) -> None:
    job = bench.job(budget=9.0)
    document = bench.run(job)
    assert (document.verdict, document.reason) == ("too small", "budget")
    assert HUNKS.status(document).exit_code == EXIT_INCONCLUSIVE
    assert document.next == f"perfbisect resume {job.id} --budget 18m"
    assert document.minutes.total <= 9.0
    tools = bench.watch.tools(bench.world)
    with pytest.raises(UsageError, match="is not larger than the current budget"):
        amend(job, tools, Amendment(budget=8.0))
    with pytest.raises(UsageError, match="only its budget can be changed"):
        amend(job, tools, Amendment(confirm_revert=True))
    amend(job, tools, Amendment(budget=600.0))
    assert bench.run(job).verdict == "found"
    with pytest.raises(UsageError, match="has its verdict, 'found'"):
        amend(job, tools, Amendment(budget=700.0))


def test_groups_that_do_not_serve_are_passed_over(bench: Bench) -> None:
    last = bench.groups[4:]
    broken = bench.revert(bench.culprit, sorted(hunk for group in last for hunk in group.ids))
    assert isinstance(broken, Change)

    def fails(_: int, request: AttemptRequest) -> Failure | None:
        return Failure("first_request", "change", "500", "/log") if request.change == broken else None

    bench.world.fault = fails
    job = bench.job()
    document = bench.run(job)
    assert document.verdict == "found"
    assert [group.label for group in document.groups if group.guilty] == [GUILTY]
    (unusable,) = [asked for asked in document.asked if asked.unusable]
    assert unusable.groups == (5, 6, 7) and unusable.launches == 0
    assert kinds(job).count("unusable") == 1
    of_it = [launch for launch in document.launches if "without groups 5 to 7" in launch.why]
    assert [launch.outcome for launch in of_it] == ["failed", "failed"]
    assert "discarded" not in [launch.outcome for launch in document.launches]
    assert bench.run(job) == document


def test_groups_that_cannot_be_taken_back_later_are_passed_over(bench: Bench) -> None:
    job = bench.job()
    alone = {group.ids for group in bench.groups if group.label in (GUILTY, "m.py: e")}

    def revert(commit: Change, reverted: Sequence[HunkId]) -> Change | str:
        if tuple(reverted) in alone:
            return "it cannot be built: no compiler"
        return bench.revert(commit, reverted)

    document = run_experiment(HUNKS, job, bench.watch.tools(bench.world, revert_hunks=revert))
    assert document.verdict == "found"
    assert {group.label for group in document.groups if group.guilty} == {GUILTY, "m.py: e"}
    assert "cannot be told apart" in " ".join(document.summary)
    assert document.patch == ""


def test_a_culprit_that_does_not_serve_ends_the_job(bench: Bench) -> None:
    bench.world.fault = lambda _, request: (
        Failure("first_request", "change", "500", "/log") if request.change == bench.culprit else None
    )
    with pytest.raises(ServerError, match="the culprit, does not serve"):
        bench.run(bench.job())


def test_a_step_that_is_not_there_is_too_small(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {})
    document = bench.run(bench.job())
    assert (document.verdict, document.reason) == ("too small", "effect")
    assert document.summary[0].startswith("all 7 groups taken back together change the metric by less than")
    assert "saw +20.0 % between parent and culprit: a part of the step is in" in " ".join(document.summary)
    assert document.next.startswith("perfbisect report")


def test_one_of_two_carriers_is_reported_with_its_share(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"m.py: a": 1.15, "m.py: e": 1.15})
    document = bench.run(bench.job(step=0.32))
    assert (document.verdict, document.reason) == ("no single group", "shared")
    assert not any(group.guilty for group in document.groups)
    text = " ".join(document.summary)
    assert "Group 2: m.py: a: -13" in text and "without it" in text and "of the step" in text
    assert report_markdown(document.report()).startswith(
        f"# Hunks of {bench.culprit.short}: no single group, shared"
    )


def test_a_commit_of_one_group_is_asked_whether_that_carries_the_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"k.json: line 1": 1.2})
    bench.groups = tuple(group for group in bench.groups if group.label == "k.json: line 1")
    document = bench.run(bench.job())
    assert document.verdict == "found"
    assert len(document.asked) == 1


def test_what_the_builder_refuses_is_left_out_and_said(bench: Bench) -> None:
    refused = bench.revert(bench.culprit, bench.groups[0].ids)
    merged = bench.revert(bench.culprit, bench.groups[1].ids)
    assert isinstance(refused, Change) and isinstance(merged, Change)
    bench.builder.merged = frozenset({merged.id})

    def revert(commit: Change, reverted: Sequence[HunkId]) -> Change | str:
        change = bench.revert(commit, reverted)
        return "it cannot be built: csrc is compiled" if change == refused else change

    bench.builder.key(bench.culprit)
    plan = bench.plan(revert=revert)
    labels = [group.label for group in plan.groups]
    assert bench.groups[0].label not in labels
    assert f"{bench.groups[0].label}: it cannot be built: csrc is compiled" in plan.left_out
    with pytest.raises(UsageError, match=r"nothing that .* changed can be taken back by itself"):
        bench.plan(revert=lambda *_: "it conflicts")
    bench.builder.refused = {bench.culprit.id: Refusal("too old")}
    with pytest.raises(BuildError, match="cannot be built: too old"):
        bench.plan()
    bench.builder.refused = {bench.culprit.id: Refusal("no such base", error=True)}
    with pytest.raises(UsageError, match="no such base"):
        bench.plan()


def plan_text(shown: HunksPlanDocument) -> str:
    return "\n".join(report_lines(render_report("explain/templates/hunks.plan.jinja", {"plan": shown})))


def test_a_dry_run_says_groups_launches_and_minutes(bench: Bench) -> None:
    plan = bench.plan(step=0.1, costs=Costs(build=2.0, launch=1.0, run=0.3))
    shown = HunksPlanDocument.of(plan, Noise(), basis="")
    assert [group.label for group in shown.groups] == [group.label for group in bench.groups]
    assert shown.launches is not None and 8 < shown.launches < shown.most_launches
    assert shown.minutes_low < shown.minutes_high <= shown.budget_minutes
    text = plan_text(shown)
    assert "m.py: d" in text and f"about {shown.launches} launches" in text
    tiny = HunksPlanDocument.of(bench.plan(step=0.005), Noise(), basis="")
    assert tiny.launches is None
    assert "the step is too small for this noise" in plan_text(tiny)


def test_a_repository_that_went_away_is_an_error(bench: Bench) -> None:
    with pytest.raises(UsageError, match="repository is not there any more"):
        run_experiment(HUNKS, bench.job(), bench.watch.tools(bench.world))


def test_the_patch_of_a_group_is_gits(bench: Bench) -> None:
    from perfbisect.changes.hunks import revert_hunks

    change = revert_hunks(bench.repository, bench.culprit, bench.diff, bench.groups[0].ids)
    patch = hunk_patch(bench.repository, bench.culprit, change)
    assert patch.startswith("diff --git")


def test_hunks_of_an_improvement_are_those_of_a_step_in_the_other_direction(bench: Bench) -> None:
    assert bench.plan(slower=False).search.sign == -bench.plan().search.sign
