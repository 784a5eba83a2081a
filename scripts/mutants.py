"""Mutates lines of decisions, processes, journal and reports, and says which mutations the tests catch.

    python -m scripts.mutants                    all of them, about a quarter of an hour
    python -m scripts.mutants --only journal     those whose file or line holds this text
    python -m scripts.mutants --processes        also with the tests of `make test-processes`

Each mutation changes one line in a copy of the repository and runs the tests that should see it; first they
all run without one. Where a line has moved, its entry in the table moves with it. Exit code 1: one was not
caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.simulation import ROOT, print_head, print_row

OTHER_MARKS = "not vllm and not browser and not images and not fleet"
LIMIT_S = 900


@dataclass(frozen=True)
class Mutant:
    """A line of a file in ``perfbisect``, what it becomes, and files or folders in ``tests``."""

    file: str
    line: str
    becomes: str
    tests: tuple[str, ...]


MUTANTS = (
    # Decisions
    Mutant(
        "bisect/decision/endpoints.py",
        "order = (begin, plan.n - begin) if turn % 2 == 0 else (plan.n - begin, begin)",
        "order = (begin, plan.n - begin)",
        ("bisect/decision/test_decide.py",),
    ),
    Mutant(
        "bisect/decision/endpoints.py",
        "if posterior.none < NO_CHANGE_ABOVE and needed <= MAX_LAUNCHES_NEEDED:",
        "if posterior.none < NO_CHANGE_ABOVE:",
        ("bisect/decision/test_decide.py",),
    ),
    Mutant(
        "bisect/decision/confirm.py",
        "return False if launches >= 2 * PAIRS else None",
        "return None",
        ("bisect/decision/test_confirm.py", "bisect/decision/test_decide.py"),
    ),
    Mutant(
        "bisect/decision/confirm.py",
        "return (culprit, parent, parent, culprit)[made % 4]",
        "return (culprit, parent, culprit, parent)[made % 4]",
        ("bisect/decision/test_confirm.py", "bisect/decision/test_decide.py"),
    ),
    Mutant(
        "bisect/decision/decide.py",
        "return state.prices.spent + expected <= state.plan.budget",
        "return state.prices.spent <= state.plan.budget",
        ("bisect/decision/test_decide.py",),
    ),
    Mutant(
        "stats/ab_test.py",
        "elif far_low > 0:",
        "elif low > 0:",
        ("stats/test_ab_test.py",),
    ),
    Mutant(
        "stats/ab_test.py",
        "if max(abs(ends[0]), abs(ends[1])) < test.min_effect:",
        "if min(abs(ends[0]), abs(ends[1])) < test.min_effect:",
        ("stats/test_ab_test.py",),
    ),
    Mutant(
        "stats/sequential.py",
        "shares = (np.arange(1, looks + 1) / looks) ** (shape - 0.5)",
        "shares = (np.arange(1, looks + 1) / looks) ** (0.5 - shape)",
        ("stats/test_sequential.py",),
    ),
    Mutant(
        "series/detection/fdr.py",
        "return fdr * int(rejected.max(initial=0)) / max(1, len(p))",
        "return fdr",
        ("series/detection/test_fdr.py",),
    ),
    # Processes
    Mutant(
        "system/processes.py",
        "return row is not None and row.living and row.created == created",
        "return row is not None and row.living",
        ("system/test_proc.py", "jobs/test_jobs.py"),
    ),
    Mutant(
        "system/processes.py",
        "self._seen.update(member.identity for member in found[0])",
        "pass",
        ("system/test_proc.py",),
    ),
    Mutant(
        "system/ports.py",
        "if not listener.holders or any(holder.identity not in identities for holder in listener.holders)",
        "if any(holder.identity not in identities for holder in listener.holders)",
        ("system/test_ports.py",),
    ),
    Mutant(
        "system/shim.py",
        "if channel.receive() is None:",
        "if False:",
        ("system/test_proc.py",),
    ),
    # Journal
    Mutant(
        "jobs/journal.py",
        "os.fsync(self._file)",
        "pass",
        ("jobs/test_journal.py",),
    ),
    Mutant(
        "jobs/journal.py",
        "os.truncate(path, contents.whole)",
        "pass",
        ("jobs/test_journal.py",),
    ),
    Mutant(
        "jobs/replay.py",
        "if launch.built and not is_retry:",
        "if launch.built:",
        ("jobs/test_faults.py", "jobs/test_resume.py"),
    ),
    Mutant(
        "jobs/replay.py",
        "self._offset, self._first = reached + max(0.0, passed), seconds()",
        "self._offset, self._first = reached, seconds()",
        ("jobs/test_faults.py",),
    ),
    # Reports
    Mutant(
        "report/markdown.py",
        'return marked.replace("<", "&lt;")',
        "return marked",
        ("report/test_markdown.py",),
    ),
    Mutant(
        "common/quantities.py",
        'return f"{share * 100:+.1f} %" if signed else f"{share * 100:.1f} %"',
        'return f"{share * 100:.1f} %"',
        ("golden",),
    ),
    Mutant(
        "bisect/job.py",
        '_EXIT_CODES = {"found": EXIT_REGRESSION, "not reproduced": EXIT_OK}',
        '_EXIT_CODES = {"found": EXIT_REGRESSION}',
        ("golden",),
    ),
)


class MovedLineError(ValueError):
    """A line of the table stands no more, or more than once, in its file."""


def mutate(text: str, line: str, becomes: str) -> str:
    """The text with its only such line replaced. :raises MovedLineError: there is not exactly one."""
    lines = text.splitlines(keepends=True)
    found = [number for number, standing in enumerate(lines) if standing.strip() == line]
    if len(found) != 1:
        raise MovedLineError(f"{len(found)} lines are: {line}")
    lines[found[0]] = lines[found[0]].replace(line, becomes)
    return "".join(lines)


def missing_lines(package: Path, mutants: Sequence[Mutant] = MUTANTS) -> list[str]:
    """What is wrong with the table, as sentences."""
    problems = []
    for mutant in mutants:
        try:
            mutate((package / mutant.file).read_text(), mutant.line, mutant.becomes)
        except (OSError, MovedLineError) as error:
            problems.append(f"{mutant.file}: {error}")
        tests = package.parent / "tests"
        problems += [f"tests/{name}: no such tests" for name in mutant.tests if not (tests / name).exists()]
    return problems


def copy_repository(folder: Path) -> None:
    """Copy the files that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def failing_test(folder: Path, tests: Sequence[str], marks: str) -> str:
    """The first test that fails, or why none can be named; empty where all pass."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marks]
    try:
        done = subprocess.run(
            [*words, *(f"tests/{name}" for name in tests)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].partition(" ")[2] if failed else f"exit code {done.returncode}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row a mutant. :returns: 1 where one is not caught."""
    options = argparse.ArgumentParser(description="Which mutations of the package the tests catch.")
    options.add_argument("--only", default="", help="mutants whose file or line holds this text")
    options.add_argument("--processes", action="store_true", help="run the tests of processes, too")
    chosen = options.parse_args(arguments)
    problems = missing_lines(ROOT / "perfbisect")
    if problems:
        raise SystemExit("\n".join(["the table of scripts/mutants.py is out of date:", *problems]))
    marks = OTHER_MARKS if chosen.processes else f"{OTHER_MARKS} and not processes"
    mutants = [mutant for mutant in MUTANTS if chosen.only in mutant.file or chosen.only in mutant.line]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="perfbisect-mutants-") as name:
        folder = Path(name)
        copy_repository(folder)
        wrong = failing_test(folder, sorted({test for mutant in mutants for test in mutant.tests}), marks)
        if wrong:
            raise SystemExit(f"without a mutation fails: {wrong}")
        print_head("file", "line", "becomes", "caught by")
        for mutant in mutants:
            path = folder / "perfbisect" / mutant.file
            text = path.read_text()
            path.write_text(mutate(text, mutant.line, mutant.becomes))
            caught = failing_test(folder, mutant.tests, marks)
            path.write_text(text)
            survivors += not caught
            print_row([mutant.file, f"`{mutant.line}`", f"`{mutant.becomes}`", caught or "**none**"])
    print(f"\n{len(mutants) - survivors} of {len(mutants)} are caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
