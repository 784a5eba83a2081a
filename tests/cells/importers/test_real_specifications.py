"""The real specifications of vLLM-Omni, and the real names of its results, where they are present."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import Specification, read_file
from perfbisect.cells.match import nearest_cells
from perfbisect.cells.reports import parse_report
from perfbisect.model.cell import Cell
from tests.cells.importers.reading import loaded
from tests.shared import data

LISTS = ("num_prompts", "max_concurrency", "request_rate")
NOTES = {"baseline", "name", "enabled", "eval_phase", "skip-performance-assertion"}
"""Keys of a workload that say nothing of what is measured."""


@dataclass(frozen=True)
class Said:
    """A cell as a specification says it: its server, its workload at one place of the lists, the file."""

    file: str
    server: dict[str, Any]
    workload: dict[str, Any]

    @property
    def sounds(self) -> bool:
        return "audio" in str(self.workload.get("percentile-metrics"))

    @property
    def result(self) -> str:
        """How vLLM-Omni's harness began the name of its result in April 2026."""
        if "endpoint" not in self.workload:
            return f"benchmark_results_{self.file}"
        rate, users = self.workload.get("request_rate"), self.workload.get("max_concurrency")
        flow = users if rate is None else rate
        name = f"{self.server['test_name']}_{self.workload['dataset_name']}"
        return f"result_{name}_{flow}_{self.workload['num_prompts']}"


def said_by(path: Path) -> Iterator[Said]:
    """Every cell of a file, by its lists alone."""
    for server in json.loads(path.read_text()):
        for workload in server["benchmark_params"]:
            if workload.get("enabled") is False:
                continue
            plain = dict(workload)
            for name in LISTS:
                if (dashed := name.replace("_", "-")) in plain:
                    plain[name] = plain.pop(dashed)
            lists = {name: plain[name] for name in LISTS if isinstance(plain.get(name), list)}
            longest = max(map(len, lists.values()), default=1)
            for i in range(longest):
                values = {name: value[i % len(value)] for name, value in lists.items()}
                yield Said(path.stem, server, {**plain, **values})


@dataclass(frozen=True)
class Imports:
    """Every file with what it says, what was read from it, and the cells that its files load as."""

    files: tuple[tuple[Path, tuple[Said, ...], Specification, tuple[Cell, ...]], ...]

    @property
    def pairs(self) -> list[tuple[Said, Cell]]:
        return [pair for _, said, _, cells in self.files for pair in zip(said, cells, strict=True)]


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Imports:
    rows = []
    for path in sorted(data("vllm_omni", "perf_specs").glob("*.json")):
        found = read_specification(read_file(path))
        folder = tmp_path_factory.mktemp(path.stem)
        cells = tuple(loaded(folder, found.cells))
        rows.append((path, tuple(said_by(path)), found, cells))
    return Imports(tuple(rows))


def test_every_file_gives_the_cells_its_lists_say(imports: Imports) -> None:
    assert len(imports.files) >= 18
    for path, said, found, cells in imports.files:
        off = path.read_text().count('"enabled": false')
        assert (len(cells), len(found.off), found.left_out) == (len(said), off, {}), path.name
    assert sum(len(found.off) for _, _, found, _ in imports.files) > 0


def test_every_cell_is_at_the_load_and_of_the_model_that_is_said(imports: Imports) -> None:
    for said, cell in imports.pairs:
        rate, users = said.workload.get("request_rate"), said.workload.get("max_concurrency")
        assert cell.num_prompts == said.workload["num_prompts"]
        assert cell.request_rate == (float("inf") if rate is None else rate)
        assert cell.max_concurrency == users
        assert cell.model == said.server["server_params"]["model"]
        assert cell.gpus > 0


def test_every_cell_is_judged_by_what_its_answers_hold(imports: Imports) -> None:
    for said, cell in imports.pairs:
        expected = {
            "/v1/audio/speech": ("tts", "audio_ttfp", {"failed", "audio_duration"}),
            "/v1/completions": ("text", "tpot", {"failed", "output_tokens"}),
            None: ("diffusion", "latency", {"failed"}),
        }.get(said.workload.get("endpoint"))
        if expected is None and said.sounds:
            expected = ("omni", "audio_rtf", {"failed", "output_tokens", "audio_duration"})
        elif expected is None:
            expected = ("omni", "e2el", {"failed", "output_tokens"})
        assert (cell.family, cell.headline, set(cell.guards)) == expected, cell.name


def test_no_two_workloads_share_a_digest_and_no_two_cells_a_name(imports: Imports) -> None:
    seen: dict[str, str] = {}
    for said, cell in imports.pairs:
        workload = {name: value for name, value in said.workload.items() if name not in NOTES}
        server = {**said.server["server_params"], "endpoint": said.server.get("benchmark_endpoint")}
        written = json.dumps([server, workload], sort_keys=True)
        assert seen.setdefault(cell.digest, written) == written, cell.name
    assert len(seen) == len(set(seen.values())) > 100
    names = [cell.name for _, cell in imports.pairs]
    assert len(set(names)) == len(names)


def results() -> dict[str, str]:
    """Every result's name without its time, and one whole name of it."""
    paths = data("kanban").rglob("*.json")
    names = [path.name for path in paths if path.name.startswith(("result_", "benchmark_results_"))]
    return {name.rsplit("_", 1)[0]: name for name in sorted(names)}


def test_every_result_matches_the_cells_of_its_name_where_there_are_any(imports: Imports) -> None:
    """The specifications are of July, the results of April: six loads and one file of images are in both."""
    cells: dict[str, set[str]] = {}
    for said, cell in imports.pairs:
        cells.setdefault(said.result, set()).add(cell.digest)
    matched = set()
    for start, name in results().items():
        found = nearest_cells(parse_report(name), [cell for _, cell in imports.pairs])
        exact = {match.cell.digest for match in found if match.exact}
        assert exact == cells.get(start, set()), name
        if exact:
            matched.add(start)
            continue
        fields = {field for field, _, _ in found[0].differing}
        retired = "test" if "qwen3_tts_random" in name else "load"
        load = {"num_prompts", "max_concurrency", "request_rate"}
        assert fields <= (load if retired == "load" else load | {"test", "dataset_name"}), (name, fields)
    assert matched == {
        *(
            f"result_test_qwen3_omni{kind}_random_{load}"
            for kind in ("", "_chunk")
            for load in ("1_4", "4_16")
        ),
        *(f"result_test_qwen3_omni{kind}_random-mm_0.1_10" for kind in ("", "_chunk")),
        "benchmark_results_test_qwen_image_vllm_omni",
    }
