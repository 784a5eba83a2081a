"""`make demo-compare`: three comparisons on the real vLLM whose answers are known.

A against A (two commits that differ in a comment), which must be the same within 10 per cent: inconclusive
is no pass, and more --blocks may settle it; a planted slowdown of about 40 per cent, whose interval must hold
what was planted; and a variant that cuts the answers short, which must be a regression by its guard, however
fast it is. Leaves in build/demo-compare/: the history in repo/, state/ with journals and raw files, a report
of each, verdict.json. Exits 0 if all three are as they must be, 1 if one is wrong, 4 if one is open. On two
cores it takes about an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_OURS
from scripts import demo_history
from scripts.demo import (
    CACHE,
    CELL,
    DAY,
    PACKAGE,
    PROGRAM,
    ROOT,
    VERSION,
    install_release,
    new_folder,
    say,
    write_verdict,
)

SHARE = 0.4
"""Part of each step that the planted commit spends once more. Time per token grows by about as much, a little
more or less: what a scheduler waits is not all of what a token takes."""

WITHIN = (0.25, 0.55)
"""What counts as having planted 40 per cent, measured by more launches than the demonstration makes."""

SMALLEST = "10%"
"""Smallest relevant effect. To show that two commits are the same within the metric's own 3 % takes hundreds
of launches on two shared cores."""

SHORT = {"short": {"serve_args": {"override-generation-config": {"max_new_tokens": 20}}}}
"""A server that answers with at most twenty tokens, where thirty-two are asked for."""


@dataclass(frozen=True)
class Case:
    """A comparison with what must come of it."""

    name: str
    a: str
    b: str
    blocks: int
    word: str


def prepare(folder: Path) -> tuple[Path, tuple[str, ...], Path]:
    """The history, its commits, and the cell with a variant that cuts answers short."""
    environment = install_release(folder / "install.log")
    demo = demo_history.make(
        Path(environment.engine_file).parent.parent,
        folder / "repo",
        commits=3,
        places=demo_history.Places(planted=2, broken=0, docs=0),
        share=SHARE,
    )
    cell = yaml.safe_load((ROOT / "cells" / f"{CELL}.yaml").read_text())
    cell["model"] = str((ROOT / "cells" / cell["model"]).resolve())
    cell["variants"] = SHORT
    path = folder / "cell.yaml"
    path.write_text(yaml.safe_dump(cell, sort_keys=False))
    return demo.path, demo.commits, path


def cases(commits: Sequence[str], blocks: int) -> tuple[Case, ...]:
    """The three comparisons; ``blocks``: at most, of the first two."""
    first, same, slow = commits[:3]
    return (
        Case("a against a", first, same, blocks, "same"),
        Case("planted 40 %", same, slow, blocks, "regression"),
        Case("shorter answers", first, f"{first}+short", 2, "regression"),
    )


def compare(case: Case, repository: Path, cell: Path, folder: Path, base: str) -> dict[str, Any]:
    """Run the command line as a user would; returns its document."""
    command = [
        *(PROGRAM, "compare", str(cell)),
        *("--repo", str(repository), "--a", case.a, "--b", case.b, "--blocks", str(case.blocks)),
        *("--min-effect", SMALLEST),
        *("--env", f"overlay:{PACKAGE}=={VERSION},base={base}", "--exclude-newer", DAY, "--json", "--full"),
    ]
    say(f"{case.name}: {' '.join(['perfbisect', *command[1:]])}")
    environment = os.environ | {"PERFBISECT_STATE": str(folder / "state"), "PERFBISECT_CACHE": str(CACHE)}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    for text in document.get("summary", (document.get("error", ""),)):
        say(f"  {text}")
    return document


def judge(case: Case, document: Mapping[str, Any]) -> dict[str, object]:
    """The verdict beside what must come of it."""
    rows = document.get("metrics", ({},))
    word, low, high = document.get("verdict"), rows[0].get("low"), rows[0].get("high")
    good = word == case.word
    if case.name.startswith("planted") and good:
        good = low is not None and high is not None and low < WITHIN[1] and high > WITHIN[0]
    if case.name.startswith("shorter") and good:
        good = any(row["name"] == "output_tokens" and row["verdict"] == "regression" for row in rows)
    return {
        "case": case.name,
        "word": word,
        "headline": rows[0].get("verdict"),
        "interval": [low, high],
        "launches": document.get("launches_a_side"),
        "result": "as it must be" if good else "open" if word == "inconclusive" else "wrong",
    }


def exit_code(results: Sequence[object]) -> int:
    """Of all cases: 1 if one is wrong, or there is none; 4 if one is open."""
    if not results or "wrong" in results:
        return EXIT_OURS
    return EXIT_INCONCLUSIVE if "open" in results else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare, compare, judge; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="a part of one case's name")
    parser.add_argument("--times", type=int, default=1, help="how often each case is measured")
    parser.add_argument("--blocks", type=int, default=5, help="most blocks of a case")
    options = parser.parse_args(argv)
    folder = new_folder("demo-compare")
    repository, commits, cell = prepare(folder)
    verdicts = [
        judge(case, compare(case, repository, cell, folder, commits[0]))
        for case in cases(commits, options.blocks)
        if not options.only or options.only in case.name
        for _ in range(options.times)
    ]
    write_verdict(folder, verdicts)
    for verdict in verdicts:
        if verdict["result"] == "open":
            say(f"{verdict['case']}: inconclusive, which is no pass; more --blocks may settle it")
    return exit_code([verdict["result"] for verdict in verdicts])


if __name__ == "__main__":
    sys.exit(main())
