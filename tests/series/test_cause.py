"""The cause of a break, from what moved with it and what did not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from perfbisect.series.causes import (
    Cause,
    ChangeContext,
    Evidence,
    Neighbour,
    NightCovariates,
    counts_moved,
    covariates_of,
    infer_cause,
    key_changes,
    labels_moved,
)
from tests.unreadable import make_unreadable


@pytest.fixture(autouse=True, params=["sentences", "gibberish"])
def rendering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causes are the same whatever the sentences about their evidence say."""
    if request.param == "gibberish":
        make_unreadable(monkeypatch)


CHUNK, PLAIN, IMAGE = frozenset({"omni", "chunk"}), frozenset({"omni"}), frozenset({"image"})


def cell(start: str, shift: float, traits: frozenset[str], *, control: bool = False) -> Neighbour:
    return Neighbour(f"{start}-{shift}-{control}", start, shift, 0.03, control, traits)


def night(**covariates: Any) -> NightCovariates:
    base = {"warmups": 2, "input_tokens": 100, "output_tokens": 50, "audio_duration": 4.0, "duration": 60}
    return covariates_of(base | covariates)


def broken(
    shift: float = 1.0, *, nights: int = 1, after: NightCovariates | None = None, **more: Any
) -> ChangeContext:
    made = ChangeContext(
        metric="audio_rtf",
        shift=shift,
        noise=0.03,
        shape="transient" if nights == 1 else "step",
        before=(night(),) * 8,
        after=(after or night(),) * nights,
    )
    return replace(made, **more)


SOME = (cell("A", 1.0, CHUNK), cell("B", 0.6, CHUNK), cell("C", 0.02, PLAIN), cell("D", -0.04, IMAGE))
ALL = (
    cell("A", 0.3, CHUNK),
    cell("B", 0.3, PLAIN),
    cell("C", 0.25, IMAGE),
    cell("C", 0.2, IMAGE, control=True),
)


def kinds(cause: Cause) -> list[str]:
    return [evidence.kind for evidence in cause.evidence]


class TestInstrument:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("warmups", 4), ("client", "2.0"), ("definition", "mean of ITL"), ("suite", "0af3")],
    )
    def test_what_measures_changed(self, name: str, value: object) -> None:
        before = (night(**{name: 1}),) * 8
        cause = infer_cause(broken(before=before, after=night(**{name: value})))
        assert cause.word == "instrument"
        assert cause.evidence[0] == Evidence("label changed", name=name, old="1", new=str(value))

    def test_a_count_that_counts_otherwise_is_no_load(self) -> None:
        """Sixty times the input tokens, in runs that take as long: token throughput is another number."""
        shift = math.log(65_488 / 1_000)
        after = night(input_tokens=6_548.8)
        cause = infer_cause(broken(-shift, nights=3, after=after, metric="total_token_throughput"))
        assert cause.word == "instrument"
        assert kinds(cause) == ["count redefined", "definition changed"]

    def test_more_tokens_that_take_longer_are_a_load(self) -> None:
        after = night(input_tokens=6_548.8, duration=3_600)
        cause = infer_cause(broken(math.log(60), nights=3, after=after, metric="e2el"))
        assert cause.word == "workload"

    def test_keys_of_the_metric_itself(self) -> None:
        old, new = (
            NightCovariates(keys=frozenset({"a", "mean_audio_rtf"})),
            NightCovariates(keys=frozenset({"a"})),
        )
        cause = infer_cause(broken(before=(old,) * 4, after=new))
        assert cause.word == "instrument"
        assert cause.evidence[0] == Evidence("keys removed", names=("mean_audio_rtf",))

    def test_a_mean_without_its_median_and_other_keys(self) -> None:
        """Warm-ups that nobody wrote down: the mean falls to a thirtieth, the median by 3 %."""
        old, new = (
            NightCovariates(keys=frozenset({"mean_ttft_ms", "x"})),
            NightCovariates(keys=frozenset({"x"})),
        )
        found = ChangeContext(
            metric="audio_ttfp",
            shift=math.log(54 / 1681),
            noise=0.1,
            shape="step",
            before=(old,) * 5,
            after=(new,) * 5,
            statistic="mean",
            median=math.log(48.9 / 50.5),
        )
        assert infer_cause(found).word == "instrument"
        kept = replace(found, after=(old,) * 5)
        assert infer_cause(kept).word == "unknown"
        assert infer_cause(replace(kept, after=(old,), shape="transient")).word == "night"
        assert kinds(infer_cause(found)) == ["few requests moved", "keys removed"]

    def test_slow_requests_that_the_client_sends_first_now_are_a_warm_up(self) -> None:
        """The mean of ten fell from 3,832 to 59 ms and the median by 5 %: 38 s are gone from the run, and the
        client took 56 s longer before it. Without that nobody knows what took them, and one night is one."""
        cold, warm = covariates_of({"outside": 9.0}), covariates_of({"outside": 65.0})
        found = ChangeContext(
            metric="audio_ttfp",
            shift=math.log(59 / 3832),
            noise=0.1,
            shape="transient",
            before=(cold,) * 5,
            after=(warm,),
            statistic="mean",
            median=math.log(59.2 / 62.3),
            over=False,
            saved=37.7,
        )
        cause = infer_cause(found)
        assert cause.word == "instrument"
        assert cause.evidence == (
            Evidence("slow requests gone", name="mean", shift=found.shift, median_shift=found.median or 0.0),
            Evidence("warm-up added", before=9.0, after=65.0, saved_s=37.7),
        )
        for other in (
            replace(found, after=(cold,)),
            replace(found, after=(covariates_of({"outside": 25.0}),)),
            replace(found, after=(NightCovariates(),)),
            replace(found, saved=None),
            replace(found, before=(cold, warm, cold)),
        ):
            cause = infer_cause(other)
            assert (cause.word, kinds(cause)) == ("unknown", ["few requests moved", "one night so far"])
        assert infer_cause(replace(found, after=(cold,), over=True)).word == "night"

    def test_a_mean_that_moves_with_its_median_is_judged_like_it(self) -> None:
        found = broken(nights=4, statistic="mean", median=0.9, neighbours=SOME)
        assert infer_cause(found).word == "product"


class TestWorkload:
    def test_longer_outputs_are_enough(self) -> None:
        after = night(audio_duration=12.0, output_tokens=150)
        cause = infer_cause(broken(math.log(2.7), after=after, metric="e2el"))
        assert cause.word == "workload"
        assert set(kinds(cause)) == {"count explains"}
        assert ("audio_duration", 4, 12) in [
            (e.name, round(e.before), round(e.after)) for e in cause.evidence
        ]

    def test_a_tenth_more_tokens_do_not_make_a_factor_of_three(self) -> None:
        cause = infer_cause(broken(math.log(3), nights=3, after=night(output_tokens=55), neighbours=SOME))
        assert cause.word == "product"
        assert (cause.evidence[-1].kind, cause.evidence[-1].shift) == ("count falls short", math.log(3))

    def test_shorter_outputs_do_not_make_requests_longer(self) -> None:
        """Of the real-time factor they do: what every request costs is spread over less sound."""
        found = broken(0.2, nights=3, after=night(audio_duration=2.5), neighbours=SOME)
        assert infer_cause(replace(found, metric="e2el")).word == "product"
        assert infer_cause(found).word == "workload"

    @pytest.mark.parametrize("name", ["dataset", "server"])
    def test_another_data_set_or_other_serve_arguments(self, name: str) -> None:
        before = (night(**{name: "old"}),) * 8
        assert infer_cause(broken(before=before, after=night(**{name: "new"}))).word == "workload"


class TestNight:
    def test_all_servers_for_one_night(self) -> None:
        cause = infer_cause(broken(0.3, neighbours=ALL))
        assert cause.word == "night"
        assert cause.evidence[0] == Evidence("servers moved", count=3, total=3, moved_controls=1, controls=1)

    def test_a_slow_machine_slows_the_controls_too(self) -> None:
        calm = (*ALL[:3], replace(ALL[3], shift=0.0))
        assert infer_cause(broken(0.3, neighbours=calm)).word == "unknown"

    def test_the_newest_night_waits_for_the_next(self) -> None:
        assert infer_cause(broken(0.3, neighbours=ALL, shape="step")).word == "unknown"

    def test_all_servers_that_stay_slow_are_a_product(self) -> None:
        cause = infer_cause(broken(0.3, nights=4, neighbours=ALL))
        assert cause.word == "product"
        assert cause.evidence[0] == Evidence("lasting", nights=4)
        assert cause.evidence[1].kind == "all servers moved"

    def test_another_machine_from_here_on(self) -> None:
        before = (night(hardware="H100"),) * 8
        found = broken(0.3, nights=4, before=before, after=night(hardware="H20"), neighbours=ALL)
        assert infer_cause(found).word == "night"
        assert infer_cause(found).evidence[0] == Evidence(
            "label changed", name="hardware", old="H100", new="H20"
        )

    def test_fresh_machines_every_night_are_no_change_of_machine(self) -> None:
        before = tuple(night(host=f"node-{n}") for n in range(8))
        found = broken(nights=4, before=before, after=night(host="node-9"), neighbours=SOME)
        assert infer_cause(found).word == "product"


class TestProductOfOneNight:
    def test_by_its_size_and_the_cells_it_hit(self) -> None:
        cause = infer_cause(broken(neighbours=SOME))
        assert cause.word == "product"
        assert cause.evidence[0] == Evidence("shared trait", names=("chunk",), count=2, shift=0.04)

    @pytest.mark.parametrize(
        "change",
        [
            {"shift": 0.2},
            {"noise": 0.2},
            {"neighbours": (SOME[0], *SOME[2:])},
            {"neighbours": (*SOME, cell("E", 0.0, CHUNK))},
            {"neighbours": ()},
        ],
        ids=["small", "within its noise", "one server alone", "one with the trait was spared", "none known"],
    )
    def test_not_without_them(self, change: dict[str, Any]) -> None:
        assert infer_cause(broken(**({"neighbours": SOME} | change))).word == "unknown"


def test_a_step_that_lasts_is_a_product() -> None:
    cause = infer_cause(broken(0.08, nights=5))
    assert cause.word == "product"
    assert cause.evidence == (Evidence("lasting", nights=5),)


class TestMoves:
    def test_what_moved_long_before_is_no_evidence(self) -> None:
        """Tokens were counted otherwise from the sixth night on: at the ninth nothing happened to them."""
        before = [NightCovariates(counts={"input_tokens": 1_000.0})] * 5 + [
            NightCovariates(counts={"input_tokens": 2_810.0})
        ] * 3
        assert counts_moved(before, [NightCovariates(counts={"input_tokens": 2_810.0})]) == ()
        labels = [NightCovariates(labels={"warmups": "0"})] * 5 + [
            NightCovariates(labels={"warmups": "2"})
        ] * 3
        assert labels_moved(labels, [NightCovariates(labels={"warmups": "2"})], ["warmups"]) == ()
        assert labels_moved(labels, [NightCovariates(labels={"warmups": "4"})], ["warmups"]) != ()

    def test_what_moves_every_night_did_not_move_at_this_one(self) -> None:
        before = [
            NightCovariates(counts={"audio_duration": value}) for value in (100.0, 150.0, 110.0, 160.0, 105.0)
        ]
        assert counts_moved(before, [NightCovariates(counts={"audio_duration": 170.0})]) == ()
        (move,) = counts_moved(before, [NightCovariates(counts={"audio_duration": 1_700.0})])
        assert move.shift == pytest.approx(math.log(1_700 / 110))

    def test_zeros_and_unknowns_tell_nothing(self) -> None:
        assert counts_moved([NightCovariates(counts={"a": 0.0})], [NightCovariates(counts={"a": 5.0})]) == ()
        assert counts_moved([NightCovariates()], [NightCovariates(counts={"a": 5.0})]) == ()
        assert key_changes([NightCovariates()], [NightCovariates(keys=frozenset("x"))]) == ()

    def test_keys_by_digest(self) -> None:
        assert key_changes([night(keys="abc")], [night(keys="def")]) == (Evidence("keys differ"),)
