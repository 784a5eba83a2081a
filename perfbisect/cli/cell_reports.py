"""``perfbisect cells match`` and ``from``: the cells of a report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from pydantic import Field

from perfbisect.cells.drafts import CellDraft, bisect_ends, notes_of
from perfbisect.cells.loading import known_cells, load_cells
from perfbisect.cells.match import may_be_silent, nearest_cells
from perfbisect.cells.reports import parse_report
from perfbisect.cells.reports.shell import LARGEST_TEXT
from perfbisect.cli.cells import DifferenceDocument
from perfbisect.commands.output import CommandResult, report_text, writing
from perfbisect.commands.request import Argument, Option, prints
from perfbisect.common.digests import canonical_json
from perfbisect.common.text import line
from perfbisect.errors import EXIT_INCONCLUSIVE, EXIT_OK, UsageError
from perfbisect.jobs.documents import Document
from perfbisect.model.cell import cell_difference

_NEAREST_SHOWN = 3
_LONGEST_MESSAGE = 400


class CellMatchDocument(Document):
    """A cell beside the reported workload: left is the report, right the cell."""

    cell: str
    digest: str
    differences: tuple[DifferenceDocument, ...]


class CellsMatchDocument(Document):
    """``perfbisect cells match``: the nearest cells.

    ``missing``: properties of a cell that the text does not state. ``unsaid``: what it sets to a value that a
    shell computes. ``unread``: what it sets for the server and cannot be compared; no cell is ``exact`` then.
    ``notes``: what was understood otherwise than it stands there, or not at all. ``apart``: fields that would
    distinguish the cells that agree. ``warnings``: unreadable cell files, which are left out.
    """

    schema_: Literal["perfbisect.cells-match/3"] = Field(default="perfbisect.cells-match/3", alias="schema")
    exact: bool
    missing: tuple[str, ...]
    unsaid: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    cells: tuple[CellMatchDocument, ...]


@prints("perfbisect.cli.cell_reports:CellsMatchDocument")
def match(
    *,
    text: Annotated[str, Argument()],
    among: Annotated[tuple[Path, ...], Option("Cell files or folders besides.")] = (),
) -> CommandResult:
    """Find the cell that TEXT describes: the name or the content of a result file, or the commands of a
    report or a pull request, of the server, the bench or both. @FILE reads the text from a file, - from
    standard input.

    Of each kind the first command that can be read counts: `vllm serve`, the API server's module or image,
    `vllm bench serve`, benchmark_serving.py; on lines of their own, in code, quotations or lists, over
    several lines, with variables that the text assigns, and the containers of compose and Kubernetes files.
    The environment of the server is compared too. Nothing is executed: what a shell would compute is not
    said. Other lines are passed over; other programs that serve or send requests are named.

    Prints all cells that agree with the text and the fields that would distinguish them, or the nearest
    cells with the fields that differ, and which properties of a cell the text does not state. Nearest are
    cells of the same engine and endpoint, then of the same model, then those that differ least.

    \b
    Examples:
      perfbisect cells match result_test_qwen3_tts_base_seed-tts_64_128_inna_outna_20260519-190024.json
      perfbisect cells match "vllm bench serve --model Qwen/Qwen3-8B --num-prompts 48 --max-concurrency 1"
      perfbisect cells match @report.md

    Exit code: 0 a cell agrees with the text, 4 none does.
    """
    reported = parse_report(_report(text))
    files = [file for path in among for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]
    known, warnings = known_cells(files)
    others = [cell for path in dict.fromkeys(files) for cell in load_cells(path)]
    matches = nearest_cells(reported, [*known, *others])
    exact = [match for match in matches if match.exact]
    is_silent = reported.is_silent_on_temperature and any(may_be_silent(reported, m.cell) for m in exact)
    document = CellsMatchDocument(
        exact=bool(exact) and not reported.unread,
        missing=(*reported.missing, *(["temperature"] if is_silent else [])),
        unsaid=reported.unsaid,
        unread=reported.unread,
        notes=reported.notes,
        apart=tuple(
            sorted(
                {row[0] for other in exact[1:] for row in cell_difference(exact[0].cell, other.cell)},
            )
        ),
        warnings=warnings,
        cells=tuple(
            CellMatchDocument(
                cell=match.cell.name,
                digest=match.cell.digest,
                differences=tuple(
                    DifferenceDocument(field=field, left=_shown(left), right=_shown(right))
                    for field, left, right in match.differing
                ),
            )
            for match in exact or matches[:_NEAREST_SHOWN]
        ),
    )
    return CommandResult(document, _match_lines(document), EXIT_OK if document.exact else EXIT_INCONCLUSIVE)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _match_lines(document: CellsMatchDocument) -> list[str]:
    lines = []
    for cell in document.cells:
        count = len(cell.differences)
        agrees = "agrees with all that was read" if document.unread else "agrees with all that is said"
        lines.append(f"{cell.cell}: {f'differs in {count}' if count else agrees}")
        lines += [
            f"  {row.field}: {line(row.left)} there, {line(row.right)} here" for row in cell.differences
        ]
    if document.exact and len(document.cells) > 1:
        lines.append(f"{len(document.cells)} cells agree: what is said does not tell them apart")
        lines.append(f"these would: {', '.join(document.apart)}")
    if document.unread:
        lines.append(f"set for the server, not compared: {', '.join(map(line, document.unread))}")
    lines += [f"note: {line(note, _LONGEST_MESSAGE)}" for note in document.notes]
    if document.unsaid:
        lines.append(f"not said, since a shell computes it: {', '.join(map(line, document.unsaid))}")
    if document.missing:
        unique = "; no other known cell agrees" if document.exact and len(document.cells) == 1 else ""
        lines.append(f"not said: {', '.join(document.missing)}{unique}")
    lines += [f"warning: {line(text, _LONGEST_MESSAGE)}" for text in document.warnings]
    if not document.exact:
        near = f"; the nearest: perfbisect cells show {document.cells[0].cell}" if document.cells else ""
        lines.append(f"next: no cell agrees: perfbisect cells from REPORT -o cell.yaml writes one{near}")
    return lines


def _report(typed: str) -> str:
    """The text of a report: as typed, of ``@FILE``, or of standard input for ``-``."""
    if typed != "-":
        return report_text(typed)
    try:
        return sys.stdin.buffer.read(4 * LARGEST_TEXT + 1).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"the report cannot be read: {error}", where="standard input") from None


class CellsFromDocument(Document):
    """``perfbisect cells from``: a cell file of a report.

    ``path``: where it is, empty if it was only printed. ``defaults``: keys that the report does not say and
    what they are. ``unsaid``, ``unread``: as of ``cells match``. ``to_bring``: files that the cell needs
    beside it. ``good``, ``bad``: what the report compares, empty where it does not say so.
    """

    schema_: Literal["perfbisect.cells-from/1"] = Field(default="perfbisect.cells-from/1", alias="schema")
    path: str
    content: str
    defaults: dict[str, str]
    unsaid: tuple[str, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]
    to_bring: tuple[str, ...]
    good: str
    bad: str
    next: str


@prints("perfbisect.cli.cell_reports:CellsFromDocument")
def from_report(
    *,
    report: Annotated[str, Argument()],
    output: Annotated[Path | None, Option("The cell file to write.", ("-o", "--output"))] = None,
    model: Annotated[str, Option("The model, where the report does not say it.", metavar="NAME")] = "",
) -> CommandResult:
    """Write the cell of a REPORT: text with commands, as typed, of @FILE or of standard input (-); a result
    file of vLLM's client, AIPerf, GuideLLM or SGLang; or a row of a nightly's table with its header.

    What the report does not say is marked in the file, with the default that was taken. The cell loads, and
    `perfbisect cells match` of the same report agrees with it. Without -o it is printed.

    \b
    Examples:
      perfbisect cells from @report.md -o cell.yaml
      perfbisect cells from result.json --model Qwen/Qwen3-8B

    Exit code: 0 the cell is written, 2 the report has none.
    """
    # A result file is more often given by its path; a longer text is no path.
    is_file = report.endswith((".json", ".jsonl")) and "\n" not in report and os.path.isfile(report)  # noqa: PTH113
    reported = parse_report(_report(f"@{report}" if is_file else report))
    draft = CellDraft.of(reported, model)
    text = draft.text(tuple(notes_of(reported, draft)))
    with writing(output or Path()):
        _check(text, output, draft)
        if output is not None:
            if output.exists():
                step = f"choose another -o, or remove it: rm {output}"
                raise UsageError(f"{output} is there already", where=output, next_step=step)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text, encoding="utf-8")
    good, bad = bisect_ends(reported)
    command = f"perfbisect bisect {output or 'cell.yaml'} --good {good or 'REV'} --bad {bad or 'REV'}"
    folder = output.parent if output else Path()
    document = CellsFromDocument(
        path=str(output or ""),
        content=text,
        defaults=draft.marks,
        unsaid=reported.unsaid,
        unread=reported.unread,
        notes=tuple(notes_of(reported, draft)),
        to_bring=tuple(str(folder / need) for need in draft.needs if not (folder / need).exists()),
        good=good,
        bad=bad,
        next=command,
    )
    # Printed alone, the cell can be a file: what is said beside it is a comment.
    is_written, sign = bool(output), "" if output else "# "
    lines = [f"{line(document.path)} is written"] if is_written else text.rstrip("\n").split("\n")
    lines += [f"note: {line(note, _LONGEST_MESSAGE)}" for note in document.notes if is_written]
    lines += [f"{name}: {line(mark)}" for name, mark in draft.marks.items() if is_written]
    lines += [f"{sign}to bring: {line(need)}" for need in document.to_bring]
    ends = "" if good else "; the report does not name two ends"
    return CommandResult(document, [*lines, f"{sign}next: {document.next}{ends}"])


def _check(text: str, output: Path | None, draft: CellDraft) -> None:
    """Load the cell as the file that it will be. :raises UsageError: no cell can hold the report."""
    stem = output.stem if output else "cell"
    folder = output.parent if output and output.parent.is_dir() else Path()
    with TemporaryDirectory(prefix=".from-", dir=folder) as scratch:
        path = Path(scratch) / f"{stem}.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            load_cells(path, incomplete=bool(draft.needs))
        except UsageError as error:
            if error.field == "name":
                step = "choose another -o, such as cell.yaml"
                raise UsageError(
                    f"{stem!r} names no cell: {error.message}", where=output, next_step=step
                ) from None
            said = "; ".join(part.strip() for part in error.message.splitlines())
            raise UsageError(
                f"no cell can hold the report: {said}",
                next_step="perfbisect schema cell; perfbisect cells list",
            ) from None
