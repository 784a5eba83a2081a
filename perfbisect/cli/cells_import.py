"""``perfbisect cells import``: what others measure nightly -> cell files."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli import options

if TYPE_CHECKING:
    from perfbisect.config.specifications import Source, Specification
    from perfbisect.system.git import Repository


@click.command("import", short_help="Make cell files of nightly performance specifications.")
@click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SPEC.json...")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the cells.")
@click.option(
    "--at", "at", metavar="REV", help="Read the SPECs as they are at this commit of the repository."
)
@options.repo
@options.as_json
def import_verb(
    specs: tuple[Path, ...], output: Path, at: str | None, repo: Path | None, as_json: bool
) -> int:
    """Make cell files of the performance SPECs of a nightly, one a workload, in a folder.

    vLLM-Omni's lists of servers and vLLM's serving tests are read; which one it is, the content says. Paired
    lists stay a ladder in one file, lists that are crossed become one; what is switched off is counted, what
    cannot be measured here is told; audio and text twins of one name are two files. Headline and guards suit
    what the answers hold. Baselines are kept as known. A file that is there already is replaced.

    What is in no SPEC is not in the cells: variables that a pipeline sets, and the machine.

    \b
    Examples:
      perfbisect cells import vllm-omni/tests/dfx/perf/tests/test_tts.json -o cells
      perfbisect cells import .buildkite/performance-benchmarks/tests/serving-tests.json -o cells --at v0.14.0
    """
    from perfbisect.cli.cell_documents import CellsImportDocument, ImportedFileDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.place import place
    from perfbisect.config.cell_files import write_cell
    from perfbisect.config.cells import load_cells
    from perfbisect.config.imports import read_specification
    from perfbisect.config.specifications import on_disk
    from perfbisect.render.safe import line

    repository = place(repo=repo).needed_repository() if at else None
    sources = [_at(repository, at, spec) if repository and at else on_disk(spec) for spec in specs]
    read = [(spec, read_specification(source)) for spec, source in zip(specs, sources, strict=True)]
    _apart(read)
    output.mkdir(parents=True, exist_ok=True)
    rows, lines = [], []
    for spec, found in read:
        paths = [write_cell(output, one) for one in found.cells]
        count = sum(len(load_cells(path)) for path in paths)
        needs = dict.fromkeys(need for one in found.cells for need in one.needs)
        row = ImportedFileDocument(
            spec=str(spec),
            files=tuple(map(str, paths)),
            cells=count,
            switched_off=len(found.off),
            left_out=tuple(f"{one.place}: {one.why}" for one in found.left_out),
            to_bring=tuple(
                f"{output / need.path}: {need.origin}" for need in needs if not (output / need.path).exists()
            ),
        )
        off = f", {row.switched_off} workloads switched off" if found.off else ""
        lines.append(f"{spec.name}: {count} cells in {len(paths)} files{off}")
        lines += [f"  left out: {line(told)}" for told in row.left_out]
        lines += [f"  to bring: {line(told)}" for told in row.to_bring]
        rows.append(row)
    document = CellsImportDocument(files=tuple(rows), cells=sum(row.cells for row in rows))
    emit(document, [*lines, f"{document.cells} cells in {output}"], as_json=as_json)
    return 0


def _at(repository: Repository, at: str, spec: Path) -> Source:
    """A specification as it is at a commit.

    :raises RevisionError: there is no such commit, or it has no such file.
    :raises UsageError: the file is no text.
    """
    from perfbisect.config.specifications import Source
    from perfbisect.errors import RevisionError, UsageError

    commit = repository.resolve(at)
    full = spec.absolute()
    path = full.relative_to(repository.path) if full.is_relative_to(repository.path) else spec
    folder = path.parent.as_posix()

    def beside(name: str) -> str | None:
        try:
            return text(posixpath.normpath(posixpath.join(folder, name)))
        except RevisionError:
            return None

    def text(name: str) -> str:
        try:
            return repository.read(commit.id, name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{name} at {commit.short} cannot be read: {error}") from None

    return Source(path, text(path.as_posix()), beside, commit)


def _apart(read: list[tuple[Path, Specification]]) -> None:
    """:raises UsageError: two specifications make a file of one name."""
    from perfbisect.errors import UsageError

    first: dict[str, Path] = {}
    for spec, found in read:
        for one in found.cells:
            other = first.setdefault(one.stem, spec)
            if other != spec:
                raise UsageError(
                    f"{other} and {spec} both make {one.stem}.yaml",
                    next_step="import one after the other, each into a folder of its own",
                )
