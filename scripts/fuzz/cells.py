"""Cell files, specifications, configurations and reports: bent, read as the commands read them."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml

from perfbisect.cells.drafts import CellDraft, notes_of
from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import read_file, write_cell
from perfbisect.cells.lint import Checkout, lint
from perfbisect.cells.loading import known_cells, load_cells
from perfbisect.cells.match import differing, nearest_cells
from perfbisect.cells.reports import parse_report
from perfbisect.changes.git import Repository
from perfbisect.changes.priors import load_weights
from perfbisect.clients import CLIENTS
from perfbisect.commands.comparisons import find_claim
from perfbisect.commands.settings import load_settings
from perfbisect.errors import UsageError
from perfbisect.fleet.hosts import read_hosts
from perfbisect.jobs.documents import cell_document
from perfbisect.machine.profile import load_machine
from perfbisect.model.cell import Cell, apply_variant, cell_difference
from perfbisect.nightly.config import find_cells, load_nightly
from perfbisect.report.sections import cell_rows
from perfbisect.resources import cells_folder
from perfbisect.series.suspects.table import SHIPPED, load_suspect_table
from perfbisect.serving.families import FAMILIES, Endpoint
from scripts.fuzz.mutate import bend_json, bend_text, json_text
from tests.cells.importers.test_perf_eval import RECIPE
from tests.cells.test_spoilt_specifications import SERVERS, TESTS
from tests.fakes.gitwriter import HistoryWriter

_ENDPOINT = Endpoint(port=4321, model_name="pb-1a2b")


@functools.cache
def _cells() -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted(cells_folder().glob("*.yaml")))


@functools.cache
def _known() -> tuple[Cell, ...]:
    return known_cells()[0]


@functools.cache
def _checkout() -> Checkout:
    folder = Path(tempfile.mkdtemp(prefix="perfbisect-fuzz-"))
    writer = HistoryWriter(folder / "engine")
    writer.commit("first", {"vllm/engine.py": b'OPTIONS = ["--max-model-len", "tensor_parallel_size"]\n'})
    (sha,) = writer.finish()
    return Checkout(Repository(folder / "engine"), sha)


def load_bent_cell(random: Random, folder: Path) -> None:
    """Load a bent cell file; what is loaded is shown, compared, linted and made into commands."""
    path = folder / random.choice(["cell.yaml", "a b.yaml", f"{'n' * 200}.yaml"])
    path.write_text(_bent_yaml(random, random.choice(_cells())), "utf-8", "surrogatepass")
    with contextlib.suppress(UsageError):
        for cell in load_cells(path)[:3]:
            _use(random, cell)


def _use(random: Random, cell: Cell) -> None:
    served = [cell, *(apply_variant(cell, name) for name in cell.variants)]
    for one in served[:3]:
        cell_rows(cell_document(one, one.metric))
        cell_difference(one, _known()[0])
        with contextlib.suppress(UsageError):
            command = FAMILIES[one.family].server(one, _ENDPOINT)
            argv = CLIENTS[one.client.name].command(
                one, _ENDPOINT, seed=1, result=Path("run-1.json"), metadata={"attempt": "a"}
            )
            if any("\0" in word for word in (*command.args, *argv)):
                raise ValueError("a word of a command has a NUL")
    if random.random() < 0.1:
        lint(cell, _checkout())


def read_bent_configuration(random: Random, folder: Path) -> None:
    """Read one bent configuration: perfbisect.yaml, nightly.yaml, hosts, claims and the tables of a user."""
    kind = random.choice(tuple(_CONFIGURATIONS))
    text, read = _CONFIGURATIONS[kind]
    path = folder / kind
    path.write_text(_bent_yaml(random, text), "utf-8", "surrogatepass")
    with contextlib.suppress(UsageError):
        read(path)


def import_bent_specification(random: Random, folder: Path) -> None:
    """Import a bent specification and load the cells that it gives; nothing is written elsewhere."""
    written = folder / "a" / "b"
    written.mkdir(parents=True)
    kind = random.randrange(3)
    path = folder / ("x.yaml" if kind == 0 else "test_x.json")
    text = (
        _bent_yaml(random, RECIPE)
        if kind == 0
        else json_text(random, bend_json(random, SERVERS if kind == 1 else TESTS))
    )
    path.write_text(text, "utf-8", "surrogatepass")
    with contextlib.suppress(UsageError):
        for cell in read_specification(read_file(path)).cells[:5]:
            with contextlib.suppress(UsageError):
                load_cells(write_cell(written, cell))
    if {found.name for found in folder.iterdir()} != {"a", path.name} or len([*written.parent.iterdir()]) > 1:
        raise ValueError("a file was written beside the folder")


def match_bent_report(random: Random, folder: Path) -> None:
    """Match a bent report and make its cell: commands, Python, Markdown, lists, results, tables, names."""
    text = random.choice(_REPORTS)
    if random.random() < 0.3:
        text = "\n".join([text, random.choice(_REPORTS)])
    text = bend_text(random, text)
    (folder / "report.txt").write_text(text, "utf-8", "surrogatepass")
    with contextlib.suppress(UsageError):
        report = parse_report(text)
        for match in nearest_cells(report, _known())[:3]:
            json.dumps([[name, str(a), str(b)] for name, a, b in match.differing])
        draft = CellDraft.of(report)
        path = folder / "cell.yaml"
        path.write_text(draft.text(tuple(notes_of(report, draft))), "utf-8")
        for cell in load_cells(path, incomplete=True):
            json.dumps([[name, str(a), str(b)] for name, a, b in differing(report, cell)])


def _bent_yaml(random: Random, text: str) -> str:
    if random.random() < 0.5:
        return bend_text(random, text)
    document = yaml.safe_load(text)
    bent = bend_json(random, document)
    if random.random() < 0.5:
        return json_text(random, bent)  # JSON is YAML.
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        return yaml.safe_dump(bent, allow_unicode=True, sort_keys=False)
    return bend_text(random, text)


_REPORTS = (
    "vllm bench serve --model org/m --dataset-name random --num-prompts 100 --random-input-len 8",
    'vllm serve org/m -tp 2 --max-model-len 512 --speculative-config \'{"method": "ngram"}\'',
    "```\nMODEL=org/m\n$ vllm serve $MODEL \\\n  --gpu-memory-utilization 0.9\n```\n",
    "python benchmark_serving.py --backend vllm --model org/m --request-rate 4",
    'llm = LLM(model="org/m", tensor_parallel_size=2, enforce_eager=True)',
    "result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json",
    "docker run vllm/vllm-openai:v0.9.0 --model org/m --dtype half",
    "env:\n- name: A\n  value: '1'\ncommand: [vllm, serve, org/m]\nargs: ['--max-model-len', '512']",
    "image: vllm/vllm-openai:v0.12.0\nenv: [VLLM_X=1]\ncommand: >\n  --model org/m -O3",
    "export VLLM_X=1; vllm serve --dtype half org/m -O3\nvllm bench serve --seed $(date +%s) --input-len 8",
    "| model | config | TP |\n|---|---|---|\n| org/m | random-c64-n128 | 2 |\n",
    '{"model_id": "org/m", "num_prompts": 8, "request_rate": "inf", "total_input_tokens": 9, "completed": 3}',
    '{"metadata": {}, "args": {"model": "org/m"}, "benchmarks": [{"config": {"strategy": {"streams": 2}}}]}',
    '{"aiperf_version": "1", "input_config": {"models": {"items": [{"name": "org/m"}]}, "phases": []}}',
)


def _shipped(*parts: str) -> str:
    return cells_folder().joinpath(*parts).read_text()


_CONFIGURATIONS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "perfbisect.yaml": ("env: overlay\nbudget: 3h\n", lambda path: load_settings(path.parent)),
    "nightly.yaml": (
        "cells: [text_ladder]\nbudget: 8h\nbisect: {budget: 2h}\nalerts: {}\n",
        lambda path: find_cells(load_nightly(path)),
    ),
    "hosts.yaml": ("hosts:\n- name: a\n  address: user@10.0.0.7\n- name: b\n", read_hosts),
    "claim.yaml": (_shipped("claims", "async_scheduling.yaml"), lambda path: find_claim(str(path))),
    "weights.yaml": ("- paths: ['vllm/**']\n  factor: 2\n", load_weights),
    "commits.yaml": ("commits:\n  0123abc: 2\n", load_weights),
    "machine.yaml": (_shipped("machines", "spyre.yaml"), lambda path: load_machine(str(path))),
    "suspects.yaml": (SHIPPED.read_text(), load_suspect_table),
}
