"""Launches of earlier jobs: they feed the search and cost nothing; no verdict rests on them."""

from __future__ import annotations

from dataclasses import replace

from perfbisect.bisect.decision.decide import beliefs, next_action
from perfbisect.bisect.decision.model import Done, Imported, Measure, Measured, Plan, Reason
from tests.bisect.worlds import Bench


def world(step=0.3, n=64, **plan):
    return Bench(Plan(n=n, **plan), {40: step} if step else {}, 0.01, 0.008, 3)


def earlier(step=0.3, positions=(0, 64, 30, 38, 41, 50), shift=0.0, seed=9):
    """What an earlier job measured, on a day when everything was ``shift`` slower."""
    other = Bench(Plan(n=64), {40: step} if step else {}, 0.01, 0.008, seed, base=100 * (1 + shift))
    return [
        Imported(i, other.answer(Measure(i, 2, "search", Reason("ends again"))).values) for i in positions
    ]


def play(bench, imported):
    bench.events = list(imported)
    outcome = bench.play()
    made = [event for event in bench.events if isinstance(event, Measured)]
    return outcome, made


def test_they_spare_launches_and_cost_nothing():
    alone, helped = world(), world()
    assert alone.play().culprits == (40,)
    outcome, made = play(helped, earlier())
    assert outcome.culprits == (40,)
    assert len(made) < len(alone.events)
    assert {event.index for event in made if event.purpose == "search"} <= {38, 39, 40, 41}
    assert next_action(replace(helped.plan, budget=12.0), helped.events[:6]) == helped.actions[0]


def test_the_ends_are_measured_as_if_they_were_not_there():
    alone, helped = world(), world()
    alone.play()
    play(helped, earlier())
    ends = [[a for a in bench.actions if a.purpose == "end"] for bench in (alone, helped)]
    assert ends[0] == ends[1]


def test_an_a_b_and_the_whole_change_rest_on_fresh_launches():
    outcome, made = play(world(), earlier(positions=(0, 64, 39, 40, 39, 40, 39, 40)))
    trial = [event for event in made if event.purpose == "confirm"]
    assert outcome.confirmed.launches == sum(event.index == 40 for event in trial) > 0
    ends = [event for event in made if event.index in (0, 64)]
    assert outcome.whole.launches == min(sum(e.index == i for e in ends) for i in (0, 64))


def test_a_slower_day_is_taken_out():
    outcome, made = play(world(), earlier(shift=0.5))
    assert outcome.culprits == (40,)
    assert {event.index for event in made if event.purpose == "search"} <= {38, 39, 40, 41}


def test_without_an_end_among_them_they_say_nothing():
    bench = world()
    bench.play()
    events = bench.events[:6]
    apart = earlier(positions=(63, 1, 50), step=0.0)
    assert beliefs(bench.plan, [*apart, *events]) == beliefs(bench.plan, events)


def test_earlier_launches_alone_call_no_change():
    """The ends differ today; yesterday's launches of them say otherwise, again and again."""
    bench = world(step=0.05)
    same = earlier(step=0.0, positions=(0, 64) * 30)
    bench.events = list(same)
    for _ in range(60):
        action = next_action(bench.plan, bench.events)
        if isinstance(action, Done):
            break
        bench.events.append(bench.answer(action))
    own = beliefs(bench.plan, [event for event in bench.events if not isinstance(event, Imported)])
    assert own.none < 0.5
    assert not isinstance(action, Done) or action.outcome.word != "not reproduced"


def test_before_the_ends_the_prior_is_told():
    assert beliefs(Plan(n=64), earlier()).none == 0.25
    assert next_action(Plan(n=64), earlier()) == next_action(Plan(n=64), [])
