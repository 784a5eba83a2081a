"""``perfbisect skill install``: the skill for coding agents, copied to where an agent reads skills."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, prints


@prints("perfbisect.commands.documents:SkillInstallDocument")
def install(
    *,
    folder: Annotated[Path, Argument("[DIR]")] = Path(".claude/skills"),
) -> CommandResult:
    """Copy the skill of this version into DIR/perf-bisect; without DIR into .claude/skills here.

    Existing files are never changed: other ones than these are refused.

    \b
    Examples:
      perfbisect skill install
      perfbisect skill install ~/.claude/skills
    """
    import perfbisect
    from perfbisect.commands.documents import SkillInstallDocument
    from perfbisect.common.quantities import counted
    from perfbisect.resources import shipped_folder

    target = folder.expanduser().absolute() / "perf-bisect"
    source = shipped_folder(".claude/skills/perf-bisect")
    files = _files(source)
    is_new = not target.exists() and not target.is_symlink()
    if is_new:
        _copy(source, target)
    else:
        _require_same(target, files)
    document = SkillInstallDocument(
        folder=str(target), version=perfbisect.__version__, copied=is_new, files=tuple(sorted(files))
    )
    result = f"{counted(len(files), 'file')} copied" if is_new else "is there already, the same"
    return CommandResult(document, [f"{target}: {result}"])


def _files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _require_same(target: Path, files: dict[str, bytes]) -> None:
    """Raises UsageError if anything but these files is there."""
    from perfbisect.errors import UsageError

    found = _files(target) if target.is_dir() else {}
    unlike = sorted(name for name in found.keys() | files.keys() if found.get(name) != files.get(name))
    if unlike or not target.is_dir():
        named = f": {', '.join(unlike[:3])}{' and more' if len(unlike) > 3 else ''}" if found else ""
        raise UsageError(
            f"{target} is there and is not the skill of this version{named}",
            where=target,
            next_step=f"move it away, then: perfbisect skill install {target.parent}",
        )


def _copy(source: Path, target: Path) -> None:
    """Copies all files or none."""
    import shutil
    import tempfile

    from perfbisect.errors import MachineError

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".perf-bisect.", dir=target.parent) as staging:
            copied = Path(staging) / target.name
            shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
            copied.rename(target)
    except OSError as error:
        raise MachineError(f"the skill could not be copied: {error}", where=target) from error
