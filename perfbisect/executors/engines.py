"""What an attempt knows of the engine it is about to start, and the files it lays beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfbisect.config.stages import inherited, pinned, placed
from perfbisect.core.cell import Cell
from perfbisect.core.change import Change
from perfbisect.environments import Environment
from perfbisect.errors import ServerError, UsageError
from perfbisect.families import Engine
from perfbisect.system.slots import Slot


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


def check_stages(cell: Cell, slot: Slot, platform: str, *, root: str = "") -> None:
    """Refuse stages that name devices which the slot does not have.

    Numbers count within what the engine sees. Where all of a stage's lie outside that, vLLM-Omni takes them
    for numbers of the machine: the stage would run on somebody else's device. ``root``: the change's own
    tree, where it is known. A cell without a deploy YAML has the engine's own, which is not read here.

    :raises UsageError: the cell says so itself.
    :raises ServerError: the change's deploy YAML does: that of another change may fit.
    """
    if not slot.devices and not slot.env:
        return
    deploy = cell.deploy_yaml
    own = deploy is not None and deploy.origin is not None
    documents = pinned(deploy)
    if own and root and deploy is not None:
        documents = inherited(f"{root}/{deploy.path}", _text)
    for stage in placed(documents, cell.stage_overrides, platform):
        why = stage.beyond(len(slot.devices))
        if not why:
            continue
        message = f"cell {cell.name}: {stage.field}: {why}"
        where = f"{stage.file}:{stage.line}" if stage.line else stage.file or None
        kind = ServerError if own and stage.file else UsageError
        raise kind(message, where=where, next_step=stage.advice)


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def with_arguments(cell: Cell, more: Mapping[str, object]) -> Cell:
    """The cell as it is served on a kind of machine: with arguments that it does not set itself."""
    return cell.model_copy(update={"serve_args": {**more, **cell.serve_args}}) if more else cell


def lay(files: Mapping[str, str], folder: Path) -> None:
    """Write the texts that the server reads into its folder.

    :raises OSError: that is not possible.
    """
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
