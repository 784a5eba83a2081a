"""The cause of a change, from what moved with it and what did not."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfbisect.model.commit_details import Evidence, MeasuredCell
from perfbisect.series import alerts, detect
from perfbisect.series import causes as rules
from perfbisect.series import ingest as ingest_module
from perfbisect.series import points as points_module
from perfbisect.series import series as series_module
from perfbisect.series.causes import (
    Cause,
    ChangeContext,
    changed_labels,
    infer_cause,
    infer_causes,
    is_affected,
    moved_counts,
)
from perfbisect.series.findings import SeriesChange, SeriesIndex, select_alerts
from perfbisect.series.report import sentences_of
from perfbisect.series.series import CellSeries
from perfbisect.series.sources import journals
from tests.series.made_series import cell, noise, step

CHUNK, PLAIN, IMAGE = frozenset({"omni", "chunk"}), frozenset({"omni"}), frozenset({"image"})


def measured(start: str, shift: float, traits: frozenset[str], *, control: bool = False) -> MeasuredCell:
    """A cell whose nights differ by 3 %, beside a change for the worse."""
    name = f"{start}-{shift}-{control}"
    return MeasuredCell(name, shift > 0.09, start, traits, shift=shift, control=control)


SOME = (
    measured("A", 1.0, CHUNK),
    measured("B", 0.6, CHUNK),
    measured("C", 0.02, PLAIN),
    measured("D", -0.04, IMAGE),
)
ALL = (
    *(measured("A", 0.3, CHUNK), measured("B", 0.3, PLAIN), measured("C", 0.25, IMAGE)),
    measured("C", 0.2, IMAGE, control=True),
)


def on(machine: str, *cells: MeasuredCell) -> tuple[MeasuredCell, ...]:
    return tuple(replace(cell, machine=machine, start=f"{cell.start} on {machine}") for cell in cells)


def night(**covariates: Any) -> dict[str, Any]:
    base = {"warmups": 2, "input_tokens": 100, "output_tokens": 50, "audio_duration": 4.0, "duration": 60}
    return base | covariates


def change(
    shift: float = 1.0, *, nights: int = 1, after: dict[str, Any] | None = None, **more: Any
) -> ChangeContext:
    context = ChangeContext(
        metric="audio_rtf",
        shift=shift,
        noise=0.03,
        shape="transient" if nights == 1 else "step",
        before=(night(),) * 8,
        after=(after or night(),) * nights,
    )
    return replace(context, **more)


def judge(context: ChangeContext) -> tuple[str, list[str]]:
    """The cause and the kinds of its evidence, each of which has a sentence."""
    cause = infer_cause(context)
    assert all(sentences_of("evidence", cause.evidence))
    return cause.word, [evidence.kind for evidence in cause.evidence]


@pytest.mark.parametrize("name", ["image", "torch"])
def test_what_the_engine_ran_in_is_named_and_decides_nothing(name: str) -> None:
    new = night(**{name: "new"})
    same = change(nights=6, before=(new,) * 8, after=new)
    moved = change(nights=6, before=(night(**{name: "old"}),) * 8, after=new)
    assert judge(same) == ("product", ["lasting"])
    assert judge(moved) == ("product", ["lasting", "label changed"])


class TestInstrument:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("warmups", 4), ("client", "2.0"), ("definition", "mean of ITL"), ("suite", "0af3")],
    )
    def test_a_changed_label(self, name: str, value: object) -> None:
        context = change(before=(night(**{name: 1}),) * 8, after=night(**{name: value}))
        assert judge(context) == ("instrument", ["label changed", "definition changed"])
        (first, _) = infer_cause(context).evidence
        assert first.values == {"name": name, "old": "1", "new": str(value)}

    def test_tokens_that_are_counted_otherwise_are_no_load(self) -> None:
        """Sixty times the input tokens, in runs that take as long: token throughput is another number."""
        after = night(input_tokens=6_548.8)
        context = change(-math.log(65.488), nights=3, after=after, metric="total_token_throughput")
        assert judge(context) == ("instrument", ["count redefined", "definition changed"])
        longer = change(math.log(60), nights=3, after=after | {"duration": 3_600}, metric="e2el")
        assert judge(longer)[0] == "workload"

    def test_a_mean_without_its_median_and_other_keys(self) -> None:
        """Warm-ups that were not recorded: the mean falls to a thirtieth, the median by 3 %."""
        context = ChangeContext(
            metric="audio_ttfp",
            shift=math.log(54 / 1681),
            noise=0.1,
            shape="step",
            before=({"keys": "old"},) * 5,
            after=({"keys": "new"},) * 5,
            statistic="mean",
            median_shift=math.log(48.9 / 50.5),
        )
        assert judge(context) == ("instrument", ["few requests moved", "keys differ"])
        same = replace(context, after=context.before)
        assert judge(same)[0] == "unknown"
        assert judge(replace(same, after=same.before[:1], shape="transient"))[0] == "night"

    def test_slow_requests_that_the_client_sends_first_are_a_warm_up(self) -> None:
        """The mean of ten fell from 3,832 to 59 ms and the median by 5 %: 38 s are gone from the run, and the
        client took 56 s longer before it."""
        cold, warm = {"outside": 9.0}, {"outside": 65.0}
        context = ChangeContext(
            metric="audio_ttfp",
            shift=math.log(59 / 3832),
            noise=0.1,
            shape="transient",
            before=(cold,) * 5,
            after=(warm,),
            statistic="mean",
            median_shift=math.log(59.2 / 62.3),
            ended=False,
            saved_s=37.7,
        )
        assert judge(context) == ("instrument", ["slow requests gone", "warm-up added"])
        assert infer_cause(context).evidence[1].values == {"before": 9.0, "after": 65.0, "saved_s": 37.7}
        for other in (
            replace(context, after=(cold,)),
            replace(context, after=({"outside": 25.0},)),
            replace(context, after=({},)),
            replace(context, saved_s=None),
            replace(context, before=(cold, warm, cold)),
        ):
            assert judge(other) == ("unknown", ["few requests moved", "one night so far"])
        assert judge(replace(context, after=(cold,), ended=True))[0] == "night"


class TestWorkload:
    def test_longer_outputs_are_enough(self) -> None:
        after = night(audio_duration=12.0, output_tokens=150)
        context = change(math.log(2.7), after=after, metric="e2el")
        assert judge(context) == ("workload", ["count explains", "count explains"])
        values = {e.values["name"]: e.values for e in infer_cause(context).evidence}
        assert (values["audio_duration"]["before"], values["audio_duration"]["after"]) == pytest.approx(
            (4, 12)
        )

    def test_a_tenth_more_tokens_do_not_make_a_factor_of_three(self) -> None:
        context = change(math.log(3), nights=3, after=night(output_tokens=55), cells=SOME)
        word, kinds = judge(context)
        assert (word, kinds[-1]) == ("product", "count falls short")

    def test_shorter_outputs_do_not_make_requests_longer(self) -> None:
        """Of the real-time factor they do: what every request costs is spread over less sound."""
        context = change(0.2, nights=3, after=night(audio_duration=2.5), cells=SOME)
        assert judge(replace(context, metric="e2el"))[0] == "product"
        assert judge(context)[0] == "workload"

    @pytest.mark.parametrize("name", ["dataset", "server"])
    def test_another_data_set_or_other_serve_arguments(self, name: str) -> None:
        before = (night(**{name: "old"}),) * 8
        assert judge(change(before=before, after=night(**{name: "new"})))[0] == "workload"


class TestCells:
    def test_all_servers_for_one_night(self) -> None:
        context = change(0.3, cells=ALL)
        assert judge(context) == ("night", ["servers moved", "one night, then back"])
        assert infer_cause(context).evidence[0].values == {
            "count": 3, "total": 3, "controls": 1, "controls_moved": 1,
        }  # fmt: skip
        spared = (*ALL[:3], replace(ALL[3], shift=0.0, hit=False))
        assert judge(replace(context, cells=spared))[0] == "unknown", "a slow machine slows the controls too"
        assert judge(replace(context, shape="step"))[0] == "unknown", "the newest night waits for the next"

    def test_all_servers_that_stay_slow_are_a_product(self) -> None:
        assert judge(change(0.3, nights=4, cells=ALL)) == ("product", ["lasting", "all servers moved"])

    def test_what_all_servers_of_one_machine_show_and_no_other_is_not_known_to_be_the_products(self) -> None:
        hit = measured("A", 0.3, CHUNK), measured("B", 0.3, CHUNK)
        spared = measured("C", 0.01, PLAIN), measured("D", 0.0, IMAGE)
        cells = (*on("box1", *hit), *on("box2", *spared))
        assert judge(change(nights=9, cells=cells, machine="box1")) == ("unknown", ["one machine only"])
        assert judge(change(nights=9, cells=cells))[0] == "product", "without a fleet"
        some = (*on("box1", *hit, spared[0]), *on("box2", spared[1], spared[0]))
        assert judge(change(nights=9, cells=some, machine="box1"))[0] == "product", "box1 spared one"
        both = (*on("box1", *hit), *on("box2", *spared, hit[0]))
        assert judge(change(nights=9, cells=both, machine="box1"))[0] == "product", "box2 shows it"
        few = (*on("box1", *hit), *on("box2", spared[0]))
        assert judge(change(nights=9, cells=few, machine="box1"))[0] == "product", "too few elsewhere"

    def test_another_machine_from_here_on(self) -> None:
        before = (night(hardware="H100"),) * 8
        context = change(0.3, nights=4, before=before, after=night(hardware="H20"), cells=ALL)
        assert judge(context) == ("night", ["label changed", "machine changed"])
        fresh = tuple(night(host=f"node-{n}") for n in range(8))
        context = change(nights=4, before=fresh, after=night(host="node-9"), cells=SOME)
        assert judge(context)[0] == "product", "fresh machines every night are no change of machine"
        context = change(nights=4, before=(night(host="a"),) * 8, after=night(host="b"), cells=SOME)
        assert judge(context)[0] == "product", "a few nights on either side may be of hosts that alternate"
        assert judge(replace(context, machines=("a", "b"))) == ("night", ["label changed", "machine changed"])

    @pytest.mark.parametrize(("hosts", "last", "word"), [("abc", "d", "night"), ("abc", "abc", "product")])
    def test_what_comes_with_another_host_is_of_the_host(self, hosts: str, last: str, word: str) -> None:
        names = (*(hosts * 8)[:24], *(last * 10)[:10])
        series = cell({"e2el:median": step(noise(31, 34), 24, 1.2)}, covariates=[{"host": x} for x in names])
        (alert,) = select_alerts(series, 0.05).alerts
        (cause,) = infer_causes([alert], SeriesIndex(series, lambda _: frozenset()))
        assert (cause.word, alert.machines is not None) == (word, word == "night")

    def test_one_night_is_a_products_by_its_size_and_the_cells_it_hit(self) -> None:
        context = change(cells=SOME)
        assert judge(context) == ("product", ["shared trait", "size", "others spared"])
        values = infer_cause(context).evidence[0].values
        assert values == {"traits": ["chunk"], "spared": 2, "percent": pytest.approx(4.08, abs=0.01)}

    @pytest.mark.parametrize(
        "changed",
        [
            {"shift": 0.2},
            {"noise": 0.2},
            {"cells": (SOME[0], *SOME[2:])},
            {"cells": (*SOME, measured("E", 0.0, CHUNK))},
            {"cells": ()},
        ],
        ids=["small", "within its noise", "one server alone", "one with the trait was spared", "none known"],
    )
    def test_not_without_them(self, changed: dict[str, Any]) -> None:
        assert judge(change(**({"cells": SOME} | changed)))[0] == "unknown"

    def test_a_step_that_lasts_is_a_product(self) -> None:
        assert infer_cause(change(0.08, nights=5)).evidence == (Evidence("lasting", {"nights": 5}),)


class TestCovariates:
    def test_what_moved_long_before_is_no_evidence(self) -> None:
        """Tokens were counted otherwise from the sixth night on: at the ninth nothing happened to them."""
        before = [{"input_tokens": 1_000.0, "warmups": 0}] * 5 + [{"input_tokens": 2_810.0, "warmups": 2}] * 3
        assert moved_counts(before, before[-1:]) == []
        assert changed_labels(before, [{"warmups": 2}], ["warmups"]) == []
        assert changed_labels(before, [{"warmups": 4}], ["warmups"]) != []

    def test_what_moves_every_night_did_not_move_at_this_one(self) -> None:
        before = [{"audio_duration": value} for value in (100.0, 150.0, 110.0, 160.0, 105.0)]
        assert moved_counts(before, [{"audio_duration": 170.0}]) == []
        (move,) = moved_counts(before, [{"audio_duration": 1_700.0}])
        assert move.shift == pytest.approx(math.log(1_700 / 110))

    def test_zeros_and_unknowns_are_no_evidence(self) -> None:
        assert moved_counts([{"prompts": 0.0}], [{"prompts": 5.0}]) == []
        assert moved_counts([{"prompts": None}, {}], [{"prompts": 5.0}]) == []


TRAITS = {"chunk": frozenset({"chunk"}), "tts": frozenset({"chunk"})}
NIGHTS = 30


def traits(name: str) -> frozenset[str]:
    return TRAITS.get(name.partition("/")[0], frozenset({"plain"}))


def e2el(
    test: str, seed: int, *, at: int = 99, factor: float = 1.0, until: int | None = None, **more: Any
) -> tuple[CellSeries, ...]:
    return cell({"e2el:median": step(noise(seed, NIGHTS), at, factor, until)}, test=test, **more)


def quiet(tests: Sequence[str] = ("b", "c")) -> list[CellSeries]:
    return [series for n, test in enumerate(tests) for series in e2el(test, 30 + n)]


def causes(series: Sequence[CellSeries], *, part: str = "typical") -> list[tuple[SeriesChange, Cause]]:
    changes = select_alerts([item for item in series if item.part == part], 0.05).alerts
    return list(zip(changes, infer_causes(changes, SeriesIndex(series, traits)), strict=True))


def cause_of(series: Sequence[CellSeries], of: str = "") -> tuple[SeriesChange, Cause]:
    return next((f, c) for f, c in causes(series) if f.series.cell.startswith(of))


def test_six_nights_and_back_are_as_good_as_a_step() -> None:
    found, cause = cause_of([*e2el("a", 1, at=15, factor=1.5, until=21), *quiet()])
    assert (found.point.shape, found.after) == ("transient", tuple(range(15, 21)))
    assert (cause.word, cause.evidence[0]) == ("product", Evidence("lasting", {"nights": 6}))


def test_a_few_nights_are_enough_only_where_those_that_run_one_thing_moved() -> None:
    _, cause = cause_of([*e2el("a", 1, at=NIGHTS - 3, factor=1.3), *quiet()])
    assert cause == Cause("unknown", (Evidence("few nights", {"nights": 3}),))
    both = [*e2el("chunk", 1, at=NIGHTS - 3, factor=1.3), *e2el("tts", 2, at=NIGHTS - 3, factor=1.3)]
    found, cause = cause_of([*both, *quiet("abcd")], of="tts")
    assert (found.point.shape, len(found.after), cause.word) == ("step", 3, "product")
    assert [evidence.kind for evidence in cause.evidence] == ["lasting", "shared trait"]


@pytest.mark.parametrize(
    ("before", "word", "kind"), [(3, "unknown", "few nights before"), (4, "product", "lasting")]
)
def test_a_step_after_few_nights_is_a_products_on_its_night(before: int, word: str, kind: str) -> None:
    found, cause = cause_of([*e2el("a", 1, at=before, factor=1.15), *quiet()])
    assert (found.point.shape, found.point.index, found.start) == ("step", before, 0)
    assert (cause.word, cause.evidence[0].kind) == (word, kind)


def test_one_night_of_those_that_run_one_thing_is_a_products() -> None:
    hit = [*e2el("chunk", 1, at=15, factor=3, until=16), *e2el("tts", 2, at=15, factor=2, until=16)]
    series = [*hit, *quiet("abcd")]
    found, cause = cause_of(series, of="tts")
    assert (cause.word, cause.evidence[0].kind) == ("product", "shared trait")
    assert cause.evidence[0].values["traits"] == ["chunk"]
    affected = {
        c.cell.partition("/")[0]: is_affected(c, found)
        for c in SeriesIndex(series, traits).measured_cells(found)
    }
    assert affected == {"chunk": True, "tts": True, "a": False, "b": False, "c": False, "d": False}


def test_an_unknown_change_inherits_the_cause_of_its_server() -> None:
    """Time to first token became better on the night on which everything else became much worse."""
    column = step(noise(3, NIGHTS), 15, 0.3, 16)
    both = cell({"e2el:median": step(noise(1, NIGHTS), 15, 3, 16), "ttft:median": column}, test="chunk")
    series = [*both, *e2el("tts", 2, at=15, factor=2, until=16), *quiet("abcd")]
    of_chunk = {f.series.metric: c for f, c in causes(series) if f.series.cell.startswith("chunk")}
    assert of_chunk["ttft"].word == "product"
    assert of_chunk["ttft"].evidence[0].kind == "same start moved"
    assert of_chunk["ttft"].evidence[1:] == of_chunk["e2el"].evidence


def test_a_mean_by_itself_is_never_a_products() -> None:
    values = noise(1, NIGHTS)
    series = cell({"e2el:median": values, "e2el:mean": step(values, 15, 1.4)}, test="a")
    ((_, cause),) = causes([*series, *quiet()], part="mean")
    assert (cause.word, cause.evidence[0].kind) == ("unknown", "few requests moved")


def test_a_cold_request_that_moved_from_the_mean_to_the_clients_own_time_is_the_instruments() -> None:
    """Of forty requests the mean falls from 2 s to 1 s: 40 s, for which the client takes 100 s more first."""
    typical = noise(1, NIGHTS)
    means = [20.0 * value for value in step(typical, NIGHTS - 1, 0.5)]
    outside = [{"completed": 40, "outside": x} for x in [*[10.0] * (NIGHTS - 1), 110.0]]
    series = cell({"e2el:median": typical, "e2el:mean": means}, test="a", covariates=outside)
    ((_, cause),) = causes([*series, *quiet()], part="mean")
    assert (cause.word, cause.evidence[1].kind) == ("instrument", "warm-up added")
    assert round(cause.evidence[1].values["saved_s"]) == 40


def test_chunks_that_are_grouped_otherwise_are_no_slower_tokens() -> None:
    values = {"itl:median": step(noise(1, NIGHTS), 12, 1.3), "tpot:median": noise(2, NIGHTS)}
    _, cause = cause_of([*cell(values, test="a"), *quiet()], of="a")
    assert (cause.word, cause.evidence[0].kind) == ("unknown", "same stream unchanged")
    values["tpot:median"] = step(noise(2, NIGHTS), 12, 1.3)
    assert cause_of([*cell(values, test="a"), *quiet()], of="a")[1].word == "product"


def test_a_level_that_single_nights_had_before_is_one_of_two_machines() -> None:
    values = step(step(noise(1, NIGHTS), 10, 1.3, 11), NIGHTS - 6, 1.3)
    series = [*cell({"e2el:median": values}, test="a"), *quiet()]
    (cause,) = [c for f, c in causes(series) if f.point.shape == "step"]
    assert (cause.word, cause.evidence[0].kind) == ("unknown", "level seen before")


def with_tokens(test: str, seed: int, tokens: Sequence[float], factor: float) -> tuple[CellSeries, ...]:
    values = {"ttft:median": step(noise(seed, NIGHTS), 15, factor)}
    return cell(values, test=test, covariates=[{"input_tokens": t} for t in tokens])


def test_a_share_moves_by_its_difference_from_zero_too() -> None:
    """A rate of acceptance that fell to nothing on the same night as another, in a week."""
    fallen = [*noise(1, 12, 0.7), *[0.0] * 5]
    series = [cell({"spec_decode_acceptance_rate": fallen}, test=test)[0] for test in ("a", "b")]
    changes = select_alerts(series, 0.05).alerts
    assert [change.shift for change in changes] == pytest.approx([0.7, 0.7], abs=0.01)
    index = SeriesIndex(series, lambda _: PLAIN)
    assert [(c.hit, c.shift) for c in index.measured_cells(changes[0])] == [
        (True, pytest.approx(0.7, abs=0.01)),
    ] * 2  # fmt: skip
    assert {cause.word for cause in infer_causes(changes, index)} == {"product"}


def test_longer_prompts_of_the_same_data_set_explain_cells_that_do_not_count_them() -> None:
    """One server counts what a picture becomes, another does not: the specification of both changed."""
    counted = with_tokens("a", 1, [300.0] * 15 + [700.0] * 15, 1.02)
    uncounted = with_tokens("b", 2, [6700.0] * NIGHTS, 1.8)
    _, cause = cause_of([*counted, *uncounted, *quiet(("c", "d"))], of="b")
    assert (cause.word, cause.evidence[0].kind) == ("workload", "same requests changed")
    assert cause.evidence[0].values["cell"] == "a/random@c4-n40"
    for others in ([*uncounted], [*counted, *with_tokens("b", 2, [6700.0] * NIGHTS, 6.0)]):
        _, cause = cause_of([*others, *quiet(("c", "d"))], of="b")
        assert cause.word == "product", "no prompts changed, or by far too little for six times as long"


def test_a_cell_that_was_not_measured_on_both_sides_has_no_vote() -> None:
    late = cell({"e2el:median": [None] * 14 + noise(5, NIGHTS - 14)}, test="late")
    series = [*e2el("a", 1, at=15, factor=1.3), *late]
    found, _ = cause_of(series)
    assert [c.cell for c in SeriesIndex(series, traits).measured_cells(found)] == ["a/random@c4-n40"]


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (
            "count falls short",
            {"name": "output_tokens", "before": 50.0, "after": 55.0, "shift": math.log(3)},
            "output tokens: 50 before, 55 after, which does not explain 3 times",
        ),
        (
            "servers moved",
            {"count": 3, "total": 4, "controls": 2, "controls_moved": 1},
            "3 of 4 servers moved together; of the controls (low concurrency, stage times) 1 of 2",
        ),
        (
            "size of one night",
            {"shift": 0.2, "deviations": 4.2},
            "one night long: +22.1 %, 4 standard deviations of its nights",
        ),
        (
            "size of one night",
            {"metric": "output_throughput", "shift": math.log(2), "deviations": 4.2},
            "one night long: 0.5 times, 4 standard deviations of its nights",
        ),
        (
            "size of one night",
            {"metric": "spec_decode_acceptance_rate", "shift": 0.68, "deviations": 4.2},
            "one night long: -0.68, 4 standard deviations of its nights",
        ),
        (
            "level seen before",
            {"night": 20000},
            "the night of 2024-10-04 was like that before: nights of two kinds, as machines are",
        ),
    ],
)
def test_the_values_are_in_the_sentence(kind: str, values: dict[str, Any], sentence: str) -> None:
    assert sentences_of("evidence", [Evidence(kind, values)]) == (sentence,)


def test_every_kind_of_evidence_has_a_sentence_and_no_other() -> None:
    for name, makers in {
        "evidence": (rules, alerts, detect),
        "differences": (series_module,),
        "rejections": (points_module, ingest_module, journals),
    }.items():
        trees = [ast.walk(ast.parse(inspect.getsource(module))) for module in makers]
        calls = [node for nodes in trees for node in nodes if isinstance(node, ast.Call)]
        made = [
            call for call in calls if ast.unparse(call.func).rpartition(".")[2] in ("Evidence", "evidence")
        ]
        words = [ast.walk(argument) for call in made for argument in call.args[:1]]
        kinds = {node.value for nodes in words for node in nodes if isinstance(node, ast.Constant)}
        template = (Path(rules.__file__).parent / "templates" / f"{name}.md.jinja").read_text()
        assert kinds == set(re.findall(r'if kind == "([^"]+)"', template))


def machine_cell(machine: str, moved: float, *, kind: str = "H100") -> CellSeries:
    """A cell of which the last nine nights are slower, on a machine of a fleet."""
    (series,) = cell({"e2el:median": step(noise(3, 30), 21, moved)})
    points = tuple(
        replace(point, covariates={**point.covariates, "machine": machine, "hardware": kind})
        for point in series.points
    )
    return replace(series, cell=f"{points[0].cell} on {machine}", points=points)


@pytest.mark.parametrize(
    ("other", "word", "kind"),
    [
        (machine_cell("box2", 1.0), "night", "other machines spared"),
        (machine_cell("box2", 1.4), "product", "other machines moved"),
        (machine_cell("box2", 1.0, kind="A100"), "product", None),
    ],
    ids=["spared", "moved", "another class"],
)
def test_a_change_that_other_machines_do_not_show_is_none_of_the_product(
    other: CellSeries, word: str, kind: str | None
) -> None:
    own = machine_cell("box1", 1.4)
    (found,) = select_alerts([own], 0.05).alerts
    (cause,) = infer_causes([found], SeriesIndex([own, other], lambda _: frozenset()))
    assert cause.word == word
    kinds = {evidence.kind for evidence in cause.evidence} & {"other machines spared", "other machines moved"}
    assert kinds == ({kind} if kind else set())
