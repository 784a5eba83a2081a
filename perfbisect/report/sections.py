"""What reports and plans share: the rows of a cell, the commands of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfbisect.common.digests import canonical_json
from perfbisect.common.quantities import counted
from perfbisect.common.text import line
from perfbisect.jobs.documents import (
    CellDocument,
    CommandsDocument,
)
from perfbisect.model.cell import pinned
from perfbisect.model.metric import parse_metric
from perfbisect.report.document import (
    KeyValues,
    Section,
    code,
)
from perfbisect.serving.families import FAMILIES

_ASKED = ("deploy YAML", "load", "backend", "sampling")
"""Rows that say how a server is set up and asked."""


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
    if FAMILIES[cell.family].serves:
        return [(label, value) for label, value in rows if value]
    unasked = (*_ASKED, *(() if cell.num_warmups else ("warm-ups",)))
    return [(label, value) for label, value in rows if value and label not in unasked]


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


def command_lines(commands: CommandsDocument, of: str = "") -> list[str]:
    """The exact commands of a launch, for a dry run; ``of``: the side."""
    return [
        f"Commands{of}",
        f"  {'serve' if commands.bench else 'bench'}  {line(commands.serve, 4000)}",
        *([f"  bench  {line(commands.bench, 4000)}"] if commands.bench else []),
        f"  ({line(commands.note)})",
    ]
