"""The diff in a report: marked lines first, bounded, and true to the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.changes.hunks import FileDiff
from perfbisect.explain.attribution import GrowthLocation, ProfileConclusion
from perfbisect.explain.diff import DiffLink
from perfbisect.explain.figures import LONGEST_LINE, MOST_FILES, MOST_LINES, excerpt_diff
from perfbisect.report.diffs import DiffDocument, DiffFileDocument, diff_lines, marked_part
from perfbisect.report.document import FileLines, Report, Verdict
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from tests.explain.diffs import file_diff
from tests.explain.test_attribution import PATCH, PATH, VALUES, diff_of
from tests.explain.test_diff import diff_between
from tests.report.test_flames import balanced

NOTHING = ProfileConclusion(kind="no growth seen")


def at(path: str, line: int, link: DiffLink | None = None) -> ProfileConclusion:
    return ProfileConclusion(kind="in the diff", location=GrowthLocation(path, line, "f", 1.0), link=link)


def marked(document: DiffDocument) -> list[tuple[str, str, int]]:
    return [
        (file.path, line.sign, line.number)
        for file in document.files
        for hunk in file.hunks
        for line in hunk
        if line.marked
    ]


def test_lines_of_the_named_function_are_marked() -> None:
    document = excerpt_diff(diff_of(VALUES, PATCH), at(PATH, 7))
    assert [file.path for file in document.files] == [PATH, "vllm/moe/E=8.json"]
    assert marked(document) == [(PATH, "+", 6), (PATH, "+", 7)]
    assert diff_lines(document.files[0]) == [
        "        1  class Scheduler:",
        "        2      def schedule(self):",
        "+       3          self.check()",
        "        4          return self.choose()",
        "+       5",
        "+ >     6      def check(self):",
        "+ >     7          assert len(set(self.blocks)) == len(self.blocks)",
        "        8",
        "        9      def choose(self):",
        "       10          return sorted(self.queue)",
    ]


def test_what_the_growth_uses_is_marked_too() -> None:
    link = DiffLink("data file", "E=8.json", "vllm/moe/E=8.json", 1)
    document = excerpt_diff(diff_of(PATCH, VALUES), at("vllm/v1/worker.py", 8, link))
    assert [file.path for file in document.files] == ["vllm/moe/E=8.json", PATH]
    assert marked(document) == [("vllm/moe/E=8.json", "-", 1), ("vllm/moe/E=8.json", "+", 1)]


def test_nothing_is_marked_where_nothing_is_named() -> None:
    document = excerpt_diff(diff_of(PATCH, VALUES), NOTHING)
    assert marked(document) == [] and marked_part(document, 20) is None
    assert len(document.files) == 2


def test_a_function_that_lost_lines(tmp_path: Path) -> None:
    """A decorator that is gone belongs to the function."""
    before = "import functools\n\n\n@functools.cache\ndef f(a):\n    return a * 2\n"
    after = before.replace("@functools.cache\n", "")
    diff = diff_between(tmp_path, {"vllm/a.py": before.encode()}, {"vllm/a.py": after.encode()})
    document = excerpt_diff(diff, at("vllm/a.py", 5))
    assert marked(document) == [("vllm/a.py", "-", 4)]


def test_files_of_every_kind(tmp_path: Path) -> None:
    same = b"".join(b"line %d\n" % number for number in range(20))
    diff = diff_between(
        tmp_path,
        {
            "a/gone.py": b"g = 1\ng = 2\n",
            "a/binary.so": b"\0\1",
            "a/latin.txt": b"x\n",
            "a/moved.txt": same,
            "a/dos.c": b"int a;\r\n",
        },
        {
            "a/new.py": b"n = '<b>&\"'\n",
            "a/binary.so": b"\0\2",
            "a/blob.bin": b"\0\3",
            "a/gone.py": None,
            "a/moved.txt": None,
            "a/latin.txt": b"Gr\xfc\xdfe \x1b[2J \x0c end",
            "b/moved.txt": same + b"more\n",
            "a/dos.c": b"int a;\r\n\tint b;\r\n",
        },
    )
    document = excerpt_diff(diff, NOTHING)
    found = {file.path: (file.state, file.binary, diff_lines(file)) for file in document.files}
    assert found == {
        "a/gone.py": ("deleted", False, ["-       1  g = 1", "-       2  g = 2"]),
        "a/binary.so": ("changed", True, []),
        "a/blob.bin": ("added", True, []),
        "a/new.py": ("added", False, ["+       1  n = '<b>&\"'"]),
        "a/latin.txt": (
            "changed",
            False,
            ["-       1  x", "+       1  Gr\ufffd\ufffde \x1b[2J \x0c end"],
        ),
        "b/moved.txt": (
            "renamed",
            False,
            [
                *(f"       {number}  line {number - 1}" for number in (18, 19, 20)),
                "+      21  more",
            ],
        ),
        "a/dos.c": ("changed", False, ["        1  int a;", "+       2      int b;"]),
    }
    moved = next(file for file in document.files if file.state == "renamed")
    assert moved.remarks == "renamed from a/moved.txt"
    report = Report("t", Verdict("v"), tuple(FileLines(file) for file in document.files))
    page = report_html(report)
    assert "b" not in balanced(page).seen
    assert "n = &#39;&lt;b&gt;&amp;&#34;&#39;" in page
    for text in (page, "\n".join(report_lines(report)), report_markdown(report)):
        assert "\x1b" not in text and r"\x1b[2J \x0c end" in text
        assert "renamed from a/moved.txt" in text


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    before = draw(st.lists(st.sampled_from("abcd"), max_size=40))
    after = draw(st.lists(st.sampled_from("abcd"), max_size=40))
    return before, after


@given(edits())
def test_the_lines_are_those_of_the_files(texts: tuple[list[str], list[str]]) -> None:
    before, after = texts
    file = file_diff("x.txt", *("".join(f"{line}\n" for line in side) for side in texts))
    document = excerpt_diff(diff_of(file), NOTHING)
    (shown,) = document.files
    lines = [line for hunk in shown.hunks for line in hunk]
    assert shown.omitted == 0
    assert [x.number for x in lines if x.sign == "+"] == [y for hunk in file.hunks for y in hunk.added]
    assert [x.number for x in lines if x.sign == "-"] == [y for hunk in file.hunks for y in hunk.removed]
    for line in lines:
        assert line.content == (before if line.sign == "-" else after)[line.number - 1]
    numbers = [line.number for line in lines if line.sign != "-"]
    assert numbers == sorted(set(numbers))
    for hunk in shown.hunks:
        runs = "".join(line.sign for line in hunk)
        assert not runs.startswith("    ") and not runs.endswith("    ") and " " * 7 not in runs
        inside = [line.number for line in hunk if line.sign != "-"]
        assert inside == list(range(inside[0], inside[0] + len(inside))) if inside else True


def added(path: str, first: int, count: int) -> FileDiff:
    lines = [f"line {number}\n" for number in range(1, first + count)]
    return file_diff(path, "".join(lines[: first - 1]), "".join(lines))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.data())
def test_the_excerpt_is_bounded_and_says_so(counts: list[int], data: st.DataObject) -> None:
    files = [added(f"f{index}.txt", 5, count) for index, count in enumerate(counts)]
    chosen = data.draw(st.sampled_from(files))
    document = excerpt_diff(diff_of(*files), at(chosen.path, 5))
    shown = [len(hunk) for file in document.files for hunk in file.hunks]
    assert sum(shown) <= MOST_LINES
    assert len(document.files) + document.omitted_files == len(files) and len(document.files) <= MOST_FILES
    by_path = {file.path: 3 + len(file.hunks[0].added) for file in files}
    for file in document.files:
        assert sum(map(len, file.hunks)) + file.omitted == by_path[file.path]
    # What is named is first, and whole where it can be.
    assert document.files[0].path == chosen.path
    assert document.files[0].omitted == 0
    assert sum(shown) == min(MOST_LINES, sum(by_path[file.path] for file in document.files))


def test_a_long_hunk_keeps_its_marked_lines() -> None:
    source = (
        "".join(f"x{number} = 0\n" for number in range(900)) + "def f():\n    return 1\n" + "y = 1\n" * 50
    )
    document = excerpt_diff(diff_of(file_diff(PATH, None, source)), at(PATH, 902))
    assert marked(document) == [(PATH, "+", 901), (PATH, "+", 902)]
    assert document.files[0].omitted == 897
    part = marked_part(document, 4)
    assert part is not None
    assert [line.number for hunk in part.hunks for line in hunk] == [898, 899, 900, 901]
    assert part.remarks == "added, 51 lines not shown"


def test_a_long_line_is_cut() -> None:
    document = excerpt_diff(diff_of(file_diff("a.js", None, "x" * 100_000)), NOTHING)
    (line,) = document.files[0].hunks[0]
    assert len(line.content) == LONGEST_LINE and line.content.endswith("…")


@pytest.mark.parametrize("state", ["added", "changed", "deleted"])
def test_a_file_without_lines_is_named(state: str) -> None:
    file = DiffFileDocument(path="a.so", old_path="a.so", state=state, binary=True, hunks=())  # type: ignore[arg-type]
    report = Report("t", Verdict("v"), (FileLines(file),))
    for text in (report_html(report), "\n".join(report_lines(report)), report_markdown(report)):
        assert "a.so" in text and f"{state}, binary" in text
