"""``check --git-bisect``: what git hears.

It takes 0 for good, 125 for a commit that cannot be tested, any other number up to 127 for bad, and stops at
128: so nothing but a verdict may end in 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.errors import EXIT_OK, EXIT_REGRESSION, EXIT_UNTESTABLE, UsageError

STOP = 128
_HEARD = {EXIT_OK: 0, EXIT_REGRESSION: 1, EXIT_UNTESTABLE: EXIT_UNTESTABLE}
_MEASURES_NOTHING = ("--dry-run", "--detach", "--save-baseline", "--help", "-h")

_BEHIND = "the same without --detach; to leave the terminal: nohup git bisect run perfbisect check ... &"
"""git waits for every answer: it is its loop that goes on behind, whose first step measures two jobs."""


def is_step(typed: Sequence[str]) -> bool:
    """True if git asks about the commit that is checked out."""
    return list(typed[:1]) == ["check"] and "--git-bisect" in typed


def heard(typed: Sequence[str], code: int) -> int:
    """The exit code as git is to hear it; of any other command as it is."""
    return _HEARD.get(code, STOP) if is_step(typed) else code


def refuse_no_answer(typed: Sequence[str]) -> None:
    """:raises UsageError: a step of git's that would end well without an answer."""
    if is_step(typed):
        for word in typed:
            if word.partition("=")[0] in _MEASURES_NOTHING:
                raise UsageError(
                    f"{word} measures nothing, and git would take that for an answer",
                    next_step=_BEHIND if word == "--detach" else f"the same command without {word}",
                )
