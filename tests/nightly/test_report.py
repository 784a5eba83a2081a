"""The report of a night: findings first, and nothing of others acts as markup."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from perfbisect.bisect.result import CandidateDocument, PositionDocument
from perfbisect.model.commit_details import Evidence
from perfbisect.nightly.delivery import message
from perfbisect.nightly.model import Night, NightStep
from perfbisect.nightly.report import night_report
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from perfbisect.series.alerts import MeasuredOutcome, OutcomeCommit
from tests.nightly.night_factory import HOSTILE, alert, change, make_night, make_quiet_night, row, search

HOUSE = (
    "| Source | Model | Hardware | Type | Config | Test | Metric | latest | baseline | vs baseline | Status "
    "| Days failing | Alert |"
)
QUIET: dict[str, Any] = {"alerts": (), "bisections": (), "steps": (), "cells": (), "failures": ()}


def markdown(night: Night) -> str:
    return report_markdown(night_report(night))


@pytest.mark.parametrize(
    ("changed", "words", "tone", "code"),
    [
        ({}, "nothing new", "good", 0),
        ({"alerts": (alert(),)}, "1 regression", "bad", 3),
        ({"alerts": (alert(change="reopened"),)}, "1 regression", "bad", 3),
        ({"alerts": (alert(), alert(id="2", metric="ttft"))}, "1 regression", "bad", 3),
        ({"alerts": (alert(),), "failures": (130,)}, "1 regression", "bad", 130),
        ({"alerts": (alert(worse=False),)}, "1 improvement", "good", 0),
        ({"alerts": (alert(counts=False),)}, "nothing new", "good", 0),
        (
            {"alerts": (alert(), alert(event="b"), alert(event="c", worse=False)), "bisections": (search(),)},
            "2 regressions, 1 improvement, 1 commit named",
            "bad",
            3,
        ),
        (
            {"alerts": (alert(change="updated"),)},
            "nothing new; 1 finding of earlier nights remaining",
            "good",
            0,
        ),
        ({"alerts": (alert(change="closed", counts=False),)}, "1 regression resolved", "good", 0),
        ({"alerts": (alert(change="closed", counts=False, worse=False),)}, "nothing new", "good", 0),
        ({"bisections": (search(),)}, "1 commit named", "open", 3),
        ({"bisections": (search(culprit=None, exit_code=4),)}, "nothing new", "open", 4),
        (
            {"bisections": (search(culprit=None, exit_code=4),), "failures": (5,)},
            "nothing new",
            "open",
            5,
        ),
        (
            {"steps": (NightStep(name="publish", state="failed"),), "failures": (2,)},
            "publish failed",
            "open",
            2,
        ),
        ({"cells": make_night().cells}, "1 cell failed", "open", 0),
    ],
)
def test_verdict_exit_code_and_news(changed: dict[str, Any], words: str, tone: str, code: int) -> None:
    night = make_night(**QUIET | changed)
    verdict = night_report(night).verdict
    assert (verdict.text, verdict.tone, night.exit_code) == (words, tone, code)
    assert night.has_news is (words.partition(";")[0] != "nothing new")


def test_the_markdown() -> None:
    text = markdown(make_night())
    lines = text.splitlines()
    assert lines[0].startswith("# Nightly vllm-cpu of 2026-04-12: 1 regression, 1 commit named")
    assert HOUSE in lines
    names = "| `perfbisect` | `acme/tiny` | `H20 x 1` | median or total | `c2` | `text_cpu` | `tpot` |"
    assert f"{names} 12.10 ms | 10.00 ms | +21.0 % | regressed | 2 | `20260412-3f1a` |" in lines
    assert "| engine | `0.32.0` |" in lines
    assert "| cells | `1 measured, 1 failed` |" in lines
    assert any("probability 0.97" in line for line in lines)
    assert "perfbisect report 20260412-013000-ab12" in lines
    assert text.count("\n- it stayed for") == 3, "the first pieces of evidence"
    what = "+21.0 % of `tpot` in `text_cpu`, worse; since 2026-04-12; product, step (`20260412-product`)"
    assert f"opened: {what}" in lines


def test_an_event_is_reported_once_by_its_largest_finding() -> None:
    alerts = (
        alert(id="1", effect=0.1), alert(id="2", cell="other", effect=0.3),
        alert(id="3", effect=0.9, counts=False), alert(id="6", event="d", counts=False),
        alert(id="4", event="b", change="updated", metric="ttft", evidence=(Evidence("within noise"),)),
        alert(id="5", event="c", change="closed", recovered=True, counts=False),
    )  # fmt: skip
    night = make_night(alerts=alerts, steps=(), cells=(), bisections=())
    lines = [line for line in markdown(night).splitlines() if re.match("opened|closed|remaining", line)]
    how = "worse; since 2026-04-12; product, step"
    assert lines == [
        f"opened: +30.0 % of `tpot` in `other`, {how}; 2 more series, 2 cells in all (`20260412-product`)",
        f"opened: +21.0 % of `tpot` in `text_cpu`, {how}; no finding by the rules (`d`)",
        f"closed: +21.0 % of `tpot` in `text_cpu`, {how}; recovered (`c`)",
        f"remaining: +21.0 % of `ttft` in `text_cpu`, {how} (`b`)",
    ]
    assert "bad night" not in markdown(night), "its evidence was in the report of the night that opened it"
    words = "1 regression, 1 regression resolved; 1 finding of earlier nights remaining"
    assert night_report(night).verdict.text == words
    assert message(night)["text"].splitlines()[0] == f"vllm-cpu: {words}"


def test_nothing_of_others_acts_in_the_markdown() -> None:
    rows = (row(model=HOSTILE, beside_metric=HOSTILE, status="improved"),)
    outside = re.sub(r"(`+).*?\1", "", markdown(make_night(rows=rows)))
    for mark in ("<script", "](http", "@team", "<!channel"):
        assert mark not in outside
    (table_row,) = [line for line in outside.splitlines() if line.count(" | ") == 12 and "Source" not in line]
    assert table_row


def test_a_quiet_night() -> None:
    text = markdown(make_quiet_night())
    assert text.splitlines()[0] == "# Nightly vllm-cpu of 2026-04-12: nothing new"
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Cells"]


def test_the_terminal_shows_the_result_without_the_table_of_levels() -> None:
    lines = report_lines(night_report(make_night()))
    assert (
        lines[0]
        == "Nightly vllm-cpu of 2026-04-12: 1 regression, 1 commit named, 1 cell failed, publish failed"
    )
    assert "  - publish: the disk is full" in lines
    assert lines[-1] == "  run: perfbisect report 20260412-013000-ab12"
    assert not any("baseline" in line for line in lines)


def test_the_message_for_programs() -> None:
    sent = json.loads(json.dumps(message(make_night(), link="https://ci.example/1")))
    assert sent["schema"] == "perfbisect.nightly-message/2"
    assert (sent["nightly"], sent["night"], sent["exit_code"]) == ("vllm-cpu", "20260412-012000", 3)
    assert sent["engine_version"] == "0.32.0"
    assert [alert["id"] for alert in sent["alerts"]] == ["20260412-3f1a"]
    assert sent["commits"][0]["probability"] == 0.97
    assert sent["commits"][0]["id"] == "c0ffee" + "0" * 34
    assert [failure["what"] for failure in sent["failed"]] == ["text_big", "publish"]
    assert sent["link"] == "https://ci.example/1"


def outcome(*commits: tuple[str, float]) -> MeasuredOutcome:
    named = [OutcomeCommit.of(change(sha * 40), p) for sha, p in commits]
    return MeasuredOutcome(job="20260412-013000-ab12", probability=0.97, commits=tuple(named))


def test_a_later_night_says_what_was_measured_of_its_alerts() -> None:
    alerts = (
        alert(id="1", event="b", change="updated", measured=outcome(("c", 0.97))),
        alert(id="2", event="c", change="closed", counts=False, measured=outcome(("e", 0.6), ("f", 0.37))),
    )
    night = make_night(alerts=alerts, bisections=())
    text = markdown(night)
    assert "(`b`): commit ``" + "c" * 12 in text
    assert "probability 0.97, measured by `20260412-013000-ab12`" in text
    assert "(`c`): one of 2 commits (probability 0.97, measured by" in text
    (resolved,) = [row for row in message(night)["text"].splitlines() if row.startswith("resolved")]
    assert resolved.endswith(f"; one of 2 commits (probability 0.97): `{'e' * 12}` 0.60, `{'f' * 12}` 0.37")
    assert message(night)["alerts"][0]["measured"]["commits"][0]["id"] == "c" * 40


def test_a_message_names_the_commits_of_a_narrowed_range() -> None:
    positions = [PositionDocument(index=i, changes=(change(sha * 40),)) for i, sha in enumerate("ef")]
    candidates = [CandidateDocument(position=at, probability=0.48) for at in positions]
    night = make_night(
        bisections=(search(outcome="narrowed", culprit=None, candidates=tuple(candidates)),), alerts=()
    )
    *_, row = message(night)["text"].splitlines()
    assert row.startswith("tpot in `text_cpu`; one of 2 commits (probability 0.97): `eeeeeeeeeeee` ")
