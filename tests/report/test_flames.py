"""Difference flame graphs: widths add up, and what is drawn is read without colours, scripts or a network."""

from __future__ import annotations

import re
from collections import defaultdict
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.report.document import FlameGraph, Report, Section, Verdict
from perfbisect.report.flames import FlameBox, FlameDocument, flame_boxes, flame_lines
from perfbisect.report.html import report_html
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines

VOID = frozenset({"meta", "br", "img", "input", "hr", "link"})
SVG = "{http://www.w3.org/2000/svg}"


def frame(function: str, before: float, after: float, *children: FlameDocument) -> FlameDocument:
    return FlameDocument(
        function=function, path=f"vllm/{function}.py", before=before, after=after, children=children
    )


def root(*children: FlameDocument, own: float = 0.0) -> FlameDocument:
    """All processes, with ``own`` ms on both sides that no child has."""
    before, after = (sum(getattr(child, side) for child in children) + own for side in ("before", "after"))
    return FlameDocument(
        function="all processes", path="", before=before, after=after, children=tuple(children)
    )


TREES = st.recursive(
    st.builds(frame, st.sampled_from("abc"), st.floats(0, 9), st.floats(0, 9)),
    lambda below: st.lists(below, min_size=1, max_size=4).map(
        lambda children: frame(
            "d", sum(child.before for child in children) + 1, sum(child.after for child in children)
        ).model_copy(update={"children": tuple(children)})
    ),
    max_leaves=20,
)


@given(st.lists(TREES, max_size=4))
def test_widths_add_up(children: list[FlameDocument]) -> None:
    whole = root(*children, own=1.0)
    boxes = flame_boxes(whole)
    assert (boxes[0].left, boxes[0].width) == (0.0, 1.0)
    levels: defaultdict[int, list[FlameBox]] = defaultdict(list)
    for box in boxes:
        levels[box.level].append(box)
        slower = max(whole.before, whole.after)
        assert box.width * slower == pytest.approx(
            box.frame.after if whole.after >= whole.before else box.frame.before
        )
    for level, found in levels.items():
        ends = [(box.left, box.left + box.width) for box in sorted(found, key=lambda box: box.left)]
        for (_, end), (start, _) in pairwise(ends):
            assert end <= start + 1e-9
        if level:
            above = [(box.left, box.left + box.width) for box in levels[level - 1]]
            for left, right in ends:
                assert any(a - 1e-9 <= left and right <= b + 1e-9 for a, b in above)


def test_colours_are_of_the_difference() -> None:
    tree = root(
        frame("grew", 1, 21), frame("more", 5, 13), frame("bit", 5, 6), frame("same", 9, 9.1),
        frame("less", 8, 2), own=9,
    )  # fmt: skip
    assert {box.frame.function: (box.shade, box.label) for box in flame_boxes(tree)[1:]} == {
        "grew": (3, "+20.00 grew (grew.py)"),
        "more": (2, "+8.00 more (more.py)"),
        "bit": (1, "+1.00 bit (bit.py)"),
        "same": (0, "same (same.py)"),
        "less": (-1, "-6.00 less (less.py)"),
    }
    (_, box) = flame_boxes(root(frame("less", 9, 4)))
    assert (box.shade, box.width, box.label) == (-3, 1.0, "-5.00 less (less.py)")


def test_what_one_side_alone_has() -> None:
    """The width is that of the slower side; the text has both."""
    tree = root(frame("gone", 2, 0), frame("new", 0, 6), own=4)
    assert [box.frame.function for box in flame_boxes(tree)] == ["all processes", "new"]
    assert flame_lines(tree) == [
        "   +4.00  all processes",
        "   -2.00    gone (vllm/gone.py)",
        "   +6.00    new (vllm/new.py)",
    ]


def test_callers_that_carry_nothing_of_their_own_are_left_out_of_the_text() -> None:
    leaf = frame("leaf", 1, 7)
    tree = root(frame("main", 5, 11, frame("step", 5, 11, leaf, frame("same", 4, 4))), own=1)
    assert flame_lines(tree) == ["   +6.00  all processes", "   +6.00    leaf (vllm/leaf.py)"]
    many = root(*(frame(f"f{index}", 0, index) for index in range(1, 30)))
    lines = flame_lines(many, most=3)
    assert [line.split()[1] for line in lines] == ["all", "f28", "f29"]


def test_nothing_is_drawn_of_no_time() -> None:
    assert flame_boxes(root()) == () and flame_lines(root()) == []
    assert "<svg" not in report_html(page_of(root()))


def page_of(tree: FlameDocument) -> Report:
    return Report("t", Verdict("v"), (), (Section("Time by stack", (FlameGraph("A caption", tree),)),))


class Balanced(HTMLParser):
    """Every tag is closed where it was opened; ``attributes`` of all tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def balanced(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


HOSTILE = FlameDocument(
    function='<lambda> "x" & \x1b</title><script>alert(1)</script>', path="a/<b>.py", before=1.0, after=9.0
)


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    page = report_html(page_of(root(HOSTILE, frame("same", 4, 4))))
    parser = balanced(page)
    assert "script" not in parser.seen
    assert not {"src", "href", "onclick", "onload"} & {name for name, _ in parser.attributes}
    assert not [value for _, value in parser.attributes if "//" in value]
    (found,) = re.findall(r"<svg class=.*?\n</svg>", page, re.DOTALL)
    tree = ElementTree.fromstring(
        found.replace("<svg class", '<svg xmlns="http://www.w3.org/2000/svg" class', 1)
    )
    titles = [title.text for title in tree.iter(f"{SVG}title")]
    assert titles == [
        "all processes: 5.00 before, 13.00 after, +8.00 ms a step",
        '<lambda> "x" & \\x1b</title><script>alert(1)</script>, a/<b>.py: '
        "1.00 before, 9.00 after, +8.00 ms a step",
        "same, vllm/same.py: 4.00 before, 4.00 after, +0.00 ms a step",
    ]
    assert len(list(tree.iter(f"{SVG}rect"))) == 3
    assert tree.attrib["role"] == "img" and tree.attrib["aria-label"]
    assert "<figcaption" in page and "A caption" in page
    for style in ("shade1", "shade2", "shade3", "shade-1", "shade-2", "shade-3"):
        assert f".{style} rect" in page


def test_other_renderings_have_the_largest_differences() -> None:
    report = page_of(root(HOSTILE))
    for text in ("\n".join(report_lines(report)), report_markdown(report)):
        assert '+8.00    <lambda> "x"' in text and "\x1b" not in text
