"""Results of ``vllm bench sweep serve``: settings are cells, repeats are runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.series.ingest import ingest
from perfbisect.series.points import Point
from perfbisect.series.sources import IngestOptions
from perfbisect.series.sources.sweeps import sweep_setting
from perfbisect.series.store import SeriesStore
from tests.series.made import served, write

LOAD = "BENCH--max_concurrency=4-num_prompts=40"


def sweep(folder: Path, seats: int, *runs: tuple[float, str]) -> None:
    """The runs of a setting: median TTFT and end of each, and their summary."""
    results = [
        served(backend="openai", endpoint_type="openai", median_ttft_ms=ttft, date=date, model_id="org/m")
        for ttft, date in runs
    ]
    setting = folder / f"SERVE--max_num_seqs={seats}-{LOAD}"
    for number, result in enumerate(results):
        write(setting / f"run={number}.json", result | {"run_number": number, "max_num_seqs": seats})
    write(setting / "summary.json", results)


def ingested(place: Path, state: Path) -> tuple[tuple[Point, ...], list[str], list[str]]:
    """Points, names of builds and kinds of rejections."""
    with SeriesStore.of(state) as store:
        ingest(store, [str(place)], IngestOptions(zone="UTC"))
        builds = [build.name for build in store.builds()]
        return store.points(), builds, [result.kind for result in store.rejections()]


@pytest.mark.parametrize("inside", [".", "20260818_235000"])
def test_settings_are_cells_of_one_build_and_repeats_its_runs(tmp_path: Path, inside: str) -> None:
    place = tmp_path / "results"
    sweep(place / inside, 4, (40.0, "20260818-235500"), (90.0, "20260818-235900"))
    sweep(place / inside, 8, (30.0, "20260819-000100"), (30.0, "20260819-000300"))
    (four, eight), builds, rejected = ingested(place, tmp_path)
    assert builds == ["2026-08-18" if inside == "." else inside]
    assert [four.cell, eight.cell] == ["m-max_num_seqs=4@c4-n40", "m-max_num_seqs=8@c4-n40"]
    assert four.values["ttft:median"] == pytest.approx(60.0), "the centre of the logs"
    assert eight.values["ttft:median"] == pytest.approx(30.0)
    assert (four.covariates["runs"], four.night, eight.night) == (2, "2026-08-18", "2026-08-18")
    assert four.start != eight.start
    assert rejected == ["repeated", "repeated"]


def test_one_setting_is_read_as_the_sweep(tmp_path: Path) -> None:
    sweep(tmp_path / "results", 4, (40.0, "20260818-235500"))
    (setting,) = (tmp_path / "results").iterdir()
    (point,), builds, _ = ingested(setting, tmp_path)
    assert (point.cell, builds) == ("m-max_num_seqs=4@c4-n40", ["2026-08-18"])


@pytest.mark.parametrize(
    ("path", "test"),
    [
        (f"a/SERVE--tp=2-max_num_seqs=4-{LOAD}/run=0.json", "tp=2-max_num_seqs=4"),
        (f"SERVE--x-{LOAD}-random_input_len=8/run=12.json", "x-random_input_len=8"),
        ("BENCH--max_concurrency=2-request_rate=inf/summary.json", ""),
        ("BENCH--short/run=0.json", "short"),
        ("SERVE--eager/run=0.json", "eager"),
        ("SERVE--eager/other.json", None),
        ("eager/run=0.json", None),
        ("run=0.json", None),
    ],
)
def test_a_setting_by_its_path(path: str, test: str | None) -> None:
    setting = sweep_setting(path)
    assert (None if setting is None else setting.test) == test
