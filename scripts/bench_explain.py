"""`make bench-explain`: what `perfbisect explain` says of commits of twelve kinds, planted in the real vLLM.

    python -m scripts.bench_explain [--only "a spin"] [--pairs 20] [--seed 1] [--no-hunks] [--no-profile]
    python -m scripts.bench_explain --only none --pairs 20

Each kind of :mod:`scripts.explain_plants` is bisected from its parent on, profiled but for --no-profile, and
searched for its hunk but for --no-hunks. --pairs adds neighbours in a history of harmless edits: two launches
of each commit are profiled, and each commit is compared with the next as if an A/B had shown it to be slower.
Leaves in build/bench-explain/ the histories, state/, every document, and results.json, from which a later
call with the same seed goes on, also to what an earlier one left out. Prints a row for each and exits 0 if
the bars hold, 1 if not, 4 while kinds are missing, or some have a profile or a search and others none. On two
quiet cores a bisection takes about eight minutes, a profile four, a search of hunks a quarter of an hour, a
pair three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perfbisect.environments.factory import make_builder
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_OK, EXIT_OURS, EXIT_OUTSIDE
from perfbisect.explain.profile_job import ProfilePlan, ProfileResultDocument, compare_sides
from perfbisect.jobs.folders import Job
from perfbisect.jobs.journal import read
from perfbisect.jobs.plans import require_plan
from perfbisect.jobs.replay import launches
from perfbisect.model.change import Change
from scripts.demo import BUILD, CACHE, CELL, DAY, PACKAGE, ROOT, VERSION, say
from scripts.explain_plants import KINDS, Planted, make, make_equal

FOLDER = BUILD / "bench-explain"

LEAST_FILES, LEAST_HUNKS = 10, 10
"""Of the twelve kinds: right file first, and right hunk among decoys."""

BUDGET = "45m"
"""Of a bisection: what is planted is far above the noise."""

PAIRS = 20
"""That differ in nothing: the bar asks for so many."""

PAIR_BUDGET = "1m"
"""Of the comparison that a profile follows: its verdict is not used."""

IN_THE_DIFF = ("in the diff", "called from the diff")


@dataclass(frozen=True)
class Score:
    """What was said of one commit. ``said``: the conclusion's kind; ``place``, ``hunk``: what is named first.

    ``is_right_file`` and ``is_right_hunk`` are None where there was no profile, or no search.
    """

    name: str
    seed: int
    verdict: str
    said: str = ""
    place: str = ""
    is_right_file: bool | None = None
    sentence: str = ""
    hunk: str = ""
    is_right_hunk: bool | None = None
    launches: int = 0
    """Of the search of hunks."""


@dataclass(frozen=True)
class Pair:
    """What the profiles of two neighbours that differ in harmless edits say; ``growth``: in ms a step."""

    seed: int
    number: int
    said: str
    growth: float
    sentence: str


def prepare(folder: Path) -> Path:
    """The packages of the real vLLM."""
    builder = make_builder(f"release:{PACKAGE}", repository=None, cache=CACHE, exclude_newer=DAY)
    change = Change(f"{PACKAGE}=={VERSION}", kind="release")
    environment = builder.ensure(change, log=folder / "install.log", timeout=3600.0)
    return Path(environment.engine_file).parent.parent


def call(folder: Path, name: str, *arguments: str) -> dict[str, Any]:
    """Run the command line as a user would; returns its document, which is kept.

    Raises:
        SystemExit: it was interrupted, or this machine cannot run it, which says nothing of the commit.
    """
    command = [str(Path(sys.executable).with_name("perfbisect")), *arguments, "--json", "--full"]
    say(" ".join(["perfbisect", *command[1:]]))
    environment = os.environ | {"PERFBISECT_STATE": str(FOLDER / "state"), "PERFBISECT_CACHE": str(CACHE)}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    if done.returncode in (EXIT_OUTSIDE, EXIT_INTERRUPTED):
        raise SystemExit(f"{document.get('error')}; next: {document.get('next')}")
    return document


def judge_profile(result: Score, planted: Planted, profile: Mapping[str, Any]) -> Score:
    """What the profile says beside what was planted.

    The file is right if the place is where the time goes and the sentence names the guilty file, which is
    another one where the commit only changes what code elsewhere does.
    """
    said = profile.get("result") or {}
    place, sentence = str(said.get("place", "")), str(said.get("sentence", ""))
    return replace(
        result,
        said=str(said.get("kind", profile.get("error", ""))),
        place=place,
        is_right_file=bool(place) and place.split(":")[0] == planted.hot and planted.guilty in sentence,
        sentence=sentence,
    )


def named_hunk(planted: Planted, document: Mapping[str, Any]) -> tuple[str, bool]:
    """The label of the group that a search of hunks names, and whether that holds the guilty line."""
    guilty = [group for group in document.get("groups", ()) if group["guilty"]]
    if document.get("verdict") != "found" or not guilty:
        return str(document.get("verdict", document.get("error", ""))), False
    hunks = [hunk for group in guilty for hunk in group["hunks"]]
    lines = {line.strip() for hunk in hunks for line in (*hunk["added"], *hunk["removed"])}
    is_right = planted.line in lines and {hunk["path"] for hunk in hunks} == {planted.guilty}
    return ", ".join(group["label"] for group in guilty), is_right


def folder_of(kind: str, seed: int) -> Path:
    """Where a commit's history and documents are."""
    return FOLDER / f"{kind.replace(' ', '-')}-{seed}"


def measure(kind: str, seed: int, site_packages: Path) -> Score:
    """Plant and bisect."""
    folder = folder_of(kind, seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    planted = make(site_packages, folder / "repo", kind, seed)
    (folder / "planted.json").write_text(json.dumps(asdict(planted), indent=1, default=str) + "\n")
    say(f"{kind}: {planted.guilty}, {planted.milliseconds:.1f} ms a step")
    sides = ("--good", planted.parent, "--bad", planted.culprit)
    measured = call(
        folder,
        "measured",
        "bisect",
        *workload(planted.repository, planted.parent),
        *sides,
        "--budget",
        BUDGET,
    )
    return Score(kind, seed, str(measured.get("outcome", measured.get("error", ""))))


def workload(repository: Path, base: str) -> tuple[str, ...]:
    """The cell, the history and how its commits are built."""
    environment = f"overlay:{PACKAGE}=={VERSION},base={base}"
    return CELL, "--repo", str(repository), "--env", environment, "--exclude-newer", DAY


def compare_equal(count: int, seed: int, site_packages: Path) -> list[Pair]:
    """Profile the commits of a history of harmless edits two by two, and compare so many neighbours.

    Neighbours are compared within a job and, between two jobs, the later of one with the earlier of the next.
    """
    folder = folder_of("equal", seed)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "jobs.json"
    jobs: list[str] = json.loads(kept.read_text()) if kept.exists() else []
    history = 2 * (count // 2 + 1)
    shutil.rmtree(folder / "repo", ignore_errors=True)
    commits = make_equal(site_packages, folder / "repo", history, seed)
    for number in range(len(jobs), history // 2):
        a, b = commits[2 * number : 2 * number + 2]
        sides = ("--a", a, "--b", b, "--blocks", "1", "--budget", PAIR_BUDGET)
        measured = call(
            folder, f"measured-{number}", "compare", *workload(folder / "repo", commits[0]), *sides
        )
        profile = call(folder, f"profile-{number}", "explain", str(measured["job"]), "--profile")
        jobs.append(str(profile["job"]))
        kept.write_text(json.dumps(jobs) + "\n")
    profiles = [Job(FOLDER / "state" / "jobs" / job) for job in jobs]
    pairs = []
    for number in range(count):
        job, side = profiles[number // 2], number % 2
        # An even number compares the sides of one job, an odd one B of a job with A of the next.
        result = compare_launches((job, side), (profiles[number // 2 + 1], 0) if side else (job, 1))
        pairs.append(Pair(seed, number, result.kind, result.growth_ms, result.sentence))
    return pairs


def compare_launches(a: tuple[Job, int], b: tuple[Job, int]) -> ProfileResultDocument:
    """Compare a side of one profile with a side of another, as if an A/B had shown B to be slower."""
    plans, records = [], []
    for position, (job, side) in enumerate((a, b)):
        events = read(job.journal).events
        plans.append(require_plan(job, events, ProfilePlan))
        records += [
            replace(launch, position=position, folder=str(job.path / launch.folder))
            for launch in launches(events)
            if launch.position == side
        ]
    sides = [plan.sides[side] for plan, (_, side) in zip(plans, (a, b), strict=True)]
    asked = plans[0].model_copy(update={"a": sides[0], "b": sides[1], "is_slower": True})
    return compare_sides(asked, a[0], records)


def explain(result: Score, step: str) -> Score:
    """Profile a commit that was measured (``profile``), or search its hunk (``hunks``)."""
    folder = folder_of(result.name, result.seed)
    planted = Planted(**json.loads((folder / "planted.json").read_text()))
    measured = json.loads((folder / "measured.json").read_text())
    document = call(folder, step, "explain", str(measured["job"]), f"--{step}") if "job" in measured else {}
    if step == "profile":
        return judge_profile(result, planted, document)
    hunk, is_right = named_hunk(planted, document)
    return replace(result, hunk=hunk, is_right_hunk=is_right, launches=len(document.get("launches", ())))


def row(result: Score) -> str:
    """One commit as a row of the table."""
    words = {True: "right", False: "wrong", None: "-"}
    cells = (
        result.name,
        result.verdict,
        result.said or "-",
        result.place or "-",
        words[result.is_right_file],
        result.hunk or "-",
        words[result.is_right_hunk],
        str(result.launches or "-"),
    )
    return "| " + " | ".join(cells) + " |"


def bars(results: Sequence[Score], pairs: Sequence[Pair]) -> tuple[list[str], int]:
    """The bars of what was asked as lines, and the exit code."""
    lines, missed, is_whole = [], False, len(results) == len(KINDS)
    for name, least, judged in (
        ("right file first", LEAST_FILES, [x.is_right_file for x in results if x.is_right_file is not None]),
        ("right hunk", LEAST_HUNKS, [x.is_right_hunk for x in results if x.is_right_hunk is not None]),
    ):
        if judged:
            lines.append(f"{name}: {sum(judged)} of {len(judged)}; bar {least} of {len(KINDS)}")
            missed = missed or len(judged) - sum(judged) > len(KINDS) - least
            is_whole = is_whole and len(judged) == len(KINDS)
    false = sum(pair.said in IN_THE_DIFF for pair in pairs)
    lines.append(f'"in the diff" where nothing differs: {false} of {len(pairs)}; bar 0 of {PAIRS}')
    if false or missed:
        return lines, EXIT_OURS
    return lines, EXIT_OK if is_whole else EXIT_INCONCLUSIVE


def _keep(path: Path, results: Sequence[Score]) -> None:
    path.write_text(json.dumps([asdict(x) for x in results], indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Explain what is missing, print all that is there; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a part of a kind's name")
    parser.add_argument("--pairs", type=int, default=0, help="pairs that differ in nothing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-hunks", action="store_true")
    parser.add_argument("--no-profile", action="store_true")
    options = parser.parse_args(argv)
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "results.json"
    results = [Score(**x) for x in json.loads(kept.read_text())] if kept.exists() else []
    site_packages = prepare(FOLDER)
    for kind in (kind for kind in KINDS if options.only in kind):
        found = next((x for x in results if (x.name, x.seed) == (kind, options.seed)), None)
        results = [
            *(x for x in results if x is not found),
            found or measure(kind, options.seed, site_packages),
        ]
        _keep(kept, results)
        if not options.no_profile and results[-1].is_right_file is None:
            results[-1] = explain(results[-1], "profile")
            _keep(kept, results)
        if not options.no_hunks and results[-1].is_right_hunk is None:
            results[-1] = explain(results[-1], "hunks")
            _keep(kept, results)
    pairs = compare_equal(options.pairs, options.seed, site_packages) if options.pairs else []
    print("| planted | verdict | said | first place | file | hunk | right | launches |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(map(row, results)), end="\n\n")
    for pair in pairs:
        print(f"pair {pair.number + 1}: {pair.said}, {pair.growth:.2f} ms a step: {pair.sentence}")
    lines, code = bars(results, pairs)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
