"""Suites: cells that one and the same server can serve, so that one start of it measures them all.

Only what a client asks for may differ between them. Between two cells the caches are emptied, so a server
that has no request for that is shared by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.common.digests import digest
from perfbisect.model.cell import Cell
from perfbisect.serving.families import FAMILIES, Endpoint

_ANY = Endpoint(port=1, model_name="any")


def server_digest(cell: Cell) -> str:
    """Digest of what is started for a cell: command, process environment, files, devices, kind of model, and
    the state of model and tokenizer; 16 hex digits. Equal ones are one server.

    A deploy YAML that is the change's own stands in it by its path: of one change it is one text.

    :raises UsageError: the cell asks for what its family cannot serve.
    """
    command = FAMILIES[cell.family].server(cell, _ANY)
    started = {
        "family": cell.family,
        "args": command.args,
        "env": dict(command.env),
        "files": dict(command.files),
        "reset": [request.path for request in command.reset_requests],
        "revision": [cell.revision.model, cell.revision.tokenizer],
        "gpus": cell.gpus,
    }
    return digest(started)[:16]


def suites(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """The cells by the server that they share, each cell once, in the order in which they were given.

    A cell whose server's caches cannot be emptied between cells is alone.

    :raises UsageError: a cell asks for what its family cannot serve.
    """
    found: dict[str, list[Cell]] = {}
    for number, cell in enumerate(cells):
        forgets = FAMILIES[cell.family].server(cell, _ANY).reset_requests
        found.setdefault(server_digest(cell) if forgets else f"alone {number}", []).append(cell)
    return tuple(tuple(group) for group in found.values())
