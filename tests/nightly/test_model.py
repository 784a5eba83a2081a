"""A night's exit code and whether it is news follow from its values."""

from __future__ import annotations

from typing import Any

import pytest

from perfbisect.nightly.model import NightStep
from perfbisect.nightly.report import night_verdict
from tests.nightly.night_factory import alert, make_night, make_quiet_night, search

QUIET: dict[str, Any] = {"alerts": (), "bisections": (), "steps": (), "cells": (), "failures": ()}


@pytest.mark.parametrize(
    ("changed", "code", "news"),
    [
        ({}, 0, False),
        ({"alerts": (alert(),)}, 3, True),
        ({"alerts": (alert(change="reopened"),)}, 3, True),
        ({"alerts": (alert(worse=False),)}, 0, True),
        ({"alerts": (alert(counts=False),)}, 0, False),
        ({"alerts": (alert(change="updated"),)}, 0, False),
        ({"alerts": (alert(change="closed", counts=False),)}, 0, True),
        ({"alerts": (alert(change="closed", counts=False, worse=False),)}, 0, False),
        ({"bisections": (search(),)}, 3, True),
        ({"bisections": (search(culprit=None, exit_code=4),)}, 4, False),
        ({"bisections": (search(culprit=None, exit_code=4),), "failures": (5,)}, 5, False),
        ({"steps": (NightStep(name="publish", state="failed"),), "failures": (2,)}, 2, True),
        ({"alerts": (alert(),), "failures": (130,)}, 130, True),
    ],
)
def test_exit_code_and_news(changed: dict[str, Any], code: int, news: bool) -> None:
    night = make_night(**QUIET | changed)
    assert (night.exit_code, night.has_news) == (code, news)
    words = night_verdict(night).text.partition(";")[0]
    assert (words != "nothing new") is news, "the words agree"


def test_a_failed_cell_is_news() -> None:
    assert make_night(**QUIET | {"cells": make_night().cells}).has_news
    assert not make_quiet_night().has_news
