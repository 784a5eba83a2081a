"""``perfbisect skill install``: the skill for coding agents, copied to where an agent reads skills."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, prints

NAME = "perf-bisect"


@prints("perfbisect.commands.documents:SkillInstallDocument")
def install(
    *,
    folder: Annotated[Path | None, Argument("[DIR]")] = None,
) -> CommandResult:
    """Copy the skill of this version into DIR/perf-bisect. Without DIR: into .agents/skills here, with a link
    to it in .claude/skills.

    Existing files are never changed: other ones than these are refused.

    \b
    Examples:
      perfbisect skill install
      perfbisect skill install ~/.agents/skills
    """
    import os

    import perfbisect
    from perfbisect.commands.documents import SkillInstallDocument
    from perfbisect.common.quantities import counted
    from perfbisect.errors import UsageError
    from perfbisect.resources import shipped_folder

    target = (folder or Path(".agents/skills")).expanduser().absolute() / NAME
    link = None if folder else Path(".claude/skills").absolute() / NAME
    source = shipped_folder(".claude/skills/perf-bisect")
    files = _files(source)
    for place in filter(None, (target, link)):
        # A link to the place of the copy is what is to be made, also while nothing is there.
        if os.path.lexists(place) and (place == target or place.resolve() != target.resolve()):
            found = _files(place) if place.is_dir() else {}
            if unlike := sorted(
                name for name in found.keys() | files.keys() if found.get(name) != files.get(name)
            ):
                named = f": {', '.join(unlike[:3])}{' and more' if len(unlike) > 3 else ''}" if found else ""
                raise UsageError(
                    f"{place} is there and is not the skill of this version{named}",
                    where=place,
                    next_step="move it away, then run the command again",
                )
    is_new = not target.exists()
    _write(source, target, link)
    document = SkillInstallDocument(
        folder=str(target),
        link=str(link) if link else None,
        version=perfbisect.__version__,
        copied=is_new,
        files=tuple(sorted(files)),
    )
    result = f"{counted(len(files), 'file')} copied" if is_new else "is there already, the same"
    linked = [f"{link}: the same skill"] if link else []
    return CommandResult(document, [f"{target}: {result}", *linked])


def _files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _write(source: Path, target: Path, link: Path | None) -> None:
    """Copies all files or none, and makes the link; what is there stays."""
    import os
    import shutil
    import tempfile

    from perfbisect.errors import MachineError

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix=f".{NAME}.", dir=target.parent) as staging:
                copied = Path(staging) / target.name
                shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
                copied.rename(target)
        # After the copy: where .claude/skills itself is a link to .agents/skills, the skill is there now.
        if link is not None and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            # Relative, so that it holds in every clone of the repository.
            link.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))
    except OSError as error:
        raise MachineError(f"the skill could not be copied: {error}", where=target) from error
