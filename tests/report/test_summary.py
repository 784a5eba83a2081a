"""A result in short: what a comment and the summary of a CI job have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult
from perfbisect.errors import MachineError
from perfbisect.jobs.documents import MetricDocument
from perfbisect.jobs.replay import Launch
from perfbisect.model.change import Change
from perfbisect.report.summary import append_summary, job_link, launch_picture, summary_markdown, truncate
from tests.fakes.history import HOSTILE_SUBJECT
from tests.jobs.world import Watch

METRIC = MetricDocument(name="tpot", display="TPOT", unit="ms", direction="lower", smallest_effect=0.03)


def launch(number: int, position: int, value: float | None, outcome: str = "measured") -> Launch:
    change = Change(f"{position:040x}", "commit")
    return replace(
        Launch(number, str(number), position, change, "end", 1, "", "x", ""), value=value, outcome=outcome
    )


def test_the_picture_has_a_row_a_change() -> None:
    launches = [
        launch(1, 1, 20.0),
        launch(2, 0, 10.0),
        launch(3, 0, 10.0),
        launch(4, 1, None, "failed"),
        launch(5, 0, 15.0),
        launch(6, 2, None, "running"),
    ]
    axis, first, second = launch_picture(launches, METRIC, {0: "A: main"}).splitlines()
    assert axis.split() == ["10.00", "ms", "20.00", "ms", "tpot,", "lower", "is", "better"]
    assert first.startswith("A: main") and first.count("o") == 1 and first.split()[2][0] == "2"
    assert second == f"{'0' * 12}  {'.' * 47}o  1 failed"
    assert len(first) == len(second.removesuffix("  1 failed"))


def test_a_picture_of_nothing_and_of_one_value() -> None:
    assert launch_picture([], METRIC, {}) == ""
    assert launch_picture([launch(1, 0, None, "failed")], METRIC, {}) == ""
    assert launch_picture([launch(1, 0, 5.0)], METRIC, {}).splitlines()[1].endswith(f"o{'.' * 23}")


def test_a_long_picture_keeps_the_changes_with_most_launches() -> None:
    launches = [launch(i, i, 1.0 + i) for i in range(100)] + [launch(200, 77, 5.0)]
    rows = launch_picture(launches, METRIC, {i: f"c{i}" for i in range(100)}).splitlines()
    assert len(rows) == 1 + 24 + 1
    assert any(row.startswith("c77 ") for row in rows)
    assert rows[-1] == "76 further changes with fewer launches"


def test_a_bisection_in_short(told: tuple[BisectResult, Watch]) -> None:
    result = told[0]
    text = summary_markdown(build_report(result), result, "https://ci.example/1")
    heading, picture, numbers, *_ = text.split("\n\n")
    assert heading.startswith("### ") and heading.endswith(": found")
    assert picture.startswith("```text\n") and picture.count("\n") >= 6
    assert numbers.splitlines()[0].startswith("| **+50.5 %** | **0.99** | **")
    assert numbers.splitlines()[2].count("|") == 4
    assert "[The CI job](https://ci.example/1)" in text
    assert result.folder not in text


def test_text_of_others_does_not_act(told: tuple[BisectResult, Watch]) -> None:
    text = summary_markdown(build_report(told[0]), told[0])
    assert HOSTILE_SUBJECT not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028]", text)
    outside = re.sub(r"```.*?```|(`+).*?\1(?!`)", "", text, flags=re.DOTALL)
    assert "Tidy" not in outside
    assert not re.search(r"<\w|\]\(|@\w", outside)


@pytest.mark.parametrize(
    ("variables", "link"),
    [
        ({}, ""),
        ({"BUILDKITE_BUILD_URL": "https://buildkite.com/o/p/builds/1"}, "https://buildkite.com/o/p/builds/1"),
        (
            {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7"},
            "https://github.com/o/r/actions/runs/7",
        ),
        ({"GITHUB_SERVER_URL": "https://github.com"}, ""),
    ],
)
def test_where_the_job_is_shown(variables: dict[str, str], link: str) -> None:
    assert job_link(variables) == link


@given(text=st.text(max_size=400), limit=st.integers(60, 300))
def test_what_is_truncated_fits_and_says_so(text: str, limit: int) -> None:
    shown = truncate(text, limit)
    assert len(shown.encode()) <= limit
    if shown != text:
        kept, _, note = shown.partition("\n\n(Truncated")
        assert note
        assert "\n".join(text.splitlines()).startswith(kept)


def test_a_job_summary_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="job summary cannot be written"):
        append_summary(tmp_path, "text")
