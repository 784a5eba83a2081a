"""When a search that leaves it open whether anything changed ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.core.bisect import Plan
from perfbisect.core.ends import AT_LAST, LAST_LAUNCHES, LONG_LAUNCHES, unsettled
from perfbisect.core.noise import Launch
from perfbisect.core.posterior import posterior, prior_weights

PLAN = Plan(n=8)


def history(step, between):
    noise = (0.01, -0.01, 0.004, -0.004)
    ends = [
        Launch(i, "end", step * (i > 0) + noise[k % 4], 1, (0.0,)) for k, i in enumerate((0, 8, 8, 0) * 3)
    ]
    return (*ends, *(Launch(4, "search", noise[k % 4], 1, (0.0,)) for k in range(between)))


@pytest.mark.parametrize(
    ("step", "between", "expected"),
    [
        (0.0, LAST_LAUNCHES - 1, False),
        (0.0, LAST_LAUNCHES, True),
        (0.2, LAST_LAUNCHES, False),
        (0.2, LONG_LAUNCHES - 1, False),
        (0.2, LONG_LAUNCHES, True),
    ],
)
def test_a_search_is_given_less_where_the_ends_were_alike(step, between, expected):
    data = history(step, between)
    state = posterior(data, prior_weights(8, None), 0.02)
    assert unsettled(PLAN, data, replace(state, none=AT_LAST)) is expected
    assert not unsettled(PLAN, data, replace(state, none=AT_LAST - 0.01))
