"""Where the deploy YAML of a cell differs from change to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfbisect.core.cell import Cell
from perfbisect.core.change import Change

DeployText = Callable[[str, str], str | None]
"""(commit, path) -> what the file there is, None where there is none: for deploy YAML of the change."""


def differing(cell: Cell, changes: Sequence[Change], deploy: DeployText | None) -> frozenset[str]:
    """Ids of changes whose deploy YAML, taken from the change, is not what it was one change before."""
    source = cell.deploy_yaml
    if source is None or source.origin is None or source.path is None or deploy is None:
        return frozenset()
    texts = [deploy(change.source, source.path) if change.kind == "commit" else None for change in changes]
    return frozenset(
        change.id
        for change, here, before in zip(changes[1:], texts[1:], texts[:-1], strict=True)
        if here != before
    )
