"""``perfbisect cells import``: what others measure nightly -> cell files."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options


@click.command("import", short_help="Make cell files of nightly performance specifications.")
@click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SPEC.json...")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the cells.")
@options.as_json
def import_verb(specs: tuple[Path, ...], output: Path, as_json: bool) -> int:
    """Make cell files of vLLM-Omni's performance SPECs, one a workload, in a folder.

    Paired lists stay a ladder in one file; what is switched off is counted and left out; audio and text
    twins of one name are two files. Baselines are kept as known. A file that is there already is replaced.

    \b
    Example:
      perfbisect cells import vllm-omni/tests/dfx/perf/tests/test_tts.json -o cells
    """
    from perfbisect.cli.cell_documents import CellsImportDocument, ImportedFileDocument
    from perfbisect.cli.output import emit
    from perfbisect.config.cell_files import write_cell
    from perfbisect.config.cells import load_cells
    from perfbisect.config.perf_specs import read_specification

    read = [(spec, read_specification(spec)) for spec in specs]
    output.mkdir(parents=True, exist_ok=True)
    rows, lines = [], []
    for spec, found in read:
        paths = [write_cell(output, one) for one in found.cells]
        count = sum(len(load_cells(path)) for path in paths)
        rows.append(
            ImportedFileDocument(
                spec=str(spec), files=tuple(map(str, paths)), cells=count, switched_off=len(found.off)
            )
        )
        off = f", {len(found.off)} workloads switched off" if found.off else ""
        lines.append(f"{spec.name}: {count} cells in {len(paths)} files{off}")
    document = CellsImportDocument(files=tuple(rows), cells=sum(row.cells for row in rows))
    emit(document, [*lines, f"{document.cells} cells in {output}"], as_json=as_json)
    return 0
