"""``perfbisect cells match``: which cell a report speaks of."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.cli import options

_SHOWN = 3


@click.command(short_help="Which cell a bench command or a result file is of.")
@click.argument("text")
@click.option(
    "--among", type=click.Path(path_type=Path), multiple=True, help="Cell files or folders besides."
)
@options.as_json
def match(text: str, among: tuple[Path, ...], as_json: bool) -> int:
    """Which cell TEXT is of: a bench command, with the server's where it is known, each on a line of its own,
    or the name of a result file. @FILE reads the text from a file.

    Told are all cells that agree with it and what tells those apart, or the nearest ones with the fields
    that differ, and which of the seven things that make a cell the text does not say.

    \b
    Examples:
      perfbisect cells match result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json
      perfbisect cells match "vllm bench serve --model Qwen/Qwen3-8B --num-prompts 48 --max-concurrency 1"
      perfbisect cells match @report.md

    Exit code: 0 a cell agrees with all that is said, 4 none does.
    """
    from perfbisect.cli.cell_documents import CellMatchDocument, CellsMatchDocument, DifferenceDocument
    from perfbisect.cli.output import emit
    from perfbisect.cli.report_text import report_text
    from perfbisect.config.cells import known_cells, load_cells
    from perfbisect.core.digest import canonical_json
    from perfbisect.core.match import apart, nearest
    from perfbisect.core.sighting import sighting
    from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK
    from perfbisect.render.safe import line

    seen = sighting(report_text(text))
    files: list[Path] = []
    for path in among:
        files += sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    known, warnings = known_cells(files)
    found = nearest(seen, [*known, *(cell for path in dict.fromkeys(files) for cell in load_cells(path))])

    def shown(value: object) -> str:
        return value if isinstance(value, str) else canonical_json(value)

    document = CellsMatchDocument(
        exact=bool(found) and found[0].exact,
        missing=seen.missing,
        apart=apart([one.cell for one in found if one.exact]),
        warnings=warnings,
        cells=tuple(
            CellMatchDocument(
                cell=one.cell.name,
                digest=one.cell.digest,
                differences=tuple(
                    DifferenceDocument(field=f, left=shown(a), right=shown(b)) for f, a, b in one.differing
                ),
            )
            for one in ([one for one in found if one.exact] or found[:_SHOWN])
        ),
    )
    lines = []
    for one in document.cells:
        fields = f"differs in {len(one.differences)}" if one.differences else "agrees with all that is said"
        lines.append(f"{one.cell}: {fields}")
        lines += [f"  {row.field}: {line(row.left)} there, {line(row.right)} here" for row in one.differences]
    if document.exact and len(document.cells) > 1:
        lines.append(f"{len(document.cells)} cells agree: what is said does not tell them apart")
        lines.append(f"these would: {', '.join(document.apart)}")
    if document.missing:
        alone = "; no other known cell agrees" if document.exact and len(document.cells) == 1 else ""
        lines.append(f"not said: {', '.join(document.missing)}{alone}")
    lines += [f"warning: {line(text, 400)}" for text in document.warnings]
    emit(document, lines, as_json=as_json)
    return EXIT_OK if document.exact else EXIT_INCONCLUSIVE
