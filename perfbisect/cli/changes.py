"""``perfbisect changes show``: what a revision stands for."""

from __future__ import annotations

from typing import Annotated

from perfbisect.commands.options import InRepository
from perfbisect.commands.output import CommandResult
from perfbisect.commands.request import Argument, prints


@prints("perfbisect.commands.documents:ChangesShowDocument")
def show(
    workspace: InRepository,
    *,
    revision: Annotated[str, Argument("CHANGE")],
) -> CommandResult:
    """What CHANGE stands for: the commit, the vLLM that it is built on, and the other packages it replaces.

    The pin of a vLLM-Omni commit is read from its docker/Dockerfile.ci: a wheel of one commit wins over the
    tag of the base image.

    \b
    Example:
      perfbisect changes show v0.24.0 --repo vllm-omni
    """
    from perfbisect.changes.pins import DOCKERFILE, parse_pins
    from perfbisect.commands.changes import resolve_change
    from perfbisect.commands.documents import ChangesShowDocument
    from perfbisect.common.text import line

    change = resolve_change(workspace, revision)
    text = None
    if change.kind == "commit":
        text = workspace.needed_repository().read_text(change.source, DOCKERFILE)
    pins = parse_pins(text) if text is not None else None
    packages = pins.packages if pins else ()
    document = ChangesShowDocument(
        change=change,
        kind=change.kind,
        vllm=pins.kind if pins else "none",
        tag=pins.tag if pins else "",
        release=pins.release if pins else "",
        commit=pins.commit if pins else "",
        packages=packages,
    )
    lines = [f"{change.short} {line(change.subject)}".rstrip()]
    if change.date:
        lines.append(f"  of {change.date}")
    if pins:
        lines.append(f"  built on {pins.text} ({DOCKERFILE})")
        lines += [f"  {p.name} {p.version or 'removed'}" for p in packages]
    return CommandResult(document, lines)
