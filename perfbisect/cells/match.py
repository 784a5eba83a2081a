"""The cells that a report may be of: what differs, and which is nearest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfbisect.cells.reports.arguments import BACKENDS, DECIMAL, REPORTING, dataset_arguments
from perfbisect.cells.reports.environment import is_workload
from perfbisect.cells.reports.report import ReportedWorkload, hub_name
from perfbisect.common.digests import canonical
from perfbisect.common.secret_references import hide_literals
from perfbisect.model.cell import SERVER, Cell, DeployYaml, Revision
from perfbisect.redaction import redacted
from perfbisect.serving.families import FAMILIES
from perfbisect.serving.families.text import COMPLETIONS

Difference = tuple[str, object, object]
"""(field, reported value, value of the cell)."""


@dataclass(frozen=True)
class Match:
    """A cell with its differences from a reported workload."""

    cell: Cell
    differing: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        """Nothing that was reported differs; what was not reported may."""
        return not self.differing


def nearest_cells(report: ReportedWorkload, cells: Iterable[Cell]) -> tuple[Match, ...]:
    """The cells of the report's engine and endpoint first, then those of its model, then by number of
    differences, then those of the report's test, then by name."""
    found = [Match(cell, differing(report, cell)) for cell in cells]
    engine = report.engine
    if not engine and not report.test and report.fields.get("endpoint", COMPLETIONS) == COMPLETIONS:
        engine = "vllm"

    def distance(match: Match) -> tuple[object, ...]:
        fields = {row[0] for row in match.differing}
        served = FAMILIES[match.cell.family].package
        kind = (engine not in ("", served), "endpoint" in fields, "model" in fields)
        return *kind, len(match.differing), not _is_of_test(report, match.cell), match.cell.name

    return tuple(sorted(found, key=distance))


def differing(report: ReportedWorkload, cell: Cell) -> tuple[Difference, ...]:
    """Reported fields that the cell has otherwise."""
    rows: list[Difference] = []
    for name, value in sorted(report.fields.items()):
        held: object = getattr(cell, name)
        if name == "backend":
            held = BACKENDS.get(cell.backend, cell.backend)
        elif (
            name == "dataset_path" and held and str(value).rpartition("/")[2] == str(held).rpartition("/")[2]
        ):
            held = value  # a file of that name here
        elif isinstance(held, DeployYaml):
            held = held.path or "a text of the cell's own"
        elif name in ("model", "tokenizer") and value is not None and hub_name(str(value)) == held:
            held = value  # in a folder there
        elif isinstance(held, Revision):
            held = held.model_dump(exclude_none=True)
        elif isinstance(held, Mapping):
            held = held or None
        rows.append((name, value, held))
    client = {name: value for name, value in cell.client.args.items() if not REPORTING.match(name)}
    own: dict[str, object] = {**cell.dataset_args, **client, **cell.sampling.sent}
    if report.is_silent_on_temperature and may_be_silent(report, cell):
        own.pop("temperature", None)
    elif cell.sampling.temperature == SERVER and cell.family == "text":
        own["temperature"] = SERVER
    # A benchmark without a server has lengths of its own names.
    own = dataset_arguments(cell.dataset_name, own) if FAMILIES[cell.family].serves else own
    names = {*report.arguments, *(own if report.closed else ())}
    rows += [(name, report.arguments.get(name, "-"), own.get(name, "-")) for name in sorted(names)]
    if (serve := report.serve_args) is not None:
        # A result that names options of its server names some of them.
        names = {*serve, *(cell.serve_args if report.engine or not report.likely else ())}
        rows += [
            (f"serve_args.{name}", serve.get(name, "-"), cell.serve_args.get(name, "-"))
            for name in sorted(names)
        ]
    rows = [
        (name, hide_literals(there, (name,)), hide_literals(here, (name,)))
        for name, there, here in rows
        # Canonical: 64 and 64.0 are the same load.
        if name not in report.unsaid and canonical(_plain(there)) != canonical(_plain(here))
    ]
    if report.env is not None:
        variables = {name: value for name, value in cell.env.items() if is_workload(name)}
        there, here = redacted(report.env), redacted(variables)
        rows += [
            (f"env.{name}", there.get(name, "-"), here.get(name, "-"))
            for name in sorted({*report.env, *variables})
            if report.env.get(name) != variables.get(name) and f"the value of {name}" not in report.unread
        ]
    if report.test and not _is_of_test(report, cell):
        rows.insert(0, ("test", report.test, cell.name))
    return tuple(rows)


def _plain(value: object) -> object:
    """One form of what a command line writes in several: a list of one, 0.90."""
    if isinstance(value, list) and len(value) == 1:
        return _plain(value[0])
    if isinstance(value, str) and DECIMAL.fullmatch(value):
        return float(value)
    return value


def may_be_silent(report: ReportedWorkload, cell: Cell) -> bool:
    """Whether a report without a temperature may be of the cell: the client's default depends on its era."""
    is_server, era = cell.sampling.temperature == SERVER, report.has_server_sampling
    return (is_server or cell.sampling.temperature in (0, None)) and era in (None, is_server)


def _is_of_test(report: ReportedWorkload, cell: Cell) -> bool:
    stem = cell.name.partition("@")[0]
    return bool(report.test) and (stem == report.test or stem.startswith(f"{report.test}-"))
