"""What a cell of ours runs: its family, and the knobs that choose code."""

from __future__ import annotations

import re

from perfbisect.core.cell import Cell
from perfbisect.core.suspect_table import Table

_ASYNC_CHUNK = re.compile(r"^async_chunk\s*:\s*true\s*(?:#.*)?$", re.MULTILINE)


def traits_of_cell(cell: Cell, table: Table) -> frozenset[str]:
    """The traits by which the parts of an engine are said to be run.

    A deploy YAML says whether stages pass chunks; a serve argument that says otherwise wins over it.
    """
    found = {cell.family}
    deploy = cell.deploy_yaml.text if cell.deploy_yaml is not None else None
    if deploy and _ASYNC_CHUNK.search(deploy):
        found.add("async_chunk")
    for option, trait in table.options.items():
        if option in cell.serve_args:
            (found.discard if cell.serve_args[option] in (False, None) else found.add)(trait)
    return frozenset(found)


def files_of_cell(cell: Cell) -> frozenset[str]:
    """Files of the repository under test that a cell names: its deploy YAML, where that is the change's."""
    path = cell.deploy_yaml.path if cell.deploy_yaml is not None and cell.deploy_yaml.origin else None
    return frozenset({path} if path else ())
