"""Gives bent inputs to every border of perfbisect and counts tracebacks, hangs and crashes.

``python -m scripts.fuzz --inputs 20000 --seed 7`` ends with 1 on any finding and keeps its input. Input
N of a seed is always the same. Each area runs in processes of their own, so that a crash of the interpreter
is seen and belongs to its input.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import psutil

AREAS = {
    "cells": ("scripts.fuzz.cells:load_bent_cell", 5),
    "configurations": ("scripts.fuzz.cells:read_bent_configuration", 2),
    "specifications": ("scripts.fuzz.cells:import_bent_specification", 2),
    "match": ("scripts.fuzz.cells:match_bent_report", 3),
    "ingest": ("scripts.fuzz.foreign:ingest_bent_files", 3),
    "results": ("scripts.fuzz.results:read_bent_result", 2),
    "journals": ("scripts.fuzz.journals:replay_bent_journal", 1),
    "logs": ("scripts.fuzz.logs:read_bent_log", 2),
}
"""Area -> its function and its share of the inputs."""

LONGEST_S = 5.0
"""CPU seconds of an input; more is a hang. Wall time would depend on other work on the machine."""
_WALL_S = 120.0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", choices=AREAS, action="append", help="only this; may be repeated")
    parser.add_argument("--first", type=int, default=0, help="the first input of each area")
    parser.add_argument("--keep", type=Path, help="folder of the inputs that fail")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.worker:
        return work(*given.worker, given.seed)
    areas = given.area or list(AREAS)
    keep = given.keep or Path(tempfile.mkdtemp(prefix="perfbisect-fuzz-findings-"))
    shares = {name: AREAS[name][1] for name in areas}
    counts = {name: given.inputs * share // sum(shares.values()) for name, share in shares.items()}
    counts[areas[0]] += given.inputs - sum(counts.values())
    print(f"seed {given.seed}, {given.inputs} inputs; what fails is kept in {keep}", flush=True)

    def run(name: str) -> Counter[str]:
        found: Counter[str] = Counter()
        began, numbers = time.monotonic(), range(given.first, given.first + counts[name])
        for kind, number, text in fuzz(name, given.seed, numbers, keep):
            found[kind] += 1
            print(f"{name} {number}: {kind}\n{text}", flush=True)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{name:15} {counts[name]:6} inputs  {_row(found)}  {took}", flush=True)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # The work is in processes of the areas.
        findings = sum(pool.map(run, areas), Counter[str]())
    print(f"{'all':15} {sum(counts.values()):6} inputs  {_row(findings)}")
    return 1 if findings.total() else 0


def _row(found: Counter[str]) -> str:
    return f"{found['traceback']} tracebacks, {found['hang']} hangs, {found['crash']} crashes"


def fuzz(name: str, seed: int, numbers: range, keep: Path) -> Iterator[tuple[str, int, str]]:
    """Run the inputs of an area in a process, and in a new one after each crash or hang.

    Yields kind, number and text of each finding.
    """
    pending = list(reversed(numbers))
    while pending:
        with tempfile.TemporaryDirectory(prefix="perfbisect-fuzz-") as scratch:
            with Path(scratch, "stderr").open("wb") as errors:
                worker = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "scripts.fuzz",
                        "--worker",
                        name,
                        AREAS[name][0],
                        "--seed",
                        str(seed),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, "TMPDIR": scratch, "HOME": scratch, "PYTHONHASHSEED": "0"},
                    text=True,
                )
            _ask(worker, "ready")
            while pending:
                number = pending.pop()
                answer = _ask(worker, str(number))
                if answer.get("ok"):
                    continue
                kept = keep / f"{name}-{seed}-{number}"
                shutil.copytree(Path(scratch, "input"), kept, dirs_exist_ok=True, symlinks=True)
                text = f"{answer['text']}\n{_end_of(scratch) if answer['kind'] == 'crash' else ''}"
                (kept / "FINDING.txt").write_text(text)
                yield answer["kind"], number, text
                if answer["kind"] != "traceback":
                    break
            worker.kill()
            worker.communicate()


def _end_of(scratch: str) -> str:
    return Path(scratch, "stderr").read_text(errors="replace")[-3000:]


def _ask(worker: subprocess.Popen[str], question: str) -> dict[str, Any]:
    """The answer to an input; a hang or a crash of the worker where none comes."""
    assert worker.stdin is not None and worker.stdout is not None
    process = psutil.Process(worker.pid)
    cpu, began = _cpu(process), time.monotonic()
    try:
        worker.stdin.write(question + "\n")
        worker.stdin.flush()
        limit = LONGEST_S if question.isdigit() else _WALL_S
        while not select.select([worker.stdout], [], [], 0.5)[0]:
            used = _cpu(process) - cpu
            if used > limit or time.monotonic() - began > _WALL_S:
                return {"kind": "hang", "text": f"no end after {used:.1f} s of CPU"}
        line = worker.stdout.readline()
    except (BrokenPipeError, psutil.Error):
        line = ""
    if not line:
        return {"kind": "crash", "text": f"the interpreter ended with {worker.wait()}"}
    answer: dict[str, Any] = json.loads(line)
    if (used := _cpu(process) - cpu) > LONGEST_S and question.isdigit() and answer.get("ok"):
        return {"kind": "hang", "text": f"ended after {used:.1f} s of CPU"}
    return answer


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def work(name: str, path: str, seed: int) -> int:
    """Run the inputs whose numbers come on standard input, and answer each by a line.

    ``path``: of the area's function, ``MODULE:FUNCTION``.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What an input prints is no answer.
    module, _, function = path.partition(":")
    run = getattr(importlib.import_module(module), function)
    folder = Path(tempfile.gettempdir()) / "input"
    for line in sys.stdin:
        question = line.strip()
        answer: dict[str, Any] = {"ok": True}
        if question.isdigit():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                run(Random(f"{name} {seed} {question}"), folder)
            except BaseException:
                rows = traceback.format_exc().splitlines()[-40:]
                answer = {"kind": "traceback", "text": "\n".join(row[:200] for row in rows)}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
