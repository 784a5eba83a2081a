"""Slow commits of twelve kinds, planted in the Python tree of an installed vLLM among harmless hunks.

    python -m scripts.explain_plants SITE_PACKAGES REPO --kind "a needless copy" [--seed 1]

The history has two commits: the package as it was released, with what the kind needs beforehand, and the
culprit. Prints what was planted, as JSON. Where a kind may stand anywhere, the seed draws file and function
among those that run in every step; it draws what a step costs and the decoys for all.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.demo_history import BUILD_FILES, EDITS, TARGETS, package_files
from tests.fakes.gitwriter import HistoryWriter

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
CORE = "vllm/v1/engine/core.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
OUTPUT = "vllm/v1/engine/output_processor.py"
DETOKENIZER = "vllm/v1/engine/detokenizer.py"

STEP_MS = (5.0, 10.0)
"""Least and most milliseconds that a planted commit adds to a step, which takes about twenty on two cores."""

BESIDE_STEP = 5.0
"""How much more a commit adds that slows the API server: its work runs beside the engine's step, and makes a
token slower only where it takes longer than that."""

DECOYS = (4, 8)
"""Least and most harmless hunks beside the guilty one."""


@dataclass(frozen=True)
class Place:
    """A function that runs in every step of a text model's engine: its file, its class and its name."""

    file: str
    owner: str
    function: str


HOT = (
    Place(SCHEDULER, "Scheduler", "schedule"),
    Place(SCHEDULER, "Scheduler", "update_from_output"),
    Place(SCHEDULER, "Scheduler", "_update_after_schedule"),
    Place(SCHEDULER, "Scheduler", "_make_cached_request_data"),
    Place(CORE, "EngineCore", "post_step"),
    Place(CORE, "EngineCore", "_process_aborts_queue"),
    Place(CORE, "EngineCoreProc", "_process_engine_step"),
    Place(RUNNER, "GPUModelRunner", "_prepare_inputs"),
    Place(RUNNER, "GPUModelRunner", "_update_states"),
    Place("vllm/v1/worker/gpu_input_batch.py", "InputBatch", "refresh_metadata"),
    Place("vllm/v1/sample/sampler.py", "Sampler", "forward"),
)


@dataclass(frozen=True)
class Plant:
    """What a kind plants: texts by file, before the culprit and in it.

    ``hot``: where the time goes; ``guilty``: the file of the guilty hunk, another one where that only changes
    what code elsewhere does.
    """

    hot: str
    guilty: str
    before: Mapping[str, str]
    after: Mapping[str, str]


@dataclass(frozen=True)
class Planted:
    """A written history. ``line``: a guilty line; ``decoys``: the files of the harmless hunks."""

    repository: Path
    parent: str
    culprit: str
    kind: str
    hot: str
    guilty: str
    line: str
    milliseconds: float
    decoys: tuple[str, ...]


Files = Mapping[str, str]
Make = Callable[[Files, random.Random, float], Plant]


def insert(source: str, place: Place, statements: str) -> str:
    """A module with statements at the begin of a function's body, after its docstring.

    Raises:
        SystemExit: the module has no such function.
    """
    for owner in ast.walk(ast.parse(source)):
        if not isinstance(owner, ast.ClassDef) or owner.name != place.owner:
            continue
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == place.function:
                first = node.body[1 if ast.get_docstring(node) is not None else 0]
                lines = source.splitlines(keepends=True)
                text = textwrap.indent(textwrap.dedent(statements).strip() + "\n", " " * first.col_offset)
                at = min([first.lineno, *(x.lineno for x in getattr(first, "decorator_list", ()))]) - 1
                return "".join([*lines[:at], text, *lines[at:]])
    raise SystemExit(f"{place.file} is not the one that is known here: no {place.owner}.{place.function}")


def append(source: str, text: str) -> str:
    """A module with more text at its end."""
    return f"{source.rstrip()}\n\n\n{textwrap.dedent(text).strip()}\n"


def _busy(milliseconds: float) -> str:
    """Statements that compute for so long."""
    return f"""
        import time as _time
        _until = _time.perf_counter() + {milliseconds / 1000:.5f}
        _checked = 0
        while _time.perf_counter() < _until:
            _checked += 1
    """


def _anywhere(files: Files, draw: random.Random, statements: str) -> Plant:
    """Statements at a drawn place."""
    place = draw.choice(HOT)
    edited = insert(files[place.file], place, statements)
    return Plant(place.file, place.file, {}, {place.file: edited})


def spin(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """The step checks something at length."""
    return _anywhere(files, draw, _busy(milliseconds))


def copy(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """The worker copies a buffer that nobody needs, several times a step: 8 MiB, more than a cache holds."""
    place = draw.choice([x for x in HOT if "/worker/" in x.file or "/sample/" in x.file])
    statements = f"""
        import torch
        if not hasattr(self, "_row_history"):
            self._row_history = torch.zeros(1 << 21)
        for _ in range({max(2, round(1.5 * milliseconds))}):
            self._row_history = self._row_history.clone()
    """
    return Plant(place.file, place.file, {}, {place.file: insert(files[place.file], place, statements)})


def lost_cache(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """A function that is asked the same every step loses its cache."""
    name, place = "vllm/v1/core/sched/layout.py", draw.choice(HOT)
    head = '"""The layout of blocks."""\n\nimport functools\n\n\n'
    body = 'def block_layout(count: int) -> int:\n    """The layout of so many blocks."""\n'
    body += textwrap.indent(textwrap.dedent(_busy(milliseconds)).strip(), "    ") + "\n    return count\n"
    cached = f"{head}@functools.lru_cache(maxsize=None)\n{body}"
    call = "from vllm.v1.core.sched.layout import block_layout\nblock_layout(16)"
    caller = insert(files[place.file], place, call)
    return Plant(name, name, {name: cached, place.file: caller}, {name: head + body})


def changed_default(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """A check that was off is on: the code that takes the time is not in the diff."""
    name, place = "vllm/v1/core/sched/settings.py", draw.choice(HOT)
    text = '"""Defaults of the scheduler."""\n\nAUDIT = {}\n'
    statements = "from vllm.v1.core.sched import settings as _settings\nif _settings.AUDIT:\n"
    statements += textwrap.indent(textwrap.dedent(_busy(milliseconds)).strip(), "    ")
    before = {name: text.format(False), place.file: insert(files[place.file], place, statements)}
    return Plant(place.file, name, before, {name: text.format(True)})


def tuned_file(files: Files, _: random.Random, milliseconds: float) -> Plant:
    """A file of tuned sizes gets a worse value; its CPU likeness is a number of passes."""
    name, place = "vllm/v1/worker/tuned_passes.json", Place(RUNNER, "GPUModelRunner", "_prepare_inputs")
    statements = """
        if not hasattr(self, "_passes"):
            import json as _json
            from pathlib import Path as _Path
            self._passes = _json.loads(_Path(__file__).with_name("tuned_passes.json").read_text())["passes"]
            self._pass_rows = torch.zeros(1 << 18)
        for _ in range(self._passes):
            self._pass_rows.add_(1.0)
    """
    before = {name: '{\n  "passes": 1\n}\n', RUNNER: insert(files[RUNNER], place, statements)}
    return Plant(RUNNER, name, before, {name: f'{{\n  "passes": {round(40 * milliseconds)}\n}}\n'})


def dependency(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """A vendored package is replaced by a slower version of it."""
    name = "vllm/third_party/quickhash.py"
    head = '"""Hashes of token ids, vendored from quickhash."""\n\n\ndef digest(values: list[int]) -> int:\n'
    quick = f'{head}    """The hash of some values."""\n    return hash(tuple(values))\n'
    slow = f'{head}    """The hash of some values."""\n'
    slow += textwrap.indent(textwrap.dedent(_busy(milliseconds)).strip(), "    ")
    slow += "\n    return hash(tuple(values))\n"
    place = draw.choice(HOT)
    call = "from vllm.third_party.quickhash import digest\ndigest([1, 2, 3])"
    return Plant(name, name, {name: quick, place.file: insert(files[place.file], place, call)}, {name: slow})


def detokenizer(files: Files, _: random.Random, milliseconds: float) -> Plant:
    """Every token is decoded with more work."""
    place = Place(DETOKENIZER, "BaseIncrementalDetokenizer", "update")
    return Plant(
        DETOKENIZER,
        DETOKENIZER,
        {},
        {DETOKENIZER: insert(files[DETOKENIZER], place, _busy(BESIDE_STEP * milliseconds))},
    )


def held_lock(files: Files, _: random.Random, milliseconds: float) -> Plant:
    """A thread beside the engine holds a lock while it waits; the step takes that lock."""
    name, place = "vllm/v1/engine/heartbeat.py", Place(CORE, "EngineCore", "_process_aborts_queue")
    text = '''"""A heartbeat beside the engine."""

import threading
import time

LOCK = threading.Lock()
PERIOD = {period:.5f}


def _beat() -> None:
    """Beat for ever."""
    while True:
{body}


threading.Thread(target=_beat, daemon=True, name="heartbeat").start()
'''
    outside = "        with LOCK:\n            pass\n        time.sleep(PERIOD)"
    inside = "        with LOCK:\n            time.sleep(PERIOD)\n        time.sleep(PERIOD / 50)"
    caller = insert(
        files[CORE], place, "from vllm.v1.engine import heartbeat\nwith heartbeat.LOCK:\n    pass"
    )
    period = 2 * milliseconds / 1000
    before = {name: text.format(period=period, body=outside), CORE: caller}
    return Plant(CORE, name, before, {name: text.format(period=period, body=inside)})


def logging(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """Every step writes to the log, at length."""
    lines = max(5, round(12 * milliseconds))
    statements = f"""
        import logging as _logging
        for _number in range({lines}):
            _logging.getLogger("vllm.steps").warning("step: part %d of %s", _number, type(self).__name__)
    """
    return _anywhere(files, draw, statements)


def late_import(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """A function imports what is not installed, and looks for it each time anew."""
    statements = f"""
        for _backend in range({max(5, round(12 * milliseconds))}):
            try:
                import vllm_accelerated_rows  # noqa: F401
            except ImportError:
                continue
    """
    return _anywhere(files, draw, statements)


def output_processing(files: Files, _: random.Random, milliseconds: float) -> Plant:
    """The API server makes more of each output."""
    place = Place(OUTPUT, "OutputProcessor", "process_outputs")
    edited = insert(files[OUTPUT], place, _busy(BESIDE_STEP * milliseconds))
    return Plant(OUTPUT, OUTPUT, {}, {OUTPUT: edited})


def retry(files: Files, draw: random.Random, milliseconds: float) -> Plant:
    """A step tries three times what will not be there, and waits in between."""
    statements = f"""
        import time as _time
        for _attempt in range(3):
            if getattr(self, "_rows_are_ready", False):
                break
            _time.sleep({milliseconds / 3000:.5f})
    """
    return _anywhere(files, draw, statements)


KINDS: dict[str, Make] = {
    "a spin": spin,
    "a needless copy": copy,
    "a lost cache": lost_cache,
    "a changed default": changed_default,
    "a tuned file": tuned_file,
    "a slower dependency": dependency,
    "the detokenizer": detokenizer,
    "a lock held too long": held_lock,
    "logging in the hot path": logging,
    "an import in a function": late_import,
    "more output processing": output_processing,
    "a retry that waits": retry,
}

DRAWN = ("a spin", "a needless copy", "a lost cache", "a changed default", "a slower dependency")
DRAWN += ("logging in the hot path", "an import in a function", "a retry that waits")
"""The kinds whose file and function are drawn."""


def guilty_line(before: Files, plant: Plant) -> str:
    """The first line that the culprit adds to the guilty file; where there is none, that it removes."""
    old, new = (text.get(plant.guilty, "").splitlines() for text in (before, plant.after))
    found = next((x for x in new if x not in old), next((x for x in old if x not in new), ""))
    return found.strip()


def draw_decoys(files: Files, draw: random.Random, first: int = 1) -> dict[str, str]:
    """Harmless edits of drawn files, as texts by path; ``first``: the number of the first edit."""
    edited = {}
    for number, name in enumerate(sorted(draw.sample(TARGETS, draw.randint(*DECOYS))), first):
        _, edit = draw.choice(EDITS)
        edited[name] = edit(files[name], number)
        compile(edited[name], name, "exec")
    return edited


def make(site_packages: Path, path: Path, kind: str, seed: int) -> Planted:
    """Write the history of a kind of :data:`KINDS`."""
    draw = random.Random(f"{kind} {seed}")
    raw = package_files(site_packages)
    files = {name: text.decode() for name, text in raw.items() if name.endswith(".py")}
    milliseconds = draw.uniform(*STEP_MS)
    plant = KINDS[kind](files, draw, milliseconds)
    before = {**files, **plant.before}
    after = dict(plant.after)
    decoys = draw_decoys({**before, **after}, draw)
    after |= decoys
    for name, text in {**plant.before, **after}.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
    writer = HistoryWriter(path)
    planted = {name: text.encode() for name, text in plant.before.items()}
    writer.commit("Import the released package", {**BUILD_FILES, **raw, **planted})
    writer.commit("[Core] Tidy up what a step does", {name: text.encode() for name, text in after.items()})
    parent, culprit = writer.finish()
    return Planted(
        path,
        parent,
        culprit,
        kind,
        plant.hot,
        plant.guilty,
        guilty_line(before, plant),
        milliseconds,
        tuple(decoys),
    )


def make_equal(site_packages: Path, path: Path, commits: int, seed: int) -> tuple[str, ...]:
    """Write a history whose commits after the release edit files harmlessly; returns all commits."""
    draw = random.Random(f"equal {seed}")
    raw = package_files(site_packages)
    files = {name: text.decode() for name, text in raw.items() if name.endswith(".py")}
    writer = HistoryWriter(path)
    writer.commit("Import the released package", {**BUILD_FILES, **raw})
    for number in range(1, commits):
        edited = draw_decoys(files, draw, 1 + number * DECOYS[1])
        files |= edited
        writer.commit(
            f"[Misc] Tidy up, part {number}", {name: text.encode() for name, text in edited.items()}
        )
    return writer.finish()


def main(argv: Sequence[str] | None = None) -> None:
    """Write a history and print what was planted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site_packages", type=Path)
    parser.add_argument("repo", type=Path)
    parser.add_argument("--kind", choices=[*KINDS], required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    planted = make(options.site_packages, options.repo, options.kind, options.seed)
    print(json.dumps(asdict(planted), indent=1, default=str))


if __name__ == "__main__":
    main()
