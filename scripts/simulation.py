"""What the simulations share: their options, sessions in several processes, and tables."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from pathlib import Path
from types import ModuleType
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
"""Where the simulator, the scorer and the measured series lie, unless options say otherwise."""

Name = TypeVar("Name")
World = TypeVar("World")
Session = TypeVar("Session")


def parser(description: str | None, seeds: int | None = None) -> argparse.ArgumentParser:
    """A parser of command lines; with ``seeds``, their default number, the options of :func:`sessions`."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    if seeds is not None:
        made.add_argument("--seeds", type=int, default=seeds)
        made.add_argument("--first", type=int, default=0, help="first seed")
        made.add_argument("--procs", type=int, default=1)
        made.add_argument("--worlds", default="", help="parts of names, separated by semicolons")
    return made


def choose(known: Mapping[str, World], wanted: str, what: str = "world") -> dict[str, World]:
    """Worlds whose names hold a part of ``wanted``. :raises SystemExit: there is none."""
    parts = [part.strip() for part in wanted.split(";") if part.strip()]
    chosen = {name: world for name, world in known.items() if not parts or any(p in name for p in parts)}
    if not chosen:
        raise SystemExit(f"no such {what}; known: {'; '.join(known)}")
    return chosen


def sessions(
    trials: Mapping[Name, Callable[[int], Session]], options: argparse.Namespace
) -> Iterator[tuple[Name, list[Session]]]:
    """Every trial with its session of each seed. A trial is a module's function, or a partial of one."""
    seeds = range(options.first, options.first + options.seeds)
    with process_pool(options.procs) as pool:
        for name, trial in trials.items():
            yield name, list(pool.imap(trial, seeds, chunksize=4))


@contextmanager
def process_pool(processes: int) -> Iterator[Pool]:
    """Processes of one thread each."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield pool


def percent(flags: Iterable[bool], digits: int = 0) -> str:
    """The per cent of flags that are set; a dash where there is none."""
    counted = list(flags)
    return f"{100 * sum(counted) / len(counted):.{digits}f}" if counted else "-"


def print_head(*cells: str) -> None:
    """The head of a table in Markdown."""
    print_row(cells)
    print("|" + "---|" * len(cells), flush=True)


def print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def load_module(path: Path, what: str, option: str) -> ModuleType:
    """A file outside of the repository as a module. :raises SystemExit: it is not there."""
    if not path.is_file():
        raise SystemExit(f"no {what} at {path}: name {path.name} with {option}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
