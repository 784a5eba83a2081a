"""The ranking as JSON, lines and Markdown."""

from __future__ import annotations

from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from perfbisect.series.suspects.report import TrackSuspectsDocument, suspects_report
from tests.series.suspect_worlds import STREAMS, commit, later, ranked

EVIL = "<script>alert(1)</script> | `x` \x1b[31m @all #1"


def ranking():
    return ranked(
        commit("a", "src/stream/x.py", subject=EVIL, date="2026-04-12T11:54:23Z", number=7),
        commit("b", "docs/x.md", subject="Docs"),
        commit("c", "src/x.py"),
        cells=STREAMS,
        later=(later("recovery", body="Reverts #7"),),
        recovered=True,
    )


WHAT = "ttft of a_cell x 3 begun on the night of 2026-04-12"
RANKING = ranking()
DOCUMENT = TrackSuspectsDocument(
    alert="alert-1",
    suspects=RANKING.suspects[:2],
    blast_radius=RANKING.blast_radius,
    attributed=RANKING.attributed.words,
    bisect="perfbisect bisect x",
    note="a note",
    of=3,
    what=WHAT,
)


def test_the_lines() -> None:
    lines = report_lines(suspects_report(DOCUMENT))
    assert lines[:2] == ["Suspects of alert-1: 3 commits in its window", f"  {WHAT}"]
    assert lines[3].startswith("  attributed by revert to aaaaaaaaaaaa: ffffffffffff reverts it")
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "×100  ffffffffffff reverts it in the window of the recovery" in text
    assert "1 more commits are less likely than these" in text
    assert lines[-1] == "  to settle it: perfbisect bisect x"
    assert "first run on the night" not in text, "evidence that says nothing is left out"


def test_the_markdown_shows_the_words_of_others_as_text() -> None:
    text = report_markdown(suspects_report(DOCUMENT))
    row = next(line for line in text.splitlines() if line.startswith("|") and "`aaaaaaaaaaaa`" in line)
    assert row.count("|") - row.count("\\|") == 5, "a bar in a subject ends no cell"
    assert "\x1b" not in text
    assert "```sh\nperfbisect bisect x\n```" in text
    assert text.startswith("# Suspects of alert-1: 3 commits in its window\n\nttft of a")
    assert "\n\nattributed by revert to `aaaaaaaaaaaa`: ffffffffffff" in text
