"""``perfbisect init``."""

from __future__ import annotations

from pathlib import Path

import click

from perfbisect.commands import options
from perfbisect.commands.output import CommandResult


@click.command(short_help="Write perfbisect.yaml for a checkout.")
@click.option(
    "--repo",
    type=click.Path(path_type=Path),
    help="Checkout of vLLM or vLLM-Omni.  [default: the current one]",
)
@click.option("--force", is_flag=True, help="Overwrite a different perfbisect.yaml.")
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@options.as_json
def init(repo: Path | None, force: bool, dry_run: bool) -> CommandResult:
    """Write perfbisect.yaml at the root of a checkout, so that a bisection needs a cell and two revisions.

    The settings follow from the engine, its release tags, the vLLM that HEAD pins and this machine's devices;
    comments give the reasons. An existing file that differs is kept, and the difference shown.

    \b
    Examples:
      perfbisect init
      perfbisect init --repo ~/vllm-omni --dry-run

    Exit code: 0 written or up to date; 2 no such checkout, or a different file exists.
    """
    from perfbisect.common.text import line
    from perfbisect.setup.templates import write_settings

    document = write_settings(repo, force=force, dry_run=dry_run)
    rows = [(row.what, row.found) for row in document.saw]
    rows += [(key, value) for key, value in document.settings.items() if key != "machine"]
    result = f"{'would write' if dry_run else 'wrote'} {document.file}"
    if document.state == "same":
        result = f"{document.file} is up to date"
    preview = (document.difference or document.content.splitlines()) if dry_run else ()
    lines = [
        *(f"{name:<8} {line(value)}" for name, value in rows),
        result,
        *(f"  {line(text)}" for text in preview),
        f"next: {document.next}",
    ]
    return CommandResult(document, lines)
