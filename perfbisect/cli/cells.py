"""``perfbisect cells``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options
from perfbisect.cli.cells_import import import_verb
from perfbisect.cli.cells_lint import lint
from perfbisect.cli.cells_match import match
from perfbisect.cli.groups import Verbs


@click.group(cls=Verbs, short_help="List, show, check and compare cells.")
def cells() -> None:
    """List, show, check and compare cells: the workloads that can be measured.

    \b
    Example:
      perfbisect cells list
    """


for verb in (match, lint, import_verb):
    cells.add_command(verb)


@cells.command("list", short_help="Every cell that can be named.")
@options.as_json
def list_verb(as_json: bool) -> int:
    """Every cell that can be named: those in ./cells and those shipped.

    \b
    Example:
      perfbisect cells list --json
    """
    from perfbisect.cli.documents import CellFileDocument, CellsDocument
    from perfbisect.cli.output import emit
    from perfbisect.config.cells import list_cells, load_cells
    from perfbisect.errors import UsageError
    from perfbisect.render.safe import line

    rows = []
    for file in list_cells():
        names: tuple[str, ...] = ()
        description = error = ""
        try:
            found = load_cells(file.path)
            names, description = tuple(cell.name for cell in found), found[0].description
        except UsageError as wrong:
            error = f"{wrong.where or file.path}: {wrong.message}"
        rows.append(
            CellFileDocument(
                name=file.name,
                path=str(file.path),
                shipped=file.shipped,
                cells=names,
                description=description,
                error=error,
            )
        )
    width = max((len(name) for row in rows for name in row.cells or (row.name,)), default=0)
    lines = []
    for row in rows:
        told = line(row.error or row.description)
        for name in row.cells or (row.name,):
            lines.append(f"{name:<{width}}  {told}")
    emit(CellsDocument(cells=tuple(rows)), lines, as_json=as_json)
    return 0


@cells.command(short_help="What a cell measures.")
@click.argument("cell")
@click.option("--variant", metavar="NAME", help="As this variant serves it.")
@options.repo
@options.as_json
def show(cell: str, variant: str | None, repo: Path | None, as_json: bool) -> int:
    """What CELL measures: the block that is shown before anything starts.

    \b
    Example:
      perfbisect cells show text_cpu_llama100m
    """
    from perfbisect.cli.documents import CellShowDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.config.cells import load_cells
    from perfbisect.core.cell import apply_variant
    from perfbisect.jobs.views import cell_document
    from perfbisect.render.console import cell_lines

    repository = place(repo=repo).repository if repo else None

    def read_at(sha: str, path: str) -> str:
        assert repository is not None
        return repository.read(sha, path).decode("utf-8")

    found = load_cells(cell, read_at=read_at if repository else None)
    if variant:
        found = tuple(apply_variant(one, variant) for one in found)
    shown = tuple(cell_document(one, one.metric) for one in found)
    document = CellShowDocument(cells=shown, workloads=tuple(one.workload() for one in found))
    lines = [text for one in shown for text in (*cell_lines(one), "")]
    emit(document, lines[:-1], as_json=as_json)
    return 0


@cells.command(short_help="Check cell files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.as_json
def validate(files: tuple[str, ...], as_json: bool) -> int:
    """Check cell FILEs: all are read; of each that is wrong the place and what is allowed there are told.

    \b
    Example:
      perfbisect cells validate cells/*.yaml

    Exit code: 0 all are valid, 2 one is not.
    """
    from perfbisect.cli.documents import CellsValidateDocument, FileCheckDocument
    from perfbisect.cli.output import emit
    from perfbisect.config.cells import load_cells
    from perfbisect.errors import EXIT_OK, EXIT_USAGE, UsageError
    from perfbisect.render.console import error_lines

    checks, lines = [], []
    for file in files:
        try:
            names = tuple(cell.name for cell in load_cells(file))
        except UsageError as wrong:
            checks.append(FileCheckDocument(file=file, cells=(), error=wrong.message, where=wrong.where))
            lines += error_lines(wrong.message, wrong.where or file, None)
            continue
        checks.append(FileCheckDocument(file=file, cells=names, error=None, where=None))
        lines.append(f"{file}: {', '.join(names)}")
    valid = all(check.error is None for check in checks)
    emit(CellsValidateDocument(valid=valid, files=tuple(checks)), lines, as_json=as_json)
    return EXIT_OK if valid else EXIT_USAGE


@cells.command(short_help="Where two cells differ.")
@click.argument("a")
@click.argument("b")
@options.as_json
def diff(a: str, b: str, as_json: bool) -> int:
    """Where the workloads of two cells differ: attempts of cells that differ are never compared.

    \b
    Example:
      perfbisect cells diff text_throughput text_prefix_repetition
    """
    from perfbisect.cli.cell_documents import DifferenceDocument
    from perfbisect.cli.documents import CellsDiffDocument
    from perfbisect.cli.output import emit
    from perfbisect.config.cells import load_cell
    from perfbisect.core.cell import difference
    from perfbisect.render.safe import line

    left, right = load_cell(a), load_cell(b)
    rows = tuple(DifferenceDocument(field=f, left=x, right=y) for f, x, y in difference(left, right))
    document = CellsDiffDocument(left=left.name, right=right.name, comparable=not rows, differences=rows)
    lines = [f"{row.field}: {line(row.left)} -> {line(row.right)}" for row in rows]
    emit(document, lines or [f"the same workload: {left.digest}"], as_json=as_json)
    return 0
