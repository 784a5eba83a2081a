"""The phases of a bisection come from every launch of culprit and parent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfbisect.bisect import result
from perfbisect.model.attempt import Attempt, Provenance, RunResult
from perfbisect.model.counters import COUNTERS_FACT, CPU_FACT
from tests.stats.test_phases import launch


def measured(seed: int, decode_ms: float) -> Attempt:
    counted = launch(np.random.default_rng(seed), noise=0.01, decode_ms=decode_ms)
    before = {stage: dict.fromkeys(values, 0.0) for stage, values in counted.engine.stages.items()}
    facts = {COUNTERS_FACT: {"before": before, "after": counted.engine.stages}, CPU_FACT: counted.cpu_s}
    run = RunResult(index=1, seed=1, values={}, facts=facts)
    return Attempt(str(seed), "c", "search", Provenance("d", "m", "x"), (run,))


def bisection(purposes: tuple[str, ...]) -> Any:
    """A bisection of two positions, each launched once for each purpose."""
    records = [
        SimpleNamespace(
            position=position, purpose=purpose, measurement=measured(10 * place + position, decode_ms)
        )
        for place, purpose in enumerate(purposes)
        for position, decode_ms in ((0, 14.0), (1, 17.2))
    ]
    sides = tuple([one for one in records if one.position == side] for side in (0, 1))
    positions = [SimpleNamespace(change=SimpleNamespace(short=name)) for name in ("parent", "culprit")]
    plan = SimpleNamespace(positions=positions)
    return SimpleNamespace(measured=records, sides=sides, compared=(0, 1), plan=plan)


@pytest.mark.parametrize("purposes", [("search", "search", "confirm", "confirm"), ("confirm",) * 4])
def test_launches_before_the_a_b_count_too(purposes: tuple[str, ...]) -> None:
    phases = result._phases(bisection(purposes))
    assert phases is not None
    assert (phases.launches_a, phases.launches_b) == (4, 4)
    decode = next(phase for phase in phases.phases if phase.name == "decode")
    assert decode.verdict == "moved"
    assert decode.low is not None and decode.low > 0
