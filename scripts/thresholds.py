"""The constants that decide verdicts: value, meaning, calibration, and what changes where one moves.

    python -m scripts.thresholds --procs 2 --write docs/method/thresholds.md
    python -m scripts.thresholds --only stats

Sessions of the calibration's worlds are recorded as they are decided now. Then each constant is moved down
and up by a fifth (a whole number by one at least, a probability above a half by a fifth of what it lacks),
and every recorded decision is made again of the same launches or series. ``-``: no simulation asks for it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import math
import multiprocessing
import pickle
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from scripts.simulation import ROOT, parser, print_head, print_row

FIFTH = 0.2
SEED = 7

# Nothing of perfbisect is imported here: each simulation imports it with one constant moved.


@dataclass(frozen=True)
class Domain:
    """Modules whose constants decide, how these were calibrated, and the simulations that ask them."""

    title: str
    modules: tuple[str, ...]
    source: str
    asked: tuple[str, ...] = ()


DOMAINS = (
    Domain(
        "Bisection",
        ("perfbisect/bisect/decision",),
        "`python -m scripts.calibrate`, [calibration.md](calibration.md)",
        ("bisections",),
    ),
    Domain(
        "Statistics",
        ("perfbisect/stats",),
        "`python -m scripts.comparison`, [comparison.md](comparison.md)",
        ("comparisons",),
    ),
    Domain(
        "Detection in series",
        ("perfbisect/series/detection",),
        "`python -m scripts.detection`, [detection.md](detection.md)",
        ("detections",),
    ),
    Domain(
        "Causes of alerts",
        ("perfbisect/series/causes.py", "perfbisect/series/findings.py", "perfbisect/series/alerts.py"),
        "`python -m scripts.demo_track`, [detection.md](detection.md)",
    ),
    Domain(
        "Suspects",
        ("perfbisect/series/suspects/ranking.py", "perfbisect/series/suspects/window.py"),
        "`python -m scripts.suspects_score`, [suspects.md](suspects.md)",
    ),
    Domain(
        "Hunks and functions",
        ("perfbisect/explain/hunk_search.py", "perfbisect/explain/functions.py"),
        "`python -m scripts.hunk_worlds`, [hunks.md](hunks.md)",
    ),
)


@dataclass(frozen=True)
class Threshold:
    """A constant of a module: a number, and what its docstring or comment says."""

    module: str
    name: str
    value: float
    means: str

    def moved(self, sign: int) -> float:
        """A fifth smaller or larger."""
        if float(self.value).is_integer() and isinstance(self.value, int):
            return self.value + sign * max(1, round(FIFTH * abs(self.value)))
        if 0.5 < self.value < 1:
            return 1 - (1 - self.value) * (1 - sign * FIFTH)
        return self.value * (1 + sign * FIFTH)


def thresholds(path: Path) -> Iterator[Threshold]:
    """The numbers in capitals at the top of a file, in their order."""
    text = path.read_text()
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    body = ast.parse(text).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        name, value = assigned(node)
        if not re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) or value is None:
            continue
        said = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            said = str(following.value.value)
        number = number_of(value)
        if number is not None:
            yield Threshold(module, name, number, " ".join((said or comments.get(node.lineno, "")).split()))


def assigned(node: ast.stmt) -> tuple[str, ast.expr | None]:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return (target.id, getattr(node, "value", None)) if isinstance(target, ast.Name) else ("", None)


def number_of(value: ast.expr) -> float | None:
    """The value of a number, or of a logarithm of one."""
    try:
        found = eval(compile(ast.Expression(value), "value", "eval"), {"math": math, "__builtins__": {}})
    except (NameError, TypeError, AttributeError):
        return None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


class MovedLoader(SourceFileLoader):
    """Loads a module in which a constant has another value."""

    def __init__(self, fullname: str, path: str, name: str, value: float) -> None:
        super().__init__(fullname, path)
        self._name, self._value = name, value

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - a finder names it
        tree = ast.parse(self.get_data(self.path))
        for node in tree.body:
            if assigned(node)[0] == self._name and isinstance(node, ast.Assign | ast.AnnAssign):
                node.value = ast.copy_location(ast.Constant(self._value), node)
        return compile(tree, self.path, "exec")


class MovedFinder:
    """Finds one module, to be loaded by :class:`MovedLoader`."""

    def __init__(self, module: str, name: str, value: float) -> None:
        self._module, self._name, self._value = module, name, value

    def find_spec(self, fullname: str, path: Sequence[str] | None, _: ModuleType | None = None) -> Any:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert isinstance(spec, ModuleSpec) and spec.origin is not None
        spec.loader = MovedLoader(fullname, spec.origin, self._name, self._value)
        return spec


def record_bisections() -> Any:
    calibrate = importlib.import_module("scripts.calibrate")
    decide = importlib.import_module("perfbisect.bisect.decision.decide")
    names = (
        "plain, 5 %, sigma 3 %",
        "no change",
        "compiled: builds, sd 1 %, step 5 %",
        "slope of 10 %",
    )
    sessions = []
    for name in names:
        bench, plan = calibrate.prepare(calibrate.WORLDS[name], SEED)
        events: list[Any] = []
        while isinstance(action := decide.next_action(plan, events), decide.NextLaunch):
            events.append(bench.launch(action, 0, sum(event.minutes for event in events)))
        sessions.append((plan, tuple(events)))
    return sessions


def decide_bisections(sessions: Any) -> list[object]:
    decide = importlib.import_module("perfbisect.bisect.decision.decide")
    told: list[object] = []
    for plan, events in sessions:
        for count in [*range(4, len(events), 8), len(events)]:
            action = decide.next_action(plan, events[:count])
            is_launch = isinstance(action, decide.NextLaunch)
            told.append(
                (action.index, action.runs, action.purpose)
                if is_launch
                else (action.verdict, action.culprits)
            )
    return told


def record_comparisons() -> Any:
    comparison = importlib.import_module("scripts.comparison")
    ab_test = importlib.import_module("perfbisect.stats.ab_test")
    np = importlib.import_module("numpy")
    sessions = []
    for name, world in comparison.WORLDS.items():
        rng = np.random.default_rng([SEED, len(name)])
        test, seen = ab_test.AbTest(seed=SEED), []
        noise = math.hypot(world.get("tau", 0.015), world.get("sigma", 0.02))
        for index in range(ab_test.BLOCK_SIZE * test.blocks):
            side = ab_test.side_of_launch(test, index)
            log = noise * rng.normal() + (math.log1p(world["d"]) if side == "b" else 0.0)
            if rng.random() < world.get("outliers", 0.0):
                log += rng.uniform(0.05, 0.40)
            seen.append((side, 100.0 * math.exp(log)))
        sessions.append((name, seen))
    return sessions


def decide_comparisons(sessions: Any) -> list[object]:
    ab_test = importlib.import_module("perfbisect.stats.ab_test")
    threshold = importlib.import_module("perfbisect.stats.threshold")
    told: list[object] = []
    for _, seen in sessions:
        launches = [ab_test.AbLaunch(side, (value,)) for side, value in seen]
        logs = [math.log(value / 100) for side, value in seen if side == "b"]
        for count in range(8, len(launches) + 1, 16):
            verdict = ab_test.judge_blocks(ab_test.AbTest(seed=SEED), launches[:count])
            told.append((verdict.word, verdict.settled))
            line = threshold.Threshold(0.02)
            told.append(threshold.judge_threshold(line, logs[: count // 2], 20).word)
    return told


def record_detections() -> Any:
    detection = importlib.import_module("scripts.detection")
    np = importlib.import_module("numpy")
    families = []
    for number, kind in enumerate(("gauss", "laplace", "t3", "ar0.4", "outliers", "gauss")):
        rng = np.random.default_rng([SEED, number])
        family = []
        for key in range(6):
            logs = detection.noise(kind, 60, rng)
            logs[20 + 5 * key :] += (0.0, 0.03, 0.06, -0.05, 0.1, 0.0)[key]
            logs[10 + key : 12 + key] += 0.15 * (key == 5)
            family.append([float(100 * math.exp(log)) for log in logs])
        families.append(family)
    return families


def decide_detections(families: Any) -> list[object]:
    detection = importlib.import_module("scripts.detection")
    told: list[object] = []
    for family in families:
        series = [detection.series_of(values, f"s{key}") for key, values in enumerate(family)]
        found = detection.detect_all(series)
        for item in series:
            points = found.points.get(item.key, ())
            told.append(
                tuple(
                    (p.index, p.shape) for p in points if p.is_relevant and found.coverage.is_significant(p)
                )
            )
        told.append(tuple((event.after, event.by) for event in found.events))
    return told


SIMULATIONS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], list[object]]]] = {
    "bisections": (record_bisections, decide_bisections),
    "comparisons": (record_comparisons, decide_comparisons),
    "detections": (record_detections, decide_detections),
}


def record(name: str) -> tuple[bytes, list[object]]:
    """What a simulation drew, and what is decided of it."""
    drawn = SIMULATIONS[name][0]()
    return pickle.dumps(drawn), SIMULATIONS[name][1](drawn)


def decide_again(name: str, drawn: bytes, moved: tuple[str, str, float]) -> list[object] | None:
    """The decisions with a constant moved; None where perfbisect does not run with it."""
    sys.meta_path.insert(0, MovedFinder(*moved))
    try:
        with redirect_stdout(io.StringIO()):
            return SIMULATIONS[name][1](pickle.loads(drawn))
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return None


def files(domain: Domain) -> Iterator[Path]:
    for name in domain.modules:
        path = ROOT / name
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


def shares(domain: Domain, recorded: Mapping[str, Any], pool: Any, found: Sequence[Threshold]) -> list[str]:
    """For each constant and direction the share of decisions that change, as text."""
    tasks = [
        pool.apply_async(decide_again, (name, recorded[name][0], (x.module, x.name, x.moved(sign))))
        for x in found
        for sign in (-1, 1)
        for name in domain.asked
    ]
    results = [task.get() for task in tasks]
    texts, width = [], len(domain.asked)
    for start in range(0, len(results), max(width, 1)):
        before = [one for name in domain.asked for one in recorded[name][1]]
        if any(part is None for part in results[start : start + width]):
            texts.append("fails")
            continue
        after = [one for part in results[start : start + width] for one in part]
        changed = sum(a != b for a, b in zip(before, after, strict=True))
        texts.append(f"{100 * changed / len(before):.1f} %")
    return texts


def write_tables(options: argparse.Namespace) -> None:
    domains = [domain for domain in DOMAINS if options.only in " ".join(domain.modules)]
    context = multiprocessing.get_context("fork")
    for name in ("numpy", "pydantic"):
        importlib.import_module(name)
    with context.Pool(options.procs, maxtasksperchild=1) as pool:
        asked = sorted({name for domain in domains for name in domain.asked})
        recorded = dict(zip(asked, pool.map(record, asked, chunksize=1), strict=True))
        for domain in domains:
            found = [one for path in files(domain) for one in thresholds(path)]
            texts = shares(domain, recorded, pool, found) if domain.asked else ["-"] * (2 * len(found))
            count = sum(len(recorded[name][1]) for name in domain.asked)
            print(f"\n## {domain.title}\n\nCalibration: {domain.source}.", end=" ")
            print(f"{count} decisions of {' and '.join(domain.asked)}.\n" if count else "Not simulated.\n")
            print_head("constant", "value", "what it is", "-20 %", "+20 %")
            for one, *moves in zip(found, texts[::2], texts[1::2], strict=True):
                place = f"`{one.module.removeprefix('perfbisect.')}.{one.name}`"
                print_row([place, f"{one.value:.4g}", one.means.replace("|", "\\|"), *moves])


HEAD = """# Thresholds

The constants that decide verdicts, written by `python -m scripts.thresholds`. The last two columns say which
share of recorded decisions of simulated worlds changes when a constant moves by a fifth; "-": no simulation
asks for it, "fails": no decision is made with it. Where both are 0.0 %, the constant is a candidate to go, or
a limit that these few worlds do not reach.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--procs", type=int, default=1)
    options.add_argument("--only", default="", help="a part of the modules' paths")
    options.add_argument("--write", type=Path, help="file of the tables; else they are printed")
    chosen = options.parse_args(arguments)
    if chosen.write is None:
        write_tables(chosen)
        return 0
    text = io.StringIO()
    with redirect_stdout(text):
        print(HEAD, end="")
        write_tables(chosen)
    chosen.write.write_text(text.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
