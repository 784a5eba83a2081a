"""`make demo-omni`: plant slow commits in vLLM-Omni's Python, let perfbisect find them with the real server.

Two histories over the tree of a release, with one slow commit each, at places drawn from the seed: one makes
the first packet of sound wait, one decodes twice. Leaves in build/demo-omni/NAME/ what `make demo` leaves in
build/demo/. Exits 0 if and only if each planted commit, and no other, was named.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts import omni_cpu
from scripts.demo import NAMED, Prepared, bisect, judge, new_folder, say, write_verdict
from scripts.demo_history import EDITS, tracked_files
from tests.fakes.gitwriter import HistoryWriter

COMMITS = 12
BUDGET = "90m"

FIRST = 1_790_000_000
"""Time of the first commit, in the era of the release's options: 2026-09-21."""

CHUNKS = "vllm_omni/model_executor/stage_input_processors/qwen3_tts.py"
DECODER = "vllm_omni/model_executor/models/qwen3_tts/qwen3_tts_code2wav.py"

TARGETS = (
    "vllm_omni/entrypoints/openai/serving_speech.py",
    "vllm_omni/engine/orchestrator.py",
    "vllm_omni/core/sched/omni_ar_scheduler.py",
    "vllm_omni/metrics/stats.py",
    "vllm_omni/engine/stage_pool.py",
    "vllm_omni/core/sched/omni_generation_scheduler.py",
    "vllm_omni/entrypoints/async_omni.py",
    "vllm_omni/engine/output_processor.py",
    "vllm_omni/model_executor/models/qwen3_tts/qwen3_tts_talker.py",
    "vllm_omni/engine/stage_runtime.py",
    "vllm_omni/model_executor/models/qwen3_tts/pipeline.py",
    "vllm_omni/entrypoints/openai/api_server.py",
)


def wait_for_frames(source: str) -> str:
    """The first packet waits for eight frames of sound instead of the one that the deploy YAML says."""
    line = "    initial_chunk_size = configured_initial_chunk_size\n"
    longer = "    initial_chunk_size = max(configured_initial_chunk_size, 8)\n"
    comment = "    # A longer first window avoids a click at its end.\n"
    return _replace(source, line, comment + longer)


def decode_twice(source: str) -> str:
    """Each window is decoded twice, once on copies of the states."""
    head = "        request_wavs = decoder.batched_chunked_decode(\n"
    tail = "\n        )\n"
    _, found, rest = source.partition(head)
    call = rest[: rest.find(tail)] + tail if found else ""
    checked = head.replace("request_wavs = ", "") + call.replace(
        "caches=request_states", "caches=copy.deepcopy(request_states)"
    )
    comment = "        # Errors show before a state changes.\n"
    return _replace(
        _replace(source, head, comment + checked + head), "import os\n", "import copy\nimport os\n"
    )


def _replace(source: str, text: str, by: str) -> str:
    if source.count(text) != 1:
        raise SystemExit(f"the release is not the one that is known: {text.strip()!r} is not there once")
    return source.replace(text, by)


@dataclass(frozen=True)
class OmniPlant:
    """A slow commit: the metric that it moves, its subject, file and edit."""

    metric: str
    subject: str
    file: str
    edit: Callable[[str], str]


PLANTS = {
    "first-packet": OmniPlant(
        "audio_ttfp", "[Bugfix] Avoid a click after the first packet", CHUNKS, wait_for_frames
    ),
    "decoder": OmniPlant(
        "audio_rtf", "[Misc] Check a window before its state changes", DECODER, decode_twice
    ),
}


def make_history(site_packages: Path, path: Path, plant: OmniPlant, place: int) -> tuple[str, ...]:
    """Write a repository of the release and twelve commits, of which the one at ``place`` is slow."""
    files = tracked_files(site_packages, "vllm_omni")
    if missing := [name for name in (CHUNKS, DECODER, *TARGETS) if name not in files]:
        raise SystemExit(f"{site_packages} holds no vLLM-Omni that is known: {missing[0]} is not there")
    writer = HistoryWriter(path, first=FIRST)
    writer.commit(f"Release {omni_cpu.VERSION}", files)
    for position in range(1, COMMITS + 1):
        if position == place:
            target, subject = plant.file, plant.subject
            edited = plant.edit(files[target].decode())
        else:
            target = TARGETS[position - 1]
            template, edit = EDITS[position % len(EDITS)]
            subject, edited = template.format(name=Path(target).stem), edit(files[target].decode(), position)
        compile(edited, target, "exec")
        files[target] = edited.encode()
        writer.commit(subject, {target: files[target]})
    return writer.finish()


def find(name: str, folder: Path, omni: omni_cpu.OmniCpu, place: int) -> bool:
    """Plant, bisect and compare; whether the planted commit was named."""
    plant, started = PLANTS[name], time.monotonic()
    (folder / name).mkdir()
    commits = make_history(omni.site, folder / name / "repo", plant, place)
    spec = f"overlay:{omni.interpreter},package=vllm_omni,base={commits[0]}"
    prepared = Prepared(
        folder / name / "repo",
        commits[0],
        commits[-1],
        commits[place],
        (str(omni_cpu.CELL), "--env", spec, "--machine", "cpu", "--metric", plant.metric),
        place=place,
    )
    say(
        f"planted {prepared.planted[:12]} ({plant.metric}) as commit {place} of {COMMITS} "
        f"in {prepared.repository}"
    )
    code, result = bisect(prepared, folder / name, BUDGET)
    verdict = judge(prepared, code, result, (time.monotonic() - started) / 60)
    write_verdict(folder / name, verdict)
    found = code == NAMED and verdict["culprit"] == prepared.planted
    say(f"{name}: the planted commit was {'named' if found else 'NOT named'}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Find every plant, one after the other; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="where the slow commits are planted")
    parser.add_argument("--only", choices=PLANTS, help="one of the plants")
    options = parser.parse_args(argv)
    folder = new_folder("demo-omni")
    say(f"installing vLLM-Omni {omni_cpu.VERSION} with its dependencies (about 3 GB, once)")
    omni = omni_cpu.install(folder / "install.log")
    omni_cpu.make_model(omni.interpreter)
    draw = random.Random(options.seed)
    places = {name: draw.randrange(1, COMMITS + 1) for name in PLANTS}
    names = [options.only] if options.only else list(PLANTS)
    found = [find(name, folder, omni, places[name]) for name in names]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
