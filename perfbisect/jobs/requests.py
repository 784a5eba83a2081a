"""What a command was asked for, as journals keep it, and the command line that it makes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

STARTER_VARIABLE = "PERFBISECT_STARTED_BY"
"""Who starts a command, where it is not the user at a shell."""

ONCE = ("json", "full", "quiet", "detach", "dry_run", "expect_workload")
"""Options that a repeated command does not have; the workload was checked, and the cell is the same."""

STEP_OPTIONS = ("metric", "direction", "all_steps", "weights", "confirm_revert", "min_effect", "channel")
"""Options of a bisection that speak of a metric's step."""


@dataclass(frozen=True)
class RequestRecord:
    """The fields of a request that were given, by the names of its options, as texts without secrets.

    ``verb``: the command, such as ``track reproduce``; empty: none. ``options``: a flag has no text.
    ``started_by``: the user, or ``mcp: CLIENT VERSION``; empty in the journals of older versions.
    """

    verb: str = ""
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    started_by: str = ""

    @property
    def line(self) -> str:
        """The command line."""
        if not self.verb:
            return ""
        words = ["perfbisect", *self.verb.split()]
        words += [text for texts in self.arguments.values() for text in texts]
        for name, texts in self.options.items():
            option = f"--{name.replace('_', '-')}"
            words += [word for text in texts for word in (option, text)] or [option]
        return shlex.join(words)

    @property
    def failure_line(self) -> str:
        """The command that finds since when a bisection's bad end fails; empty where another began it."""
        if self.verb != "bisect" or "direction" in self.options:
            return ""
        kept = {name: texts for name, texts in self.options.items() if name not in (*ONCE, *STEP_OPTIONS)}
        return replace(self, options=kept | {"find": ("failure",)}).line


NO_REQUEST: Final = RequestRecord()
