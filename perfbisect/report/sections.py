"""Sections that the reports of all kinds of jobs share: cell, launches, minutes, commands, versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfbisect.common.digests import canonical_json
from perfbisect.common.quantities import counted, minutes, number, percent, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.documents import (
    CellDocument,
    ChangeDocument,
    CommandsDocument,
    LaunchDocument,
    MinutesDocument,
)
from perfbisect.model.cell import pinned
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import (
    Inline,
    Items,
    KeyValues,
    Section,
    code,
    make_table,
)

_PHASES: Mapping[str, str] = {
    "build": "build",
    "fetch": "fetch",
    "launch": "start",
    "first_request": "first request",
    "warm": "discarded run",
    "bench": "measured runs",
    "stop": "stop",
}
"""Phases of an attempt in their order, with their names."""


def change_text(change: ChangeDocument) -> Inline:
    return (code(change.short), " ", code(change.subject)) if change.subject else code(change.short)


def cell_rows(cell: CellDocument) -> list[tuple[str, str]]:
    """What is measured, as labels and values; what is empty is left out."""
    judged = parse_metric(cell.metric).metric
    dataset = " ".join(filter(None, (cell.dataset_name, cell.dataset_path)))
    lengths = "".join(f" {name}={_plain(value)}" for name, value in sorted(cell.dataset_args.items()))
    load = [f"max concurrency {cell.max_concurrency}"] if cell.max_concurrency else []
    if cell.request_rate != "inf":
        load.append(f"request rate {cell.request_rate:g} req/s")
    discarded = min(cell.num_prompts, cell.discard_prompts or 0)
    sampling = _pairs(cell.sampling) or "of the deploy YAML"
    client = {"name": cell.client["name"], **cell.client["args"], **cell.client["env"]}
    rows = (
        ("cell", cell.name + (f" +{cell.variant}" if cell.variant else "")),
        ("model", pinned(cell.model, cell.revision["model"])),
        ("task", cell.task or cell.family),
        ("deploy YAML", _origin(cell.deploy_yaml)),
        ("dataset", f"{pinned(dataset, cell.revision['dataset'])}{lengths}, seed {cell.seed}"),
        ("prompts", str(cell.num_prompts)),
        ("load", ", ".join(load) or "request rate inf"),
        ("warm-ups", str(cell.num_warmups)),
        ("discarded run", counted(discarded, "prompt") if discarded else ""),
        ("backend", f"{cell.backend} {cell.endpoint}"),
        ("sampling", sampling + (", ignore EOS" if cell.ignore_eos else "")),
        ("devices", str(cell.gpus or "")),
        ("tokenizer", pinned(cell.tokenizer, cell.revision["tokenizer"]) if cell.tokenizer else ""),
        ("extra body", _pairs(cell.extra_body)),
        ("stage overrides", _pairs(cell.stage_overrides)),
        ("serve arguments", _pairs(cell.serve_args)),
        ("environment", _pairs(cell.env)),
        ("client", _pairs(client)),
        ("digest", cell.digest),
        ("metric", f"{cell.metric} ({judged.display}), {judged.unit}, {judged.direction} is better"),
        ("guards", ", ".join(cell.guards)),
        ("reference", _reference(cell.reference)),
    )
    return [(label, value) for label, value in rows if value]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in values.items())


def _origin(deploy: Mapping[str, str] | None) -> str:
    if deploy is None:
        return "none"
    if "from" in deploy:
        return f"{deploy['path']} of the change"
    if "at" in deploy:
        return f"{deploy['path']} at {deploy['at']}"
    return deploy.get("file") or f"given in the cell ({deploy['digest'][:12]})"


def _reference(reference: Mapping[str, Any] | None) -> str:
    if reference is None:
        return ""
    image = reference["image"]
    return pinned(image, reference["content"]) if image else counted(len(reference["pixels"]), "pixel")


def workload_section(cell: CellDocument) -> Section:
    """The block that is shown before anything is measured."""
    return Section("Cell", (KeyValues(tuple((label, code(value)) for label, value in cell_rows(cell))),))


def cell_section(
    cell: CellDocument, notes: Iterable[str] = (), more: Iterable[tuple[str, Inline]] = ()
) -> Section:
    """The workload, ``more`` of what was measured, and the notes of the plan."""
    rows = KeyValues((*((label, code(value)) for label, value in cell_rows(cell)), *more))
    items = Items(tuple(notes))
    return Section("What was measured", (rows, items) if items.items else (rows,), detail=True)


def launch_section(launches: Sequence[LaunchDocument], unit: str, culprit: str = "") -> Section:
    """Every launch with its runs; its slot where there are several. Those of the culprit stand out."""
    slots = len({launch.slot for launch in launches}) > 1
    titles = ("#*", "change", "for", *(("slot",) if slots else ()), "value*", "runs", "took*")
    rows: list[tuple[Inline, ...]] = []
    for launch in launches:
        value = launch.outcome if launch.value is None else with_unit(launch.value, unit)
        runs = " ".join(number(v) for v in launch.values) or code(launch.reason or "-")
        slot: tuple[Inline, ...] = (code(launch.slot),) if slots else ()
        head: tuple[Inline, ...] = (str(launch.number), code(launch.change.short), launch.purpose)
        warned = (runs, *(f"; {text}" for text in launch.warnings))
        tail = (minutes(launch.minutes), launch.started_at[:19], launch.why)
        rows.append((*head, *slot, value, warned, *tail))
    marked = (i for i, launch in enumerate(launches) if launch.change.id == culprit)
    table = make_table((*titles, "began (UTC)", "why"), rows, marked)
    return Section("Every launch", (table,) if rows else (), detail=True)


def minutes_section(spent: MinutesDocument) -> Section:
    """Where the time went."""

    def share(taken: float) -> str:
        return percent(taken / spent.total, False) if spent.total else ""

    rows = [
        (_PHASES.get(phase, phase), minutes(taken), share(taken)) for phase, taken in spent.by_phase.items()
    ]
    if spent.lost:
        rows.append(("discarded or failed, no evidence", minutes(spent.lost), share(spent.lost)))
    budget = f", of a budget of {minutes(spent.budget)}" if spent.budget else ""
    rows.append((f"all{budget}", minutes(spent.total), ""))
    if spent.saved:
        rows.append(("saved, since work overlapped", minutes(spent.saved), ""))
    table = make_table(("phase", "time*", "share*"), rows)
    return Section("Where the minutes went", (table,), detail=True)


def command_lines(commands: CommandsDocument, of: str = "") -> list[str]:
    """The exact commands of a launch, for a dry run; ``of``: the side."""
    return [
        f"Commands{of}",
        f"  serve  {line(commands.serve, 4000)}",
        f"  bench  {line(commands.bench, 4000)}",
        f"  ({line(commands.note)})",
    ]


def version_section(versions: Mapping[str, object]) -> Section:
    """Versions of everything that was measured with, a table within them row by row."""
    rows: list[tuple[str, Inline]] = []
    for name, value in versions.items():
        if isinstance(value, Mapping):
            rows += [(f"{name}: {key}", code(str(item))) for key, item in value.items() if item]
        elif value:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            rows.append((name, code(text)))
    return Section("Versions", (KeyValues(tuple(rows)),) if rows else (), detail=True)
