"""The report of a bisection whose commits mean harm, as Markdown and as console lines."""

from __future__ import annotations

import re

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.forecast import plan_document, plan_lines
from perfbisect.bisect.report import build_report
from perfbisect.environments.base import Refusal
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.events import JobNote, LaunchEnded, LaunchStarted, MachineBackoff, PhaseStarted
from perfbisect.report.console import Console, error_lines, notice_lines
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from tests.fixtures.jobs import MakePlan
from tests.fixtures.reports import hostile
from tests.jobs.world import FakeBuilder, Watch


def markdown(document: ReportDocument) -> str:
    return report_markdown(build_report(document))


ACTS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def test_nothing_in_the_markdown_acts(told: tuple[ReportDocument, Watch]) -> None:
    text = markdown(told[0])
    assert not ACTS.search(text)
    outside = re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text)
    assert "<script>" not in outside
    assert "<b>" not in outside
    assert "[link](x)" not in outside
    assert "@everyone" not in outside


def test_every_row_of_a_table_has_the_cells_of_its_head(told: tuple[ReportDocument, Watch]) -> None:
    tables = re.findall(r"(?:^\|.*\n?)+", markdown(told[0]), re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        assert len({row.replace("\\|", "").count("|") for row in table.strip().splitlines()}) == 1, table


def test_the_markdown_says_all_that_it_must(told: tuple[ReportDocument, Watch]) -> None:
    report, text = told[0], markdown(told[0])
    assert report.outcome == "found"
    assert text.startswith("# Bisection of ") and ": found\n" in text
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    for heading in ("Comparisons", "Guards", "What was measured", "Every launch", "Skipped (2)"):
        assert heading in headings
    for heading in (
        "Where the minutes went",
        "Reproduce with",
        "Versions",
        "Same environment as a neighbour",
    ):
        assert heading in headings
    assert "csrc differs" in text
    assert "beforehand" in text
    assert "when tried" in text
    assert "perfbisect bisect tiny --good A --bad B" in text
    assert text.count("| search |") + text.count("| end |") + text.count("| confirm |") == len(
        report.launches
    )


def test_the_markdown_of_a_rich_report_says_all_and_acts_on_nothing(rich: ReportDocument) -> None:
    text = markdown(rich)
    assert not ACTS.search(text)
    assert "<script>" not in re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text)
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        assert len({row.replace("\\|", "").count("|") for row in table.strip().splitlines()}) == 1, table
    headings = set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    assert {
        "Steps",
        "Changes that only the good end has",
        "What the engines' logs say differently",
    } <= headings
    assert "| saved, since work overlapped | 3.2 min |  |" in text
    assert "| bad without the culprit against bad |" in text
    assert "Revert check: not clean: " in text
    assert "| # | change | for | slot | value |" in text
    assert "`FLASH_ATTN`" in text
    assert "| 0.97 |" in text


def test_one_slot_needs_no_column(told: tuple[ReportDocument, Watch]) -> None:
    text = markdown(told[0])
    assert "| slot |" not in text
    assert "saved" not in text


def test_the_console_says_what_was_saved_and_what_the_logs_say(rich: ReportDocument) -> None:
    shown = report_lines(build_report(rich))
    assert not any(ACTS.search(text) for text in shown)
    assert any(text.startswith("  attention  FLASH_ATTN  </script>") for text in shown)
    assert any(", 3.2 min saved by overlap; " in text for text in shown)


def test_lines_of_several_slots_say_which(told: tuple[ReportDocument, Watch]) -> None:
    began = LaunchStarted(7, "abc", 3, 9, "search", 2, "so", slot="gpu1", subject="x")
    assert notice_lines(began) == ["#7 abc position 3/9 on gpu1, 2 runs: so"]
    launch = told[0].launches[0].model_copy(update={"slot": "gpu1", "number": 7})
    assert notice_lines(LaunchEnded(launch, "ms", 1.0, 0.0))[0].startswith("   #7 ")


def test_nothing_on_the_console_acts(told: tuple[ReportDocument, Watch]) -> None:
    shown: list[str] = []
    console = Console(shown.append, verbose=True)
    for notice in told[1].notices:
        console(notice)
    console(JobNote("a note \x1b[2J"))
    console(MachineBackoff(30.0, "no memory \x07"))
    console(PhaseStarted("bench\x1b", {"seconds": 1.25}))
    console(PhaseStarted("warning", {"text": "oh \x1b"}))
    shown += report_lines(build_report(told[0]))
    assert not any(ACTS.search(text) for text in shown)
    assert not any("\n" in text for text in shown)
    assert any("failed after" in text and "died" in text for text in shown)
    assert any(text == "   bench\\x1b 1.2 s" for text in shown)


def test_phases_are_told_only_when_asked_for() -> None:
    shown: list[str] = []
    Console(shown.append)(PhaseStarted("launch", {}))
    assert shown == []
    Console(shown.append)(PhaseStarted("warning", {"text": "attempt.json is not written"}))
    assert shown == ["   warning: attempt.json is not written"]


def test_a_plan_tells_range_skips_and_price(plan_for: MakePlan) -> None:
    world = hostile()
    builder = FakeBuilder(refused={world.changes[i].id: Refusal(f"reason {i}") for i in range(1, 9)})
    shown = plan_lines(
        plan_document(plan_for(world, builder, notes=("a dirty tree",)), Noise(0.01, 0.02, "measured"))
    )
    text = "\n".join(shown)
    assert not ACTS.search(text)
    assert "10 changes, 10 different environments" in text
    assert "testable  2, 8 skipped beforehand" in text
    assert "reason 1" in text
    assert "and 2 more" in text
    assert "a dirty tree" in text
    assert "measured" in text


def test_an_error_says_where_and_what_next() -> None:
    assert error_lines("no\x1b\nway", "a:1", "do") == ["error: no\\x1b\nway", "  where: a:1", "  next:  do"]
    assert error_lines("no", None, None) == ["error: no"]
