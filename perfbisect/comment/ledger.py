"""What comments have started: a folder each under ``STATE/comments/``, from which limits are counted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from perfbisect.comment.rules import CommentRules, Grant
from perfbisect.common.json_text import parse_json
from perfbisect.common.quantities import minutes, moment, stamp
from perfbisect.errors import MachineError, UsageError
from perfbisect.system.files import write_atomic

_REFUSALS_A_DAY: Final = 3
"""Comments of refusal that a user gets."""
_FILE = "request.json"
_LOCK_S = 30.0


def read_request(folder: Path) -> Mapping[str, Any]:
    """What is known of a request: empty before it was counted."""
    try:
        found = parse_json((folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def note_request(folder: Path, **facts: object) -> None:
    """Add to what is known of a request."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / _FILE, json.dumps({**read_request(folder), **facts}))


def admit(folder: Path, user: str, now: datetime, rules: CommentRules, grant: Grant, budget: float) -> None:
    """Count a request of so many minutes against the day's limits. :raises UsageError: one is reached."""
    with _requests_of_day(folder, now) as requests:
        jobs = [one for one in requests if not one.get("refused")]
        own = sum(one.get("user") == user for one in jobs)
        spent = sum(float(one.get("minutes") or 0.0) for one in jobs)
        problem = ""
        if own >= grant.requests_a_day:
            problem = f"{user} has had {own} of {grant.requests_a_day} requests within a day"
        elif len(jobs) >= rules.requests_a_day:
            problem = f"there were {len(jobs)} of {rules.requests_a_day} requests within a day"
        elif spent + budget > rules.minutes_a_day:
            problem = (
                f"{minutes(spent)} of {minutes(rules.minutes_a_day)} within a day are taken, and this "
                f"request may take {minutes(budget)}"
            )
        if problem:
            raise UsageError(problem, next_step="the same comment tomorrow")
        note_request(folder, user=user, at=stamp(now), minutes=budget, refused=False)


def count_refusal(folder: Path, user: str, now: datetime, rules: CommentRules) -> bool:
    """Count a refusal; False where a day had so many that nobody is told of this one."""
    with _requests_of_day(folder, now) as requests:
        refusals = [one for one in requests if one.get("refused")]
        note_request(folder, user=user, at=stamp(now), refused=True)
    own = sum(one.get("user") == user for one in refusals)
    return own < _REFUSALS_A_DAY and len(refusals) < rules.requests_a_day


@contextlib.contextmanager
def _requests_of_day(folder: Path, now: datetime) -> Iterator[list[Mapping[str, Any]]]:
    """The other requests of the last 24 hours, while no other process counts."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder.parent / "lock", timeout=_LOCK_S):
            found = []
            for path in folder.parent.glob(f"*/{_FILE}"):
                one = read_request(path.parent)
                with contextlib.suppress(ValueError):
                    if path.parent != folder and moment(str(one.get("at"))) > now - timedelta(days=1):
                        found.append(one)
            yield found
    except Timeout:
        raise MachineError("another process counts requests and does not end", where=folder.parent) from None
