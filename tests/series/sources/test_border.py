"""A foreign file is read or rejected, and never keeps another one out."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perfbisect.series.ingest import ingest
from perfbisect.series.sources import IngestOptions, base, dashboards
from perfbisect.series.store import SeriesStore
from scripts.fuzz.foreign import ingest_bent_files
from tests.series.made import name_of, sample, served, write

GOOD = sample("perf_eval_row") | {"model": "org/good"}


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 500), marks=pytest.mark.processes)])
def test_bent_places(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        ingest_bent_files(Random(seed), folder)


def ingested(place: Path, state: Path) -> tuple[list[str], dict[str, str]]:
    """The cells with a point, and the reason of each rejected file, after two nights."""
    with SeriesStore.of(state) as store:
        for _ in range(2):
            ingest(store, [str(place)], IngestOptions(zone="UTC"))
        reasons = {
            result.raw.removeprefix(f"{place}"): result.why.values["message"] for result in store.rejections()
        }
        return [point.cell for point in store.points()], reasons


def set_header(at: int, value: int) -> Callable[[bytearray, int], None]:
    """Set a byte of a member's central header, and the same of its local one."""

    def change(packed: bytearray, header: int) -> None:
        packed[header + at] = value
        packed[at - 2] = value

    return change


def spoil_content(packed: bytearray, header: int) -> None:
    del header
    packed[packed.index(b"tput_per_gpu")] ^= 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (set_header(8, 1), "is encrypted, password required"),
        (set_header(10, 99), "That compression method is not supported"),
        (spoil_content, "Bad CRC-32"),
    ],
)
def test_a_member_that_cannot_be_read_is_rejected_alone(
    spoil: Callable[[bytearray, int], None], said: str, tmp_path: Path
) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("../bad.json", json.dumps(sample("perf_eval_row")))
        archive.writestr("good.json", json.dumps(GOOD))
    packed = bytearray(content.getvalue())
    spoil(packed, packed.index(b"PK\x01\x02"))
    place = tmp_path / "artifact.zip"
    place.write_bytes(packed)
    (cell,), reasons = ingested(place, tmp_path)
    assert cell.startswith("good-")
    assert list(reasons) == ["/../bad.json#undated file"]
    assert said in reasons["/../bad.json#undated file"]


def test_of_two_members_of_one_name_the_last_counts(tmp_path: Path) -> None:
    place = tmp_path / "artifact.zip"
    with zipfile.ZipFile(place, "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a.json", json.dumps(sample("perf_eval_row")))
        archive.writestr("a.json", json.dumps(GOOD))
    (cell,), reasons = ingested(place, tmp_path)
    assert cell.startswith("good-") and reasons == {}


def test_a_cut_archive_is_one_rejected_file(tmp_path: Path) -> None:
    place = tmp_path / "artifact.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("good.json", json.dumps(GOOD))
    place.write_bytes(place.read_bytes()[:-30])
    cells, reasons = ingested(place, tmp_path)
    assert cells == []
    assert reasons == {"#undated file": "is no zip archive, or a damaged one: File is not a zip file"}


def test_an_archive_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "artifact.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", json.dumps(GOOD))
        archive.writestr("b.json", " " * (1 << 20))
        archive.writestr("c.json", json.dumps(GOOD))
    monkeypatch.setattr(dashboards, "_LARGEST_ARCHIVE", 1 << 20)
    (cell,), reasons = ingested(place, tmp_path)
    assert cell.startswith("good-")
    assert set(reasons.values()) == {"is beyond the first 1 GB of its archive"}


def test_a_file_beyond_the_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (base, dashboards):
        monkeypatch.setattr(module, "LARGEST", 1 << 20)
    large = write(tmp_path / "in" / "b" / "bench.json", served(label="x" * (1 << 20)))
    large.with_name("bench-2.json").write_bytes(gzip.compress(large.read_bytes()))
    write(tmp_path / "in" / "a" / name_of(), served())
    cells, reasons = ingested(tmp_path / "in", tmp_path)
    assert len(cells) == 1
    assert reasons == dict.fromkeys(["/b/bench.json", "/b/bench-2.json"], "is larger than 1 MB")


def test_a_cut_gzip_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a" / name_of(), served())
    (tmp_path / "in" / "b.json").write_bytes(gzip.compress(json.dumps(served()).encode())[:-20])
    cells, reasons = ingested(tmp_path / "in", tmp_path)
    assert len(cells) == 1
    assert reasons["/b.json"].startswith("is damaged gzip: Compressed file ended before")


@pytest.mark.parametrize(
    "changed",
    [
        {"tput_per_gpu": 10**400},
        {"conc": 10**400},
        {"tp": "9" * 5000},
        {"model": {"a": 1}},
        {"date": 10**400},
    ],
)
def test_one_bad_record_keeps_no_other_out(changed: dict[str, Any], tmp_path: Path) -> None:
    rows = [sample("perf_eval_row") | changed, GOOD]
    cells, _ = ingested(write(tmp_path / "perf.json", {"rows": rows}), tmp_path)
    assert any(cell.startswith("good-") for cell in cells)
    lines = "\n".join(["[" * 1000, json.dumps(GOOD), "{"])
    write(tmp_path / "in" / "perf.json", f"{json.dumps(rows[0])}\n{lines}")
    cells, reasons = ingested(tmp_path / "in", tmp_path / "other")
    assert any(cell.startswith("good-") for cell in cells)
    assert {"is no JSON: nested deeper than 100 levels"} < set(reasons.values())
