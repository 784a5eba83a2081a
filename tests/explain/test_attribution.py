"""What part of a growth stands in the diff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from perfbisect.changes.hunks import FileDiff
from perfbisect.explain.attribution import ProfileExplanation, compare_operations, explain_profiles
from perfbisect.explain.diff import StackDiff
from perfbisect.explain.functions import ProfileWindow, SampledLaunch
from perfbisect.explain.profile_job import ProfileResultDocument
from perfbisect.explain.stacks import FunctionKey, StackFrame, StackSample
from perfbisect.explain.trace import TraceProfile, TraceStep
from tests.explain.diffs import file_diff

PATH, OTHER = "vllm/v1/scheduler.py", "vllm/v1/worker.py"
BEFORE = """\
class Scheduler:
    def schedule(self):
        return self.choose()

    def choose(self):
        return sorted(self.queue)
"""
AFTER = """\
class Scheduler:
    def schedule(self):
        self.check()
        return self.choose()

    def check(self):
        assert len(set(self.blocks)) == len(self.blocks)

    def choose(self):
        return sorted(self.queue)
"""
PATCH = file_diff(PATH, BEFORE, AFTER)
VALUES = file_diff("vllm/moe/E=8.json", "1\n", "2\n")


def kernel_diff(name: str) -> FileDiff:
    above, added = "\n" * 20, "  __syncthreads();\n"
    return file_diff("csrc/layernorm_kernels.cu", above, above + added, f"__global__ void {name}(")


KERNEL = kernel_diff("rms_norm_kernel")

Frame = tuple[str, str, int]
Times = Mapping[tuple[Frame, ...], float]
LOOP: Frame = ("Core.loop", "vllm/v1/core.py", 5)
CHECK: Frame = ("Scheduler.check", PATH, 7)
CALL: Frame = ("Scheduler.schedule", PATH, 3)
CHOOSE_A: Frame = ("Scheduler.choose", PATH, 6)
CHOOSE_B: Frame = ("Scheduler.choose", PATH, 10)
FORWARD: Frame = ("Worker.forward", OTHER, 8)
COUNT: Frame = ("Pool.count", "vllm/v1/pool.py", 3)
DUMPS: Frame = ("dumps", "json/__init__.py", 4)
WAIT: Frame = ("Poller.poll", "zmq/sugar/poll.py", 9)


def diff_of(*files: FileDiff) -> StackDiff:
    return StackDiff(files, ("vllm",))


def launch(times: Times) -> SampledLaunch:
    """10 s at 200 samples a second in which the engine makes 200 steps of 50 ms."""
    counts = {frames: round(ms / 50.0 * 2000) for frames, ms in times.items()}
    counts[LOOP, WAIT] = 2000 - sum(counts.values())
    samples = tuple(
        StackSample("VLLM::EngineCore", "MainThread", tuple(StackFrame(*f) for f in frames), count)
        for frames, count in counts.items()
        if count
    )
    return (ProfileWindow(samples, 10.0, 200.0),)


BASE = {(LOOP, CALL, CHOOSE_A): 4.0, (LOOP, FORWARD): 10.0}
SAME = {(LOOP, CALL, CHOOSE_B): 4.0, (LOOP, FORWARD): 10.0}


def places_of(told: ProfileExplanation) -> dict[FunctionKey, str]:
    return {row.key: row.place for row in told.functions.functions if row.place}


def explained(
    after: Mapping[tuple[Frame, ...], float], patch: FileDiff = PATCH, **options: Any
) -> ProfileExplanation:
    """Two launches of each side, the later one with these times."""
    options = {"is_slower": True, **options}
    return explain_profiles([launch(BASE)] * 2, [launch(after)] * 2, diff_of(patch), **options)


def test_lines_that_were_added() -> None:
    told = explained(SAME | {(LOOP, CALL, CHECK): 8.0})
    conclusion = told.conclusion
    assert conclusion.kind == "in the diff"
    assert conclusion.share("changed line") == pytest.approx(1.0)
    assert conclusion.growth_ms == pytest.approx(8.0, abs=0.1)
    assert conclusion.location is not None
    assert conclusion.location.is_added
    assert places_of(told) == {(PATH, "Scheduler.check"): "changed line"}


@pytest.mark.parametrize(
    ("after", "options", "kind", "sentence"),
    [
        (
            SAME | {(LOOP, CALL, CHECK): 8.0},
            {},
            "in the diff",
            f"100 % of the growth beyond noise is in {PATH}:7 Scheduler.check, which this commit added.",
        ),
        (
            SAME | {(LOOP, CALL, COUNT, DUMPS): 8.0},
            {},
            "called from the diff",
            f"100 % of the growth beyond noise is called from {PATH}:3 Scheduler.schedule, "
            "which this commit changed.",
        ),
        (
            SAME | {(LOOP, CALL, CHECK): 9.0, (LOOP, CALL, CHECK, COUNT): 3.0},
            {},
            "in the diff",
            f"75 % of the growth beyond noise is in {PATH}:7 Scheduler.check, which this commit added; "
            "25 % in what the diff calls.",
        ),
        (
            SAME | {(LOOP, FORWARD): 20.0},
            {"settings": (("block_size", "16", "8"),)},
            "not in the diff",
            f"None of the growth beyond noise stands in the diff; most is in {OTHER}:8 Worker.forward. "
            "The sides differ in block_size 16 -> 8.",
        ),
        (
            BASE | {(LOOP, FORWARD): 20.0},
            {"patch": VALUES},
            "not in the diff",
            f"None of the growth beyond noise stands in the diff; most is in {OTHER}:8 Worker.forward. "
            "The diff changes vllm/moe/E=8.json.",
        ),
    ],
)
def test_sentences(after: Times, options: dict[str, Any], kind: str, sentence: str) -> None:
    told = explained(after, **options)
    assert (told.conclusion.kind, ProfileResultDocument.of(told, ()).sentence) == (kind, sentence)


def test_growth_in_several_places_is_shared() -> None:
    told = explained(SAME | {(LOOP, FORWARD): 16.0, (LOOP, CALL, CHECK): 12.0})
    assert told.conclusion.shares == pytest.approx({"changed line": 2 / 3, "elsewhere": 1 / 3}, abs=0.01)
    assert "67 % of the growth beyond noise is in" in ProfileResultDocument.of(told, ()).sentence


def test_growth_elsewhere_that_uses_what_the_diff_changes() -> None:
    settings = "vllm/v1/settings.py"
    texts = {
        settings: "AUDIT = True\n",
        OTHER: "from vllm.v1 import settings\n\n\nclass Worker:\n\n    def forward(self):\n        x = 1\n"
        "        return settings.AUDIT\n",
    }
    diff = StackDiff((file_diff(settings, "AUDIT = False\n", texts[settings]),), ("vllm",), texts.get)
    b = {(LOOP, CALL, CHOOSE_A): 4.0, (LOOP, FORWARD): 20.0}
    told = explain_profiles([launch(BASE)] * 2, [launch(b)] * 2, diff, is_slower=True)
    assert told.conclusion.kind == "not in the diff"
    assert ProfileResultDocument.of(told, ()).sentence == (
        f"None of the growth beyond noise stands in the diff; most is in {OTHER}:8 Worker.forward, "
        f"which uses the value AUDIT that this commit changed at {settings}:1."
    )


def test_nothing_is_claimed_where_the_ab_saw_no_slowdown() -> None:
    told = explained(SAME | {(LOOP, CALL, CHECK): 8.0}, is_slower=False)
    assert (told.conclusion.kind, places_of(told)) == ("no growth seen", {})
    assert ProfileResultDocument.of(told, ()).sentence == (
        f"The sides do not differ beyond noise; {PATH} Scheduler.check grew most, by 8.00 ms a step."
    )
    told = explain_profiles([launch(BASE)], [launch(SAME)] * 2, diff_of(PATCH))
    assert ProfileResultDocument.of(told, ()).sentence == (
        "No function grew beyond the noise of 1 profile launch before and 2 after."
    )


def test_without_a_diff_nothing_stands_in_it() -> None:
    b = SAME | {(LOOP, CALL, CHECK): 8.0}
    told = explain_profiles([launch(BASE)] * 2, [launch(b)] * 2, None, is_slower=True)
    assert told.conclusion.kind == "no diff"
    assert "Scheduler.check grew most, by 8.00 ms a step" in ProfileResultDocument.of(told, ()).sentence


def noisy(rng: np.random.Generator, base: Mapping[tuple[Frame, ...], float]) -> SampledLaunch:
    pace = float(np.exp(rng.normal(0, 0.06)))
    times = {}
    for frames, ms in base.items():
        expected = ms * pace * float(np.exp(rng.normal(0, 0.06))) / 50.0 * 2000
        times[frames] = float(rng.poisson(expected)) / 2000 * 50.0
    return launch(times)


def test_pairs_that_differ_in_nothing_are_never_in_the_diff() -> None:
    """The diff touches hot code; an A/B that erred in favour of a slowdown is the worst case."""
    hot = {(LOOP, CALL, CHECK): 5.0, (LOOP, ("Scheduler.schedule", PATH, 4)): 3.0}
    functions = {(LOOP, (f"f{i}", OTHER, i)): 6.0 / (1 + i) for i in range(12)}
    kinds = []
    for seed in range(60):
        rng = np.random.default_rng([seed, 77])
        sides: list[Sequence[SampledLaunch]] = [
            [noisy(rng, hot | functions) for _ in range(2)] for _ in range(2)
        ]
        kinds.append(explain_profiles(*sides, diff_of(PATCH), is_slower=True).conclusion.kind)
    assert kinds.count("in the diff") + kinds.count("called from the diff") <= 1


def trace(norm_ms: float, copies: int = 1, steps: int = 8) -> TraceProfile:
    kernel, other = "void vllm::rms_norm_kernel<c10::Half>(...)", "ampere_gemm_f16"
    return TraceProfile(
        tuple(
            TraceStep(
                "execute_context_0(0)_generation_4(4)",
                {("kernel", kernel): 2, ("kernel", other): 3, ("copy", "Memcpy DtoH"): copies},
                {
                    ("kernel", kernel): norm_ms * (1 + 0.001 * i),
                    ("kernel", other): 5.0,
                    ("copy", "Memcpy DtoH"): 0.01,
                },
            )
            for i in range(steps)
        ),
    )


def test_a_kernel_is_found_in_the_diff_of_its_source() -> None:
    traces = ([trace(1.0)] * 2, [trace(3.0)] * 2)
    sides = [launch(BASE)] * 2, [launch(BASE)] * 2
    told = explain_profiles(*sides, diff_of(KERNEL), is_slower=True, traces=traces)
    assert told.conclusion.kind == "in the diff"
    assert told.trace.operations[0].difference == pytest.approx(2.0, abs=0.02)
    assert ProfileResultDocument.of(told, ()).sentence == (
        "100 % of the growth of kernels and operators beyond noise is in "
        "csrc/layernorm_kernels.cu:21 rms_norm_kernel, which this commit changed."
    )
    # The same kernel beside a diff of another one, and without a slowdown.
    for diff, slower in (
        (diff_of(kernel_diff("rotary_kernel")), True),
        (diff_of(KERNEL), False),
    ):
        told = explain_profiles(*sides, diff, is_slower=slower, traces=traces)
        assert told.conclusion.kind == "no growth seen"


def test_without_stacks_kernels_are_compared() -> None:
    traces = ([trace(1.0)] * 2, [trace(3.0)] * 2)
    told = explain_profiles([], [], diff_of(KERNEL), is_slower=True, traces=traces)
    assert told.conclusion.kind == "in the diff"
    told = explain_profiles([], [launch(BASE)], diff_of(PATCH), is_slower=True, traces=traces)
    assert (told.conclusion.kind, told.functions.launches) == ("no stacks", (0, 1))
    assert told.trace.operations[0].significant


def test_counts_of_a_step_are_told() -> None:
    told = explain_profiles(
        [launch(BASE)], [launch(BASE)], None, traces=([trace(1.0)], [trace(1.0, copies=2)])
    )
    (count,) = told.trace.counts
    assert (count.kind, count.name, count.before, count.after) == ("copy", "Memcpy DtoH", (1, 1), (2, 2))


def test_without_common_steps_no_operations_are_compared() -> None:
    assert compare_operations([trace(1.0)], [], "execute_context_0(0)_generation_4(4)") == ()
    told = explain_profiles(
        [launch(BASE)], [launch(BASE)], None, traces=([trace(1.0)], [trace(1.0, steps=2)])
    )
    assert (told.trace.step, told.trace.operations) == ("", ())
