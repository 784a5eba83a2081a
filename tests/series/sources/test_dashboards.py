"""Files of ci.vllm.ai, PyTorch HUD and InferenceX: builds, cells, units and covariates of what they hold."""

from __future__ import annotations

import copy
import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import LocatedError, UsageError
from perfbisect.series.ingest import admit_build, ingest
from perfbisect.series.points import Point, RawFile, RejectedResult
from perfbisect.series.report import sentences_of
from perfbisect.series.series import build_series
from perfbisect.series.sources import IngestOptions, find_source
from perfbisect.series.store import SeriesStore
from tests.series.made import sample, served, write

SHA = "0123456789abcdef0123456789abcdef01234567"
IMAGE = f"example.io/vllm-release-repo:{SHA}-x86_64"


def perf_row(**changed: Any) -> dict[str, Any]:
    """A row of /api/perf; the database gives some numbers as text."""
    return sample("perf_eval_row") | changed


def inferencex_row(**changed: Any) -> dict[str, Any]:
    """A row of agg_bmk.json."""
    return sample("inferencex_row") | changed


def published_row(**changed: Any) -> dict[str, Any]:
    """A row of InferenceX's API: both roles of one server, values under metrics."""
    return sample("inferencex_api_row") | changed


def metric_record(name: str, values: list[Any], **changed: Any) -> dict[str, Any]:
    """A record of PyTorch's benchmark database, as vLLM's serving benchmark writes it."""
    record = sample("hud_record")
    record["metric"] |= {"name": name, "benchmark_values": values}
    return record | changed


def offline_record(name: str, values: list[Any], **args: Any) -> dict[str, Any]:
    record = metric_record(name, values, benchmark={"extra_info": {"args": args, "use_compile": False}})
    return record | {"metric": {"name": name, "benchmark_values": values, "extra_info": {}}}


def results(place: Path, **asked: Any) -> list[Point | RejectedResult]:
    """What becomes of a place, by source and by build, as an ingest does it."""
    source, location = find_source(str(place))
    assert source.NAME == "dashboard"
    found: list[Point | RejectedResult] = []
    for batch in source.builds(location, IngestOptions(**asked)):
        texts = ((file, file.read()) for file in batch.files)
        raw = [RawFile(file.name, file.place, text, zone=batch.zone) for file, text in texts]
        points, rejected = admit_build(batch.build, raw)
        found += [*points, *rejected]
    return found


def points(place: Path) -> list[Point]:
    found = results(place)
    assert [result for result in found if isinstance(result, RejectedResult)] == []
    return [result for result in found if isinstance(result, Point)]


def test_rows_of_perf_eval_are_read_in_our_units(tmp_path: Path) -> None:
    later = perf_row(date="2026-08-21 10:00:00", image=f"vllm/vllm-openai:nightly-{'b' * 40}")
    first, second = points(write(tmp_path / "perf.json", {"rows": [perf_row(), later]}))
    assert first.values == {
        "tput_per_gpu": 1234.5,
        "input_tput_per_gpu": 1000.0,
        "output_tput_per_gpu": 234.5,
        "ttft:mean": 500.0,
        "ttft:p99": 1250.0,
        "tpot:median": 20.0,
    }
    assert first.cell == "Qwen3.5-397B-A17B-FP8-h200-fp8-tp8@c128-in8192-out1024"
    assert (first.began, first.night) == ("2026-08-20T10:11:12Z", "2026-08-20")
    assert (first.build.pipeline, first.build.commit, first.build.of_main) == ("ci.vllm.ai", SHA, None)
    assert first.hardware == "h200"
    assert first.covariates["image"] == "example.io/vllm-release-repo:{sha}-x86_64"
    assert second.build.commit == "b" * 40
    metrics = {item.metric: item for item in build_series([first, second])}
    assert metrics["tput_per_gpu"].sign == -1
    assert metrics["tput_per_gpu"].row.unit == "tok/s/GPU"
    assert list(sentences_of("differences", [x.change for x in metrics["ttft:p99"].hints])) == [
        "image vllm/vllm-openai:nightly-{sha}, example.io/vllm-release-repo:{sha}-x86_64 before"
    ]


def test_a_comparison_gives_both_of_its_rows(tmp_path: Path) -> None:
    key = "Qwen/Qwen3.5-397B-A17B-FP8|h200|8|128|8192|1024|fp8"
    delta = {
        "area": "perf",
        "baselineRun": "2026-08-19 10:00:00",
        "candidateRun": "2026-08-20 10:11:12",
        "baselineDetail": f"vllm/vllm-openai:nightly-{'a' * 40}",
        "candidateDetail": IMAGE,
    }
    deltas = [
        delta | {"key": f"{key}|p99_ttft", "baselineValue": 1.0, "candidateValue": 1.25},
        delta | {"key": f"{key}|tput_per_gpu", "baselineValue": 1200, "candidateValue": 1234.5},
    ]
    before, after = points(write(tmp_path / "compare.json", {"perf": {"deltas": deltas}, "eval": {}}))
    assert (before.build.commit, after.build.commit) == ("a" * 40, SHA)
    assert before.values == {"ttft:p99": 1000.0, "tput_per_gpu": 1200.0}
    assert after.values == {"ttft:p99": 1250.0, "tput_per_gpu": 1234.5}
    row = points(write(tmp_path / "one" / "perf.json", {"rows": [perf_row()]}))[0]
    assert (row.cell, row.build.key) == (after.cell, after.build.key)


def test_rows_of_inferencex_are_of_the_day_in_their_path(tmp_path: Path) -> None:
    found = points(write(tmp_path / "2026-08-20" / "agg_bmk.json", [inferencex_row()]).parent)
    assert [point.cell for point in found] == [
        "DeepSeek-R1-0528-b200-trt-fp4-vllm-tp8-ep8-dp_attention-mtp@c64-in1024-out8192"
    ]
    assert found[0].values == {"tput_per_gpu": 100.0, "tpot:p99": 10.0}
    assert (found[0].night, found[0].build.commit, found[0].hardware) == ("2026-08-20", "", "b200-trt")
    assert found[0].covariates["image"] == "vllm/vllm-openai:v0.13.0"
    (undated,) = results(write(tmp_path / "agg_bmk.json", inferencex_row()))
    assert isinstance(undated, RejectedResult)
    assert (
        undated.why.values["message"]
        == "has no time in it: name the file or its folder by its day (2026-08-24)"
    )


def test_one_server_of_inferencex_s_api_is_one_and_two_roles_are_two(tmp_path: Path) -> None:
    split = published_row(disagg=True, is_multinode=True, num_prefill_gpu=8)
    both = points(write(tmp_path / "benchmarks.json", [published_row(), split]))
    assert sorted(point.cell for point in both) == [
        "dsr1-mi355x-fp8-sglang-disagg-num_prefill_gpu8-num_decode_gpu4-prefill_tp4-decode_tp4@c16-in1024-out1024",
        "dsr1-mi355x-fp8-sglang-tp4@c16-in1024-out1024",
    ]
    assert {point.build.url for point in both} == {"https://example.org/runs/1"}
    assert both[0].values == {"tput_per_gpu": 70.0, "ttft:median": 100.0}


def test_records_of_a_serving_run_are_one_result_of_its_client(tmp_path: Path) -> None:
    records = [metric_record("median_ttft_ms", [20.0]), metric_record("p99_tpot_ms", [3.0])]
    (point,) = points(write(tmp_path / "hud.json", "\n".join(map(json.dumps, records))))
    assert point.cell == "Llama-3.1-70B-Instruct-NVIDIA-B200-tp4/random@rinf-n200-in512-out128"
    assert point.values["ttft:median"] == 20.0
    assert point.values["tpot:p99"] == 3.0
    assert point.values["output_throughput"] == 2560.0
    assert point.values["output_tokens"] == 128.0
    assert point.build.commit == SHA
    assert (point.build.pipeline, point.build.branch) == ("HUD vllm-project/vllm", "main")
    known = {name: point.covariates[name] for name in ("hardware", "torch", "host", "completed")}
    assert known == {"hardware": "NVIDIA B200", "torch": "2.11.0", "host": "node-1", "completed": 200}
    failed = copy.deepcopy(records[0])
    failed["metric"]["extra_info"]["failed"] = 3
    (rejected,) = results(write(tmp_path / "failed" / "hud.json", [failed]))
    assert isinstance(rejected, RejectedResult)
    assert (rejected.kind, rejected.why.values["message"]) == ("failed", "3 of 203 requests failed")


def test_offline_benchmarks_have_the_names_of_the_metric_table(tmp_path: Path) -> None:
    batch = offline_record("latency", [1.0, 2.0, 1.2], input_len=32, output_len=128, batch_size=8)
    whole = [
        offline_record(name, [value], num_prompts=200, input_len=32, output_len=128)
        for name, value in (("requests_per_second", 2.0), ("tokens_per_second", 320.0))
    ]
    startup = offline_record("avg_cold_startup_time", [30.0])
    other = offline_record("avg_warm_compilation_time", [3.0], batch_size=1)
    path = write(tmp_path / "hud.json", [batch, *whole, startup, other])
    named = {point.cell: point.values for point in results(path) if isinstance(point, Point)}
    assert named == {
        "Llama-3.1-70B-Instruct-NVIDIA-B200-latency-eager-b8@in32-out128": {
            "e2el:median": 1200.0,
            "e2el:mean": pytest.approx(1400.0),
        },
        "Llama-3.1-70B-Instruct-NVIDIA-B200-throughput-eager@rinf-n200-in32-out128": {
            "request_throughput": 2.0,
            "total_token_throughput": 320.0,
        },
        "Llama-3.1-70B-Instruct-NVIDIA-B200-startup-eager": {"ready_time_cold": 30.0},
    }
    (unknown,) = (result for result in results(path) if isinstance(result, RejectedResult))
    assert unknown.why.values["message"] == "has no metric that perfbisect knows: avg_warm_compilation_time"


def test_a_run_of_pytorch_is_of_the_vllm_that_it_pins(tmp_path: Path) -> None:
    pinned = {"vllm": {"repo": "vllm-project/vllm", "sha": "c" * 40}}
    of_torch = {"repo": "pytorch/pytorch", "head_sha": "d" * 40, "dependencies": pinned}
    (point,) = points(write(tmp_path / "hud.json", [metric_record("median_ttft_ms", [20.0], **of_torch)]))
    assert (point.build.commit, point.covariates["torch"]) == ("c" * 40, "d" * 40)
    assert "-tp4-pytorch/" in point.cell
    text = {"args": json.dumps({"dataset_name": "random", "max_concurrency": "64"}), "use_compile": "false"}
    kept = metric_record("median_ttft_ms", ["20"], timestamp="1787220672", benchmark={"extra_info": text})
    (point,) = points(write(tmp_path / "texts" / "hud.json", [kept]))
    assert point.cell == "Llama-3.1-70B-Instruct-NVIDIA-B200-eager/random@c64-n200"


@pytest.mark.parametrize(
    ("image", "commit"),
    [
        (IMAGE, SHA),
        ("vllm/vllm-openai:nightly-0123abc", "0123abc"),
        ("vllm/vllm-openai-rocm:nightly-0123abc-gfx950@sha256:ffffffffffffffff", "0123abc"),
        ("localhost:5000/vllm", ""),
        ("vllm/vllm-openai:v0.13.0", ""),
        ("rocm/vllm:202511031200", ""),
        ("", ""),
    ],
)
def test_the_commit_of_an_image(tmp_path: Path, image: str, commit: str) -> None:
    (point,) = points(write(tmp_path / "perf.json", {"rows": [perf_row(image=image)]}))
    assert point.build.commit == commit


def test_files_folders_and_archives_are_one(tmp_path: Path) -> None:
    text = json.dumps({"rows": [perf_row()]})
    plain = points(write(tmp_path / "plain" / "perf.json", text))
    packed = tmp_path / "packed" / "perf.json"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(text.encode()))
    archive = tmp_path / "artifact.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("inner/perf.json", text)
        made.writestr("notes.json", "{}")
    said: list[str] = []
    assert len(results(archive, say=said.append)) == 1
    assert said == [f"left out of {archive}: 1 file without values of a dashboard"]
    for place in (packed, packed.parent, archive):
        assert [(p.cell, p.values) for p in points(place)] == [(p.cell, p.values) for p in plain]


def test_nothing_is_stored_twice_and_a_run_again_replaces(tmp_path: Path) -> None:
    path = write(tmp_path / "in" / "perf.json", {"rows": [perf_row(), perf_row()]})
    with SeriesStore.of(tmp_path) as store:
        assert ingest(store, [str(path.parent)], IngestOptions()).new == 1
        again = perf_row(date="2026-08-20 12:00:00", tput_per_gpu=1240.0)
        write(path, {"rows": [again, perf_row()]})
        document = ingest(store, [str(path.parent)], IngestOptions())
        assert (document.new, document.unchanged) == (1, 1)
        assert [group.fate for group in document.rejected] == ["repeated"]
        assert [point.values["tput_per_gpu"] for point in store.points()] == [1240.0]
        write(path.with_name("copy.json"), {"rows": [perf_row()]})
        assert ingest(store, [str(path.parent)], IngestOptions()).new == 1
        assert len(store.points()) == 1


def test_two_results_of_one_label_are_both_kept(tmp_path: Path) -> None:
    rows = [published_row(), published_row(metrics={"tput_per_gpu": 71.0})]
    kinds = [getattr(result, "kind", "point") for result in results(write(tmp_path / "b.json", rows))]
    assert kinds == ["point", "repeated"]


def test_days_before_the_first_are_left(tmp_path: Path) -> None:
    path = write(tmp_path / "perf.json", {"rows": [perf_row()]})
    assert len(results(path, since="2026-08-20")) == 1
    with pytest.raises(UsageError, match="has no result since 2026-08-21"):
        results(path, since="2026-08-21")


def test_results_of_clients_are_no_dashboard(tmp_path: Path) -> None:
    path = write(tmp_path / "result.json", served())
    assert find_source(str(path))[0].NAME == "folder"
    empty = write(tmp_path / "none" / "x.json", {"rows": []})
    with pytest.raises(UsageError, match="is no dashboard: JSON of ci"):
        find_source(str(empty), "dashboard")


def test_a_broken_file_and_unknown_records_are_named(tmp_path: Path) -> None:
    cut = json.dumps({"rows": [perf_row()]})[:-20]
    (broken,) = results(write(tmp_path / "a" / "perf.json", cut))
    assert isinstance(broken, RejectedResult)
    assert (broken.kind, broken.raw) == ("broken", f"{tmp_path}/a/perf.json#undated file")
    assert "is no JSON" in broken.why.values["message"]
    both = results(
        write(tmp_path / "b" / "perf.json", [{"task": "gsm8k"}, perf_row(), perf_row(date="soon")])
    )
    told = (result.why.values["message"] for result in both if isinstance(result, RejectedResult))
    assert sorted(text[:28] for text in told) == [
        "'soon' is no time",
        "holds no result of a served ",
    ]
    assert len(both) == 3


VALUES: tuple[Any, ...] = (None, True, -3, float("nan"), 1e400, "x", "", [], ["x"], {}, {"a": 1}, [{}])
COMPARED = {
    "key": "org/a|b|1|1|1|1|c|tput_per_gpu",
    "baselineValue": 1,
    "baselineRun": "2026-08-20 10:00:00",
    "baselineDetail": IMAGE,
}
DOCUMENTS: dict[str, Any] = {
    "perf": {"rows": [perf_row()]},
    "compare": {"perf": {"deltas": [COMPARED]}},
    "inferencex": [inferencex_row(), published_row()],
    "hud": [metric_record("median_ttft_ms", [20.0]), offline_record("latency", [1.0], batch_size=8)],
}


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*above, key))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.processes] * (kind == "hud")) for kind in DOCUMENTS]
)
def test_whatever_stands_there_is_a_point_or_a_reason(kind: str, tmp_path: Path) -> None:
    document, seen = DOCUMENTS[kind], set()
    for place in places(document):
        for value in VALUES:
            changed = copy.deepcopy(document)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            path = write(tmp_path / "spoilt.json", changed)
            try:
                seen |= {type(result) for result in results(path)}
            except (UsageError, LocatedError):
                continue  # No value of a dashboard is left in it.
            except AssertionError:
                assert find_source(str(path))[0].NAME == "folder"
    assert seen == {Point, RejectedResult}
