"""The files of a build, each in its place."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfbisect.series import ingest
from perfbisect.series.ingest import NoZoneError, StoredFile, check_zone, sort_build, when
from perfbisect.series.points import Build, Point, RejectedResult
from perfbisect.series.sources.kanban import PIPELINE
from tests.series.made import drawn, name_of, served, template, text_only

BUILD = Build("kanban", PIPELINE, "6433")
SOON, LATER = "20260412-190000", "20990412-190000"


def sort(
    *files: tuple[str, object], build: Build = BUILD, **told: Any
) -> tuple[list[Point], list[RejectedResult]]:
    made = [
        StoredFile(
            name=f"tests/{name}",
            place=f"/there/{place}/{name}",
            text=document if isinstance(document, str) else json.dumps(document),
            **{"zone": timezone.utc, **told},
        )
        for place, (name, document) in enumerate(files)
    ]
    points, rejected = sort_build(build, made)
    return list(points), list(rejected)


def one(name: str, document: object, **told: Any) -> Point:
    points, rejected = sort((name, document), **told)
    assert rejected == []
    assert len(points) == 1
    return points[0]


def gone(name: str, document: object) -> RejectedResult:
    points, rejected = sort((name, document))
    assert points == []
    assert len(rejected) == 1
    return rejected[0]


def test_a_clock_that_is_years_ahead_measured_nothing() -> None:
    """Such a night would be the last of all, and every other series one that is not measured any more."""
    files = [
        StoredFile("a", f"/{at}", json.dumps(served(date=at)), zone=timezone.utc) for at in (SOON, LATER)
    ]
    points, (wrong,) = sort_build(BUILD, files, datetime(2026, 4, 13, tzinfo=timezone.utc))
    assert [point.raw for point in points] == [f"/{SOON}"]
    assert (wrong.fate, wrong.raw) == ("broken", f"/{LATER}")
    assert wrong.reason == "says 2099-04-12T18:58:20Z, which is not yet: the clock was wrong"
    points, _ = sort_build(BUILD, files[1:])
    assert len(points) == 1, "nobody said what time it is"


def test_a_file_that_is_too_large_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "LARGEST", 1 << 20)
    text = json.dumps(served(label="x" * (1 << 20)))[: 1 << 20]
    assert gone(name_of(), text).reason == "is larger than 1 MB"
    assert gone(name_of(), text[:100]).reason.startswith("is no JSON")


def test_what_the_client_took_before_its_run() -> None:
    """The name says when it was started, the result when it ended and how long the run was: 100 s."""
    assert one(name_of(at="20260412-190010"), served()).covariates["outside"] == 65
    assert "outside" not in one(name_of(at="20260412-190115"), served()).covariates
    assert "outside" not in one(name_of(at="20260412-190200"), served()).covariates, "clocks disagree"


def test_a_point_has_all_that_is_known() -> None:
    point = one(name_of(), served(), facts={"host": "node-1", "job": ""})
    assert point.cell == "omni/random@c4-n40"
    assert (point.began, point.ended) == ("2026-04-12T19:01:15Z", "2026-04-12T19:02:55Z")
    assert (point.night, point.raw, point.record) == ("2026-04-12", "/there/0/" + name_of(), 0)
    assert point.workload.model == "Some/Omni"
    assert point.covariates["host"] == "node-1"
    assert not {"job", "hardware", "converted", "baseline"} & set(point.covariates), "nothing is known"
    assert point.build == BUILD


@pytest.mark.parametrize(
    ("name", "document", "cell"),
    [
        (name_of(load="0.5"), served(request_rate=0.5, max_concurrency=None), "omni/random@r0.5-n40"),
        (name_of(more="_in2500_out900"), served(), "omni/random@c4-n40-in2500-out900"),
        (name_of(more="_inna_outna"), served(), "omni/random@c4-n40"),
        (name_of(), served(random_input_len=2500, random_output_len=900), "omni/random@c4-n40-in2500-out900"),
        ("benchmark_results_test_image_20260412-191500.json", [drawn()], "image_one/512x512_steps20@c1-n10"),
        ("diffusion_result_test_image_20260412-191500.json", [drawn()], "image_one/512x512_steps20@c1-n10"),
        (
            "serving_llama8B_tp1_sharegpt_qps_inf_concurrency_4.json",
            served(),
            "serving_llama8B_tp1_sharegpt@c4-n40",
        ),
        ("openai-infqps-concurrency4-Llama-20260412-190115.json", served(), "openai-Llama@c4-n40"),
        ("bench-one.json", served(), "bench-one@c4-n40"),
    ],
)
def test_names_of_every_era(name: str, document: object, cell: str) -> None:
    assert one(name, document).cell == cell


def test_a_load_that_begins_alike_is_another() -> None:
    points, _ = sort(
        (name_of(load="1", prompts=4), served(max_concurrency=1, num_prompts=4, completed=4)),
        (name_of(load="1", prompts=40), served(max_concurrency=1)),
    )
    assert {p.cell for p in points} == {"omni/random@c1-n4", "omni/random@c1-n40"}


@pytest.mark.parametrize(
    ("name", "document", "fate", "reason"),
    [
        (name_of(), "{", "broken", "is no JSON"),
        (name_of(), "", "broken", "is no JSON"),
        (name_of(), "[" * 100_000, "broken", "is no JSON"),
        (name_of(), template(), "template", "form of zeros"),
        (name_of(at="20269999-999999"), template(), "broken", "20269999"),
        (name_of(), served(completed=39, failed=1), "failed", "1 of 40 requests failed"),
        (name_of(), served(date="yesterday"), "broken", "yesterday"),
        (name_of(load="8"), served(), "broken", "the file's name says max_concurrency 8, the result 4"),
        ("bench.json", served(date=None), "broken", "says no time"),
        ("config.json", {"models": {}}, "other", "no result"),
        ("2026-03-07.json", {"date": "2026-03-07", "results": [{}]}, "older", "a day's summary"),
    ],
)
def test_what_is_no_point_has_its_reason(name: str, document: object, fate: str, reason: str) -> None:
    found = gone(name, document)
    assert found.fate == fate
    assert reason in found.reason
    assert found.raw == f"/there/0/{name}"


def test_a_failure_is_told_with_the_cell_that_its_name_says() -> None:
    assert gone(name_of(), template()).cell == "omni/random@c4-n40"
    assert gone("bench.json", template()).cell == ""


def test_text_alone_beside_sound_under_one_name_is_split() -> None:
    points, rejected = sort((name_of(), served()), (name_of(at="20260412-200115"), text_only()))
    assert [p.cell for p in points] == ["omni/random@c4-n40", "omni/random@c4-n40-text"]
    assert rejected == []


def test_two_results_of_a_cell_in_one_build() -> None:
    late = served(date="20260412-210000")
    points, rejected = sort((name_of(), served()), (name_of(at="20260412-205800"), late))
    assert [p.ended for p in points] == ["2026-04-12T21:00:00Z"]
    assert [r.fate for r in rejected] == ["repeated"]
    other = served(date="20260412-210000", total_input_tokens=100_000)
    points, rejected = sort((name_of(), served()), (name_of(at="20260412-205800"), other))
    assert points == []
    assert {r.fate for r in rejected} == {"ambiguous"}


def test_the_same_file_elsewhere_counts_there() -> None:
    points, rejected = sort((name_of(), served()), twin="/raw/6433/x.json")
    assert points == []
    assert (rejected[0].fate, rejected[0].reason) == ("twin", "the same file as /raw/6433/x.json")
    assert rejected[0].cell == "omni/random@c4-n40"


def test_a_time_is_of_its_zone() -> None:
    assert one(name_of(), served(), zone=ZoneInfo("Asia/Shanghai")).ended == "2026-04-12T11:02:55Z"
    told = served(date="2026-04-12T19:02:55+02:00")
    assert one(name_of(), told, zone=None).ended == "2026-04-12T17:02:55Z"
    with pytest.raises(NoZoneError):
        check_zone(served(), None)
    with pytest.raises(NoZoneError):
        check_zone([drawn()], None)
    check_zone(served(), timezone.utc)
    check_zone({"no": "result"}, None)


def test_times_as_results_tell_them() -> None:
    assert when("20260412-190115", timezone.utc).isoformat() == "2026-04-12T19:01:15+00:00"
    assert when("2026-04-12T19:01:15Z", None).isoformat() == "2026-04-12T19:01:15+00:00"


COMMANDS = json.dumps(
    {
        "server_command": "vllm serve M",
        "client_command": "vllm bench serve --save-result --dataset-name random --random-input-len 200 "
        "--random-output-len 50 --num-warmups 3 --max-concurrency 4",
        "gpu_type": "H100\n",
    }
)


def test_the_commands_beside_a_result_say_more() -> None:
    point = one("serving_llama_qps_inf.json", served(), beside=COMMANDS)
    assert point.cell == "serving_llama/random@c4-n40-in200-out50"
    assert (point.covariates["warmups"], point.covariates["hardware"]) == (3, "H100")
    for broken in ("{", "[]", "{}", '{"client_command": 5}', '{"client_command": "ls"}'):
        assert one("serving_llama_qps_inf.json", served(), beside=broken).cell == "serving_llama@c4-n40"


@pytest.mark.parametrize(
    ("build", "date", "warmups"),
    [
        (BUILD, "20260412-190255", 0),
        (BUILD, "20260518-132400", 0),
        (BUILD, "20260520-190255", 2),
        (Build("kanban", PIPELINE, "7", fixed="2026-05-18T12:00:00Z"), "20260518-190255", 0),
        (Build("folder", "/elsewhere", "7"), "20260412-190255", None),
    ],
)
def test_the_nightlys_warm_ups_are_known_by_its_date(build: Build, date: str, warmups: int | None) -> None:
    name = name_of(at=date)
    assert one(name, served(date=date), build=build).covariates.get("warmups") == warmups


def test_html_in_a_name_is_a_name() -> None:
    point = one(name_of(test="<img src=x onerror=alert(1)>"), served(model_id="<b>"))
    assert point.cell == "<img src=x onerror=alert(1)>/random@c4-n40"
    assert point.workload.model == "<b>"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@example({"audio_throughput": 10**400})
@example({"duration": 1e300})
@given(st.dictionaries(st.sampled_from(sorted(served())), ANY, max_size=4))
def test_whatever_a_result_holds_it_has_a_place(changed: dict[str, Any]) -> None:
    points, rejected = sort((name_of(), json.dumps(served() | changed)))
    assert len(points) + len(rejected) == 1


@example("result", "stage_durations_p50", {"": 10**400})
@example("result", "duration", 251_626_279_332)
@given(
    st.sampled_from(["", "benchmark_params", "server_params", "result"]),
    st.sampled_from(["name", "num-prompts", "max-concurrency", "duration", "test_name", "timestamp",
                     "baseline", "serve_args", "latency_mean", "stage_durations_p50", "result",
                     "completed_requests"]),
    ANY,
)  # fmt: skip
def test_whatever_a_record_holds_it_has_a_place(part: str, name: str, value: Any) -> None:
    record = drawn()
    inner = record[part] if part else record
    inner[name] = value
    points, rejected = sort(("benchmark_results_test_image_20260412-191500.json", json.dumps([record])))
    assert len(points) + len(rejected) == 1
