"""The comparison as a job: verdict, guards, resuming, and what ends it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.engine.experiment import run_experiment
from perfbisect.errors import Interrupted, MachineError, ServerError, UsageError
from perfbisect.experiments.compare import (
    COMPARE,
    ComparePlan,
    CompareResult,
    read_comparison,
)
from perfbisect.experiments.measure import MetricResult, SidePlan, combine_words, measured_launches
from perfbisect.jobs import replay
from perfbisect.jobs.estimates import EarlierAttempts
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.journal import read
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Attempt, Failure, RunResult
from perfbisect.model.metric import parse_metric
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from perfbisect.serving.log_facts import engine_facts
from tests.experiments.factory import CHANGES, VARIANTS, compare_plan, figures, measured
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell
from tests.serving.test_engine_log import PARENTS, TWO_STAGES


def test_a_slower_side_is_a_regression(job: Job) -> None:
    result = measured(job, World(CHANGES, 1, factor=1.1, tau=0.01))
    assert (result.verdict, result.headline.verdict, result.finished) == ("regression", "regression", True)
    assert result.headline.low is not None and result.headline.high is not None
    assert result.headline.low < 0.1 < result.headline.high
    assert result.summary[0].startswith("010101010101 against 000000000000: time per output token")
    assert "bisect tiny --good 000000000000 --bad 010101010101" in result.next
    rows = {row.name: row for row in result.metrics}
    assert rows["output_throughput"].verdict == "regression"
    assert rows["output_throughput"].effect < 0
    assert {launch.change.short for launch in result.launches} == {"000000000000", "010101010101"}
    assert CompareResult.model_validate_json(result.text()) == result


def test_a_comparison_begins_with_the_noise_of_earlier_launches(job: Job, tmp_path: Path) -> None:
    """On the class of machine that made them."""
    measured(job, World(CHANGES, 1, factor=1.0, tau=0.02), min_effect=0.001)
    made = measured_launches(replay.launches(read(job.journal).events))
    earlier = EarlierAttempts(tuple(launch.measurement for launch in made))
    plan = compare_plan(earlier=earlier)
    known = plan.noise["tpot"]
    assert known.sd == pytest.approx(0.02, rel=0.5)
    assert 6 <= known.degrees <= 20
    assert plan.noise_machine == "toy"
    assert not compare_plan(earlier=EarlierAttempts(earlier.of_cell[:4])).noise, "too few to tell"
    step, other = World(CHANGES, 1, factor=1.1, tau=0.02), World(CHANGES, 1, 1.1, tau=0.02, machine_class="x")
    count = {
        name: len(measured(Jobs(tmp_path / name).new(Clock()(), "abcd"), world, **given).launches)
        for name, world, given in (
            ("known", step, {"earlier": earlier}),
            ("unknown", step, {}),
            ("elsewhere", other, {"earlier": earlier}),
        )
    }
    assert count["known"] < count["unknown"] == count["elsewhere"]


def test_shorter_answers_are_a_regression_by_guard(job: Job) -> None:
    world = World(CHANGES, 1, factor=0.8, tau=0.005, tokens=lambda position: 32.0 - 12 * position)
    result = measured(job, world)
    assert (result.verdict, result.headline.verdict) == ("regression", "improvement")
    guard = next(row for row in result.metrics if row.name == "output_tokens")
    assert (guard.guard, guard.verdict) == (True, "regression")
    assert any(text.startswith("Guard failed: ") for text in result.summary)


@pytest.mark.parametrize(("factor", "headline"), [(0.5, "improvement"), (2.0, "regression")])
def test_only_good_news_waits_for_its_guards(factor: float, headline: str, job: Job) -> None:
    """Twice as fast is plain after a block; that every answer is a token shorter is not."""
    world = World(CHANGES, 1, factor=factor, tau=0.002, sigma=0.002, tokens=lambda position: 32.0 - position)
    result = measured(job, world)
    assert (result.verdict, result.headline.verdict) == ("regression", headline)
    waited = any(launch.why.endswith("for the guards") for launch in result.launches)
    assert waited == (headline == "improvement")
    assert result.launches_a_side <= 8


@pytest.mark.parametrize("limit", [{"blocks": 2}, {"budget": 8.0}])
def test_blocks_and_budget_end_without_a_verdict(limit: dict[str, Any], job: Job) -> None:
    result = measured(job, World(CHANGES, 1, factor=1.02, tau=0.12), **limit)
    assert result.verdict == "inconclusive"
    assert len(result.launches) <= 8
    assert result.minutes.total <= limit.get("budget", 10.0)
    assert any("A verdict takes about" in text for text in result.summary)


def test_a_failure_of_the_machine_is_no_evidence(job: Job) -> None:
    def full(n: int, _: AttemptRequest) -> Failure | None:
        return Failure("launch", "machine", "no memory") if n in (2, 3) else None

    watch = Watch()
    result = measured(job, World(CHANGES, 1, factor=1.3, tau=0.02, fault=full), watch)
    assert result.verdict == "regression"
    assert [launch.fault for launch in result.launches].count("machine") == 2
    assert result.minutes.lost > 0
    assert result.summary[-1].endswith("discarded or failed.")
    assert watch.waits


def test_a_side_that_does_not_serve_is_an_error(job: Job) -> None:
    def broken(_: int, request: AttemptRequest) -> Failure | None:
        return Failure("launch", "change", "it crashes") if request.change == CHANGES[1] else None

    with pytest.raises(ServerError, match=r"side b \(main\) does not serve: launch: it crashes"):
        measured(job, World(CHANGES, None, fault=broken))


def test_a_variant_of_one_change(job: Job) -> None:
    world = World(CHANGES, None, tau=0.01)
    side = SidePlan(typed="main+async", change=CHANGES[0], variant="async")
    result = measured(job, world, b=side)
    assert result.b.name == "000000000000+async"
    served = {request.cell.variant: request.cell.serve_args for request in world.requests}
    assert served == {"": {}, "async": {"async-scheduling": True}}
    assert len({request.cell.digest for request in world.requests}) == 1


TWINS = {**VARIANTS, "overlapped": {"serve_args": {"async-scheduling": True}}}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"b": SidePlan(typed="main~1", change=CHANGES[0])}, "one environment, one variant"),
        ({"builder": FakeBuilder(merged=frozenset({CHANGES[1].id}))}, "one environment"),
        (
            {
                "cell": cell(variants=TWINS),
                "a": SidePlan(typed="main+async", change=CHANGES[0], variant="async"),
                "b": SidePlan(typed="main+overlapped", change=CHANGES[0], variant="overlapped"),
            },
            r"one environment, .*\+async and .*\+overlapped are served alike",
        ),
    ],
)
def test_sides_that_are_the_same_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"are the same: {why}"):
        compare_plan(**changed)


@dataclass
class Reporting(World):
    """Each launch reports further metrics, by its position, each off by ``wide``."""

    more: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    wide: float = 0.002

    def _runs(self, request: AttemptRequest, position: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
        runs = super()._runs(request, position, rng)
        noise = 1 + self.wide * rng.normal()
        more = {name: value * noise for name, value in self.more.get(position, {}).items()}
        return tuple(replace(run, values={**run.values, **more}) for run in runs)


def test_fewer_drafts_that_are_accepted_are_a_regression_by_guard(job: Job) -> None:
    """vLLM 24799: chunks come faster, tokens slower: 1024 of 2034 drafts accepted, then 656 of 2094."""
    world = Reporting(
        CHANGES,
        1,
        factor=6.93 / 5.84,
        tau=0.005,
        base=5.84,
        more={
            0: {"itl:median": 14.45, "spec_decode_acceptance_rate": 1024 / 2034},
            1: {"itl:median": 13.45, "spec_decode_acceptance_rate": 656 / 2094},
        },
    )
    guards = ("failed", "output_tokens", "spec_decode_acceptance_rate")
    result = measured(job, world, metric=parse_metric("itl"), cell=cell(guards=guards))
    assert (result.verdict, result.headline.verdict) == ("regression", "improvement")
    rows = {row.name: row for row in result.metrics}
    drafts = rows["spec_decode_acceptance_rate"]
    assert (drafts.guard, drafts.absolute, drafts.verdict) == (True, True, "regression")
    assert drafts.low < 656 / 2094 - 1024 / 2034 < drafts.high < 0
    assert rows["tpot"].verdict == "regression"
    lines = report_lines(result.report())
    assert lines[0].endswith(": regression by a guard")
    assert any(line.split()[:2] == ["*", "itl"] for line in lines)
    assert any(line.split()[:2] == ["!", "spec_decode_acceptance_rate"] for line in lines)


LENGTHS: dict[str, tuple[str, dict[int, dict[str, float]], str, str]] = {
    "e2el": (
        "e2el",
        {
            0: {"e2el:median": 10000.0, "audio_duration:median": 10.0, "e2el_per_audio_s": 1000.0},
            1: {"e2el:median": 8000.0, "audio_duration:median": 8.0, "e2el_per_audio_s": 1000.0},
        },
        "improvement",
        r"Per unit of output \(e2el_per_audio_s\): same",
    ),
    "ttfp": (
        "audio_ttfp",
        {
            0: {"audio_ttfp:median": 300.0, "audio_duration:median": 4.0, "audio_ttfp_per_audio_s": 75.0},
            1: {"audio_ttfp:median": 360.0, "audio_duration:median": 6.0, "audio_ttfp_per_audio_s": 60.0},
        },
        "regression",
        r"Per unit of output \(audio_ttfp_per_audio_s\): improvement, -[12]\d\.\d %; audio duration per "
        r"request, median [34]\.\d+ s -> [56]\.\d+ s",
    ),
    "rtf": (
        "audio_rtf",
        {
            0: {"audio_rtf:median": 0.200, "audio_duration:median": 144.6, "e2el:median": 28920.0},
            1: {"audio_rtf:median": 0.245, "audio_duration:median": 90.9, "e2el:median": 22270.0},
        },
        "regression",
        r"Of whole answers \(e2el\): improvement, -2\d\.\d %; audio duration",
    ),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_verdict_that_turns_per_unit_of_output_says_so(job: Job, name: str) -> None:
    metric, more, word, said = LENGTHS[name]
    world = Reporting(CHANGES, None, tau=0.005, more=more)
    result = measured(job, world, metric=parse_metric(metric))
    assert result.headline.verdict == word
    assert any(re.match(said, text) for text in result.summary), result.summary


SLOWER = {"e2el:median": 700.0, "e2el_per_token": 700 / 32}


@pytest.mark.parametrize(
    ("metric", "more"),
    [
        ("e2el", {0: {"e2el:median": 640.0, "e2el_per_token": 20.0}, 1: SLOWER}),
        ("e2el:p99", {k: {"e2el:p99": 900.0 + 200 * k, "e2el_per_token": 20.0} for k in (0, 1)}),
    ],
)
def test_answers_of_one_length_and_tails_turn_nothing(
    metric: str, more: dict[int, dict[str, float]], job: Job
) -> None:
    world = Reporting(CHANGES, None, tau=0.005, more=more)
    result = measured(job, world, metric=parse_metric(metric))
    assert result.headline.verdict == "regression"
    assert not any("Per unit" in text for text in result.summary)


def test_a_side_that_does_not_report_the_metric_ends_the_comparison(job: Job) -> None:
    world = Reporting(CHANGES, None, more={0: {"tpot:median": 14.0}, 1: {"ttft:median": 30.0}}, reported=())
    with pytest.raises(UsageError, match=r"did not report tpot:median; reported: .*ttft:median"):
        measured(job, world)
    kept = read_comparison(job, read(job.journal).events)
    assert [launch.outcome for launch in kept.launches].count("measured") == len(kept.launches) - 1
    assert "did not report tpot:median" in kept.launches[-1].reason


@pytest.mark.parametrize("side", [0, 1])
def test_a_metric_of_which_no_ratio_exists_ends_the_comparison(job: Job, side: int) -> None:
    spread = {index: {"tpot:std": 0.0 if index == side else 3.0} for index in (0, 1)}
    world = Reporting(CHANGES, None, more=spread)
    with pytest.raises(UsageError, match=r"tpot:std is 0 in a run, and effects are ratios"):
        measured(job, world, metric=parse_metric("tpot:std"))
    assert len(world.requests) <= 2, "no launch is paid for once it is known"


def test_another_machine_does_not_count_after_a_resumption(job: Job) -> None:
    def cut(n: int, _: AttemptRequest) -> Interrupted | None:
        return Interrupted("now") if n == 3 else None

    with pytest.raises(Interrupted):
        measured(job, World(CHANGES, 1, factor=1.3, tau=0.02, fault=cut))
    other = World(CHANGES, 1, factor=1.3, tau=0.02, machine_class="another")
    with job.held(), pytest.raises(MachineError, match="machine_class was 'toy' and is 'another'"):
        run_experiment(COMPARE, job, Watch().tools(other))
    with job.held():
        result = run_experiment(COMPARE, job, Watch().tools(World(CHANGES, 1, factor=1.3, tau=0.02)))
    assert result.verdict == "regression"
    outcomes = [launch.outcome for launch in result.launches]
    assert (outcomes.count("abandoned"), outcomes.count("measured")) == (2, 2 * result.launches_a_side)


def test_a_guard_that_nobody_reported_guards_nothing(job: Job, new_job: Callable[[], Job]) -> None:
    asked = cell(guards=("failed", "spec_decode_acceptance_rate"))
    result = measured(job, World(CHANGES, 1, factor=0.8, tau=0.005), cell=asked, expect="<= -8 %")
    assert result.headline.verdict == "improvement"
    assert result.claim == "inconclusive"
    assert any("Guard not checked: spec_decode_acceptance_rate" in text for text in result.summary)
    other = measured(new_job(), World(CHANGES, 1, factor=0.8, tau=0.005), expect="<= -8 %")
    assert other.claim == "holds"


def test_the_page_plots_both_sides_with_their_levels(job: Job) -> None:
    result = measured(job, World(CHANGES, 1, factor=1.3, tau=0.02))
    report = result.report()
    headline, launches = result.metrics[0], result.launches
    for plot in figures(report).values():
        (panel,) = plot.panels
        sides = [trace for trace in panel.traces if trace.told]
        assert [trace.name for trace in sides] == ["A: 000000000000", "B: 010101010101"]
        for side, trace in enumerate(sides):
            assert list(trace.y) == [x.value for x in launches if x.position == side]
        assert [level.value for level in panel.levels] == [headline.left, headline.right]
    page = report_html(report, plots="plots.js")
    at = [page.index(text) for text in ('id="by-commit"', result.summary[0], 'id="launches"')]
    assert at == sorted(at), "the launches by commit stand above the words"


def test_launches_of_a_side_stand_in_its_column_in_the_order_of_time(job: Job) -> None:
    result = measured(job, World(CHANGES, 1, factor=1.3, tau=0.02))
    plot = figures(result.report())["by-commit"]
    assert [at for at, _ in plot.x.ticks] == [0, 1]
    for side, trace in enumerate(trace for trace in plot.panels[0].traces if trace.told):
        assert list(trace.x) == sorted(set(trace.x))
        assert side - 0.5 < min(trace.x) < side < max(trace.x) < side + 0.5


@dataclass
class Logging(World):
    """Launches whose engine has a log: of two stages, with the scheduler of the change at stage 0."""

    def run(self, request: AttemptRequest, **told: Any) -> Attempt:
        attempt = super().run(request, **told)
        scheduler = {CHANGES[0].id: "OmniARScheduler", CHANGES[1].id: "OmniARAsyncScheduler"}
        log = TWO_STAGES.replace("OmniARScheduler", scheduler[request.change.id])
        facts = {"engine_log": engine_facts(log, PARENTS)}
        return replace(attempt, provenance=replace(attempt.provenance, facts=facts))


def test_a_scheduler_of_one_stage_that_differs_is_told(job: Job) -> None:
    result = measured(job, Logging(CHANGES, 1, factor=1.3, tau=0.02))
    row = ("stage 0 scheduler", "OmniARScheduler", "OmniARAsyncScheduler")
    assert result.log_differences == (row,)
    assert json.loads(result.model_dump_json(by_alias=True))["log_differences"] == [list(row)]
    told = report_markdown(result.report())
    assert "| `stage 0 scheduler` | `OmniARScheduler` | `OmniARAsyncScheduler` |" in told


@dataclass
class Packaged(World):
    """Each change brings a triton of its own, with ``more`` packages."""

    more: int = 0

    def run(self, request: AttemptRequest, **told: Any) -> Attempt:
        attempt = super().run(request, **told)
        minor = CHANGES.index(request.change)
        packages = [
            "torch==2.9",
            *(f"p{number}==1.{minor}" for number in range(self.more)),
            f"triton==3.{minor}",
        ]
        facts = {"engine": {"packages": packages}}
        return replace(attempt, provenance=replace(attempt.provenance, facts=facts))


def test_the_environments_of_the_sides_are_compared(job: Job) -> None:
    result = measured(job, Packaged(CHANGES, 1, factor=1.3, tau=0.02))
    assert result.environment_differences == (("package: triton", "3.0", "3.1"),)
    shown = report_markdown(result.report())
    assert "Environment" in shown and "| `package: triton` | `3.0` | `3.1` |" in shown
    assert CompareResult.model_validate_json(result.text()) == result


def test_a_long_list_of_differences_is_cut(job: Job) -> None:
    shown = report_markdown(measured(job, Packaged(CHANGES, 1, more=30)).report())
    assert "`package: p19`" in shown and "`package: p20`" not in shown and "and 11 more (--json)" in shown


REQUESTS = 512


@dataclass
class Counting(World):
    """Launches whose runs count their requests, of which ``lost(position, k)`` failed in run k."""

    lost: Callable[[int, int], int] = lambda *_: 0

    def _runs(
        self, request: AttemptRequest, position: int, rng: np.random.Generator
    ) -> tuple[RunResult, ...]:
        runs = []
        for k, run in enumerate(super()._runs(request, position, rng)):
            lost = self.lost(position, k)
            values = {**run.values, "failed": lost / REQUESTS, "images": 1.0}
            facts = {"completed": REQUESTS - lost, "failed": lost}
            runs.append(replace(run, values=values, facts=facts))
        return tuple(runs)


LATENCIES = (parse_metric("ttft"),)


def reporting_ttft(effect: float, **changed: Any) -> Reporting:
    """TTFT of B is ``effect`` slower; TPOT of both is as the world says."""
    more = {0: {"ttft:median": 50.0}, 1: {"ttft:median": 50.0 * (1 + effect)}}
    return Reporting(CHANGES, 1, **{"tau": 0.005, "factor": 1.0, "more": more} | changed)


@pytest.mark.parametrize(
    ("tpot", "ttft", "verdict", "claim"),
    [
        (1.0, 0.0, "same", "holds"),
        (1.0, 0.3, "regression", "refuted"),
        (0.7, 0.3, "regression", "refuted"),
        (0.7, 0.0, "improvement", "holds"),
        (1.3, -0.3, "regression", "refuted"),
    ],
)
def test_several_metrics_have_one_verdict(
    tpot: float, ttft: float, verdict: str, claim: str, new_job: Callable[[], Job]
) -> None:
    result = measured(new_job(), reporting_ttft(ttft, factor=tpot), further=LATENCIES)
    assert (result.verdict, result.metric.name) == (verdict, "tpot")
    assert [row.name for row in result.metrics if row.judged] == ["tpot", "ttft"]
    assert COMPARE.status(result).exit_code == (3 if verdict == "regression" else 0)
    assert not result.by_guard
    lines = report_lines(result.report())
    assert [line.split()[1] for line in lines if line.strip().startswith("* ")][:2] == ["tpot", "ttft"]
    assert any("ttft" in line or "time to first token" in line for line in result.summary)
    assert ("--metric ttft" in result.next) == (ttft > 0), "the metric that got worse is bisected"
    world = reporting_ttft(ttft, factor=tpot)
    limited = measured(new_job(), world, further=LATENCIES, max_regression=0.1)
    assert limited.claim == claim
    assert limited.outcome == ("failed" if claim == "refuted" else "passed")
    assert [row.name for row in limited.judged] == ["tpot", "ttft"]
    words = {"holds", "refuted"} if claim == "refuted" else {"holds"}
    assert {row.claim for row in limited.judged} == words


def test_launches_go_on_until_every_metric_is_decided(new_job: Callable[[], Job]) -> None:
    noisy = reporting_ttft(0.0, factor=1.5, tau=0.002)
    noisy.wide = 0.05
    result = measured(new_job(), noisy, further=LATENCIES, blocks=3)
    rows = {row.name: row.verdict for row in result.metrics if row.judged}
    assert (result.verdict, rows["tpot"]) == ("regression", "regression")
    alone = measured(new_job(), reporting_ttft(0.0, factor=1.5, tau=0.002))
    assert len(alone.launches) < len(result.launches)


def test_good_news_does_not_stand_while_a_metric_is_open() -> None:
    assert combine_words(["improvement", "inconclusive"]) == "inconclusive"
    assert combine_words(["same", "improvement"]) == "improvement"
    assert combine_words(["inconclusive", "regression", "same"]) == "regression"
    assert combine_words(["same", "same"]) == "same"
    assert combine_words([]) == "inconclusive"


def test_a_plan_of_before_has_one_metric() -> None:
    plan = compare_plan()
    data = plan.model_dump(mode="json")
    del data["further"]
    assert ComparePlan.model_validate_json(json.dumps(data)) == plan
    assert plan.refs == (parse_metric("tpot"),)


@pytest.mark.parametrize(("limit", "missed"), [(None, 0.05), (0.05, 0.025)])
def test_metrics_and_guards_share_their_errors(limit: float | None, missed: float) -> None:
    """Two metrics share one error, all guards another; under a limit the intervals hold together."""
    plan = compare_plan(further=LATENCIES, max_regression=limit)
    each = [plan.question(metric, len(plan.refs)) for metric in plan.refs]
    assert [(test.tests, test.missed) for test in each] == [(2, missed)] * 2
    guard = plan.question(parse_metric("output_tokens"), 3)
    assert (guard.tests, guard.missed) == (3, 0.05)


def row_of(result: CompareResult, name: str) -> MetricResult:
    return next(row for row in result.metrics if row.name == name)


def test_no_failures_on_either_side_are_the_same_by_the_rule_of_three(job: Job) -> None:
    result = measured(job, Counting(CHANGES, 1, factor=1.3, tau=0.005))
    guard, each = row_of(result, "failed"), result.launches[0].values
    count = REQUESTS * result.launches_a_side * len(each)
    assert result.launches_a_side <= 4
    assert (guard.verdict, guard.effect, guard.left, guard.right) == ("same", 0.0, 0.0, 0.0)
    assert guard.high == -guard.low == pytest.approx(3 / count, rel=0.01)
    said = f"none of {count} in A, none of {count} in B"
    assert guard.note == said
    assert any("failed" in text and f"same ({said})" in text for text in report_lines(result.report()))


def test_a_guard_that_never_varied_did_not_move(job: Job) -> None:
    """Pixels and images are told apart at 0.1 %, below the least noise that the model knows."""
    world = Counting(CHANGES, 1, factor=1.3, tau=0.005)
    guard = row_of(measured(job, world, cell=cell(guards=("failed", "images"))), "images")
    assert (guard.guard, guard.verdict, guard.note) == (True, "same", "one value in every run")
    assert (guard.left, guard.right, guard.effect) == (1.0, 1.0, 0.0)


def test_a_rise_of_failures_is_still_a_regression(job: Job) -> None:
    world = Counting(CHANGES, None, tau=0.005, lost=lambda position, k: position * (10 + k))
    result = measured(job, world)
    assert (result.verdict, result.headline.verdict) == ("regression", "same")
    guard = row_of(result, "failed")
    assert (guard.verdict, guard.note) == ("regression", "")
    assert guard.low > 0


def test_a_single_failure_is_judged_by_launches(job: Job) -> None:
    """One run in which half a per cent failed: nothing is taken for granted any more."""
    told: list[int] = []

    def once(position: int, _: int) -> int:
        told.append(position)
        return 40 if len(told) == 3 else 0

    guard = row_of(measured(job, Counting(CHANGES, 1, factor=1.3, tau=0.005, lost=once)), "failed")
    assert guard.note == ""
    assert guard.low < 0 < guard.high


def test_a_guard_whose_median_launches_agree_is_not_named_as_open(job: Job) -> None:
    lost = iter([20])
    world = Counting(CHANGES, 1, factor=0.7, tau=0.005, lost=lambda *_: next(lost, 0))
    result = measured(job, world, blocks=2)
    guard = row_of(result, "failed")
    assert (result.verdict, result.launches_a_side, guard.verdict) == ("improvement", 4, "inconclusive")
    assert guard.left != guard.right
    assert not any("inconclusive" in text for text in result.summary)


@settings(max_examples=12)
@given(
    factor=st.floats(0.5, 2.0),
    tau=st.floats(0.001, 0.15),
    failures=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 999),
)
def test_every_row_shows_sides_whose_ratio_is_its_effect(
    tmp_path_factory: pytest.TempPathFactory,
    factor: float,
    tau: float,
    failures: list[int],
    blocks: int,
    seed: int,
) -> None:
    job = Jobs(tmp_path_factory.mktemp("jobs")).new(Clock()(), "abcd")
    world = Counting(
        CHANGES,
        1,
        factor=factor,
        tau=tau,
        seed=seed,
        lost=lambda position, k: failures[position] * k,
        tokens=lambda position: 32.0 - 5 * position,
    )
    result = measured(job, world, blocks=blocks)
    assert {"tpot", "tpot:p99", "output_throughput", "failed"} <= {row.name for row in result.metrics}
    for row in result.metrics:
        shown = row.right - row.left if row.absolute else row.right / row.left - 1
        assert shown == pytest.approx(row.effect, abs=1e-9), row.name
        assert row.low <= row.effect <= row.high, row.name


def test_a_profile_launch_is_no_measured_launch(job: Job) -> None:
    measured(job, World(CHANGES, 1, factor=1.1, tau=0.01))
    launches = replay.launches(read(job.journal).events)
    assert measured_launches(launches) != ()
    assert measured_launches(replace(launch, purpose="profile") for launch in launches) == ()
