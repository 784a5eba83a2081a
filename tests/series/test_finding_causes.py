"""What is behind a change, from the cells beside it and what stands beside its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perfbisect.series.causes import Cause, Evidence
from perfbisect.series.finding_causes import SeriesIndex, infer_causes, is_affected
from perfbisect.series.findings import SeriesChange, select_alerts
from perfbisect.series.series import CellSeries
from tests.series.made_series import cell, noise, step
from tests.unreadable import make_unreadable


@pytest.fixture(autouse=True, params=["sentences", "gibberish"])
def rendering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causes are the same whatever the sentences about their evidence say."""
    if request.param == "gibberish":
        make_unreadable(monkeypatch)


TRAITS = {"chunk": frozenset({"chunk"}), "tts": frozenset({"chunk"})}
NIGHTS = 30


def traits(name: str) -> frozenset[str]:
    return TRAITS.get(name.partition("/")[0], frozenset({"plain"}))


def e2el(test: str, seed: int, *, at: int = 99, factor: float = 1.0, until: int | None = None, **more: Any):  # type: ignore[no-untyped-def]
    return cell({"e2el:median": step(noise(seed, NIGHTS), at, factor, until)}, test=test, **more)


def quiet(tests: Sequence[str] = ("a", "b", "c", "d")) -> list[CellSeries]:
    return [one for n, test in enumerate(tests) for one in e2el(test, 30 + n)]


def told(series: Sequence[CellSeries], of: str = "") -> tuple[SeriesChange, Cause]:
    found = select_alerts(series, 0.05).alerts
    causes = infer_causes(found, SeriesIndex(series, traits))
    return next((f, c) for f, c in zip(found, causes, strict=True) if f.series.cell.startswith(of))


def test_a_step_that_stays_is_a_products() -> None:
    _, cause = told([*e2el("a", 1, at=15, factor=1.3), *quiet(("b", "c"))])
    assert cause.word == "product"
    assert cause.evidence[0] == Evidence("lasting", nights=15)


def test_six_nights_and_back_are_as_good_as_a_step() -> None:
    finding, cause = told([*e2el("a", 1, at=15, factor=1.5, until=21), *quiet(("b", "c"))])
    assert (finding.found.shape, finding.after) == ("transient", tuple(range(15, 21)))
    assert cause.word == "product"
    assert cause.evidence[0] == Evidence("lasting", nights=6)


def test_a_few_nights_of_one_server_are_not_enough() -> None:
    _, cause = told([*e2el("a", 1, at=NIGHTS - 3, factor=1.3), *quiet(("b", "c"))])
    assert cause == Cause("unknown", (Evidence("few nights", nights=3),))


def test_one_night_of_all_servers_is_the_nights() -> None:
    series = [
        one for n, t in enumerate("abcd") for one in e2el(t, n, at=15, factor=1.5, until=16, concurrency=1)
    ]
    _, cause = told(series)
    assert cause.word == "night"
    first = cause.evidence[0]
    assert (first.kind, first.count, first.total) == ("servers moved", 4, 4)


def test_one_night_of_those_that_run_one_thing_is_a_products() -> None:
    hit_by = [*e2el("chunk", 1, at=15, factor=3, until=16), *e2el("tts", 2, at=15, factor=2, until=16)]
    finding, cause = told([*hit_by, *quiet()], of="tts")
    assert cause.word == "product"
    first = cause.evidence[0]
    assert (first.kind, first.names, first.count) == ("shared trait", ("chunk",), 4)
    cells = SeriesIndex([*hit_by, *quiet()], traits)
    assert {one.cell.partition("/")[0]: is_affected(one, finding) for one in cells.beside(finding)} == {
        "chunk": True, "tts": True, "a": False, "b": False, "c": False, "d": False,
    }  # fmt: skip


def test_what_says_nothing_by_itself_goes_with_its_server() -> None:
    """Time to first token became better on the night on which everything else became much worse."""
    column = step(noise(3, NIGHTS), 15, 0.3, 16)
    both = cell({"e2el:median": step(noise(1, NIGHTS), 15, 3, 16), "ttft:median": column}, test="chunk")
    series = [*both, *e2el("tts", 2, at=15, factor=2, until=16), *quiet()]
    found = select_alerts(series, 0.05).alerts
    causes = infer_causes(found, SeriesIndex(series, traits))
    words = {
        f.series.metric: c for f, c in zip(found, causes, strict=True) if f.series.cell.startswith("chunk")
    }
    assert words["ttft"].word == "product"
    assert words["ttft"].evidence[0].kind == "same start moved"
    assert words["ttft"].evidence[1:] == words["e2el"].evidence, "its own says nothing"


def test_a_few_nights_are_enough_where_those_that_run_one_thing_moved() -> None:
    both = [*e2el("chunk", 1, at=NIGHTS - 3, factor=1.3), *e2el("tts", 2, at=NIGHTS - 3, factor=1.3)]
    finding, cause = told([*both, *quiet()], of="tts")
    assert (finding.found.shape, len(finding.after)) == ("step", 3)
    assert cause.word == "product"
    assert [evidence.kind for evidence in cause.evidence] == ["lasting", "shared trait"]


def test_a_mean_by_itself_is_never_a_products() -> None:
    values = noise(1, NIGHTS)
    series = cell({"e2el:median": values, "e2el:mean": step(values, 15, 1.4)}, test="a")
    cells = SeriesIndex([*series, *quiet(("b", "c"))], traits)
    found = select_alerts([s for s in series if s.part == "mean"], 0.05).alerts
    (cause,) = infer_causes(found, cells)
    assert cause.word == "unknown" and cause.evidence[0].kind == "few requests moved"


def test_a_cold_request_that_left_the_mean_for_the_client_s_own_time_is_the_instruments() -> None:
    """Of forty requests the mean falls from 2 s to 1 s: 40 s, for which the client takes 100 s more first."""
    typical = noise(1, NIGHTS)
    series = cell(
        {"e2el:median": typical, "e2el:mean": [2000.0 * v / 100 for v in step(typical, NIGHTS - 1, 0.5)]},
        test="a", covariates=[{"completed": 40, "outside": x} for x in [*[10.0] * (NIGHTS - 1), 110.0]],
    )  # fmt: skip
    found = select_alerts([s for s in series if s.part == "mean"], 0.05).alerts
    (cause,) = infer_causes(found, SeriesIndex([*series, *quiet(("b", "c"))], traits))
    assert cause.word == "instrument"
    warm = cause.evidence[1]
    assert (warm.kind, warm.before, warm.after) == ("warm-up added", 10.0, 110.0)
    assert round(warm.saved_s) == 40


def test_chunks_that_are_grouped_otherwise_are_no_slower_tokens() -> None:
    values = {"itl:median": step(noise(1, NIGHTS), 12, 1.3), "tpot:median": noise(2, NIGHTS)}
    _, cause = told([*cell(values, test="a"), *quiet(("b", "c"))], of="a")
    assert cause.word == "unknown"
    assert cause.evidence[0] == Evidence("same stream unchanged", name="tpot")
    values["tpot:median"] = step(noise(2, NIGHTS), 12, 1.3)
    _, cause = told([*cell(values, test="a"), *quiet(("b", "c"))], of="a")
    assert cause.word == "product"


def test_a_level_that_single_nights_had_before_is_one_of_two_machines() -> None:
    values = step(step(noise(1, NIGHTS), 10, 1.3, 11), NIGHTS - 6, 1.3)
    series = [*cell({"e2el:median": values}, test="a"), *quiet(("b", "c"))]
    found = select_alerts(series, 0.05).alerts
    words = [c for f, c in zip(found, infer_causes(found, SeriesIndex(series, traits)), strict=True)
             if f.found.shape == "step"]  # fmt: skip
    assert [c.word for c in words] == ["unknown"]
    assert words[0].evidence[0].kind == "level seen before"


def with_tokens(test: str, seed: int, tokens: Sequence[float], factor: float) -> tuple[CellSeries, ...]:
    return cell(
        {"ttft:median": step(noise(seed, NIGHTS), 15, factor)},
        test=test,
        covariates=[{"input_tokens": t} for t in tokens],
    )


def test_longer_prompts_of_the_same_data_set_explain_cells_that_do_not_count_them() -> None:
    """One server counts what a picture becomes, another does not: the specification of both changed."""
    counted = with_tokens("a", 1, [300.0] * 15 + [700.0] * 15, 1.02)
    silent = with_tokens("b", 2, [6700.0] * NIGHTS, 1.8)
    series = [*counted, *silent, *quiet(("c", "d"))]
    _, cause = told(series, of="b")
    assert cause.word == "workload"
    first = cause.evidence[0]
    assert (first.kind, first.cell) == ("same requests changed", "a/random@c4-n40")
    for others in ([*silent], [*counted, *with_tokens("b", 2, [6700.0] * NIGHTS, 6.0)]):
        _, cause = told([*others, *quiet(("c", "d"))], of="b")
        assert cause.word == "product", "nobody's prompts changed, or by far too little for six times as long"


def test_a_cell_that_was_not_measured_on_both_sides_has_no_say() -> None:
    late = cell({"e2el:median": [None] * 14 + noise(5, NIGHTS - 14)}, test="late")
    series = [*e2el("a", 1, at=15, factor=1.3), *late]
    finding, _ = told(series)
    assert [n.cell for n in SeriesIndex(series, traits).beside(finding)] == ["a/random@c4-n40"]
