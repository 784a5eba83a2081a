"""``perfbisect cells``: list, show, check, compare and import cell files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from pydantic import Field

from perfbisect.cells.importers import read_specification
from perfbisect.cells.importers.base import (
    Specification,
    SpecificationFile,
    file_stem,
    read_file,
    write_cell,
)
from perfbisect.cells.lint import Checkout, LintFinding, lint
from perfbisect.cells.loading import known_cells, list_cells, load_cell, load_cells
from perfbisect.changes.git import Repository
from perfbisect.commands.options import Client, Env, InRepository, Repo
from perfbisect.commands.output import CommandResult, writing
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.commands.workspace import open_workspace
from perfbisect.common.quantities import counted
from perfbisect.common.text import line
from perfbisect.common.yaml_source import collecting
from perfbisect.environments.spec import pinned_client
from perfbisect.errors import EXIT_OK, EXIT_USAGE, RevisionError, UsageError
from perfbisect.jobs.documents import CellDocument, Document, cell_document
from perfbisect.model.cell import Cell, apply_variant, cell_difference
from perfbisect.report.console import error_lines
from perfbisect.report.sections import workload_section
from perfbisect.report.terminal import block_lines
from perfbisect.resources import cells_folder

_LONGEST_MESSAGE = 400


class CellFileDocument(Document):
    """A cell file that can be named; ``shipped`` with perfbisect or the user's own."""

    name: str
    path: str
    shipped: bool
    cells: tuple[str, ...]
    description: str
    error: str


class CellsDocument(Document):
    """``perfbisect cells list``."""

    schema_: Literal["perfbisect.cells/1"] = Field(default="perfbisect.cells/1", alias="schema")
    cells: tuple[CellFileDocument, ...]


@prints("perfbisect.cli.cells:CellsDocument")
def list_known() -> CommandResult:
    """Every cell that can be named: those in ./cells and those shipped.

    \b
    Example:
      perfbisect cells list --json
    """
    document = CellsDocument(cells=tuple(_describe(name, path) for name, path in list_cells().items()))
    files = document.cells
    rows = [(name, file.error or file.description) for file in files for name in file.cells or (file.name,)]
    width = max((len(name) for name, _ in rows), default=0)
    return CommandResult(document, [f"{name:<{width}}  {line(text)}" for name, text in rows])


def _describe(name: str, path: Path) -> CellFileDocument:
    cells, error = _try_loading(path)
    return CellFileDocument(
        name=name,
        path=str(path),
        shipped=path.parent.resolve() == cells_folder().resolve(),
        cells=tuple(cell.name for cell in cells),
        description=cells[0].description if cells else "",
        error=f"{error.where or path}: {_one_line(error)}" if error else "",
    )


def _one_line(error: UsageError) -> str:
    return "; ".join(part.strip() for part in error.message.splitlines())


def _try_loading(file: str | Path) -> tuple[tuple[Cell, ...], UsageError | None]:
    """The cells of a file, or why they cannot be loaded."""
    try:
        return load_cells(file), None
    except UsageError as error:
        return (), error


class CellShowDocument(Document):
    """``perfbisect cells show``."""

    schema_: Literal["perfbisect.cell/2"] = Field(default="perfbisect.cell/2", alias="schema")
    cells: tuple[CellDocument, ...]
    workloads: tuple[dict[str, Any], ...]


@prints("perfbisect.cli.cells:CellShowDocument")
def show(
    *,
    cell: Annotated[str, Argument()],
    variant: Annotated[str | None, Option("As this variant serves it.", metavar="NAME")] = None,
    repo: Repo = None,
) -> CommandResult:
    """What CELL measures: the block that is shown before anything starts.

    \b
    Example:
      perfbisect cells show text_cpu_llama100m
    """
    read_at = open_workspace(repo=repo).read_at if repo else None
    cells = load_cells(cell, read_at=read_at)
    if variant:
        cells = tuple(apply_variant(one, variant) for one in cells)
    document = CellShowDocument(
        cells=tuple(cell_document(one, one.metric) for one in cells),
        workloads=tuple(one.workload() for one in cells),
    )
    lines = [text for one in document.cells for text in (*block_lines(workload_section(one).blocks), "")]
    return CommandResult(document, lines[:-1])


class FileCheckDocument(Document):
    """A cell file and its error, if it has one."""

    file: str
    cells: tuple[str, ...]
    error: str | None
    where: str | None


class CellsValidateDocument(Document):
    """``perfbisect cells validate``."""

    schema_: Literal["perfbisect.cells-validate/1"] = Field(
        default="perfbisect.cells-validate/1", alias="schema"
    )
    valid: bool
    files: tuple[FileCheckDocument, ...]


@prints("perfbisect.cli.cells:CellsValidateDocument")
def validate(
    *,
    files: Annotated[tuple[str, ...], Argument("FILE...")],
) -> CommandResult:
    """Check all cell FILEs; for each invalid one, show the place and what is allowed there.

    \b
    Example:
      perfbisect cells validate cells/*.yaml

    Exit code: 0 all are valid, 2 one is not.
    """
    checks: list[FileCheckDocument] = []
    lines: list[str] = []
    for file in files:
        cells, error = _try_loading(file)
        names = tuple(cell.name for cell in cells)
        message, where = (error.message, error.where) if error else (None, None)
        checks.append(FileCheckDocument(file=file, cells=names, error=message, where=where))
        lines += error_lines(message, where or file, None) if message else [f"{file}: {', '.join(names)}"]
    valid = all(check.error is None for check in checks)
    document = CellsValidateDocument(valid=valid, files=tuple(checks))
    return CommandResult(document, lines, EXIT_OK if valid else EXIT_USAGE)


class DifferenceDocument(Document):
    """A field in which two workloads differ."""

    field: str
    left: str
    right: str


class CellsDiffDocument(Document):
    """``perfbisect cells diff``: comparable exactly where the digests are equal."""

    schema_: Literal["perfbisect.cells-diff/1"] = Field(default="perfbisect.cells-diff/1", alias="schema")
    left: str
    right: str
    comparable: bool
    differences: tuple[DifferenceDocument, ...]


@prints("perfbisect.cli.cells:CellsDiffDocument")
def diff(
    *,
    a: Annotated[str, Argument()],
    b: Annotated[str, Argument()],
) -> CommandResult:
    """Where the workloads of two cells differ: attempts of cells that differ are never compared.

    \b
    Example:
      perfbisect cells diff text_throughput text_prefix_repetition
    """
    left, right = load_cell(a), load_cell(b)
    rows = tuple(DifferenceDocument(field=f, left=x, right=y) for f, x, y in cell_difference(left, right))
    document = CellsDiffDocument(left=left.name, right=right.name, comparable=not rows, differences=rows)
    lines = [f"{row.field}: {line(row.left)} -> {line(row.right)}" for row in rows]
    return CommandResult(document, lines or [f"the same workload: {left.digest}"])


class CellLintDocument(Document):
    """A cell and its problems; ``skipped``: why it was not checked."""

    cell: str
    findings: tuple[LintFinding, ...]
    skipped: str = ""


class CellsLintDocument(Document):
    """``perfbisect cells lint``.

    ``client``: the pinned client, whose data sets, backends and options are not checked; empty where the
    commit's own client loads the server. ``warnings``: unreadable cell files that were not named.
    """

    schema_: Literal["perfbisect.cells-lint/1"] = Field(default="perfbisect.cells-lint/1", alias="schema")
    engine: str
    at: str
    client: str = ""
    warnings: tuple[str, ...] = ()
    cells: tuple[CellLintDocument, ...]


@prints("perfbisect.cli.cells:CellsLintDocument")
def lint_cells(
    workspace: InRepository,
    *,
    names: Annotated[tuple[str, ...], Argument("[CELL...]")] = (),
    at: Annotated[str, Option("The commit.", metavar="REV")] = "HEAD",
    env: Env = None,
    client: Client = None,
) -> CommandResult:
    """Check CELLs, by default all, against the checkout of their engine at a commit; nothing is imported.
    Cells of the other engine are skipped, which is said.

    Reports data sets, backends and options that the client does not support, missing deploy YAMLs (and the
    commit that adds them), endpoints that refuse the kind of model, unknown server options, downloads during
    the measurement, and fixed ports. If --client or --env (or perfbisect.yaml) name a client other than the
    commit's, data set, backend and options of the client are not checked.

    \b
    Example:
      perfbisect cells lint tts_default_voice_high_c --repo vllm-omni --at v0.24.0

    Exit code: 0 nothing or only warnings, 2 an error was found or no cell could be checked.
    """
    repository = workspace.needed_repository()
    commit = repository.resolve(at)
    checkout = Checkout(repository, commit.id)
    pinned = pinned_client(env or "", client or "")
    named: Sequence[Cell] = [cell for name in names for cell in load_cells(name)]
    cells, warnings = (named, ()) if names else known_cells()
    document = CellsLintDocument(
        engine=checkout.engine,
        at=commit.id,
        client=pinned,
        warnings=warnings,
        cells=tuple(
            CellLintDocument(cell=cell.name, findings=(), skipped=reason)
            if (reason := checkout.of_another_engine(cell))
            else CellLintDocument(cell=cell.name, findings=lint(cell, checkout, own_client=not pinned))
            for cell in cells
        ),
    )
    checked = [cell for cell in document.cells if not cell.skipped]
    skipped = Counter(cell.skipped for cell in document.cells if cell.skipped)
    findings = [(cell.cell, finding) for cell in document.cells for finding in cell.findings]
    lines = [
        f"{name}: {finding.level}: {finding.field}: {line(finding.message, _LONGEST_MESSAGE)}"
        for name, finding in findings
    ]
    lines += [f"warning: {line(text, _LONGEST_MESSAGE)}" for text in warnings]
    if pinned:
        lines.append(f"data set, backend and options of the client are not checked: it is {line(pinned)}")
    lines += [f"{counted(count, 'cell')} skipped: {reason}" for reason, count in skipped.items()]
    lines.append(f"{counted(len(checked), 'cell')} checked against {checkout.engine} at {commit.short}")
    has_errors = any(finding.level == "error" for _, finding in findings) or not checked
    return CommandResult(document, lines, EXIT_USAGE if has_errors else EXIT_OK)


class ImportedFileDocument(Document):
    """A specification and the cell files made of it.

    ``switched_off``: disabled workloads; ``left_out``: unsupported ones with the reason; ``errors``: what was
    not understood, with its line; ``to_bring``: files the cells need.
    """

    spec: str
    files: tuple[str, ...]
    cells: int
    switched_off: int
    left_out: tuple[str, ...]
    errors: tuple[str, ...] = ()
    to_bring: tuple[str, ...]


class CellsImportDocument(Document):
    """``perfbisect cells import``."""

    schema_: Literal["perfbisect.cells-import/1"] = Field(default="perfbisect.cells-import/1", alias="schema")
    files: tuple[ImportedFileDocument, ...]
    cells: int


@prints("perfbisect.cli.cells:CellsImportDocument")
def import_cells(
    workspace: InRepository,
    *,
    specs: Annotated[tuple[Path, ...], Argument("SPEC...")],
    output: Annotated[Path, Option("Folder for the cells.", ("-o", "--output"))],
    at: Annotated[
        str | None, Option("Read the SPECs as they are at this commit of the repository.", metavar="REV")
    ] = None,
) -> CommandResult:
    """Make cell files of a nightly's performance SPECs, one a workload, in a folder.

    Reads vLLM-Omni's lists of servers, vLLM's serving and nightly tests, the recipes of its perf-eval
    (YAML), nightly cases of vllm-ascend and benchmark cases of tpu-inference, recognized by content.
    Paired lists stay a ladder in one file; crossed lists become one ladder; disabled workloads are
    counted; unsupported ones and what is not understood are listed with their line; audio and text twins
    of one name become two files. Headline and guards suit the outputs. Baselines are kept as known
    values. Existing files are replaced by cells that load.

    Variables that a pipeline sets and the machine are not part of a SPEC, and not of the cells.

    \b
    Examples:
      perfbisect cells import vllm-omni/tests/dfx/perf/tests/test_tts.json -o cells
      perfbisect cells import .buildkite/performance-benchmarks/tests/serving-tests.json -o cells --at v0.14.0
      perfbisect cells import perf-eval/workloads/*_h200.yaml -o cells

    Exit code: 0 all was understood, 2 something was not; the cells of the rest are written.
    """
    if at:
        sources = [_source_at(workspace.needed_repository(), at, spec) for spec in specs]
    else:
        sources = [read_file(spec) for spec in specs]
    read = [(source, _read(source)) for source in sources]
    _make_names_distinct(read)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        rows = tuple(_write_cells(source, specification, output) for source, specification in read)
    document = CellsImportDocument(files=rows, cells=sum(row.cells for row in rows))
    lines = []
    for spec, row in zip(specs, rows, strict=True):
        off = f", {counted(row.switched_off, 'workload')} switched off" if row.switched_off else ""
        lines.append(f"{spec.name}: {counted(row.cells, 'cell')} in {counted(len(row.files), 'file')}{off}")
        lines += [f"  error: {line(text, _LONGEST_MESSAGE)}" for text in row.errors]
        lines += [f"  left out: {line(text)}" for text in row.left_out]
        lines += [f"  to bring: {line(text)}" for text in row.to_bring]
    exit_code = EXIT_USAGE if any(row.errors for row in rows) else EXIT_OK
    return CommandResult(document, [*lines, f"{counted(document.cells, 'cell')} in {output}"], exit_code)


def _read(source: SpecificationFile) -> Specification:
    unread = Specification()
    with collecting(unread.errors):
        return read_specification(source)
    return unread


def _write_cells(
    source: SpecificationFile, specification: Specification, output: Path
) -> ImportedFileDocument:
    """Write the cells that load; a cell is loaded in a folder of its own before it replaces another."""
    paths: list[Path] = []
    count = 0
    errors = list(specification.errors)
    for cell in specification.cells:
        with collecting(errors), TemporaryDirectory(prefix=".import-", dir=output) as scratch:
            try:
                count += len(load_cells(write_cell(Path(scratch), cell), incomplete=True))
            except UsageError as error:
                raise source.wrong(cell.place, f"makes no cell: {error.message}") from None
            for written in Path(scratch).iterdir():
                written.replace(output / written.name)
            paths.append(output / f"{cell.stem}.yaml")
    needs = {path: origin for cell in specification.cells for path, origin in cell.needs.items()}
    return ImportedFileDocument(
        spec=str(source.path),
        files=tuple(map(str, paths)),
        cells=count,
        switched_off=len(specification.off),
        left_out=tuple(
            f"{source.file}:{source.line(place)}: {place}: {why}"
            for place, why in specification.left_out.items()
        ),
        errors=tuple(f"{error.where}: {_one_line(error)}" for error in errors),
        to_bring=tuple(
            f"{output / path}: {origin}" for path, origin in needs.items() if not (output / path).exists()
        ),
    )


def _source_at(repository: Repository, revision: str, spec: Path) -> SpecificationFile:
    """A specification at a commit.

    Raises:
        RevisionError: the commit or the file does not exist.
        UsageError: the file is not text.
    """
    commit = repository.resolve(revision)
    full = spec.absolute()
    path = full.relative_to(repository.path) if full.is_relative_to(repository.path) else spec
    path = Path(os.path.normpath(path))

    try:
        text = repository.read(commit.id, path.as_posix()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} at {commit.short} cannot be read: {error}") from None

    def read_beside(name: str) -> str | None:
        try:
            return _source_at(repository, revision, path.parent / name).text
        except RevisionError:
            return None

    return SpecificationFile(path, text, commit, read_beside)


def _make_names_distinct(read: Sequence[tuple[SpecificationFile, Specification]]) -> None:
    """Put the specification's name before those cells that several specifications have.

    Raises:
        UsageError: the specifications have one name, too.
    """
    counts = Counter(stem for _, found in read for stem in {cell.stem for cell in found.cells})
    for source, found in read:
        found.cells = [
            replace(cell, stem=file_stem(f"{source.path.stem}-{cell.stem}"))
            if counts[cell.stem] > 1
            else cell
            for cell in found.cells
        ]
    first: dict[str, SpecificationFile] = {}
    for source, specification in read:
        for cell in specification.cells:
            other = first.setdefault(cell.stem, source)
            if other != source:
                raise UsageError(
                    f"{other.path} and {source.path} both make {cell.stem}.yaml",
                    next_step="import one after the other, each into a folder of its own",
                )
