"""A check against recorded launches, ends, values or a revision: verdict, guards, refusals, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.engine.experiment import run_experiment
from perfbisect.environments.base import Refusal
from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.experiments.baseline import RecordedLevel, ReportedLevel, read_baseline, write_baseline
from perfbisect.experiments.check import CHECK, CheckPlan, CheckResult, level_of_job
from perfbisect.experiments.run import RUN
from perfbisect.experiments.setup import SideRefusedError, build_check_plan
from perfbisect.jobs.folders import Job
from perfbisect.jobs.plans import write_plan
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Provenance
from perfbisect.model.cell import apply_variant
from perfbisect.model.metric import parse_metric
from perfbisect.report.terminal import report_lines
from tests.experiments.factory import (
    CHANGES,
    SETTING,
    VARIANTS,
    figures,
    job_of,
    measured,
    run_plan,
    setup_of,
)
from tests.jobs.world import FakeBuilder, Watch, World, cell

MakeJob = Callable[[], Job]
MakeLevel = Callable[..., RecordedLevel]


@pytest.fixture
def baseline(tmp_path: Path) -> MakeLevel:
    """Launches of the first change, measured by ``run``."""

    def record(world: World | None = None, launches: int = 8) -> RecordedLevel:
        known = world or World(CHANGES, 1, factor=1.1, tau=0.01, seed=7)
        watch = Watch()
        job = job_of(tmp_path / "earlier", run_plan(known, launches, variants=VARIANTS), watch, known)
        with job.held():
            run_experiment(RUN, job, watch.tools(known))
        return level_of_job(job)

    return record


def plan_of(*recorded: RecordedLevel, **changed: Any) -> CheckPlan:
    setup = setup_of(changed)
    options = {"change": CHANGES[1], "launches": 12, "budget": 600.0, "recorded": recorded}
    return build_check_plan(setup, **options | changed)


def checked(job: Job, world: World, *recorded: RecordedLevel, **changed: Any) -> CheckResult:
    tools = Watch().tools(world)
    write_plan(job, plan_of(*recorded, **changed), tools.clock)
    with job.held():
        return run_experiment(CHECK, job, tools)


def test_worse_than_the_baseline_by_more_fails(new_job: MakeJob, baseline: MakeLevel) -> None:
    world = World(CHANGES, 1, factor=1.1, tau=0.01)
    result = checked(new_job(), world, baseline(), max_regression=0.03)
    assert (result.outcome, result.how, result.finished) == ("failed", "baseline", True)
    assert result.headline.low is not None and result.headline.high is not None
    assert 0.03 < result.headline.low < 0.1 < result.headline.high
    recorded = result.recorded[0].value
    assert result.headline.right is not None and recorded is not None and result.headline.effect is not None
    assert result.headline.right / recorded - 1 == pytest.approx(result.headline.effect, abs=1e-9)
    assert "(8 launches of 2026-01-01, job " in result.summary[0]
    assert result.next.startswith("perfbisect bisect tiny --good 000000000000 --bad 010101010101")
    assert CheckResult.model_validate_json(result.text()) == result
    report = result.report()
    assert report.heading == "Check of 010101010101 on tiny: failed"
    lines = [level.value for level in figures(report)["launches"].panels[0].levels]
    assert lines == [result.headline.right, result.headline.line, recorded]


def test_not_worse_by_more_passes(new_job: MakeJob, baseline: MakeLevel) -> None:
    world = World(CHANGES, None, tau=0.01)
    result = checked(new_job(), world, baseline(), max_regression=0.06, launches=20)
    assert result.outcome == "passed"
    assert result.headline.high is not None and result.headline.high < 0.06
    assert result.headline.line == pytest.approx(1.06 * result.recorded[0].value, rel=1e-6)
    assert {guard.name for guard in result.guards} >= {"failed", "output_tokens"}


def test_shorter_answers_fail_by_their_guard(new_job: MakeJob, baseline: MakeLevel) -> None:
    world = World(CHANGES, 1, factor=0.7, tau=0.01, tokens=lambda position: 32.0 - 12 * position)
    result = checked(new_job(), world, baseline(), max_regression=0.05)
    assert result.outcome == "failed"
    assert result.headline.high is not None and result.headline.high < 0
    assert any(text.startswith("Guard failed: ") for text in result.summary)


def test_guards_that_never_varied_hold_no_good_news_up(new_job: MakeJob, baseline: MakeLevel) -> None:
    """Nothing failed then or now, and every answer is as long: two launches are enough."""
    world = World(CHANGES, 1, factor=0.5, tau=0.002)
    result = checked(new_job(), world, baseline(launches=4), max_regression=0.05)
    assert (result.outcome, len(result.launches)) == ("passed", 2)
    assert {guard.name: guard.verdict for guard in result.guards} == {
        "failed": "within",
        "output_tokens": "within",
    }
    assert not any("inconclusive" in text for text in result.summary)


@pytest.mark.parametrize(
    ("tau", "limits", "launches", "next_step"),
    [
        (0.1, {"max_regression": 0.01, "launches": 4}, 4, "perfbisect check ... --launches 8"),
        (0.02, {"max_regression": 0.1, "budget": 2.5}, 2, "perfbisect check ... --launches 24"),
    ],
)
def test_noise_and_budget_end_without_a_verdict(
    tau: float,
    limits: dict[str, Any],
    launches: int,
    next_step: str,
    new_job: MakeJob,
    baseline: MakeLevel,
) -> None:
    level = baseline(World(CHANGES, None, tau=tau, seed=7))
    result = checked(new_job(), World(CHANGES, 1, factor=1.1 if tau < 0.1 else 1.0, tau=tau), level, **limits)
    assert (result.outcome, len(result.launches)) == ("inconclusive", launches)
    assert result.next == next_step


def test_several_metrics_against_a_baseline(new_job: MakeJob, baseline: MakeLevel) -> None:
    """Throughput falls with a slower token: both fail, and the errors of both together are those of one."""
    world = World(CHANGES, 1, factor=1.2, tau=0.01)
    further = (parse_metric("output_throughput"),)
    result = checked(new_job(), world, baseline(), max_regression=0.03, further=further)
    assert result.outcome == "failed"
    assert [(row.name, row.claim) for row in result.judged] == [
        ("tpot", "refuted"),
        ("output_throughput", "refuted"),
    ]
    assert "hold together" in " ".join(result.summary)
    assert CheckResult.model_validate_json(result.text()) == result


@pytest.mark.parametrize(("factor", "verdict"), [(1.02, "passed"), (1.45, "failed")])
def test_two_values_are_a_threshold(factor: float, verdict: str, new_job: MakeJob) -> None:
    world = World(CHANGES, 1, factor=factor, tau=0.01)
    result = checked(new_job(), world, values=(14.0, 21.0))
    assert result.outcome == verdict
    assert len(result.launches) <= 4
    assert result.headline.line == pytest.approx((14 * 21) ** 0.5)
    assert result.headline.right is not None and result.headline.effect is not None
    assert result.headline.right / result.headline.line - 1 == pytest.approx(result.headline.effect, abs=1e-9)


def test_a_value_that_is_worse_where_it_should_be_better() -> None:
    with pytest.raises(UsageError, match="the bad value is not the worse one"):
        plan_of(values=(21.0, 14.0))
    assert plan_of(values=(1000.0, 900.0), metric=parse_metric("output_throughput")).values


def test_a_comparison_is_no_baseline(new_job: MakeJob) -> None:
    job = new_job()
    measured(job, World(CHANGES, 1, factor=1.3, tau=0.01))
    with pytest.raises(UsageError, match=r"is a compare: it measured several changes"):
        level_of_job(job)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"cell": cell(variants=VARIANTS, num_prompts=11)}, r"num_prompts 10 there, 11 here"),
        ({"cell": apply_variant(cell(variants=VARIANTS), "async")}, r"serve_args .*async-scheduling.* here"),
        ({"machine_class": "another"}, r"machine_class was 'toy' there and is 'another' here"),
        ({"metric": parse_metric("ttft")}, r"does not have ttft; it has: failed, output_throughput"),
        ({"launches": 1}, "at least 2"),
        ({"further": (parse_metric("ttft"),)}, r"does not have ttft; it has: failed, output_throughput"),
    ],
)
def test_a_baseline_that_cannot_be_compared(baseline: MakeLevel, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_of(baseline(), max_regression=0.05, **changed)


def test_another_client_is_refused_at_its_first_launch(new_job: MakeJob, baseline: MakeLevel) -> None:
    world = World(CHANGES, None, client_digest="another client")
    with pytest.raises(UsageError, match="client_digest was 'toy client' there and is 'another client' here"):
        checked(new_job(), world, baseline(), max_regression=0.05)


@dataclass
class Driven(World):
    """On a machine with this driver, by a server with a path in its flags."""

    driver: str = "580"

    def provenance(self, request: AttemptRequest) -> Provenance:
        facts = {
            "machine": {"gpus": [{"name": "H100", "driver": self.driver}]},
            "server": {"argv": ["serve", "--chat-template", "/home/me/template"]},
            "engine": {"packages": ["torch==2.9", "vllm @ file:///home/me/vllm.whl"]},
        }
        return replace(super().provenance(request), facts=facts)


def test_the_environment_of_a_baseline_is_compared(new_job: MakeJob, baseline: MakeLevel) -> None:
    level = baseline(Driven(CHANGES, 1, factor=1.1, tau=0.01, seed=7))
    text = level.model_dump_json()
    assert "vllm.whl" in text and "/home/me" not in text
    result = checked(new_job(), Driven(CHANGES, 1, factor=1.5, tau=0.01, driver="590"), level)
    assert result.environment_differences == (("driver", "580", "590"),)
    told = "\n".join(report_lines(result.report()))
    assert "driver 580 -> 590" in told


def test_a_file_gives_the_level_back(tmp_path: Path, baseline: MakeLevel) -> None:
    level, path = baseline(), tmp_path / "base.json"
    write_baseline(path, level)
    assert read_baseline(path) == level
    assert "argv" not in path.read_text()
    with pytest.raises(MachineError, match="cannot write the baseline") as caught:
        write_baseline(path / "base.json", level)
    assert caught.value.next_step == f"the launches are kept: --against baseline --baseline {level.job}"
    result = json.loads(path.read_text())
    del result["attempts"][0]["provenance"]
    path.write_text(json.dumps(result))
    with pytest.raises(LocatedError, match=r"attempts\.0: "):
        read_baseline(path)
    with pytest.raises(UsageError, match="has 3 launches of 000000000000: a baseline needs at least 4"):
        baseline(launches=3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Invalid JSON"),
        ('{"schema": "perfbisect.check/7"}', "schema: Input should be"),
        ('{"schema": "perfbisect.baseline/1"}', "job: Field required"),
    ],
)
def test_a_file_that_is_no_baseline(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(LocatedError, match=why):
        read_baseline(path)


def test_dependencies_of_another_day_are_told(new_job: MakeJob, baseline: MakeLevel) -> None:
    level = baseline().model_copy(update={"exclude_newer": "2026-01-01"})
    setting = SETTING.model_copy(update={"exclude_newer": "2026-02-01"})
    world = World(CHANGES, 1, tau=0.01)
    result = checked(new_job(), world, level, max_regression=0.05, setting=setting)
    assert any("Dependencies were of 2026-01-01 there and are of 2026-02-01" in x for x in result.summary)


def test_a_commit_that_cannot_be_built() -> None:
    refusing = FakeBuilder(refused={CHANGES[1].id: Refusal("it changes compiled files")})
    with pytest.raises(SideRefusedError, match="cannot be built: it changes compiled files"):
        plan_of(values=(14.0, 21.0), builder=refusing)


THROUGHPUT = {"metric": parse_metric("output_throughput")}
UNREPORTED = {"cell": cell(guards=("failed", "spec_decode_acceptance_rate"))}


@pytest.mark.parametrize(
    ("world", "asked", "verdict"),
    [
        ({"factor": 1.1}, {}, "failed"),
        ({"factor": 1.0}, {}, "passed"),
        ({"factor": 1.1}, {"max_regression": 0.2}, "passed"),
        ({"factor": 1.15}, THROUGHPUT, "failed"),
        ({"factor": 0.9}, THROUGHPUT, "passed"),
        ({"factor": 1.05, "tau": 0.1}, {"blocks": 2}, "inconclusive"),
        ({"factor": 0.8, "tokens": lambda position: 32.0 - 12 * position}, {}, "failed"),
        ({"factor": 0.9}, UNREPORTED, "passed"),
    ],
)
def test_against_a_revision(
    world: dict[str, Any], asked: dict[str, Any], verdict: str, new_job: MakeJob
) -> None:
    options = {"max_regression": 0.05} | asked
    compared = measured(new_job(), World(CHANGES, 1, **{"tau": 0.01} | world), **options)
    assert (compared.outcome, compared.limit) == (verdict, options["max_regression"])
    headline, limit = compared.headline, options["max_regression"]
    worse = limit if compared.metric.direction == "lower" else -limit
    assert headline.left is not None
    assert headline.line == pytest.approx((1 + worse) * headline.left)
    by_guard = " by a guard" if "tokens" in world else ""
    title = "Check of 010101010101 against 000000000000 on tiny"
    judged = next(row for row in report_lines(compared.report()) if row.lstrip().startswith("* "))
    assert by_guard or judged.endswith(f" {verdict}"), "one verdict"
    assert compared.report().heading == f"{title}: {verdict}{by_guard}"


@pytest.mark.parametrize(("reported", "outcome"), [(20.0, "passed"), (10.0, "failed")])
def test_a_value_that_a_client_reported_is_a_level_without_guards(
    new_job: MakeJob, reported: float, outcome: str
) -> None:
    world = World(CHANGES, None, tau=0.002)
    level = ReportedLevel(file="other.json", client="AIPerf", day="2026-07-03", values={"tpot": reported})
    result = checked(new_job(), world, reported=level, max_regression=0.05)
    assert (result.outcome, result.how, result.recorded, result.guards) == (outcome, "baseline", (), ())
    assert result.headline.line == pytest.approx(1.05 * reported)
    assert result.headline.effect == pytest.approx(result.headline.right / reported - 1, abs=1e-9)
    assert "one value of AIPerf of 2026-07-03" in result.summary[0]
    assert result.next == f"perfbisect report {result.job}"
    lines = [level.value for level in figures(result.report())["launches"].panels[0].levels]
    assert lines == [result.headline.right, result.headline.line, reported]
