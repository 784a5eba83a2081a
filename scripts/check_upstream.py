"""What perfbisect relies on in vLLM or vLLM-Omni, checked against the head of a clone.

    python -m scripts.check_upstream ../vllm

Reads git's objects, without network and work tree, and prints a table. Exit code 0: everything is understood,
1: the last column says what is not, 2: bad input.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from perfbisect.cells.lint import ENGINES, Checkout, lint
from perfbisect.cells.loading import known_cells
from perfbisect.changes.git import CommitRecord, Repository
from perfbisect.cli.cells import CellsImportDocument, import_cells
from perfbisect.clients import CLIENTS, base
from perfbisect.commands.workspace import open_workspace
from perfbisect.common.quantities import counted
from perfbisect.environments.builders.nearest_wheel import read_build_states
from perfbisect.environments.builders.pinned_base import declared_bases
from perfbisect.environments.builders.source import build_variables
from perfbisect.environments.builders.wheel import CUDA_BUILDS
from perfbisect.environments.builders.wheel_index import page_of
from perfbisect.environments.cache import CACHE_VARIABLES
from perfbisect.environments.packages import PLATFORMS, EnginePackage, engine, package
from perfbisect.environments.source_tree import is_built
from perfbisect.errors import PerfbisectError, UsageError
from perfbisect.model.cell import Cell
from perfbisect.report.markdown import table
from perfbisect.serving.counters import METRIC_FAMILIES
from perfbisect.serving.eras import ERAS, NIGHTLY_ERAS
from perfbisect.serving.families import FAMILIES, Endpoint, ServerCommand
from perfbisect.setup.templates import INDEX, ROCM_INDEX

RECENT = 100
"""Commits whose environments are counted."""

_COMPUTED = {"failed", "output_tokens", "input_tokens", "images", "image_pixels"}
"""Metrics that a reader computes from other keys."""

_NO_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_ANY = Endpoint(port=1, model_name="any")
_SCRIPT = re.compile(r"^(setup\.py|CMakeLists\.txt|cmake/.*|tools/.*\.py)$")
_SOURCE = re.compile(r"\.(c|cc|cpp|cu|cuh|h|hpp|hip|inl|pyx|pxd|proto|rs|cmake)$")
_SPECIFICATION = r'"test_name": *"|"common_parameters"|^vllm_bench:'


@dataclass(frozen=True)
class Row:
    """One thing that perfbisect relies on: what of it is understood, and what is not."""

    about: str
    understood: object
    unknown: Collection[str] = ()


@dataclass(frozen=True)
class Upstream:
    """An engine's repository at its head."""

    checkout: Checkout
    package: EnginePackage

    @property
    def repository(self) -> Repository:
        return self.checkout.repository

    @property
    def is_vllm(self) -> bool:
        return self.package.module == "vllm"

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in known_cells()[0] if not self.checkout.of_another_engine(cell))

    @cached_property
    def servers(self) -> tuple[ServerCommand, ...]:
        return tuple(FAMILIES[cell.family].server(cell, _ANY) for cell in self.cells)

    @cached_property
    def build_inputs(self) -> frozenset[str]:
        command = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", _NO_TREE, self.checkout.sha, "--")
        return frozenset(filter(None, self.repository.text(*command, *self.package.pathspecs).split("\0")))

    @cached_property
    def line(self) -> list[CommitRecord]:
        """The first-parent commits of the head, newest first."""
        return self.repository.records("--first-parent", self.checkout.sha)

    def read(self, path: str) -> str:
        return self.repository.read_text(self.checkout.sha, path) or ""

    def missing(self, words: Iterable[str]) -> set[str]:
        """Words that stand nowhere in the Python sources."""
        wanted = set(words)
        return wanted - self.checkout.occurring(wanted)


def check_cells(up: Upstream) -> Iterator[Row]:
    words = {word.partition("=")[0] for server in up.servers for word in server.args if word.startswith("--")}
    options = {word.removeprefix("--").removeprefix("no-") for word in words}
    unmentioned = up.checkout.unmentioned(options)
    findings = [(cell.name, finding) for cell in up.cells for finding in lint(cell, up.checkout)]
    errors = [f"{name}: {found.field}: {found.message}" for name, found in findings if found.level == "error"]
    yield Row("shipped cells", len(up.cells), errors)
    yield Row("options of serve", len(options), unmentioned)


def check_results(up: Upstream) -> Iterator[Row]:
    pairs = [(cell, CLIENTS[cell.client.name]) for cell in up.cells]
    pairs = [(cell, client) for cell, client in pairs if client.package == up.package.module]
    metrics = {metric.partition(":")[0] for cell, client in pairs for metric in client.metrics(cell)}
    keys = {name for name in metrics if "_per_" not in name} - _COMPUTED
    for module in {base, *(sys.modules[type(client).__module__] for _, client in pairs)}:
        keys |= set(re.findall(r'document(?:\.get\(|, |\[)"(\w+)"', inspect.getsource(module)))
    missing = up.missing(keys)
    older = {key for key in missing if f"{key.removesuffix('_ms')}_s" in keys - missing}
    yield Row("keys of results", len(keys), missing - older)


def check_server(up: Upstream) -> Iterator[Row]:
    paths = {f'"{probe.path}"' for s in up.servers for probe in (s.first_request, *s.reset_requests)}
    yield Row("paths of the server", len(paths), up.missing(paths))
    if not up.is_vllm:
        return
    yield Row("counters of /metrics", len(METRIC_FAMILIES), up.missing(METRIC_FAMILIES))
    variables = {name for server in up.servers for name in server.env} | CACHE_VARIABLES.keys()
    variables |= {name for cell in up.cells for name in CLIENTS[cell.client.name].env(cell)}
    own = {name for name in variables if name.startswith("VLLM_")}
    yield Row("environment variables", len(own), up.missing(own))


def check_build(up: Upstream) -> Iterator[Row]:
    inputs = up.build_inputs
    scripts = {path: re.sub(r"(?m)#.*$", "", up.read(path)) for path in filter(_SCRIPT.search, inputs)}
    text = "\n".join(scripts.values())
    names = set(re.findall(r"[\w./-]+\.\w+", text)) - {PurePath(path).name for path in inputs}
    files = (entry.path for entry in up.repository.entries(up.checkout.sha))
    used = {path for path in files if names & {path, PurePath(path).name} or _SOURCE.search(path)}
    others = {path for path in used - inputs if is_built(path) and not path.startswith(up.package.folder)}
    yield Row("files of a build", len(inputs), others)
    python = "\n".join(script for path, script in scripts.items() if path.endswith(".py"))
    variables = set(re.findall(r"\bVLLM_[A-Z_]+\b", python)) | set(re.findall(r"\$ENV\{(\w+)\}", text))
    variables -= {"PYTHONPATH", "LD_LIBRARY_PATH"}
    unset = variables - build_variables(dict.fromkeys(variables, "")).keys()
    yield Row("variables of a build", len(variables), unset | (set(up.package.precompiled or ()) - variables))
    if not up.is_vllm:
        return
    requirements = {path: up.read(path) for path in inputs if path.startswith("requirements")}
    shared = set(re.findall(r"(?m)^-r (\S+)", "\n".join(requirements.values())))
    of_all = {path for path in requirements if up.package.is_used(path, "another")}
    others = {
        path for path in of_all if PurePath(path).name not in shared and not up.package.is_optional(path)
    }
    yield Row("requirements", len(requirements), others)
    devices = set(re.findall(r'(?i)device == "(\w+)"', text))
    yield Row("devices", ", ".join(sorted(devices)), devices - {*PLATFORMS, "empty"})
    modules = set(re.findall(r'Extension\(\s*(?:name|target)="([\w.-]+)"', text))
    rust = set(re.findall(r'RustExtension\(\s*target="([\w.-]+)"', text))
    strange = {name for name in modules if not name.startswith("vllm.")}
    strange |= {name for name in rust if not up.package.makes_optional(name.rpartition(".")[2])}
    yield Row("compiled modules", len(modules), strange)


def check_index(up: Upstream) -> Iterator[Row]:
    if not up.is_vllm:
        return
    setup, name = up.read("setup.py"), up.package.distribution
    pages = [
        page_of(index, "{commit}", part, name) for index in (INDEX, ROCM_INDEX) for part in ("", "{part}")
    ]
    addresses = set(re.findall(r'f"(https://[^"]*\{commit\}[^"]*)"', setup))
    forms = {address: address.replace("{variant_dir}", "{part}/") for address in addresses}
    unknown = [address for address, form in forms.items() if not any(page.startswith(form) for page in pages)]
    yield Row("addresses of wheels", len(addresses), unknown)
    variants = set(re.findall(r'"(cu\d+)"', setup))
    known = {variant for _, builds in CUDA_BUILDS for variant in builds}
    yield Row("variants of wheels", ", ".join(sorted(variants)), variants - known)
    file, pattern = up.package.cuda_pattern or ("", "")
    yield Row("CUDA of a wheel", file, () if re.search(pattern, up.read(file)) else (pattern,))


def check_eras(up: Upstream) -> Iterator[Row]:
    if up.is_vllm:
        return
    eras = {era for eras in (*ERAS.values(), NIGHTLY_ERAS) for era in eras}
    known = {era for era in eras if era.date < up.line[0].change.date}
    dates = {record.change.short: record.change.date for record in up.line}
    found = {era: next((d for s, d in dates.items() if s.startswith(era.change[:8])), "") for era in known}
    wrong = [f"{era.change}: {date or 'no commit'}" for era, date in found.items() if date != f"{era.date}Z"]
    yield Row("eras of measurements", f"{len(known)} of {len(eras)}", wrong)


def check_history(up: Upstream) -> Iterator[Row]:
    late = [older.change.short for newer, older in pairwise(up.line) if older.change.date > newer.change.date]
    shallow = ["a shallow clone"] if up.repository.is_shallow() else []
    yield Row("first-parent commits, by date", len(up.line), [*late, *shallow])
    shas = [record.change.id for record in up.line[:RECENT]][::-1]
    for platform in ("cuda", "cpu", "rocm") if up.is_vllm else ():
        states = read_build_states({}, up.repository, up.package, shas, platform).values()
        wheels = Counter(state.needed for state in states)
        shares = f"{len(wheels)} wheels for {len(shas)} commits, one for {max(wheels.values())}"
        yield Row(f"latest overlays, {platform}", shares)
    if not up.is_vllm:
        bases = declared_bases(up.repository, shas, "cuda")
        groups = {sha: pins.group if pins else "" for sha, (pins, _) in bases.items()}
        unknown = [
            sha[:12] for sha, (_, requirements) in bases.items() if not groups[sha] or not requirements
        ]
        yield Row("latest pins", ", ".join(sorted(set(groups.values()))), unknown)


def check_specifications(up: Upstream) -> Iterator[Row]:
    search = ("grep", "-l", "-z", "-E", _SPECIFICATION, up.checkout.sha, "--", "*.json", "*.yaml", "*.yml")
    listed = up.repository.run(*search).stdout.decode(errors="replace").split("\0")
    paths = [up.repository.path / name.partition(":")[2] for name in listed if name]
    with TemporaryDirectory() as folder:
        workspace = open_workspace(repo=up.repository.path)
        listing = import_cells(workspace, specs=tuple(paths), output=Path(folder), at=up.checkout.sha)
        document = listing.document
    assert isinstance(document, CellsImportDocument)
    for path, row in zip(paths, document.files, strict=True):
        left_out = f", {counted(len(row.left_out), 'workload')} left out" if row.left_out else ""
        yield Row(f"cells import {path.name}", f"{counted(row.cells, 'cell')}{left_out}", row.errors)


CHECKS: tuple[Callable[[Upstream], Iterable[Row]], ...] = (
    *(check_cells, check_results, check_server, check_build, check_index, check_eras, check_history),
    check_specifications,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repo", type=Path, help="a clone, at the commit to check")
    parser.add_argument("--engine", choices=("vllm", "vllm-omni"), help="default: the first package in it")
    options = parser.parse_args(arguments)
    try:
        repository = Repository.open(options.repo)
        checkout = Checkout(repository, repository.head().id)
        engine_package = package(options.engine) if options.engine else engine(checkout.engine)
        if checkout.engine != engine_package.module or checkout.engine not in ENGINES:
            raise UsageError(f"{repository.path} is no clone of {options.engine or 'vllm or vllm-omni'}")
        up = Upstream(checkout, engine_package)
        rows = [row for check in CHECKS for row in check(up)]
    except PerfbisectError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    unknown = [sorted(row.unknown) or ([] if row.understood else ["nothing found"]) for row in rows]
    lines = (
        (row.about, str(row.understood), "; ".join(found)) for row, found in zip(rows, unknown, strict=True)
    )
    print(table(("what", "understood", "not understood"), lines))
    count = sum(map(len, unknown))
    verdict = f"not understood: {count}" if count else "everything is understood"
    print(f"\n{ENGINES[checkout.engine]} at {checkout.at}: {verdict}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
