"""A bisection in sentences: its outcome, the reasons of its launches, the next command."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from perfbisect.bisect.bisection import Bisection
from perfbisect.bisect.decision.model import Reason, SearchOutcome
from perfbisect.bisect.plan import BisectPlan, crossings, differing
from perfbisect.jobs.commands import follow_up_command, git_command
from perfbisect.jobs.replay import Launch
from perfbisect.report.template import render_sentences

_LIBRARIES = "nvidia-"
"""Packages that torch loads from its own environment: no layer takes their place."""


def reason_sentence(reason: Reason, plan: BisectPlan) -> str:
    """Why a position is launched."""
    (sentence,) = render_sentences("bisect/templates/reason.jinja", {"reason": reason, "plan": plan})
    return sentence


def summarize(bisection: Bisection) -> tuple[str, ...]:
    """What came of a bisection, most important first."""
    measured = [launch.minutes for launch in bisection.measured]
    outcome, plan = bisection.outcome, bisection.plan
    culprits = outcome.culprits if outcome is not None and bisection.found else ()
    # The rebase that a named step is, and the packages that came with it.
    rebase = next((x for x in crossings(plan.positions) if culprits == (x.index,)), None)
    moved: tuple[tuple[str, str, str], ...] = ()
    swaps: tuple[str, ...] = ()
    swap_command = ""
    if rebase is not None:
        before, after = (_packages(bisection.records, index) for index in (rebase.parent, rebase.index))
        moved = differing(before, after)
        swaps = tuple(
            f"+pip:{name}=={new}" for name, _, new in moved if new and not name.startswith(_LIBRARIES)
        )
        parent = plan.positions[rebase.parent].change.short
        sides = {"a": parent, "b": f"{parent}{swaps[0]}"} if swaps else {}
        swap_command = follow_up_command(plan.setting, "compare", plan.cell, (plan.metric,), **sides)
    values = {
        "r": bisection,
        "plan": plan,
        "outcome": outcome,
        "median_minutes": median(measured) if measured else 0.0,
        "rebase": rebase,
        "moved": moved,
        "swaps": swaps,
        "swap_command": swap_command,
    }
    return render_sentences("bisect/templates/summary.jinja", values)


def next_command(bisection: Bisection) -> str:
    """What to do next."""
    outcome, plan = bisection.outcome, bisection.plan
    if outcome is None:
        metric = f" --metric {plan.ref}" if bisection.is_recast else ""
        return f"perfbisect resume {bisection.job.id}{metric}"
    if bisection.is_on_branch:
        first, last = (plan.positions[index].change.short for index in (0, plan.last))
        words = ("log", "--cherry-mark", "--left-only", f"{first}...{last}")
        return git_command(plan.setting.repository, *words)
    if outcome.verdict == "found":
        culprit = plan.positions[outcome.culprits[0]].change
        if culprit.kind == "release":
            return _advice("one release", before=culprit.id)
        return git_command(plan.setting.repository, "show", culprit.short)
    if outcome.confirmed is not None:
        return _telling_apart(outcome, plan)
    if outcome.verdict == "out of budget":
        return f"perfbisect resume {bisection.job.id} --budget {max(1, round(plan.budget * 2))}m"
    if outcome.verdict == "gradual":
        return _advice("gradual")
    alone = [note.machines[0] for note in outcome.notes if note.kind == "ends differ on one machine"]
    if alone:
        return _advice("one machine", machine=alone[0])
    if outcome.verdict == "too small":
        return _advice("too small")
    return _advice("not reproduced")


def _advice(kind: str, **values: str) -> str:
    (text,) = render_sentences("bisect/templates/advice.jinja", {"kind": kind, **values})
    return text


def _telling_apart(outcome: SearchOutcome, plan: BisectPlan) -> str:
    """The later end against itself without the likeliest change."""
    p = outcome.beliefs.p if outcome.beliefs else ()
    suspects = [i for i in range(1, plan.last + 1) if plan.positions[i].change.kind != "release"]
    last = plan.positions[-1].change.short
    if not suspects:
        first, end = min(outcome.culprits, default=1), max(outcome.culprits, default=plan.last)
        parent, latest = (plan.positions[i].change.id for i in (first - 1, end))
        return _advice("releases", first=parent, last=latest)
    suspect = plan.positions[max(suspects, key=lambda i: p[i])].change.short
    sides = {"a": last, "b": f"{last}+revert:{suspect}"}
    return follow_up_command(plan.setting, "compare", plan.cell, (plan.metric,), **sides)


def _packages(records: Sequence[Launch], position: int) -> tuple[str, ...]:
    """The packages of a position's environment, as its attempts report them."""
    for launch in records:
        packages = launch.attempt.provenance.engine.get("packages") if launch.attempt else None
        if launch.position == position and packages:
            return tuple(map(str, packages))
    return ()
