"""``import perfbisect``: the tables of jobs and series, and the judgement of any numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

import perfbisect
from perfbisect.bisect.result import BisectResult
from perfbisect.errors import UsageError
from tests.command_line import isolate, type_command, type_json
from tests.golden.worlds import FROZEN, WORLDS
from tests.nightlies import make_nightlies
from tests.series.made_series import noise, step


def test_the_names_are_imported_on_first_use() -> None:
    code = (
        "import sys, perfbisect\n"
        "assert set(perfbisect.__all__) <= set(dir(perfbisect)) and not hasattr(perfbisect, 'nosuch')\n"
        "assert 'pandas' not in sys.modules\n"
        "assert perfbisect.detect.__module__ == 'perfbisect.api' and 'pandas' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_a_job_of_each_kind_has_its_tables(name: str) -> None:
    job = perfbisect.load(FROZEN / name)
    launches, metrics = job.launches, job.metrics
    assert launches.index.to_list() == metrics.index.to_list() == [x.number for x in job.document.launches]
    assert launches.shape[1] == 15
    metric = job.document.metric.name
    if launches["value"].notna().any():
        pd.testing.assert_series_equal(launches["value"], metrics[metric], check_names=False)
    # What failed, or was discarded, has no value of any metric.
    assert metrics[launches["outcome"] != "measured"].isna().all(axis=None)
    if not isinstance(job.document, BisectResult):
        with pytest.raises(UsageError, match="no bisection"):
            job.beliefs  # noqa: B018
    elif job.document.beliefs is not None and job.document.beliefs.p:
        assert job.beliefs.shape == (len(job.document.history), 4)
        assert job.beliefs["p"].sum() + job.document.beliefs.none == pytest.approx(1.0, abs=0.02)
        culprit = job.document.culprit
        assert culprit is None or job.beliefs["change"][job.beliefs["p"].idxmax()] == culprit.id


def test_a_job_that_was_not_measured_yet_has_empty_tables(tmp_path: Path) -> None:
    begun = tmp_path / "job"
    begun.mkdir()
    first = (FROZEN / "bisect-found" / "journal.jsonl").read_text().splitlines(keepends=True)[0]
    (begun / "journal.jsonl").write_text(first)
    job = perfbisect.load(begun)
    assert job.outcome == "unfinished"
    assert (job.launches.shape, job.metrics.shape) == ((0, 15), (0, 0))
    assert job.beliefs["p"].nunique() == 2, "all positions but the good end are as likely"


def test_a_page_opens_from_disk_and_in_a_notebook(tmp_path: Path) -> None:
    job = perfbisect.load(FROZEN / "compare-regression")
    page = job.plot(tmp_path / "pages" / "job.html").read_text()
    assert page.startswith("<!") and "compare" in page.lower()
    shown = job._repr_html_()
    assert shown.startswith("<iframe sandbox") and "<script" not in shown


def test_a_job_and_a_store_that_are_not_there_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="no job 'nosuch'"):
        perfbisect.load("nosuch", state=tmp_path / "elsewhere")
    with pytest.raises(UsageError) as caught:
        perfbisect.load_series()
    assert caught.value.where == str(tmp_path / "state" / "track" / "series.sqlite")
    assert not (tmp_path / "state").exists(), "reading creates no store"


def test_a_store_gives_the_table_of_its_export_and_the_changes_of_its_detection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(tmp_path, monkeypatch)
    assert (
        type_command(["track", "ingest", str(make_nightlies(tmp_path / "n").all), "--zone", "UTC"]).code == 0
    )
    table = perfbisect.load_series()
    assert type_command(["track", "export", "-o", "series.csv"]).code == 0
    exported = pd.read_csv("series.csv")
    assert exported.columns.to_list() == table.columns.to_list()
    assert exported["value"].to_list() == pytest.approx(table["value"].to_list(), rel=1e-12)
    assert_frame_equal(perfbisect.load_series(tmp_path / "state" / "track" / "series.sqlite"), table)
    one = perfbisect.load_series(tmp_path / "state", ["omni_chunk"], metric="audio_rtf", since="2026-01-20")
    assert set(one["metric"]) == {"audio_rtf"} and one["night"].min() == pd.Timestamp("2026-01-20")
    changed = table[table["metric"].isin(["audio_ttfp", "audio_rtf", "e2el"])]
    found = perfbisect.detect(changed)
    alerts = type_json("track", "detect", "--full")["alerts"]
    assert {(row.series, row.metric, f"{row.night:%Y-%m-%d}") for row in found.itertuples()} == {
        (alert["cell"], alert["metric"], alert["night"])
        for alert in alerts
        if alert["metric"] in set(changed["metric"])
    }


def table_of(columns: dict[str, list[float]], first: str = "2026-02-01") -> pd.DataFrame:
    """Series of nights, one below the other."""
    frames = [
        pd.DataFrame({"night": pd.date_range(first, periods=len(values)), "series": name, "value": values})
        for name, values in columns.items()
    ]
    return pd.concat(frames)


def test_changes_are_told_by_series_night_and_direction() -> None:
    frame = table_of({"a": noise(1, 30), "b": step(noise(2, 30), 20, 1.1), "c": step(noise(3, 30), 12, 0.9)})
    found = perfbisect.detect(frame)
    assert found["series"].to_list() == ["c", "b"]
    assert found["night"].to_list() == [pd.Timestamp("2026-02-13"), pd.Timestamp("2026-02-21")]
    assert found["effect"].to_list() == pytest.approx([-0.1, 0.1], abs=0.02)
    assert (found["low"] < found["effect"]).all() and (found["effect"] < found["high"]).all()
    assert (found["earliest"] <= found["night"]).all() and (found["night"] <= found["latest"]).all()
    assert found["until"].isna().all()


@given(seed=st.integers(0, 100))
@settings(max_examples=5)
def test_neither_order_nor_index_nor_unit_nor_time_of_day_matters(seed: int) -> None:
    frame = table_of({"a": noise(1, 30), "b": step(noise(2, 30), 20, 1.1)})
    expected = perfbisect.detect(frame)
    assert len(expected) == 1
    shuffled = frame.sample(frac=1.0, random_state=seed)
    assert_frame_equal(perfbisect.detect(shuffled), expected)
    assert_frame_equal(perfbisect.detect(shuffled.set_index("night")), expected)
    late = frame.assign(night=frame["night"].dt.tz_localize("UTC") + pd.Timedelta(hours=seed % 24))
    assert_frame_equal(perfbisect.detect(late), expected)
    scaled = perfbisect.detect(frame.assign(value=frame["value"] / 1000.0))
    assert_frame_equal(scaled, expected, rtol=1e-6)


def test_a_metric_brings_what_is_relevant_of_it() -> None:
    values = step(noise(4, 40, spread=0.002), 20, 1.025)
    frame = table_of({"a": values})
    assert perfbisect.detect(frame.assign(metric="tpot")).empty, "3 % is relevant of tpot"
    assert len(perfbisect.detect(frame.assign(metric="tpot"), min_effect=0.01)) == 1
    assert len(perfbisect.detect(frame.assign(metric="peak_memory_mb"))) == 1, "2 % is relevant of memory"
    shares = table_of({"a": step([0.5 + x / 1000 for x in noise(5, 40, 1.0, 0.5)], 20, 1.1)})
    found = perfbisect.detect(shares.assign(metric="failed"))
    assert found["effect"].to_list() == pytest.approx([0.05], abs=0.005), "a difference of shares"


def test_a_level_of_a_machine_is_no_change() -> None:
    hosts = ["a", "b", "b", "a"] * 10
    values = [v * (1.1 if host == "b" else 1.0) for v, host in zip(noise(6, 40), hosts, strict=True)]
    frame = table_of({"x": values})
    assert perfbisect.detect(frame.assign(host=hosts)).empty
    assert perfbisect.detect(frame.assign(box=hosts), machine="box").empty


def test_several_values_of_a_night_are_their_median() -> None:
    frame = table_of({"a": step(noise(7, 30), 15, 1.1)})
    wild = frame.assign(value=frame["value"] * 3)
    low = frame.assign(value=frame["value"] / 3)
    assert_frame_equal(perfbisect.detect(pd.concat([wild, frame, low])), perfbisect.detect(frame))


def test_what_cannot_be_judged_is_told() -> None:
    frame = table_of({"short": noise(1, 5), "zero": [0.0] * 20, "good": noise(2, 20)})
    with pytest.warns(UserWarning, match="2 of 3 series are not judged: 1 of few nights, 1 of not positive"):
        assert perfbisect.detect(frame).empty


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"by": ["cell"]}, "no column cell"),
        ({"value": "speed"}, "no column speed"),
        ({"night": "series"}, "series is a date"),
        ({"value": "series"}, "series a number"),
        ({"fdr": 0.0}, "fdr is a share"),
        ({"better": "more"}, "better is lower or higher"),
        ({"min_effect": 2.0}, "min_effect must be between 0 and 1"),
    ],
)
def test_what_is_no_series_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        perfbisect.detect(table_of({"a": noise(1, 20)}), **changed)  # type: ignore[arg-type]


def test_two_columns_of_launches() -> None:
    rng = np.random.default_rng(8)
    a, b = (
        pd.Series(level * np.exp(rng.normal(0, 0.01, 8)), name="output_throughput") for level in (90, 100)
    )
    verdict = perfbisect.compare(a, b)
    assert (verdict.word, verdict.launches) == ("improvement", 16), "its direction is that of the column"
    assert verdict.low < verdict.effect < verdict.high
    assert perfbisect.compare(b, a).word == "regression"
    assert perfbisect.compare(a, b, metric="tpot").word == "regression"
    assert perfbisect.compare(list(a), b.rename("other"), better="lower").word == "regression"
    assert perfbisect.compare(a, a[::-1], min_effect=0.05).word == "same"
    missing = pd.concat([a, pd.Series([float("nan")])]).rename(a.name)
    assert perfbisect.compare(missing, b) == verdict


@pytest.mark.parametrize("b", [[1.0], [1.0, float("nan")], [1.0, -1.0], [1.0, float("inf")]])
def test_launches_without_a_ratio_are_refused(b: list[float]) -> None:
    with pytest.raises(UsageError, match="cannot be compared"):
        perfbisect.compare([1.0, 2.0], b)
