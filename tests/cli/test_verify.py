"""Claims on a machine that can or cannot run them, sweeps, and what their cells say together."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.commands.comparisons import claim_cells, find_claim, ladder_cells
from perfbisect.commands.output import report_result
from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.experiments.compare import CompareResult
from perfbisect.experiments.several import SweepResult, VerifyResult
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.jobs.plans import resolve_metric
from perfbisect.machine.profile import Machine
from perfbisect.model.metric import parse_metric
from perfbisect.report.terminal import report_lines
from perfbisect.resources import cells_folder
from tests.experiments.factory import CHANGES, measured
from tests.jobs.world import Clock, World, cell

CELL = """\
family: text
model: acme/tiny
revision: {model: 0e9e39f249a16976918f6564b8830bc894c89659}
num_prompts: 8
max_concurrency: 1
headline: tpot
"""

LADDER = CELL.replace("num_prompts: 8", "num_prompts: [8, 64, 512]").replace(
    "max_concurrency: 1", "max_concurrency: [1, 8, 64]"
)

CLAIM = """\
claim: it is faster
source: a pull request
cell: ./tiny.yaml
a: v1
b: v2
expect:
  metric: tpot
  change: "<= -3 %"
  guards: [failed]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    (tmp_path / "tiny.yaml").write_text(CELL)


def claimed(text: str = CLAIM) -> tuple[Path, object]:
    Path("claim.yaml").write_text(text)
    return find_claim("claim.yaml")


def cells(text: str = CLAIM, profile: str = "") -> tuple[str, ...]:
    path, claim = claimed(text)
    return claim_cells(path, claim, profile)  # type: ignore[arg-type]


def test_a_claim_that_can_be_run() -> None:
    assert cells() == ("tiny.yaml",)
    Path("tiny.yaml").write_text(LADDER)
    assert cells() == ("tiny.yaml@c1-n8", "tiny.yaml@c8-n64", "tiny.yaml@c64-n512")


def test_too_few_devices_end_it_at_once() -> None:
    Path("tiny.yaml").write_text(CELL + "gpus: 64\n")
    with pytest.raises(
        MachineError, match=r"tiny needs 64 devices and there are .*it needs an island"
    ) as caught:
        cells(CLAIM + "needs: an island\n")
    assert caught.value.exit_code == 5


def test_devices_are_those_of_the_machine_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tiny.yaml").write_text(CELL + "gpus: 1\n")
    asked = []

    def seen(_: object, profile: object) -> Machine:
        asked.append(profile)
        return Machine("h", "c", 2, 1, "k", gpus=("one",))  # type: ignore[arg-type]

    monkeypatch.setattr("perfbisect.commands.comparisons.machine", seen)
    assert cells(profile="ascend") == ("tiny.yaml",)
    assert [profile.variable for profile in asked] == ["ASCEND_RT_VISIBLE_DEVICES"]  # type: ignore[attr-defined]


def test_weights_that_may_not_be_fetched_end_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with pytest.raises(MachineError, match=r"tiny needs acme/tiny@0e9e39f2.*HF_HUB_OFFLINE forbids"):
        cells()
    snapshots = tmp_path / "hf" / "hub" / "models--acme--tiny" / "snapshots"
    (snapshots / "0e9e39f249a16976918f6564b8830bc894c89659").mkdir(parents=True)
    assert cells() == ("tiny.yaml",)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("guards: [failed]", "guards: [failed, audio_duration]", 9,
         "expect.guards: client vllm_bench does not report audio_duration:median"),
        ("metric: tpot", "metric: audio_ttfp", 7,
         "expect.metric: client vllm_bench does not report audio_ttfp"),
    ],
)  # fmt: skip
def test_what_the_client_does_not_report_is_told_with_its_line(
    old: str, new: str, line: int, said: str
) -> None:
    with pytest.raises(LocatedError) as caught:
        cells(CLAIM.replace(old, new))
    assert caught.value.message.startswith(said)
    assert (caught.value.line, caught.value.exit_code) == (line, 2)


def test_a_guard_that_the_server_tells_is_none_of_the_client() -> None:
    assert cells(CLAIM.replace("[failed]", "[prefix_cache_hit_rate]"))


@pytest.mark.parametrize(
    "path", sorted((cells_folder() / "claims").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_claim_can_be_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has all that it needs."""
    monkeypatch.setattr(
        "perfbisect.commands.comparisons.machine",
        lambda *_: Machine("h", "c", 2, 1, "k", gpus=("gpu",) * 8),  # type: ignore[arg-type]
    )
    claim = find_claim(path.stem)[1]
    assert claim.source and claim_cells(path, claim, "")
    assert not parse_metric(claim.expect.metric).metric.neutral


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> CompareResult:
    job: Job = Jobs(tmp_path_factory.mktemp("told")).new(Clock()(), "abcd")
    return measured(job, World(CHANGES, 1, factor=1.3, tau=0.01), expect=">= 10 %")


def as_load(told: CompareResult, load: str, word: str, claim: str | None = None) -> CompareResult:
    name = told.cell.model_copy(update={"name": f"tiny@{load}"})
    own = {"cell": name, "job": f"job-{load}", "next": f"perfbisect report job-{load}"}
    return told.model_copy(update={**own, "verdict": word, "claim": claim})


def test_a_sweep_names_the_signature(told: CompareResult) -> None:
    """vLLM-Omni 5023: flat at one request at a time, worse from eight on."""
    words = (("c1-n8", "same"), ("c8-n64", "regression"), ("c64-n512", "regression"))
    result = SweepResult.of([as_load(told, load, word) for load, word in words])
    assert result.signature == "c1 same, c8 to c64 regression"
    assert (result.job, result.next) == ("job-c8-n64", "perfbisect report job-c8-n64")
    assert result.summary == (result.signature, *(f"tiny@{load}: {told.summary[0]}" for load, _ in words))
    lines = report_lines(result.report())
    assert lines[:2] == ["Sweep over loads: regression", "  signature  c1 same, c8 to c64 regression"]
    assert ["c8-n64" in line or "c64-n512" in line for line in lines[-3:]] == [True, True, False]


def test_the_command_of_the_cell_that_decided_ends_a_sweep(told: CompareResult) -> None:
    words = (("c1-n8", "inconclusive"), *((f"c{load}-n9", "regression") for load in range(2, 40)))
    sweep = SweepResult.of([as_load(told, load, word) for load, word in words])
    assert report_result(sweep, sweep.report()).closing == [
        "Sweep over loads: regression", "  next: perfbisect report job-c2-n9  # tiny@c2-n9"
    ]  # fmt: skip


def test_a_sweep_has_the_loads_of_its_file() -> None:
    Path("tiny.yaml").write_text(LADDER)
    assert ladder_cells("./tiny.yaml") == tuple(
        f"./tiny.yaml@{load}" for load in ("c1-n8", "c8-n64", "c64-n512")
    )
    Path("one.yaml").write_text(CELL)
    with pytest.raises(UsageError, match="has one load: there is nothing to sweep over"):
        ladder_cells("./one.yaml")


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("holds", "holds"), "holds"),
        (("holds", "inconclusive"), "inconclusive"),
        (("holds", "refuted"), "refuted"),
        (("inconclusive", "refuted"), "refuted"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_claim_holds_where_it_holds_in_every_cell(
    told: CompareResult, words: tuple[str, str], word: str
) -> None:
    claim = claimed()[1]
    result = VerifyResult.of(claim, [as_load(told, f"c{i}", "same", one) for i, one in enumerate(words)])  # type: ignore[arg-type]
    assert result.verdict == word
    assert result.job == f"job-c{words.index(word)}"
    assert word in result.summary[0] and len(result.summary) == 1 + len(words)
    assert report_lines(result.report())[0].endswith(
        ": inconclusive" if word == "inconclusive" else f": claim {word}"
    )


def test_a_headline_is_never_a_guard() -> None:
    with pytest.raises(UsageError, match="is a guard and cannot be the metric under test"):
        resolve_metric(cell(), "failed")
    with pytest.raises(UsageError, match="is a guard and cannot be the metric under test"):
        resolve_metric(cell(), "output_tokens", claimed=True)


def test_a_claim_may_speak_of_a_guard_that_has_a_better_side() -> None:
    assert resolve_metric(cell(), "failed", claimed=True) == parse_metric("failed")
