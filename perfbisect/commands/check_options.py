"""The options of ``perfbisect check``, and which level they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfbisect.errors import UsageError

How = Literal["rev", "baseline", "values", "ends", "save"]


@dataclass(frozen=True)
class TypedCheck:
    """The options of ``perfbisect check`` as they were typed; ``fail_over`` is a share."""

    cell: str | None
    at: str | None
    against: str | None
    fail_over: float | None
    baseline: str | None
    save_baseline: Path | None
    good_value: float | None
    bad_value: float | None
    git_bisect: bool
    launches: int | None
    budget: float | None
    seed: int
    dry_run: bool

    @property
    def how(self) -> How:
        """What the commit is held against.

        :raises UsageError: nothing, several things, or something of which a part is missing.
        """
        asked: list[How] = []
        asked += ["baseline" if self.against == "baseline" else "rev"] if self.against else []
        asked += ["values"] if self.good_value is not None or self.bad_value is not None else []
        asked += ["save"] if self.save_baseline else []
        if not asked and self.git_bisect:
            asked = ["ends"]
        if len(asked) != 1:
            raise UsageError(
                "a check holds a commit against one thing: --against REV, --against baseline, or "
                "--good-value and --bad-value; --save-baseline measures one",
                next_step="perfbisect check CELL --against REV --fail-over 5%",
            )
        how = asked[0]
        if (self.baseline is not None) != (how == "baseline"):
            raise UsageError(
                "--against baseline and --baseline FILE|JOB go together",
                next_step="perfbisect check CELL --save-baseline FILE writes one; status lists jobs",
            )
        if (self.fail_over is not None) != (how in ("rev", "baseline")):
            raise UsageError(
                "--against and --fail-over go together: by how much may the commit be worse?",
                next_step="--against REV --fail-over 5%",
            )
        if how == "values" and (self.good_value is None or self.bad_value is None):
            raise UsageError("--good-value and --bad-value go together: the line is in their middle")
        if self.git_bisect and self.at is not None:
            raise UsageError("--git-bisect answers for the commit that git asks about: leave --at out")
        return how
