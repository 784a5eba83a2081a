"""Sections that the reports of all kinds of jobs share: cell, launches, minutes, commands, versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfbisect.common.quantities import minutes, number, with_unit
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    CommandsDocument,
    LaunchDocument,
    MinutesDocument,
)
from perfbisect.report.document import Code, Column, Inline, Items, KeyValues, Paragraph, Section, Table, code


def change_text(change: ChangeDocument) -> Inline:
    """A change with its subject."""
    return (code(change.short), " ", code(change.subject)) if change.subject else code(change.short)


def cell_section(cell: CellDocument, notes: Iterable[str] = ()) -> Section:
    """The workload, and the notes of the plan."""
    rows = KeyValues(tuple((label, code(value)) for label, value in cell.rows))
    items = Items(tuple(notes))
    return Section("Workload", (rows, items) if items.items else (rows,), detail=True)


def launch_section(launches: Sequence[LaunchDocument], unit: str) -> Section:
    """Every launch with its runs; its slot where there are several."""
    slots = len({launch.slot for launch in launches}) > 1
    columns = [Column("#", numeric=True), Column("change"), Column("purpose")]
    columns += [Column("slot")] if slots else []
    columns += [Column("value", numeric=True), Column("runs"), Column("took", numeric=True)]
    columns += [Column("started (UTC)")]
    rows: list[tuple[Inline, ...]] = []
    for launch in launches:
        value = launch.outcome if launch.value is None else with_unit(launch.value, unit)
        runs: Inline = " ".join(number(v) for v in launch.values) or code(launch.reason or "-")
        slot: tuple[Inline, ...] = (code(launch.slot),) if slots else ()
        head: tuple[Inline, ...] = (str(launch.number), code(launch.change.short), launch.purpose)
        rows.append((*head, *slot, value, runs, minutes(launch.minutes), launch.started_at[:19]))
    return Section("Launches", (Table(tuple(columns), tuple(rows)),) if rows else (), detail=True)


def minutes_section(spent: MinutesDocument) -> Section:
    """Where the time went."""
    rows: list[tuple[Inline, ...]] = [(phase, minutes(value)) for phase, value in spent.by_phase.items()]
    rows += [("lost to failures that are no evidence", minutes(spent.lost))] if spent.lost else []
    rows.append(("total", minutes(spent.total)))
    rows += [("saved by overlapping work", minutes(spent.saved))] if spent.saved else []
    table = Table((Column("phase"), Column("time", numeric=True)), tuple(rows))
    return Section("Time spent", (table,), detail=True)


def reproduce_section(commands: Iterable[CommandsDocument]) -> Section:
    """The commands of one attempt of each side."""
    blocks: list[Code | Paragraph] = []
    for command in commands:
        text = f"# serve {command.change}\n{command.serve}\n# bench\n{command.bench}"
        text += f"\n# all of it\n{command.perfbisect}" if command.perfbisect else ""
        blocks += [Code(text), Paragraph(f"{command.note}.", quiet=True)]
    return Section("Reproduce", tuple(blocks), detail=True)


def version_section(versions: Mapping[str, object]) -> Section:
    """Versions of everything that was measured with."""
    rows = tuple((name, code(value)) for name, value in version_rows(versions))
    return Section("Versions", (KeyValues(rows),) if rows else (), detail=True)


def version_rows(versions: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of everything with which was measured, a table within it row by row."""
    rows = []
    for name, value in versions.items():
        if not value:
            continue
        if isinstance(value, Mapping):
            rows += [(f"{name}: {key}", str(item)) for key, item in value.items() if item]
        else:
            rows.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return rows
