"""What an attempt knows of the engine it is about to start, and the files it lays beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfbisect.core.cell import Cell
from perfbisect.core.change import Change
from perfbisect.environments import Environment
from perfbisect.errors import ServerError
from perfbisect.families import Engine


def engine_of(cell: Cell, change: Change, environment: Environment) -> Engine:
    """The engine of a change in its environment, for the command that starts it.

    :raises ServerError: the cell takes its deploy YAML from the change, and this one has no such file.
    """
    root = Path(environment.engine_file).parent.parent
    deploy = cell.deploy_yaml
    if deploy is not None and deploy.origin and deploy.path and not (root / deploy.path).is_file():
        raise ServerError(
            f"the deploy YAML {deploy.path}, which the cell takes from the change, is not in {change.short}",
            next_step="pin it in the cell: deploy_yaml: {at: REV, path: ...} or {text: ...}",
        )
    return Engine(version=environment.engine_version, date=change.date, root=str(root))


def with_arguments(cell: Cell, more: Mapping[str, object]) -> Cell:
    """The cell as it is served on a kind of machine: with arguments that it does not set itself."""
    return cell.model_copy(update={"serve_args": {**more, **cell.serve_args}}) if more else cell


def lay(files: Mapping[str, str], folder: Path) -> None:
    """Write the texts that the server reads into its folder.

    :raises OSError: that is not possible.
    """
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
