"""Models that hear, see and speak: vLLM-Omni with the chat API."""

from __future__ import annotations

from perfbisect.core.cell import Cell
from perfbisect.errors import UsageError
from perfbisect.families import Request
from perfbisect.families.requests import CHAT, chat
from perfbisect.families.staged import StagedFamily


def first_request(cell: Cell, model: str) -> Request:
    """A chat, with sound where the cell's answers have it.

    The speech API refuses these models since #2763.
    """
    if cell.endpoint != CHAT:
        raise UsageError(
            f"cell {cell.name}: endpoint of omni is {CHAT}, not {cell.endpoint}: the speech API refuses "
            "these models (#2763)",
            field="endpoint",
        )
    return chat(cell, model)


FAMILY = StagedFamily("omni", "e2el", ("failed", "output_tokens"), first_request)
"""End to end, since a cell may ask for text alone; a cell with sound names its own headline and guards."""
