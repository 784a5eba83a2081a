"""`make bench ARGS=--omni`: seconds of a launch of the real vLLM-Omni server by phase, on two sides by turns.

    python -m scripts.bench --omni [--pairs N] [--before REVISION]

Before: each run of the client imports it, or with ``--before``, perfbisect of a revision. Each launch is of a
commit that its side has not built. Both sides measure the same commits on the same machine, with whatever
else runs there: the ratio is worth more than the seconds, and that of CPU seconds most. There is no limit:
pairs differ by more than what is saved.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from perfbisect.cells.loading import load_cell
from perfbisect.changes.git import Repository
from perfbisect.environments.factory import make_builder
from perfbisect.machine.profile import load_machine
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.measure.local import LocalExecutor
from scripts import omni_cpu
from scripts.demo import ROOT, new_folder, say
from scripts.demo_omni import COMMITS, PLANTS, make_history

Launch = Mapping[str, float]
"""Seconds by phase, of the whole launch and of its CPU time, and the values that were measured."""

SIDES = ("before", "after")
PHASES = ("build", "launch", "first_request", "warm", "bench", "stop", "whole", "cpu")
VALUES = ("audio_ttfp:median", "audio_rtf:median")


def measure(folder: Path, spec: str, *, overlap: bool) -> None:
    """Launch what stdin names, one commit a line; a JSON line for each.

    It is run as a file, with the perfbisect of ``PYTHONPATH``.
    """
    repository = Repository.open(folder.parent / "repo")
    builder = make_builder(spec, repository=repository, cache=folder / "cache")
    executor = LocalExecutor(builder, overlap=overlap, profile=load_machine("cpu"))
    cell = load_cell(omni_cpu.CELL)
    # What a job does once: the base is checked, and the client is identified.
    builder.ensure(repository.resolve("HEAD~11"), log=folder / "base.log", timeout=600.0)
    print(json.dumps({}), flush=True)
    for number, line in enumerate(sys.stdin):
        change, began, used = repository.resolve(line.strip()), time.monotonic(), cpu_s()
        limits = PhaseLimits(ready=1200.0, first_request=600.0, stop=60.0)
        request = AttemptRequest(f"omni-{number}", cell, change, 1, "run", folder / str(number), limits)
        attempt = executor.run(request, started=lambda **_: None, sink=lambda *_: None)
        if attempt.failure is not None:
            raise SystemExit(f"{change.short}: {attempt.failure}")
        whole = time.monotonic() - began
        (run,) = attempt.runs
        values = {key: run.values[key] for key in VALUES}
        print(json.dumps({**attempt.seconds, "whole": whole, "cpu": cpu_s() - used, **values}), flush=True)


def cpu_s() -> float:
    """CPU seconds of this process and of all that it and its children waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def start(tree: Path, folder: Path, spec: str, *, overlap: bool) -> subprocess.Popen[str]:
    """A process that launches by the perfbisect of a tree, once it is ready."""
    folder.mkdir()
    command = [sys.executable, __file__, "--side", str(folder), spec, *(["--overlap"] if overlap else [])]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    side = subprocess.Popen(
        command, cwd=tree, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    answer(side)
    return side


def answer(side: subprocess.Popen[str]) -> dict[str, float]:
    assert side.stdout is not None
    line = side.stdout.readline()
    if not line:
        raise SystemExit(f"a side ended with exit code {side.wait()}")
    found: dict[str, float] = json.loads(line)
    return found


def tree_of(revision: str, folder: Path) -> Path:
    """The files of perfbisect at a revision."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    # The cell names its model below the tree.
    (folder / "build").symlink_to(ROOT / "build")
    return folder


def compare(pairs: int, revision: str) -> None:
    """Launch by turns and print the table."""
    folder = new_folder("bench-omni")
    omni = omni_cpu.install(folder / "install.log")
    omni_cpu.make_model(omni.interpreter)
    # The place of no commit: none of them is slow.
    commits = make_history(omni.site, folder / "repo", PLANTS["decoder"], 0)
    spec = f"overlay:{omni.interpreter},package=vllm_omni,base={commits[0]}"
    before = tree_of(revision, folder / "tree") if revision else ROOT
    sides = {
        "before": start(before, folder / "before", spec, overlap=bool(revision)),
        "after": start(ROOT, folder / "after", spec, overlap=True),
    }
    launches: dict[str, list[Launch]] = {name: [] for name in SIDES}
    for pair, commit in enumerate(commits[2 : 2 + pairs]):
        # The order changes from pair to pair: other work on the machine comes and goes.
        for name in SIDES if pair % 2 == 0 else reversed(SIDES):
            channel = sides[name].stdin
            assert channel is not None
            print(commit, file=channel, flush=True)
            launches[name].append(answer(sides[name]))
            say(f"{name}: {launches[name][-1]['whole']:.0f} s")
    for side in sides.values():
        side.communicate()
    (folder / "launches.json").write_text(json.dumps(launches, indent=1))
    print("\n".join(table(launches)))


def table(launches: Mapping[str, Sequence[Launch]]) -> list[str]:
    """A row for each phase: median seconds before and after, and the median ratio of a pair."""
    rows = [f"{'':<18}{'before':>9}{'after':>9}{'ratio':>8}"]
    pairs = [*zip(launches["before"], launches["after"], strict=True)]
    for name in (*PHASES, *VALUES):
        before, after = (median(launch[name] for launch in launches[side]) for side in SIDES)
        ratio = median(right[name] / left[name] for left, right in pairs)
        rows.append(f"{name:<18}{before:>9.4g}{after:>9.4g}{ratio:>8.2f}")
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, choices=range(1, COMMITS), help="launches of a side")
    parser.add_argument("--before", default="", metavar="REVISION", help="perfbisect of a revision")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--overlap", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.side:
        measure(Path(options.side[0]), options.side[1], overlap=options.overlap)
    else:
        compare(options.pairs, options.before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
