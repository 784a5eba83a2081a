"""One description, three renderings: every block is shown, and text of others never acts."""

from __future__ import annotations

import re
import subprocess
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perfbisect.bisect.report import build_report
from perfbisect.bisect.result import BisectResult
from perfbisect.common.text import code as code_span
from perfbisect.jobs.documents import CommandsDocument
from perfbisect.report.document import (
    Code,
    Column,
    Command,
    Figure,
    Items,
    KeyValues,
    Paragraph,
    Report,
    Section,
    Table,
    Verdict,
    code,
    strong,
)
from perfbisect.report.html import embedded_json, report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.plots import Axis, Plot
from perfbisect.report.terminal import block_lines, fitted, plain, report_lines
from tests.report.test_flames import balanced

TABLE = Table((Column("metric"), Column("A", numeric=True)), (("tpot", "12.0 ms"), (code("a|b"), "3")))
FIGURE = Figure("by-time", "Launches by time", Plot(Axis(range=(0, 1)), ()))


def report(text: str = "TPOT is the same") -> Report:
    return Report(
        "compare a with b",
        Verdict("same", "good"),
        (Paragraph((strong("TPOT"), " +0.4 %")), Items((code(text),)), TABLE, Command("perfbisect report 1")),
        (
            Section("Cell", (KeyValues((("model", code(text)),)), FIGURE), detail=True),
            Section("Notes", (Paragraph("quiet", quiet=True), Code("vllm serve m"))),
        ),
        highlights=(("+0.4 %", "TPOT"),),
    )


def test_a_terminal_shows_the_result_and_leaves_out_details() -> None:
    assert report_lines(report()) == [
        "compare a with b: same",
        "  TPOT +0.4 %",
        "  - TPOT is the same",
        "  metric        A",
        "  tpot    12.0 ms",
        "  a|b           3",
        "  next: perfbisect report 1",
        "",
        "Notes",
        "  quiet",
        "  vllm serve m",
    ]


def test_markdown_shows_every_section_and_no_figure() -> None:
    text = report_markdown(report())
    assert text.startswith("# compare a with b: same\n")
    assert re.findall("^## (.+)$", text, re.MULTILINE) == ["Cell", "Notes"]
    assert "**TPOT** +0.4 %" in text
    assert "| `a∣b` | 3 |" in text
    assert "Launches by time" not in text


def test_html_has_the_figure_and_its_script() -> None:
    page = report_html(report(), plots="plots.js")
    assert 'id="by-time"' in page
    assert '<script src="plots.js">' in page
    assert "+0.4 %" in page


def test_a_page_without_figures_runs_no_script() -> None:
    page = report_html(Report("run", Verdict("measured"), (Paragraph("12 ms"),)))
    assert "script-src 'none'" in unescape(page)
    assert "script" not in balanced(page).seen


def test_what_a_page_says_to_type_runs_as_it_stands(rich: BisectResult, tmp_path: Path) -> None:
    """Each program of the section Reproduce is a stand-in that writes down its arguments."""
    commands = CommandsDocument(
        change="c0ffee <b>&",
        serve="VLLM_X='a b' python -m vllm serve m --api-key \"${MY_API_KEY}\"",
        bench="python -m vllm bench serve --extra-body '{\"n\": 1}'",
        perfbisect="perfbisect bisect cell.yaml --good 'v1 x' --bad main",
        note="as they ran",
    )
    page = report_html(build_report(rich.model_copy(update={"reproduce": commands, "launches": ()})))
    (typed,) = re.findall(r'<pre class="typed">(# serve.*?)</pre>', page, re.DOTALL)
    told = 'printf "%s\\n" "${0##*/}" "$VLLM_X" "$@" . >> "$RECORD"'
    for name in ("python", "perfbisect"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{told}\n")
        (tmp_path / name).chmod(0o755)
    record = tmp_path / "record"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RECORD": str(record), "MY_API_KEY": "k e y"}
    subprocess.run(["bash", "-e", "-c", unescape(typed)], env=env, check=True)
    assert [run.split("\n") for run in record.read_text().split("\n.\n")[:-1]] == [
        ["python", "a b", "-m", "vllm", "serve", "m", "--api-key", "k e y"],
        ["python", "", "-m", "vllm", "bench", "serve", "--extra-body", '{"n": 1}'],
        ["perfbisect", "", "bisect", "cell.yaml", "--good", "v1 x", "--bad", "main"],
    ]
    assert '"Copy"' in page
    assert "https://" not in page


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>| `@user` \x1b[2J"


def test_text_of_others_never_acts() -> None:
    harmless, hostile = report(), report(HOSTILE)
    assert (
        balanced(report_html(hostile, plots="p.js")).seen
        == balanced(report_html(harmless, plots="p.js")).seen
    )
    assert "\x1b" not in "".join(report_lines(hostile)) + report_markdown(hostile)
    shown = report_markdown(hostile)
    assert code_span(HOSTILE) in shown
    assert "<" not in shown.replace(code_span(HOSTILE), "")


@given(st.text())
def test_embedded_json_holds_no_markup(text: str) -> None:
    assert not set("<>&") & set(embedded_json({"name": text}))


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_columns_of_a_table_are_aligned(rows: list[tuple[str, str]]) -> None:
    lines = block_lines([Table((Column("a"), Column("b", numeric=True)), tuple(rows))])
    assert len(lines) == len(rows) + 1
    assert all(shown.endswith(plain(row[1]).rstrip()) for shown, row in zip(lines[1:], rows, strict=True))


@pytest.mark.parametrize("style", ["good", "bad", "open"])
def test_every_tone_has_a_style(style: str) -> None:
    page = report_html(Report("t", Verdict("v", style), ()))  # type: ignore[arg-type]
    assert f".word.{style}" in page


WORDS = st.lists(st.text("abc-中", min_size=1, max_size=9), min_size=1, max_size=12)


@given(WORDS, st.integers(0, 12), st.integers(20, 60))
def test_no_line_is_wider_and_no_word_is_lost(words: list[str], indent: int, width: int) -> None:
    text = " " * indent + "  ".join(words)
    shown = fitted(text, width)
    assert [word for row in shown for word in row.split()] == words
    for row in shown:
        assert cell_len(row) <= width or len(row.split()) == 1
        assert row.startswith(" " * min(indent, width // 2))


def test_the_rest_is_indented_further() -> None:
    assert fitted("  name    value and more of it", 20) == ["  name    value and", "      more of it"]
    assert fitted("short", 20) == ["short"]


@pytest.mark.parametrize("width", range(40, 131, 5))
def test_no_line_breaks_within_the_probability_of_no_change(width: int) -> None:
    """80 and 110 columns are those of most terminals."""
    leading = "leading 0668d5b3a277 0.04, 2e49a8ad8c2a 0.04, 9707bf1e5801 0.04; P(no change) 0.06"
    rows = fitted(f"   23.54 ms (2 runs, requests 4.5 %)  |  {leading}  |  3.0 min of 60.0 min", width)
    assert all(cell_len(row) <= width for row in rows)
    assert sum("P(no change)" in row for row in rows) == 1


def test_what_is_copied_is_left_to_the_terminal() -> None:
    command = "  next:  perfbisect resume 20260102-030405-ab12 --budget 150m --state /a/b/c"
    assert fitted(command, 30) == [command]
    for label in ("to settle it", "run"):
        command = f"  {label}: perfbisect bisect one --good v1 --bad v2"
        assert fitted(command, 30) == [command]
    page = "# A report\n\n| a | b |\n|---|---|\n| a long row of a table | that Markdown needs whole |"
    assert fitted(page, 20) == [page]
