"""Does a later commit undo or mend an earlier one?"""

from __future__ import annotations

import pytest

from perfbisect.model.commit_details import ChangedFile, Commit, Factor, LaterCommit
from perfbisect.series.suspects.ranking import (
    CommitText,
    find_answer,
    later_evidence,
    parse_commit,
)
from tests.series.suspect_worlds import TABLE, commit, later, sha

TITLE = "[Log] Count what the streams of a stage say to each other"
EARLIER = Commit(
    sha=sha("a"),
    subject=f"{TITLE} (#2551)",
    files=(ChangedFile("src/a.py", 30, 2), ChangedFile("src/b.py", 5, 0), ChangedFile("tests/t.py", 50, 0)),
)


def told(one: Commit) -> CommitText:
    return parse_commit(one, lambda path: path.startswith("src"))


def weighed(one: Commit, *pieces: LaterCommit) -> Factor | None:
    return later_evidence(told(one), [(told(p.commit), p.phase) for p in pieces], TABLE.weights)


def answer(subject: str = "", body: str = "", *files: ChangedFile) -> str:
    found = find_answer(told(Commit(sha("b"), subject, body=body, files=files)), told(EARLIER))
    return "" if found is None else f"{found[0]}: {found[1]}"


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        (f'Revert "{TITLE} (#2551)" (#2716)', ""),
        ("[Revert] take it out (#2716)", "This reverts #2551, which was slow."),
        ("Back out the counters", "See org/repo/pull/2551"),
        ("rolled back PR#2551 (#9)", ""),
    ],
)
def test_a_revert_by_number(subject: str, body: str) -> None:
    assert answer(subject, body) == "revert: names it by its number #2551"


@pytest.mark.parametrize("digits", [7, 12, 40])
def test_a_revert_by_hash(digits: int) -> None:
    said = answer("x (#2716)", f"This reverts commit {'a' * digits}.")
    assert said == f"revert: names it by its hash {'a' * 12}"


@pytest.mark.parametrize(
    "subject",
    [
        f'Revert "{TITLE}"',
        f'[Revert] Revert "{TITLE[:40]}… (#2716)',
        f'Revert "{TITLE[:40]}..."',
        f"Revert “{TITLE.upper()}” (#2716)",
        f'[CI] Revert "{TITLE}" (#2716)',
    ],
)
def test_a_revert_by_quoted_title_also_where_a_forge_cut_it_off(subject: str) -> None:
    assert answer(subject) == "revert: quotes its title"


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        (f'Revert "{TITLE} for images"', ""),
        ('Revert "[Log]…"', ""),
        ('Revert "Something else altogether"', ""),
        ("Revert (#2551)", ""),
        ("Revert #25511", ""),
        ("Revert #255", ""),
        ("", "See aaaaaa for more"),
        (TITLE, ""),
        ("Faster again", ""),
    ],
)
def test_what_names_nothing(subject: str, body: str) -> None:
    """A longer title, a quotation too short, its own number, other numbers, too few digits, words alone."""
    assert answer(subject, body) == ""


def test_a_fix_names_it_and_takes_nothing_out() -> None:
    assert answer("Speed up what #2551 made slow") == "fix: names it by its number #2551"


def test_the_lines_the_other_way_round_are_a_revert_whatever_it_says() -> None:
    """Tests may differ; one file more or less of the product, or other lines, and it is none."""
    back = ChangedFile("src/a.py", 2, 30), ChangedFile("src/b.py", 0, 5)
    assert answer("Tidy up", "", *back, ChangedFile("tests/t.py", 1, 1)).startswith(
        "revert: takes out the lines"
    )
    assert answer("Tidy up", "", *back, ChangedFile("src/c.py", 1, 1)) == ""
    assert answer("Tidy up", "", back[0]) == ""
    assert answer("Tidy up", "", ChangedFile("src/a.py", 2, 29), back[1]).startswith("same files")


def test_the_piece_that_weighs_most_counts_either_way() -> None:
    known = commit("a", number=7)
    pieces = later("slow", body="Reverts #7"), later("recovery", body="as #7 has it")
    found = weighed(known, *pieces)
    assert found is not None and (found.name, found.weight) == ("mended", 20)
    found = weighed(known, *pieces[:1])
    assert found is not None and (found.name, found.weight) == ("reverted in vain", 0.05)
    assert weighed(known, later("after", body="see #7")) is None


def test_the_same_files_without_lines_are_a_hint_and_with_a_name_a_revert() -> None:
    files = ChangedFile("src/a.py"), ChangedFile("src/b.py")
    assert answer("Tidy up", "", *files).startswith("same files")
    assert answer("Better now, see #2551", "", *files) == "revert: names it by its number #2551"
    assert find_answer(told(commit("b", "src/a.py")), told(commit("a", "src/a.py"))) is None, "one file"
