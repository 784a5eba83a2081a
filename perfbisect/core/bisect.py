"""Which change made the metric worse: what to measure next, and when it is settled (METHOD part A).

:func:`next_action` is a fold: the whole state is the list of events, so the same events give the same
answer, and resuming is asking again. docs/method.md says what the model is and what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfbisect.core import confirm, verdict
from perfbisect.core.ends import NOT_REPRODUCED, next_end
from perfbisect.core.groups import leading, parent_of
from perfbisect.core.plan import (
    Beliefs,
    Comparison,
    Costs,
    Done,
    Event,
    Imported,
    Lost,
    Measure,
    Measured,
    Outcome,
    Pending,
    Plan,
    Purpose,
    Skipped,
    Step,
    Wait,
    Word,
)
from perfbisect.core.posterior import Posterior, posterior, prior_weights
from perfbisect.core.probe import probe
from perfbisect.core.story import Story, fold

__all__ = [
    "Beliefs",
    "Comparison",
    "Costs",
    "Done",
    "Event",
    "Imported",
    "Lost",
    "Measure",
    "Measured",
    "Outcome",
    "Pending",
    "Plan",
    "Purpose",
    "Skipped",
    "Step",
    "Wait",
    "Word",
    "beliefs",
    "next_action",
]

TRIAL_AT = 0.95
"""Probability of one distinguishable set at which it is put to the A/B. Not earlier: the A/B errs once in
twenty, so the share of wrong candidates that reach it is what is left of its guarantee."""

NAME_AT = 0.99
"""Probability, the A/B's launches counted, without which nothing is named whatever the A/B says."""

ATTEMPTS = 3
"""A/B comparisons that may fail before the bisection gives up."""


def next_action(plan: Plan, events: Sequence[Event]) -> Measure | Done:
    """What to measure next, or how it ended. A pure function of its arguments.

    The answer to a :class:`Measure` is one event with its index and purpose; after a :class:`Lost` attempt
    the same is asked for again. A launch is not begun where its expected minutes would exceed the budget.

    :raises ValueError: the plan or an event makes no sense, or an end of the range cannot be measured (it was
        skipped before it ever gave a value, or three times): an error about the range, never a verdict.
    """
    story = fold(plan, tuple(events))
    action = _decide(plan, story)
    if isinstance(action, Measure) and not _affordable(plan, story, action):
        return Done(verdict.out_of_budget(plan, story, _state(plan, story)))
    return action


def beliefs(plan: Plan, events: Sequence[Event]) -> Beliefs:
    """The posterior as it is shown beside a launch; before both ends were measured it is the prior.

    :raises ValueError: as :func:`next_action`.
    """
    story = fold(plan, tuple(events))
    return verdict.beliefs(plan, story, _state(plan, story))


def _state(plan: Plan, story: Story) -> Posterior | None:
    if not {0, plan.n} <= {launch.index for launch in story.data}:
        return None
    return posterior(story.data, prior_weights(plan.n, plan.prior), plan.min_effect)


def _affordable(plan: Plan, story: Story, action: Measure) -> bool:
    return story.prices.spent + story.prices.visit(action.index, action.runs) <= plan.budget


def _decide(plan: Plan, story: Story) -> Measure | Done:
    if not story.searching:
        step = next_end(plan, story.data, story.prices)
        if isinstance(step, Measure):
            return step
        if step.word is not None:
            return Done(verdict.without_culprit(plan, story, step.state, step.word, step.needed))
        state: Posterior | None = step.state
    else:
        state = _state(plan, story)
    if state is None:
        raise ValueError("a launch of the search or the A/B before both ends were measured")
    first, last, mass = leading(state.p, story.skips)
    trials = [_trial(plan, story, start, stop) for start, stop in story.trials]
    if story.open and trials[-1].passed is None:
        made = trials[-1].launches
        index = confirm.turn(parent_of(made[0].index, story.skips), made[0].index, len(made))
        why = f"A/B of the suspect and its parent, pair {len(made) // 2 + 1}"
        return Measure(index, made[0].runs, "confirm", why)
    held = [trial for trial in trials if trial.passed and confirm.sides(trial.launches) == (first - 1, last)]
    if held and mass >= NAME_AT:
        return Done(verdict.found(plan, story, state, held[-1].launches))
    failed = sum(trial.passed is False for trial in trials)
    if state.none > NOT_REPRODUCED:
        return Done(verdict.without_culprit(plan, story, state, "not reproduced"))
    if failed >= ATTEMPTS:
        return Done(verdict.unconfirmed(plan, story, state))
    if mass >= TRIAL_AT and not story.open and not held:
        runs = confirm.runs_for(state, story.prices, plan.max_runs)
        return Measure(last, runs, "confirm", "A/B of the suspect and its parent, pair 1")
    found = probe(state, story.prices, story.skips, plan.max_runs)
    why = f"tells most a minute: {found.bits:.2f} bits in about {found.minutes:.1f} min"
    return Measure(found.index, found.runs, "search", why)


def _trial(plan: Plan, story: Story, start: int, stop: int) -> confirm.Trial:
    """One A/B, judged on its own launches with the eyes of the search before it."""
    made = story.data[start:stop]
    if len(made) < 2:
        return confirm.Trial(made, 0.0)
    before = posterior(story.data[:start], prior_weights(plan.n, plan.prior), plan.min_effect)
    return confirm.Trial(made, confirm.log_ratio(*confirm.split(made), confirm.expected(before)))
