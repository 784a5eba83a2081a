"""``perfbisect init``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Literal

import click

from perfbisect.commands import options


@click.command(short_help="Write perfbisect.yaml for a checkout.")
@click.option(
    "--repo",
    type=click.Path(path_type=Path),
    help="Checkout of vLLM or vLLM-Omni.  [default: the current one]",
)
@click.option("--force", is_flag=True, help="Overwrite a different perfbisect.yaml.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@options.as_json
def init(repo: Path | None, force: bool, dry_run: bool, as_json: bool) -> int:
    """Write perfbisect.yaml at the root of a checkout, so that a bisection needs a cell and two revisions.

    The settings follow from the engine, its release tags, the vLLM that HEAD pins and this machine's devices;
    comments give the reasons. An existing file that differs is kept, and the difference shown.

    \b
    Examples:
      perfbisect init
      perfbisect init --repo ~/vllm-omni --dry-run

    Exit code: 0 written or up to date; 2 no such checkout, or a different file exists.
    """
    from perfbisect.cells.settings import FILE
    from perfbisect.changes.git import Repository
    from perfbisect.commands.documents import InitDocument, SeenDocument
    from perfbisect.commands.output import print_document
    from perfbisect.common.text import line
    from perfbisect.setup.checkout import detect_checkout
    from perfbisect.setup.templates import choose_settings, next_command_words, render_settings
    from perfbisect.system.files import write_atomic

    repository = Repository.open(repo or Path.cwd())
    checkout = detect_checkout(repository, os.environ)
    initial = choose_settings(checkout)
    repo_words = ("--repo", str(repo)) if repo else ()
    command = shlex.join(next_command_words(initial, repo_words))
    content = render_settings(initial, command)
    file = repository.path / FILE
    existing = _read_existing(file)
    difference = () if existing is None else _diff(existing, content)
    if difference and not (force or dry_run):
        raise _differs(file, difference, shlex.join(("perfbisect", "init", *repo_words, "--force")))
    state: Literal["new", "same", "replaced"] = "new"
    if existing is not None:
        state = "replaced" if difference else "same"
    written = state != "same" and not dry_run
    if written:
        write_atomic(file, content)
    settings = initial.settings()
    document = InitDocument(
        file=str(file),
        state=state,
        written=written,
        engine=checkout.engine,
        saw=tuple(SeenDocument(what=name, found=value) for name, value in initial.detected),
        settings=settings,
        content=content,
        difference=difference,
        next=command,
    )
    rows = (*initial.detected, *((key, value) for key, value in settings.items() if key != "machine"))
    result = f"{'would write' if dry_run else 'wrote'} {file}"
    preview = (difference or tuple(content.splitlines())) if dry_run else ()
    lines = [
        *(f"{name:<8} {line(value)}" for name, value in rows),
        result if state != "same" else f"{file} is up to date",
        *(f"  {line(text)}" for text in preview),
        f"next: {command}",
    ]
    print_document(document, lines, as_json=as_json)
    return 0


def _read_existing(file: Path) -> str | None:
    from perfbisect.errors import UsageError

    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def _diff(before: str, after: str) -> tuple[str, ...]:
    """Diff lines without the file names."""
    import difflib

    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return tuple(rows)[2:]


def _differs(file: Path, difference: tuple[str, ...], force_command: str) -> Exception:
    from perfbisect.errors import LocatedError

    shown = "\n".join(f"  {text}" for text in difference)
    return LocatedError(
        f"exists and differs; it would change as follows\n{shown}",
        file=file,
        next_step=f"keep it, or overwrite it: {force_command}",
    )
