"""The commands of the documents, run: as they are typed, or as far as --dry-run goes.

``ways.py`` says how each verb's are tried, and why some are not.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import pytest

from perfbisect.machine import devices
from tests.cells.importers.test_perf_eval import PROFILES, RECIPE
from tests.cells.importers.test_perf_specs import SPEECH, server
from tests.command_line import isolate, type_command
from tests.docs.commands import ROOT, Document, commands_of, documents, leaf_of
from tests.docs.ways import WAYS, way_of
from tests.environments.wheel_index import Index, serving
from tests.fakes import checkouts
from tests.fakes.gitwriter import run_git
from tests.long import mostly_long
from tests.machine import fake_smi
from tests.nightlies import make_nightlies
from tests.series.made import write
from tests.series.sources.test_dashboards import perf_row

INDEX = "https://wheels.vllm.ai"
FIT = {0, 3, 4}
"""Exit codes of a command that did what it says ..."""
FIT_OF = {"doctor": {5}, "cells lint": {2}}
"""... and of some: the machine of the tests may be unfit, their checkout has not all that a cell names."""

DOCUMENTS = [document for document in documents() if document.name != "docs/tutorial.md"]
LONG = ("cli.md", "docs/bisect.md", "docs/track.md")
"""The tutorial has a test of its own."""


@dataclass(frozen=True)
class World:
    """What a user has: checkouts, results of nightlies, cells, eight devices; and an index of wheels."""

    folder: Path
    index: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("user")
    (folder / "bin").mkdir()
    fake_smi.install(folder / "bin", fake_smi.MACHINES / "eight")
    commits = checkouts.vllm(folder / "vllm")
    who = ("-c", "user.name=Tester", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    tree = ("commit-tree", f"{commits[4]}^{{tree}}", "-p", commits[2], "-m", "[Perf] Step (#7)")
    pull = run_git(folder / "vllm", *who, *tree).strip()
    run_git(folder / "vllm", "update-ref", "refs/pull/7/head", pull)
    checkouts.omni(folder / "vllm-omni")
    specification = folder / "vllm-omni" / "tests" / "dfx" / "perf" / "tests" / "test_tts.json"
    specification.parent.mkdir(parents=True)
    specification.write_text(json.dumps([server(SPEECH)]))
    made = make_nightlies(folder / "made")
    made.repo.rename(folder / "nights")
    made.all.rename(folder / "nightly-results")
    write(folder / "perf-eval" / "workloads" / "talker_h200.yaml", RECIPE)
    write(folder / "perf-eval" / "lib" / "gpu_profiles.yaml", PROFILES)
    write(folder / "perf.json", json.dumps({"rows": [perf_row()]}))
    with zipfile.ZipFile(folder / "results_bmk.zip", "w") as archive:
        archive.writestr("perf.json", json.dumps({"rows": [perf_row(conc="64")]}))
    (folder / "cells").mkdir()
    shipped = (ROOT / "cells" / "text_latency_c1.yaml").read_text()
    (folder / "cells" / "own.yaml").write_text(shipped)
    weights = "".join(f"{glob}: {factor}\n" for glob, factor in (("vllm/*", 3), ("docs/*", 1)))
    (folder / "weights.yaml").write_text(weights)
    (folder / "report.md").write_text("We ran `vllm bench serve --model Qwen/Qwen3-8B --num-prompts 48`.")
    (folder / "result.json").write_text(json.dumps({"model_id": "Qwen/Qwen3-8B", "num_prompts": 48}))
    with serving() as index:
        _wheels(index, commits)
        for name, environment in (
            ("vllm", f"overlay:vllm==0.32.0,base=v0.32.0,wheel:{index.address}/{{sha}}"),
            ("vllm-omni", f"pinned:vllm_omni,wheel={index.address}/{{sha}}"),
            ("nights", f"overlay:{sys.executable},base=any"),
        ):
            (folder / name / "perfbisect.yaml").write_text(f"env: {environment}\n")
        yield World(folder, index.address)


def _wheels(index: Index, commits: tuple[str, ...]) -> None:
    """A page of a wheel for each commit, which nobody fetches."""
    link = b'<a href="../vllm-0.32.1-py3-none-any.whl">vllm-0.32.1-py3-none-any.whl</a>'
    for sha in commits:
        for variant in ("", "/cu130", "/cu129", "/cpu"):
            index.files[f"/{sha}{variant}/vllm/"] = link


@pytest.fixture(autouse=True)
def at_home(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the user's folder, with eight devices; state and locks of each test are its own."""
    isolate(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", f"{world.folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(world.folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(world.folder)
    devices.gpus.cache_clear()
    yield
    devices.gpus.cache_clear()


def typed(words: tuple[str, ...], world: World) -> tuple[int, str]:
    """(exit code, all that was printed)."""
    arguments = [
        path
        for word in words
        for path in (sorted(glob(word)) or [os.path.expanduser(word).replace(INDEX, world.index)])  # noqa: PTH111, PTH207
    ]
    result = type_command(arguments)
    return result.code, result.out + result.err


@pytest.mark.parametrize(
    "document",
    mostly_long(DOCUMENTS, short=[document for document in DOCUMENTS if document.name not in LONG]),
    ids=lambda document: document.name,
)
def test_what_a_document_types_does_what_it_says(document: Document, world: World) -> None:
    shown = [command for command in commands_of(document) if command.fenced]
    blocks = [command for command in shown if command.program == "perfbisect"]
    tried = [(command, " ".join(leaf_of(command.words)[0])) for command in blocks]
    unknown = {verb for _, verb in tried if verb and verb not in WAYS}
    assert unknown == set(), "ways.py does not say how commands of these verbs are tried"
    wanted = [(command, verb, way_of(command, verb or command.words[0])) for command, verb in tried]
    asks = [(command, verb, way) for command, verb, way in wanted if way.words]
    if any(verb.startswith(("track", "dashboard")) for _, verb, _ in asks):
        for words in (("ingest", "nightly-results", "--zone", "UTC"), ("ingest", "perf.json"), ("detect",)):
            assert typed(("track", *words), world)[0] == 0
    # Several documents of one worker write it, and nothing is overwritten.
    (world.folder / "cell.yaml").unlink(missing_ok=True)
    wrong = []
    for command, verb, way in asks:
        code, told = typed(way.words, world)
        if code not in FIT | FIT_OF.get(verb, set()):
            wrong.append(f"{command.place}: {' '.join(way.words)}\nexit {code}: {told[-600:]}")
    assert not wrong, "\n".join(wrong)


def test_each_verb_of_the_command_line_is_tried_or_says_why_not() -> None:
    from perfbisect.cli.schema import documents

    assert documents().keys() - {"error", "version"} - WAYS.keys() == set(), "those two are no verbs"
