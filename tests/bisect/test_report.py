"""The report of a bisection whose commits mean harm: it says all, acts on nothing and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perfbisect.bisect.forecast import plan_document, plan_lines
from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult
from perfbisect.environments.base import Refusal
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.events import JobNote, LaunchEnded, LaunchStarted, MachineBackoff, PhaseStarted
from perfbisect.jobs.replay import LaunchRequest
from perfbisect.model.change import Change
from perfbisect.report import html as page_renderer
from perfbisect.report.console import Console, error_lines, notice_lines
from perfbisect.report.html import plot_script, report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from tests.fixtures.jobs import MakePlan
from tests.fixtures.reports import hostile
from tests.jobs.world import FakeBuilder, Watch

ACTS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
ELEMENTS = (
    "html head meta title style body header main footer section div span h1 h2 p code pre bdi br b ul li "
    "table tr th td details summary script noscript"
)
SAID = (
    "Comparisons",
    "Where the minutes went",
    "saved, since work overlapped",
    "Guards",
    "What the engines' logs say differently",
    "FLASH_ATTN",
    "Steps",
    "bad without the culprit against bad",
    "Revert check: not clean:",
    "Changes that only the good end has",
    "Every launch",
    "Skipped (2)",
    "csrc differs",
    "when tried",
    "beforehand",
    "Same environment as a neighbour",
    "Not tested",
    "What was measured",
    "Versions",
    "perfbisect bisect tiny --good A --bad B",
)


class Page(HTMLParser):
    """Elements, attributes and text of a page; scripts and styles by their content."""

    def __init__(self, document: BisectResult) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.shown: list[str] = []
        self._inside = ""
        self.feed(report_html(build_report(document)))
        self.close()

    @property
    def text(self) -> str:
        return "".join(self.shown)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, _tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.shown.append(data)


def markdown(document: BisectResult) -> str:
    return report_markdown(build_report(document))


def test_the_page_says_all_and_foreign_text_is_neither_markup_nor_script(rich: BisectResult) -> None:
    page = Page(rich)
    assert {tag for tag, _ in page.elements} <= set(ELEMENTS.split())
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "<img src=http://evil.example/x" in page.text, "as text"
    assert "{{7*7}}" in page.text, "as text"
    assert not ACTS.search(page.text.replace("\n", " "))
    assert rich.culprit is not None
    shown = " ".join(page.text.split())
    for text in (
        *SAID,
        rich.culprit.id,
        "Above: the posterior",
        "By time",
        *(said[:60] for said in rich.summary),
    ):
        assert text in shown, text
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {"by-commit", "by-time", "pairs"} <= ids


def test_only_our_scripts_may_run_and_nothing_may_be_loaded(rich: BisectResult) -> None:
    page = Page(rich)
    assert len(page.scripts) == 4, "the figures as data, and three that run"
    (policy,) = (a["content"] for tag, a in page.elements if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    (allowed,) = re.findall(r"script-src ([^;]*)", policy)
    wanted = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    assert allowed.split() == [f"'sha256-{digest}'" for digest in wanted]
    loading = [
        (tag, name)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "data", "action", "poster") or "http" in (value or "")[:5]
    ]
    assert loading in ([("meta", "http-equiv")], [])
    assert len(report_html(build_report(rich))) < 300_000
    assert "MIT License" in page.scripts[1], "of uPlot"
    assert page.scripts[1] == plot_script()


def test_what_is_ours_in_the_page_names_no_address() -> None:
    shipped = list((Path(page_renderer.__file__).parent / "templates").iterdir())
    assert len(shipped) >= 3
    assert not [path for path in shipped if re.search(r"https?:|//[a-z]|@import|url\(", path.read_text())]


@pytest.mark.parametrize("outcome", ["not reproduced", "too small", "out of budget", "unfinished"])
def test_every_outcome_has_a_page(told: tuple[BisectResult, Watch], outcome: str) -> None:
    missing = dict.fromkeys(("culprit", "parent", "confirmed", "whole", "share", "beliefs"))
    bare = told[0].model_copy(update={**missing, "outcome": outcome, "launches": (), "guards": ()})
    shown = Page(bare).text
    assert outcome in shown
    assert "Above: the posterior" not in shown
    assert "slot" not in shown


def test_several_culprits_are_all_named(told: tuple[BisectResult, Watch]) -> None:
    report = told[0].model_copy(update={"culprit": None, "culprits": told[0].history[5:7]})
    shown = Page(report).text
    assert "One of 2 changes that cannot be distinguished" in shown
    for position in report.culprits:
        assert position.changes[0].short in shown


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_browser_draws_the_figures(rich: BisectResult, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(report_html(build_report(rich)), encoding="utf-8")
    done = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{tmp_path / 'report.html'}"),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.count('class="uplot') == 5, "two panels by commit and by time, and the pairs"


def test_the_markdown_says_all_and_acts_on_nothing(
    told: tuple[BisectResult, Watch], rich: BisectResult
) -> None:
    for document in (told[0], rich):
        text = markdown(document)
        assert not ACTS.search(text)
        outside = re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", text)
        assert not re.search(r"<script>|<b>|\[link\]\(x\)|@everyone", outside)
        tables = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
        assert len(tables) >= 6
        for table in tables:
            assert len({row.replace("\\|", "").count("|") for row in table.strip().splitlines()}) == 1, table
        rows = sum(text.count(f"| {purpose} |") for purpose in ("search", "end", "confirm"))
        assert rows == len(document.launches)
    assert [said for said in SAID if said not in text] == []
    assert text.startswith("# Bisection of ") and ": found\n" in text
    assert "| # | change | for | slot | value |" in text
    plain = markdown(told[0])
    assert "| slot |" not in plain, "one slot needs no column"
    assert "saved" not in plain


def test_nothing_on_the_console_acts(told: tuple[BisectResult, Watch], rich: BisectResult) -> None:
    shown: list[str] = []
    console = Console(shown.append, verbose=True)
    harmful = (
        JobNote("a note \x1b[2J"),
        MachineBackoff(30.0, "no memory \x07"),
        PhaseStarted("bench\x1b", {"seconds": 1.25}),
        PhaseStarted("warning", {"text": "oh \x1b"}),
    )
    for notice in (*told[1].notices, *harmful):
        console(notice)
    shown += report_lines(build_report(rich))
    assert not any(ACTS.search(text) or "\n" in text for text in shown)
    assert any("failed after" in text and "died" in text for text in shown)
    assert any(text == "   bench\\x1b 1.2 s" for text in shown)
    assert any(text.startswith("  attention  FLASH_ATTN  </script>") for text in shown)
    assert any(", 3.2 min saved by overlap; " in text for text in shown)


def test_the_lines_of_a_launch(told: tuple[BisectResult, Watch]) -> None:
    began = LaunchStarted(7, LaunchRequest(3, Change("abc"), "search", 2, "so"), 9, slot="gpu1")
    assert notice_lines(began) == ["#7 abc position 3/9 on gpu1, 2 runs: so"]
    launch = replace(told[0].launches[0], slot="gpu1", number=7)
    assert notice_lines(LaunchEnded(launch, "ms", 1.0, 0.0, 0.0))[0].startswith("   #7 ")
    assert notice_lines(PhaseStarted("launch", {})) == [], "phases are for --verbose"
    warning = PhaseStarted("warning", {"text": "attempt.json is not written"})
    assert notice_lines(warning) == ["   warning: attempt.json is not written"]


def test_a_plan_tells_range_skips_and_price(plan_for: MakePlan) -> None:
    world = hostile()
    builder = FakeBuilder(refused={world.changes[i].id: Refusal(f"reason {i}") for i in range(1, 9)})
    plan = plan_for(world, builder, notes=("a dirty tree",))
    text = "\n".join(plan_lines(plan_document(plan, Noise(0.01, 0.02, "measured"), basis="")))
    assert not ACTS.search(text)
    for said in (
        "10 changes, 10 different environments",
        "testable  2, 8 skipped beforehand",
        "reason 1",
        "and 2 more",
        "a dirty tree",
        "measured",
    ):
        assert said in text


def test_an_error_says_where_and_what_next() -> None:
    assert error_lines("no\x1b\nway", "a:1", "do") == ["error: no\\x1b\nway", "  where: a:1", "  next:  do"]
    assert error_lines("no", None, None) == ["error: no"]
