"""A night told: as Markdown and as messages, with nothing of others' acting in either."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.nightly.notify import json_message
from perfbisect.nightly.render import NOTHING, cut, headline, night_markdown, summary
from tests.nightly.night_made import HOSTILE, alert, night, quiet_night, row, search

HOUSE = (
    "| Source | Model | Hardware | Type | Config | Test | Metric | latest | baseline | vs baseline | Status "
    "| Days failing | Alert |"
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "1 regression, 1 commit named, 1 cell failed, publish failed"),
        ({"steps": (), "cells": (), "bisections": ()}, "1 regression"),
        (
            {"alerts": (alert(), alert(id="2", metric="ttft")), "steps": (), "cells": (), "bisections": ()},
            "1 regression",
        ),
        (
            {"alerts": (alert(), alert(event="b"), alert(event="c", worse=False)), "steps": (), "cells": ()},
            "2 regressions, 1 improvement, 1 commit named",
        ),
        ({"alerts": (alert(counts=False),), "steps": (), "cells": (), "bisections": ()}, NOTHING),
        ({"alerts": (alert(change="updated"),), "steps": (), "cells": (), "bisections": ()}, NOTHING),
        (
            {"alerts": (alert(change="closed", counts=False),), "steps": (), "cells": (), "bisections": ()},
            "1 regression over",
        ),
        ({"bisections": (search(culprit=None),), "alerts": (), "steps": (), "cells": ()}, NOTHING),
    ],
)
def test_a_night_in_a_few_words(changed: dict[str, Any], words: str) -> None:
    assert summary(night(**changed)) == words


def test_the_markdown_of_a_night() -> None:
    text = night_markdown(night())
    lines = text.splitlines()
    assert lines[0].startswith("## Nightly vllm-cpu of 2026-04-12: 1 regression, 1 commit named")
    assert HOUSE in lines
    cells = (
        *("perfbisect", "acme/tiny", "H20 x 1", "median or total", "c2", "text_cpu", "tpot"),
        *("12.10 ms", "10.00 ms", "+21.0 %", "regressed", "2", "20260412-3f1a"),
    )
    assert "| " + " | ".join(f"`{cell}`" for cell in cells) + " |" in lines
    assert "| engine | `0.32.0` |" in lines
    assert "| cells | `1 measured, 1 failed` |" in lines
    assert any("probability 0.97" in line for line in lines)
    assert "Next: `perfbisect report 20260412-013000-ab12`" in lines
    assert text.count("\n  - e") == 2, "the first pieces of evidence"
    what = "+21.0 % of `tpot` in `text_cpu`, worse; since 2026-04-12; product, step (`20260412-product`)"
    assert f"- opened: {what}" in lines


def test_an_event_is_told_once_by_its_largest_finding() -> None:
    alerts = (
        alert(id="1", effect=0.1), alert(id="2", cell="other", effect=0.3),
        alert(id="3", effect=0.9, counts=False), alert(id="6", event="d", counts=False),
        alert(id="4", event="b", change="updated", metric="ttft", evidence=("old",)),
        alert(id="5", event="c", change="closed", recovered=True, counts=False),
    )  # fmt: skip
    made = night(alerts=alerts, steps=(), cells=(), bisections=())
    told = [line for line in night_markdown(made).splitlines() if line.startswith("- ")]
    how = "worse; since 2026-04-12; product, step"
    assert told == [
        f"- opened: +30.0 % of `tpot` in `other`, {how}; 2 more series, 2 cells in all (`20260412-product`)",
        f"- opened: +21.0 % of `tpot` in `text_cpu`, {how}; no finding by the rules (`d`)",
        f"- closed: +21.0 % of `tpot` in `text_cpu`, {how}; recovered (`c`)",
        f"- still there: +21.0 % of `ttft` in `text_cpu`, {how} (`b`)",
    ]
    assert "old" not in night_markdown(made), "the evidence was told when it was new"
    assert headline(made) == "1 regression, 1 regression over; 1 finding of earlier nights still there"
    assert json_message(made)["text"] == f"vllm-cpu: {headline(made)}"


def test_nothing_of_others_acts_in_the_markdown() -> None:
    rows = (row(model=HOSTILE, status=HOSTILE),)
    outside = re.sub(r"(`+).*?\1", "", night_markdown(night(rows=rows)))
    for mark in ("<script", "](http", "@team", "<!channel"):
        assert mark not in outside
    (table_row,) = [line for line in outside.splitlines() if line.count(" | ") == 12 and "Source" not in line]
    assert table_row


def test_a_quiet_night_says_so() -> None:
    text = night_markdown(quiet_night())
    assert text.splitlines()[0] == "## Nightly vllm-cpu of 2026-04-12: nothing new"
    assert "What" not in text
    assert "Source" not in text


@given(text=st.text(max_size=400), most=st.integers(60, 300), kind=st.sampled_from([str, bytes]))
def test_what_is_cut_fits_and_says_so(text: str, most: int, kind: type[str] | type[bytes]) -> None:
    shown = cut(text, most, size=kind)
    assert len(shown if kind is str else shown.encode("utf-8", "surrogatepass")) <= most
    if shown != text:
        kept, _, note = shown.partition("\n\n(Cut here")
        assert note
        assert "\n".join(text.splitlines()).startswith(kept)


def test_there_is_always_room_for_the_note() -> None:
    with pytest.raises(ValueError, match="not even a note"):
        cut("x" * 100, 10)


def test_the_message_for_programs() -> None:
    message = json.loads(json.dumps(json_message(night(), link="https://ci.example/1")))
    assert message["schema"] == "perfbisect.nightly-message/1"
    assert (message["nightly"], message["night"], message["exit_code"]) == ("vllm-cpu", "20260412-012000", 3)
    assert message["engine_version"] == "0.32.0"
    assert [one["id"] for one in message["alerts"]] == ["20260412-3f1a"]
    assert message["commits"][0]["probability"] == 0.97
    assert message["commits"][0]["id"] == "c0ffee" + "0" * 34
    assert [one["what"] for one in message["failed"]] == ["text_big", "publish"]
    assert message["link"] == "https://ci.example/1"
