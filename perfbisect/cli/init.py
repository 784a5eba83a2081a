"""``perfbisect init``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from perfbisect.commands import options


@click.command(short_help="Write perfbisect.yaml for a checkout, after looking.")
@click.option(
    "--repo",
    type=click.Path(path_type=Path),
    help="Checkout of vLLM or vLLM-Omni.  [default: the current one]",
)
@click.option("--force", is_flag=True, help="Write over a perfbisect.yaml that says otherwise.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@options.as_json
def init(repo: Path | None, force: bool, dry_run: bool, as_json: bool) -> int:
    """Write perfbisect.yaml at the root of a checkout, so that a bisection needs a cell and two revisions.

    Looked at: which engine it is, its release tags, the vLLM that HEAD pins, the devices of this machine.
    The file says why each line is there. One that is there and says otherwise is kept, and the difference
    shown.

    \b
    Examples:
      perfbisect init
      perfbisect init --repo ~/vllm-omni --dry-run

    Exit code: 0 written, or there already; 2 no such checkout, or another file is there.
    """
    from perfbisect.cells.settings import FILE
    from perfbisect.changes.git import Repository
    from perfbisect.commands.documents import InitDocument, SeenDocument
    from perfbisect.commands.output import emit
    from perfbisect.common.text import line
    from perfbisect.setup.checkout import look
    from perfbisect.setup.templates import first_settings, next_words, text_of
    from perfbisect.system.files import write_whole

    repository = Repository.open(repo or Path.cwd())
    seen = look(repository, os.environ)
    first = first_settings(seen)
    command = _typed(next_words(first, ("--repo", str(repo)) if repo else ()))
    content = text_of(first, command)
    file = repository.path / FILE
    before = _there(file)
    difference = _difference(before, content) if before is not None else ()
    if difference and not (force or dry_run):
        raise _says_otherwise(file, difference, repo)
    state = "new" if before is None else "replaced" if difference else "same"
    written = state != "same" and not dry_run
    if written:
        write_whole(file, content)
    document = InitDocument(
        file=str(file),
        state=state,
        written=written,
        engine=seen.engine,
        saw=tuple(SeenDocument(what=what, found=found) for what, found in first.saw),
        settings=first.settings(),
        content=content,
        difference=difference,
        next=command,
    )
    done = "would write" if dry_run else "wrote"
    told = f"{done} {file}" if state != "same" else f"{file} says this already"
    shown = (difference or tuple(content.splitlines())) if dry_run else ()
    lines = [
        *(f"{what:<8} {line(found)}" for what, found in first.saw),
        *(f"{key:<8} {line(value)}" for key, value in first.settings().items() if key != "machine"),
        told,
        *(f"  {line(text)}" for text in shown),
        f"next: {command}",
    ]
    emit(document, lines, as_json=as_json)
    return 0


def _typed(words: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(words)


def _there(file: Path) -> str | None:
    """:raises UsageError: it is there and cannot be read."""
    from perfbisect.errors import UsageError

    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def _difference(before: str, after: str) -> tuple[str, ...]:
    """Lines of a diff, without the names of files."""
    import difflib

    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return tuple(rows)[2:]


def _says_otherwise(file: Path, difference: tuple[str, ...], repo: Path | None) -> Exception:
    from perfbisect.errors import LocatedError

    again = _typed(("perfbisect", "init", *(("--repo", str(repo)) if repo else ()), "--force"))
    shown = "\n".join(f"  {text}" for text in difference)
    return LocatedError(
        f"is there already and says otherwise; it would become (-: now, +: then)\n{shown}",
        file=file,
        next_step=f"keep it, or write over it: {again}",
    )
