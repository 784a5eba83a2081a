"""The files of a build: which results are points, and why others are none."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfbisect.errors import LocatedError
from perfbisect.model.commit_details import Evidence
from perfbisect.series.ingest import admit_build, admit_results
from perfbisect.series.points import Build, Point, RawFile, RejectedResult, Workload
from perfbisect.series.sources.kanban import PIPELINE
from perfbisect.series.sources.results import parse_time
from tests.series.made import drawn, name_of, served, template, text_only

BUILD = Build("kanban", PIPELINE, "6433")
DIFFUSION = "benchmark_results_test_image_20260412-191500.json"


def admit(
    *files: tuple[str, object], build: Build = BUILD, latest: datetime | None = None, **changed: Any
) -> tuple[list[Point], list[RejectedResult]]:
    raw = [
        RawFile(
            name=f"tests/{name}",
            place=f"/there/{place}/{name}",
            text=document if isinstance(document, str) else json.dumps(document),
            **{"zone": "UTC", **changed},
        )
        for place, (name, document) in enumerate(files)
    ]
    points, rejected = admit_build(build, raw, latest)
    return list(points), list(rejected)


def point_of(name: str, document: object, **changed: Any) -> Point:
    (point,), rejected = admit((name, document), **changed)
    assert rejected == []
    return point


def rejection_of(name: str, document: object, **changed: Any) -> RejectedResult:
    points, (rejection,) = admit((name, document), **changed)
    assert points == []
    return rejection


PERF_EVAL = Build("buildkite", "vllm/perf-eval", "311")


def test_of_perf_eval_the_median_of_the_runs_counts() -> None:
    """Each repetition is beside it; the folder is the recipe, which ends in its kind of GPU."""
    folder = "qwen3_5-mi355x/bench-8k-in-1k-out-conc-4"
    bench = served(backend="openai", endpoint_type="openai", random_input_len=8192, random_output_len=1024)
    median = bench | {"aggregation_method": "median", "aggregated_repetitions": 3}
    files = [(f"{folder}.json", median), *((f"{folder}-run-{n}.json", bench) for n in (1, 2, 3))]
    (point,), rejected = admit(*files, build=PERF_EVAL)
    assert point.cell == "qwen3_5-mi355x-8k-in-1k-out@c4-n40-in8192-out1024"
    assert point.hardware == "MI355X"
    assert [result.kind for result in rejected] == ["repeated"] * 3
    assert point_of("gemma_4_31b_it/bench-a-conc-4.json", bench, build=PERF_EVAL).hardware == ""
    local = replace(PERF_EVAL, name="kimi-h200")
    assert point_of("bench-a-conc-4.json", bench, build=local).cell.startswith("tests-a@")


LATEST = datetime(2026, 4, 13, tzinfo=timezone.utc)


def test_a_clock_that_is_years_ahead_measured_nothing() -> None:
    """Such a night would be the last of all, and every other series one that is not measured any more."""
    soon, later = (("a", served(date=f"{year}0412-190000")) for year in (2026, 2099))
    (point,), (wrong,) = admit(soon, later, latest=LATEST)
    assert (point.raw, wrong.raw) == ("/there/0/a", "/there/1/a")
    assert (wrong.kind, wrong.night) == ("broken", "2026-04-12")
    assert wrong.why == Evidence("clock ahead", {"time": "2099-04-12T18:58:20Z"})
    assert rejection_of(*later, latest=LATEST).night == ""
    assert len(admit(later)[0]) == 1


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("a", drawn(timestamp="0001-01-01T00:00:00Z")),
        ("a", drawn(timestamp="1970-01-01T00:00:00Z")),
        ("a", served(date="0001-01-01T00:00:00Z")),
        (name_of(at="00010101-000000"), template()),
    ],
)
def test_a_clock_that_was_not_set_measured_nothing(name: str, document: dict[str, Any]) -> None:
    """Such as the zero of a language; the other results of the build count."""
    (point,), (wrong,) = admit((name, document), ("good", served()), zone="Asia/Shanghai", latest=LATEST)
    assert (point.raw, wrong.raw, wrong.kind) == ("/there/1/good", f"/there/0/{name}", "broken")
    assert str(wrong.why.values["message"]).endswith(" is a time of a clock that was not set")


def test_a_run_of_two_thousand_years_is_none() -> None:
    wrong = rejection_of("a", served(duration=6e10, audio_throughput=800 / 6e10), latest=LATEST)
    assert wrong.kind == "broken" and "it began in the year 124" in str(wrong.why)


def test_seconds_of_the_client_before_its_run() -> None:
    """The name says when it was started, the result when it ended and how long the run was: 100 s."""
    assert point_of(name_of(at="20260412-190010"), served()).covariates["outside"] == 65
    for at in ("20260412-190115", "20260412-190200"):
        assert "outside" not in point_of(name_of(at=at), served()).covariates, "the clocks disagree"


def test_a_point_has_all_that_is_known() -> None:
    point = point_of(name_of(), served(), facts={"host": "node-1", "job": ""})
    assert point.cell == "omni/random@c4-n40"
    assert (point.began, point.ended) == ("2026-04-12T19:01:15Z", "2026-04-12T19:02:55Z")
    assert (point.night, point.raw, point.record) == ("2026-04-12", "/there/0/" + name_of(), 0)
    assert point.workload.model == "Some/Omni"
    assert point.covariates["host"] == "node-1"
    assert not {"job", "hardware", "converted", "baseline"} & set(point.covariates), "nothing is known"
    assert point.build == BUILD


LENGTHS = {"random_input_len": 2500, "random_output_len": 900}


NIGHTLY = Build("buildkite", "vllm/nightly", "7", commit="ab12cd34e" + "0" * 31)


@pytest.mark.parametrize(
    ("said", "measured"),
    [
        ({"engine_version": "0.11.0rc2.dev5+g0a0d1d98e.d20260412"}, ("engine_version", "0a0d1d98e")),
        ({"engine_version": "0.11.0rc2.dev5+gab12cd34e.cu129"}, None),
        ({"engine_version": "0.11.0"}, None),
        ({"server_info": {"version": "0.5.3.post1+g1234567"}}, ("server_info", "1234567")),
        (
            {"collect_env": "CUDA: 13\nvLLM Version : 0.11.dev1+g1234567 (git sha: 1234567)"},
            ("collect_env", "1234567"),
        ),
        ({"image": "vllm/vllm-openai:nightly-0123456789abcdef"}, ("image", "0123456789abcdef")),
        ({"commit": "ef" * 20}, ("commit", "ef" * 20)),
        ({"commit": "ab12cd34e"}, None),
        ({"commit": "ab12cd"}, None),
        ({"commit": "main"}, None),
        ({"version": "1.0+g1234567", "sha": "12" * 20}, None),
        # The engine itself is surer than a stamp.
        ({"commit": "ef" * 20, "vllm_version": "0.1.dev1+gab12cd34e"}, None),
    ],
)
def test_a_result_that_measured_another_commit_than_its_builds_is_set_aside(
    said: dict[str, Any], measured: tuple[str, str] | None
) -> None:
    document = served(backend="openai", endpoint_type="openai", **said)
    points, rejected = admit((name_of(), document), build=NIGHTLY)
    assert len(points) == (measured is None)
    assert [(one.kind, one.why.values["key"], one.why.values["measured"]) for one in rejected] == (
        [("mislabelled", *measured)] if measured else []
    )
    assert len(admit((name_of(), document), build=replace(NIGHTLY, commit=""))[0]) == 1, "no label"


def test_a_hash_is_compared_within_its_repository() -> None:
    """Below vLLM-Omni the version is that of vLLM; perf-eval stamps the commit of its harness."""
    other = {"engine_version": "0.11.dev5+g1234567", "vllm_commit": "12" * 20}
    assert point_of(name_of(), served(**other), build=NIGHTLY).covariates.get("commits") is None
    assert point_of(name_of(), served(**other), build=replace(BUILD, commit="ab" * 20))
    rejected = rejection_of(name_of(), served(vllm_omni_version="0.14.dev5+g1234567"), build=NIGHTLY)
    assert (rejected.kind, rejected.night) == ("mislabelled", "2026-04-12")
    harness = served(backend="openai", endpoint_type="openai", commit="ef" * 20)
    assert point_of("kimi-h200/bench-a-conc-4.json", harness, build=replace(PERF_EVAL, commit="ab" * 20))


def test_of_two_results_of_a_cell_the_one_of_the_builds_commit_counts() -> None:
    stamped = served(commit=NIGHTLY.commit)
    later = name_of(at="20260412-200000"), served(commit="ef" * 20, date="20260412-200140")
    (point,), (rejected,) = admit((name_of(), stamped), later, build=NIGHTLY)
    assert (point.raw, rejected.kind) == ("/there/0/" + name_of(), "mislabelled")


@pytest.mark.parametrize(
    ("name", "document", "cell"),
    [
        (name_of(load="0.5"), served(request_rate=0.5, max_concurrency=None), "omni/random@r0.5-n40"),
        (name_of(more="_in2500_out900"), served(), "omni/random@c4-n40-in2500-out900"),
        (name_of(more="_inna_outna"), served(**LENGTHS), "omni/random@c4-n40-in2500-out900"),
        (DIFFUSION, [drawn()], "image_one/512x512_steps20@c1-n10"),
        ("serving_llama_qps_inf_concurrency_4.json", served(), "serving_llama@c4-n40"),
        ("openai-infqps-concurrency4-Llama-20260412-190115.json", served(), "openai-Llama@c4-n40"),
        ("latency-tp8-20260824.json", served(), "latency-tp8@c4-n40"),
        ("latency-tp8_2026-08-24.json", served(), "latency-tp8@c4-n40"),
        ("20260824-latency-tp8.json", served(), "latency-tp8@c4-n40"),
        ("latency-2026082401.json", served(), "latency-2026082401@c4-n40"),
        (name_of(test="<img src=x>"), served(), "<img src=x>/random@c4-n40"),
    ],
)
def test_names_of_every_era(name: str, document: object, cell: str) -> None:
    assert point_of(name, document).cell == cell


@pytest.mark.parametrize(
    ("name", "document", "kind", "reason"),
    [
        (name_of(), "[" * 100_000, "broken", "is no JSON: nested deeper than 100 levels"),
        (name_of(), template(), "template", "form of zeros"),
        (name_of(at="20269999-999999"), template(), "broken", "20269999"),
        (name_of(), served(date="yesterday"), "broken", "yesterday"),
        (name_of(load="8"), served(), "broken", "the file's name says max_concurrency 8, the result 4"),
        ("bench.json", served(date=None), "broken", "has no time in it"),
        ("2026-03-07.json", {"date": "2026-03-07", "results": [{}]}, "older", "a day's summary"),
    ],
)
def test_what_is_no_point_has_its_reason(name: str, document: object, kind: str, reason: str) -> None:
    rejection = rejection_of(name, document)
    assert (rejection.kind, rejection.raw) == (kind, f"/there/0/{name}")
    assert reason in rejection.why.values["message"]
    if kind == "template":
        assert (rejection.cell, rejection.night) == ("omni/random@c4-n40", "2026-04-12")


def test_records_are_judged_one_by_one() -> None:
    bad = drawn(result={**drawn()["result"], "completed_requests": 9, "failed_requests": 1})
    (point,), (rejection,) = admit((DIFFUSION, [bad, drawn()]))
    assert (point.record, rejection.record, rejection.kind) == (1, 0, "failed")


def test_a_time_is_of_its_zone() -> None:
    assert point_of(name_of(), served(), zone="Asia/Shanghai").ended == "2026-04-12T11:02:55Z"
    document = served(date="2026-04-12T19:02:55+02:00")
    assert point_of(name_of(), document, zone="").ended == "2026-04-12T17:02:55Z"
    for times in (served(), [drawn()], [template(), drawn()]):
        with pytest.raises(LocatedError, match="does not say its zone"):
            admit(("bench.json", times), zone="")
    assert parse_time("20260412-190115", "UTC").isoformat() == "2026-04-12T19:01:15+00:00"
    assert parse_time("2026-04-12T19:01:15Z", "").isoformat() == "2026-04-12T19:01:15+00:00"


COMMANDS = json.dumps(
    {
        "server_command": "vllm serve M",
        "client_command": "vllm bench serve --save-result --dataset-name random --random-input-len 200 "
        "--random-output-len 50 --num-warmups 3 --max-concurrency 4",
        "gpu_type": "H100\n",
    }
)


def test_the_commands_beside_a_result_say_more() -> None:
    point = point_of("serving_llama_qps_inf.json", served(), beside=COMMANDS)
    assert point.cell == "serving_llama/random@c4-n40-in200-out50"
    assert (point.covariates["warmups"], point.covariates["hardware"]) == (3, "H100")
    for broken in ("{", "[]", "{}", '{"client_command": 5}', '{"client_command": "ls"}'):
        assert point_of("serving_llama_qps_inf.json", served(), beside=broken).cell == "serving_llama@c4-n40"


@pytest.mark.parametrize(
    ("build", "date", "warmups"),
    [
        (BUILD, "20260412-190255", 0),
        (BUILD, "20260518-132400", 0),
        (BUILD, "20260520-190255", 2),
        (BUILD, "20260820-190255", 4),
        (Build("kanban", PIPELINE, "7", fixed="2026-05-18T12:00:00Z"), "20260518-190255", 0),
        (Build("folder", "/elsewhere", "7"), "20260412-190255", None),
    ],
)
def test_the_nightlys_warm_ups_are_known_by_its_date(build: Build, date: str, warmups: int | None) -> None:
    name = name_of(at=date)
    assert point_of(name, served(date=date), build=build).covariates.get("warmups") == warmups


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


RECORD_NAMES = (
    *("name", "num-prompts", "max-concurrency", "duration", "test_name", "timestamp", "baseline"),
    *("serve_args", "latency_mean", "stage_durations_p50", "result", "completed_requests"),
)


@example([("audio_throughput", 10**400)], ("", "name", None))
@example([("duration", 1e300)], ("result", "duration", 251_626_279_332))
@example([], ("result", "stage_durations_p50", {"": 10**400}))
@given(
    st.lists(st.tuples(st.sampled_from(sorted(served())), ANY), max_size=4),
    st.tuples(
        st.sampled_from(["", "benchmark_params", "server_params", "result"]),
        st.sampled_from(RECORD_NAMES),
        ANY,
    ),
)
def test_whatever_a_result_holds_it_is_a_point_or_rejected(
    changed: list[tuple[str, Any]], in_record: tuple[str, str, Any]
) -> None:
    part, name, value = in_record
    record = drawn()
    (record[part] if part else record)[name] = value
    for file in ((name_of(), served(**dict(changed))), (DIFFUSION, [record])):
        points, rejected = admit((file[0], json.dumps(file[1])))
        assert len(points) + len(rejected) == 1


def recorded(began: str = "2026-04-12T19:00:00Z", **changed: Any) -> Point:
    point = Point(
        build=BUILD,
        workload=Workload("omni", "random", 4, prompts=40, model="M"),
        began=began,
        ended=began,
        values={"e2el:median": 5.0},
        covariates={"input_tokens": 100.0},
        raw=f"{began}.json",
    )
    return replace(point, **changed)


LATE = "2026-04-12T21:00:00Z"


def test_a_build_that_passes_midnight_is_one_night() -> None:
    late = recorded("2026-04-13T00:10:00Z", workload=Workload("tts", "random", 1, prompts=10))
    admitted, rejected = admit_results([late, recorded("2026-04-12T23:50:00Z")])
    assert {p.night for p in admitted} == {"2026-04-12"}
    assert [p.began for p in admitted] == sorted(p.began for p in admitted)
    assert rejected == ()


@pytest.mark.parametrize("tokens", [100.0, 140.0, None])
def test_the_last_of_like_results_counts(tokens: float | None) -> None:
    first, again = recorded(), recorded(LATE, covariates={"input_tokens": tokens})
    admitted, (rejection,) = admit_results([again, first])
    assert [p.raw for p in admitted] == [again.raw]
    assert (rejection.kind, rejection.raw) == ("repeated", first.raw)
    assert rejection.why == Evidence("measured again", {"cell": again.cell, "file": again.raw})


@pytest.mark.parametrize(
    "other",
    [
        recorded(LATE, covariates={"input_tokens": 2500.0}),
        recorded(LATE, workload=Workload("omni", "random", 4, prompts=40, model="Other")),
    ],
)
def test_of_two_workloads_under_one_name_neither_counts(other: Point) -> None:
    admitted, rejected = admit_results([recorded(), other])
    assert admitted == ()
    assert [r.kind for r in rejected] == ["ambiguous", "ambiguous"]
    assert {r.why.kind for r in rejected} == {"unlike workloads"}


def test_text_beside_sound_is_another_cell_and_another_server() -> None:
    points, rejected = admit((name_of(), served()), (name_of(at="20260412-200115"), text_only()))
    assert [p.cell for p in points] == ["omni/random@c4-n40", "omni/random@c4-n40-text"]
    assert len({p.start for p in points}) == 2
    assert rejected == []


def test_cells_of_one_test_share_a_server() -> None:
    other = recorded(LATE, workload=replace(recorded().workload, concurrency=8))
    admitted, _ = admit_results([recorded(), other])
    assert len({p.start for p in admitted}) == 1


def test_launches_of_ours_are_all_kept() -> None:
    ours = Build("journal", "perfbisect", "job")
    admitted, rejected = admit_results([recorded(build=ours, start="a"), recorded(build=ours, start="b")])
    assert {p.start for p in admitted} == {"a", "b"}
    assert rejected == ()
