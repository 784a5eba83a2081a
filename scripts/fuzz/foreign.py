"""Results measured elsewhere: bent files beside a good one, ingested twice."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from perfbisect.errors import UsageError
from perfbisect.series.ingest import ingest
from perfbisect.series.sources import IngestOptions
from perfbisect.series.store import SeriesStore
from scripts.fuzz.mutate import bend_bytes, bend_json, bend_text, json_text
from tests.series.made import RAW, RESULTS, drawn, name_of, sample, served, write

_PERF = {"rows": [sample("perf_eval_row")]}
_DASHBOARDS: tuple[Any, ...] = (
    _PERF,
    [sample("inferencex_row"), sample("inferencex_api_row")],
    [sample("hud_record"), sample("hud_record")],
    {"perf": {"deltas": [{"key": "org/a|b|1|1|1|1|c|tput_per_gpu", "baselineValue": 1}]}},
)
_RESULTS: tuple[tuple[str, Any], ...] = (
    (name_of(), served()),
    ("benchmark_results_test_image_20260412-191500.json", [drawn()]),
    ("bench.json", served(date="20260406-190000")),
)
_GOOD = "good"
_GOOD_ROW = sample("perf_eval_row") | {"model": f"org/{_GOOD}"}
_OPTIONS = IngestOptions(zone="UTC")


def ingest_bent_files(random: Random, folder: Path) -> None:
    """Ingest bent files: the good one beside them is a point, and the next ingest goes on.

    Raises:
        AssertionError: a good result is lost, or there is another refusal than that of a place without any.
    """
    make = random.choice(_PLACES)
    place, has_good = make(random, folder / "in")
    with SeriesStore(folder / "series.sqlite") as store:
        for _ in range(2):
            try:
                ingest(store, [str(place)], _OPTIONS)
            except UsageError:
                if has_good:
                    raise AssertionError("the good file is refused") from None
        if has_good and not any(_GOOD in point.raw for point in store.points()):
            raise AssertionError("the good file is no point")
        list(store.rejections())


def _bent_folder(random: Random, root: Path) -> tuple[Path, bool]:
    write(root / _GOOD / name_of(_GOOD, at="20260401-185900"), served(date="20260401-190000"))
    for number, (name, document) in enumerate(_some(random, _RESULTS)):
        _write_bent(
            random, root / random.choice(["b", "0123abc", "2026-04-02", "."]) / f"{number}-{name}", document
        )
    return root, True


def _bent_kanban(random: Random, root: Path) -> tuple[Path, bool]:
    write(
        root / RAW / "1" / _GOOD / RESULTS / name_of(_GOOD, at="20260401-185900"),
        served(date="20260401-190000"),
    )
    for number, (name, document) in enumerate(_some(random, _RESULTS)):
        build = random.choice(["2", "²", "0" * 200, "x"])
        stem = name if random.random() < 0.7 else bend_text(random, name).replace("/", "")[:80] or "x"
        _write_bent(random, root / RAW / build / str(number) / stem.replace("\0", ""), document)
    return root, True


def _bent_dashboard(random: Random, root: Path) -> tuple[Path, bool]:
    path = root / random.choice(["a.json", "a.jsonl"])
    _write_bent(random, path, random.choice(_DASHBOARDS))
    return path, False


def _bent_rows(random: Random, root: Path) -> tuple[Path, bool]:
    """Bent records beside good ones in one file."""
    document: list[Any] = [_GOOD_ROW]
    document += [
        bend_json(random, record) for record in _some(random, [sample("hud_record"), _PERF["rows"][0]])
    ]
    text = json.dumps(document)
    if random.random() < 0.3:
        text = "\n".join([json.dumps(document[0]), *(json_text(random, row) for row in document[1:])])
    path = root / f"{_GOOD}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", "surrogatepass")
    return path, True


def _bent_archive(random: Random, root: Path) -> tuple[Path, bool]:
    method = random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for number, document in enumerate(_some(random, _DASHBOARDS)):
            text = json_text(random, bend_json(random, document) if random.random() < 0.5 else document)
            name = random.choice(["x", "../../x", "/x", "a/b", "\x1b", "é" * 200, "x" * 60_000])
            archive.writestr(f"{name}{number}.json", text.encode("utf-8", "replace"))
        archive.writestr(f"{_GOOD}.json", json.dumps(_GOOD_ROW))
    packed = bytearray(content.getvalue())
    if spoilt := random.random() < 0.5:
        _spoil_headers(random, packed)
        packed = bytearray(bend_bytes(random, bytes(packed))) if random.random() < 0.5 else packed
    path = root / "artifact.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed)
    return path, not spoilt


def _spoil_headers(random: Random, packed: bytearray) -> None:
    """Set the flags, methods or checksums of some members."""
    at = -1
    while (at := packed.find(b"PK\x01\x02", at + 1)) >= 0:
        place = at + random.choice([6, 8, 10, 12, 16, 20, 24, 28, 42])
        if random.random() < 0.5 and place < len(packed):
            packed[place] = random.choice([0, 1, 8, 9, 12, 99, 255])


_PLACES: tuple[Callable[[Random, Path], tuple[Path, bool]], ...] = (
    *(_bent_folder, _bent_kanban, _bent_dashboard, _bent_rows, _bent_archive),
)


def _some(random: Random, items: Any) -> Iterator[Any]:
    for _ in range(random.randint(1, 3)):
        yield random.choice(items)


def _write_bent(random: Random, path: Path, document: Any) -> None:
    text = json_text(random, bend_json(random, document) if random.random() < 0.8 else document)
    content = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.2:
        content = gzip.compress(content)
        content = bend_bytes(random, content) if random.random() < 0.5 else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if random.random() < 0.2:
        commands = {"client_command": "vllm bench serve --model m --num-prompts 4", "gpu_type": "H100"}
        path.with_suffix(".commands").write_text(
            json_text(random, bend_json(random, commands)), "utf-8", "replace"
        )
