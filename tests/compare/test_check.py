"""A check against a known level as a job: verdict, guards, refusals, resuming; and against a revision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfbisect.compare.baseline import RecordedLevel, read_baseline, write_baseline
from perfbisect.compare.documents import CheckDocument, check_of_comparison
from perfbisect.compare.job import check, level_of_job, levels_of_comparison, run
from perfbisect.compare.plan import CheckPlan, MeasurementSetup, SideRefusedError, build_check_plan
from perfbisect.compare.report import build_report, result_lines
from perfbisect.environments.base import Refusal
from perfbisect.errors import Interrupted, LocatedError, MachineError, ServerError, UsageError
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.measurement import MeasurementConfig
from perfbisect.jobs.plans import write_plan
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Failure
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import Figure
from perfbisect.report.markdown import report_markdown
from tests.compare.test_job import CHANGES, VARIANTS, measured
from tests.compare.test_run import job_of
from tests.compare.test_run import plan as run_plan
from tests.jobs.world import Clock, FakeBuilder, Watch, World, cell

SETTING = MeasurementConfig(environment="fake:it")
MakeJob = Callable[[], Job]


@pytest.fixture
def new_job(tmp_path: Path) -> MakeJob:
    clock, count = Clock(), iter(range(99))
    return lambda: Jobs(tmp_path).new(clock(), f"{next(count):04d}")


@pytest.fixture
def baseline(tmp_path: Path) -> Callable[..., RecordedLevel]:
    """Launches of the first change, measured by ``run``."""

    def made(world: World | None = None, launches: int = 8) -> RecordedLevel:
        known = world or World(CHANGES, 1, factor=1.1, tau=0.01, seed=7)
        watch = Watch()
        job = job_of(tmp_path / "earlier", run_plan(known, launches, variants=VARIANTS), watch, known)
        with job.held():
            run(job, watch.tools(known))
        return level_of_job(job)

    return made


def plan_of(level: dict[str, Any], **changed: Any) -> CheckPlan:
    setup = {
        "cell": cell(variants=VARIANTS),
        "metric": parse_metric("tpot"),
        "setting": SETTING,
        "builder": FakeBuilder(),
    }
    own = {name: changed.pop(name) for name in setup.keys() & changed.keys()}
    options = {"change": CHANGES[1], "launches": 12, "budget": 600.0, **level}
    return build_check_plan(MeasurementSetup(**setup | own), **options | changed)


def checked(job: Job, world: World, level: dict[str, Any], **changed: Any) -> CheckDocument:
    tools = Watch().tools(world)
    write_plan(job, plan_of(level, **changed), tools.clock)
    with job.held():
        return check(job, tools)


def test_worse_than_the_baseline_by_more_fails(
    new_job: MakeJob, baseline: Callable[..., RecordedLevel]
) -> None:
    level = {"recorded": (baseline(),), "max_regression": 0.03}
    document = checked(new_job(), World(CHANGES, 1, factor=1.1, tau=0.01), level)
    assert (document.verdict, document.how, document.finished) == ("failed", "baseline", True)
    assert document.low is not None and document.high is not None
    assert 0.03 < document.low < 0.1 < document.high
    recorded = document.recorded[0].value
    assert document.value is not None and recorded is not None and document.effect is not None
    assert document.value / recorded - 1 == pytest.approx(document.effect, abs=1e-9)
    assert document.summary[0].startswith(
        "010101010101 against the baseline 000000000000 (8 launches of 2026-01-01, job "
    )
    assert "more than 3.0 % worse" in document.summary[0]
    assert "is part of this difference" in document.summary[1]
    assert document.next.startswith("perfbisect bisect tiny --good 000000000000 --bad 010101010101")
    assert CheckDocument.model_validate_json(document.text()) == document
    assert "Checked against" in report_markdown(build_report(document))
    assert result_lines(document)[0].endswith(": failed")
    (figure,) = (
        block
        for section in build_report(document).sections
        for block in section.blocks
        if isinstance(block, Figure)
    )
    lines = [shape["y0"] for shape in figure.plot["layout"]["shapes"]]
    assert lines == [document.value, document.line, recorded]


def test_not_worse_by_more_passes(new_job: MakeJob, baseline: Callable[..., RecordedLevel]) -> None:
    document = checked(
        new_job(),
        World(CHANGES, None, tau=0.01),
        {"recorded": (baseline(),), "max_regression": 0.06},
        launches=20,
    )
    assert document.verdict == "passed"
    assert document.high is not None and document.high < 0.06
    assert document.line == pytest.approx(1.06 * document.recorded[0].value, rel=1e-6)
    assert {guard.name for guard in document.guards} >= {"failed", "output_tokens"}


def test_shorter_answers_fail_by_their_guard(
    new_job: MakeJob, baseline: Callable[..., RecordedLevel]
) -> None:
    world = World(CHANGES, 1, factor=0.7, tau=0.01, tokens=lambda position: 32.0 - 12 * position)
    document = checked(new_job(), world, {"recorded": (baseline(),), "max_regression": 0.05})
    assert document.verdict == "failed"
    assert document.high is not None and document.high < 0
    assert any(text.startswith("Guard failed: ") for text in document.summary)


def test_guards_that_never_varied_hold_no_good_news_up(
    new_job: MakeJob, baseline: Callable[..., RecordedLevel]
) -> None:
    """Nothing failed then or now, and every answer is as long: two launches are enough."""
    level = {"recorded": (baseline(launches=4),), "max_regression": 0.05}
    document = checked(new_job(), World(CHANGES, 1, factor=0.5, tau=0.002), level)
    assert (document.verdict, len(document.launches)) == ("passed", 2)
    assert {guard.name: guard.verdict for guard in document.guards} == {
        "failed": "within",
        "output_tokens": "within",
    }
    assert not any("inconclusive" in text for text in document.summary)


def test_too_noisy_is_inconclusive_with_its_price(
    new_job: MakeJob, baseline: Callable[..., RecordedLevel]
) -> None:
    level = {"recorded": (baseline(World(CHANGES, None, tau=0.1, seed=7)),), "max_regression": 0.01}
    document = checked(new_job(), World(CHANGES, None, tau=0.1), level, launches=4)
    assert document.verdict == "inconclusive"
    assert len(document.launches) == 4
    assert any("A verdict takes about" in text for text in document.summary)
    assert document.next == "perfbisect check ... --launches 8"


def test_two_values_are_a_line(new_job: MakeJob) -> None:
    level = {"values": (14.0, 21.0)}
    good = checked(new_job(), World(CHANGES, 1, factor=1.02, tau=0.01), level)
    assert (good.verdict, len(good.launches)) == ("passed", 2)
    assert good.line == pytest.approx((14 * 21) ** 0.5)
    assert good.value is not None and good.effect is not None
    assert good.value / good.line - 1 == pytest.approx(good.effect, abs=1e-9)
    assert "good side" in good.summary[0]
    bad = checked(new_job(), World(CHANGES, 1, factor=1.45, tau=0.01), level)
    assert bad.verdict == "failed"
    assert len(bad.launches) <= 4


def test_a_value_that_is_worse_where_it_should_be_better() -> None:
    with pytest.raises(UsageError, match="the bad value is not the worse one"):
        plan_of({"values": (21.0, 14.0)})
    assert plan_of({"values": (1000.0, 900.0)}, metric=parse_metric("output_throughput")).values


def test_the_ends_of_a_comparison_are_a_line(new_job: MakeJob) -> None:
    job = new_job()
    compared = measured(job, World(CHANGES, 1, factor=1.3, tau=0.01), cell=cell(variants=VARIANTS))
    ends = levels_of_comparison(job)
    assert compared.verdict == "regression"
    assert [one.change.id for one in ends] == [change.id for change in CHANGES]
    assert len(ends[0].attempts) == len(ends[1].attempts) == compared.launches_a_side
    world = World(CHANGES, None, tau=0.01, seed=3)
    document = checked(new_job(), world, {"recorded": ends})
    assert document.verdict == "passed"
    assert document.value is not None and document.line is not None and document.effect is not None
    assert document.value / document.line - 1 == pytest.approx(document.effect, abs=1e-9)
    assert "good 000000000000 at" in document.summary[0]
    assert "bad 010101010101 at" in document.summary[0]


def test_a_check_goes_on_where_it_was_cut(new_job: MakeJob, baseline: Callable[..., RecordedLevel]) -> None:
    def cut(n: int, _: AttemptRequest) -> Interrupted | None:
        return Interrupted("now") if n == 2 else None

    job, level = new_job(), {"recorded": (baseline(),), "max_regression": 0.03}
    with pytest.raises(Interrupted):
        checked(job, World(CHANGES, 1, factor=1.1, tau=0.01, fault=cut), level)
    with job.held():
        document = check(job, Watch().tools(World(CHANGES, 1, factor=1.1, tau=0.01)))
    assert document.verdict == "failed"
    assert [launch.outcome for launch in document.launches].count("abandoned") == 1


def test_the_budget_ends_it_without_a_verdict(
    new_job: MakeJob, baseline: Callable[..., RecordedLevel]
) -> None:
    level = {"recorded": (baseline(),), "max_regression": 0.1}
    document = checked(new_job(), World(CHANGES, 1, factor=1.1, tau=0.02), level, budget=2.5)
    assert (document.verdict, len(document.launches)) == ("inconclusive", 2)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"cell": cell(variants=VARIANTS, num_prompts=11)}, r"num_prompts 10 there, 11 here"),
        ({"machine_class": "another"}, r"machine_class was 'toy' there and is 'another' here"),
        ({"metric": parse_metric("ttft")}, r"does not have ttft; it has: failed, output_throughput"),
        ({"launches": 1}, "at least 2"),
    ],
)
def test_a_baseline_that_cannot_be_compared(
    baseline: Callable[..., RecordedLevel], changed: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        plan_of({"recorded": (baseline(),), "max_regression": 0.05}, **changed)


def test_a_baseline_that_was_served_otherwise(baseline: Callable[..., RecordedLevel]) -> None:
    from perfbisect.model.cell import apply_variant

    served = apply_variant(cell(variants=VARIANTS), "async")
    with pytest.raises(UsageError, match=r"serve_args .* there, .*async-scheduling.* here"):
        plan_of({"recorded": (baseline(),), "max_regression": 0.05}, cell=served)


def test_another_client_is_refused_at_its_first_launch(
    new_job: MakeJob, baseline: Callable[..., RecordedLevel]
) -> None:
    world = World(CHANGES, None, client_digest="another client")
    with pytest.raises(UsageError, match="client_digest was 'toy client' there and is 'another client' here"):
        checked(new_job(), world, {"recorded": (baseline(),), "max_regression": 0.05})


def test_too_few_launches_are_no_baseline(baseline: Callable[..., RecordedLevel]) -> None:
    with pytest.raises(UsageError, match="has 3 launches of 000000000000: a baseline needs at least 4"):
        baseline(launches=3)


def test_a_comparison_is_no_baseline(new_job: MakeJob) -> None:
    job = new_job()
    measured(job, World(CHANGES, 1, factor=1.3, tau=0.01))
    with pytest.raises(UsageError, match=r"is a compare: it measured several changes"):
        level_of_job(job)


def test_a_file_gives_the_level_back(tmp_path: Path, baseline: Callable[..., RecordedLevel]) -> None:
    level, path = baseline(), tmp_path / "base.json"
    write_baseline(path, level)
    assert read_baseline(path) == level
    assert "argv" not in path.read_text()


def test_a_baseline_without_a_place_is_still_a_job(
    tmp_path: Path, baseline: Callable[..., RecordedLevel]
) -> None:
    level = baseline()
    (tmp_path / "file").write_text("x")
    with pytest.raises(MachineError, match="cannot write the baseline") as caught:
        write_baseline(tmp_path / "file" / "base.json", level)
    assert caught.value.next_step == f"the launches are kept: --against baseline --baseline {level.job}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("[]", "schema: None is no baseline"),
        ('{"schema": "perfbisect.baseline/1"}', "job: Field required"),
    ],
)
def test_a_file_that_is_no_baseline(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(LocatedError, match=why):
        read_baseline(path)


def test_a_file_with_a_broken_launch(tmp_path: Path, baseline: Callable[..., RecordedLevel]) -> None:
    path = tmp_path / "base.json"
    write_baseline(path, baseline())
    document = json.loads(path.read_text())
    del document["attempts"][0]["provenance"]
    path.write_text(json.dumps(document))
    with pytest.raises(LocatedError, match=r"attempts\.0: "):
        read_baseline(path)


def test_dependencies_of_another_day_are_told(
    new_job: MakeJob, baseline: Callable[..., RecordedLevel]
) -> None:
    level = baseline().model_copy(update={"exclude_newer": "2026-01-01"})
    setting = SETTING.model_copy(update={"exclude_newer": "2026-02-01"})
    document = checked(
        new_job(),
        World(CHANGES, 1, tau=0.01),
        {"recorded": (level,), "max_regression": 0.05},
        setting=setting,
    )
    assert any("Dependencies were of 2026-01-01 there and are of 2026-02-01" in x for x in document.summary)


def test_a_commit_that_cannot_be_built_or_served(new_job: MakeJob) -> None:
    level = {"values": (14.0, 21.0)}
    refusing = FakeBuilder(refused={CHANGES[1].id: Refusal("it changes compiled files")})
    with pytest.raises(SideRefusedError, match="cannot be built: it changes compiled files"):
        plan_of(level, builder=refusing)

    def broken(*_: object) -> Failure | None:
        return Failure("launch", "change", "it crashes")

    with pytest.raises(ServerError, match="change 010101010101 does not serve"):
        checked(new_job(), World(CHANGES, None, fault=broken), level)

    def full(*_: object) -> Failure | None:
        return Failure("launch", "machine", "no memory")

    with pytest.raises(MachineError, match="no memory"):
        checked(new_job(), World(CHANGES, None, fault=full), level)


@pytest.mark.parametrize(
    ("factor", "limit", "word"), [(1.1, 0.05, "failed"), (1.0, 0.05, "passed"), (1.1, 0.2, "passed")]
)
def test_against_a_revision(new_job: MakeJob, factor: float, limit: float, word: str) -> None:
    compared = measured(new_job(), World(CHANGES, 1, factor=factor, tau=0.01), max_regression=limit)
    document = check_of_comparison(compared)
    assert document.verdict == word
    assert document.limit == limit
    markdown = report_markdown(build_report(document))
    assert markdown.startswith(
        f"# Check of 010101010101 against 000000000000 on tiny: {word}\n\n010101010101 is "
    )
    assert result_lines(document)[0].endswith(f": {word}")
    assert document.line == pytest.approx((1 + limit) * next(x for x in compared.metrics if x.headline).left)


def test_less_throughput_is_worse(new_job: MakeJob) -> None:
    ref = parse_metric("output_throughput")
    slow = measured(new_job(), World(CHANGES, 1, factor=1.15, tau=0.01), max_regression=0.05, metric=ref)
    assert check_of_comparison(slow).verdict == "failed"
    fast = measured(new_job(), World(CHANGES, 1, factor=0.9, tau=0.01), max_regression=0.05, metric=ref)
    assert check_of_comparison(fast).verdict == "passed"


def test_a_revision_in_noise_is_inconclusive_with_its_price(new_job: MakeJob) -> None:
    compared = measured(new_job(), World(CHANGES, 1, factor=1.05, tau=0.1), max_regression=0.05, blocks=2)
    document = check_of_comparison(compared)
    assert document.verdict == "inconclusive"
    assert any("more launches" in text for text in document.summary)


def test_a_guard_fails_a_check_against_a_revision(new_job: MakeJob) -> None:
    world = World(CHANGES, 1, factor=0.8, tau=0.005, tokens=lambda position: 32.0 - 12 * position)
    document = check_of_comparison(measured(new_job(), world, max_regression=0.05))
    assert document.verdict == "failed"
    assert document.summary[0] == "A guard failed, which decides whatever the limit of 5.0 %."


def test_a_guard_that_nobody_reported_does_not_hold_a_check_up(new_job: MakeJob) -> None:
    asked = cell(guards=("failed", "spec_decode_acceptance_rate"))
    compared = measured(new_job(), World(CHANGES, 1, factor=0.9, tau=0.005), max_regression=0.05, cell=asked)
    assert check_of_comparison(compared).verdict == "passed"
    assert any("was not reported" in text for text in compared.summary)
