"""The ranking of suspects: what each piece of evidence does to the odds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.model.commit_details import (
    ChangedFile,
    LaterCommit,
    MeasuredCell,
    OnsetNight,
    RequestPhase,
    SuspectQuestion,
)
from perfbisect.series.suspects.ranking import (
    cells_factor,
    distinguishing_traits,
    server_votes,
    title_factor,
)
from tests.series.suspect_worlds import STREAMS, TABLE, commit, later, p_of, ranked, sha, weight_of


def test_commits_of_which_nothing_is_known_are_alike() -> None:
    """Two commits weigh 1 each, everything else one half: 0.4, 0.4 and 0.2."""
    found = ranked(commit("a"), commit("b"))
    assert [p_of(found, letter) for letter in "ab"] == pytest.approx([0.4, 0.4])
    assert found.p_outside_window == pytest.approx(0.2)
    assert [s.sha for s in found.suspects] == [sha("b"), sha("a")], "of equal ones the newest first"


def test_a_commit_counts_as_its_likeliest_file() -> None:
    found = ranked(commit("a", "docs/index.md", "src/start.py"), commit("b", "README.md"))
    assert weight_of(found, "a", "kind") == 0.4
    assert weight_of(found, "b", "kind") == 0.01


def test_the_place_weighs_against_the_likeliest_night() -> None:
    places = (
        OnsetNight("04-11", 0.2, frozenset({sha("a")})),
        OnsetNight("04-12", 0.8, frozenset({sha("b")})),
    )
    found = ranked(commit("a"), commit("b"), commit("c"), places=places)
    assert [weight_of(found, letter, "place") for letter in "abc"] == pytest.approx([0.25, 1.0, 0.02])
    assert [s.sha[0] for s in found.suspects] == ["b", "a", "c"]


def test_a_commit_that_two_nights_may_have_run_first_counts_with_the_mean() -> None:
    both = frozenset({sha("b")})
    places = (OnsetNight("04-11", 0.2, both | {sha("a")}), OnsetNight("04-12", 0.8, both | {sha("c")}))
    found = ranked(commit("a"), commit("b"), commit("c"), places=places)
    assert [weight_of(found, letter, "place") for letter in "abc"] == pytest.approx([0.25, 0.625, 1.0])


def test_lines_of_code_count_and_those_of_documents_do_not() -> None:
    small = commit("a", files=(ChangedFile("src/x.py", 3, 2), ChangedFile("docs/x.md", 500, 0)))
    large = commit("b", files=(ChangedFile("src/y.py", 400, 10),))
    unknown = commit("c", files=(ChangedFile("src/z.py", 3, 2), ChangedFile("src/w.so")))
    found = ranked(small, large, unknown)
    assert [weight_of(found, letter, "size") for letter in "abc"] == [0.5, 2.0, 1.0]


def test_files_of_code_count() -> None:
    wide = commit("a", files=tuple(ChangedFile(f"src/{n}.py", 10, 10) for n in range(3)))
    narrow = commit("b", files=(ChangedFile("src/x.py", 30, 30), ChangedFile("docs/x.md", 1, 1)))
    found = ranked(wide, narrow)
    assert [weight_of(found, letter, "size") for letter in "ab"] == [1.5, 1.0]


def test_code_that_runs_in_the_phase_that_moved_is_likelier() -> None:
    """Three times as often as other code: twice 3/4 and twice 1/4 of what nothing is known of."""
    commits = (
        commit("a", "src/engine.py"), commit("b", "src/front/x.py", "docs/index.md"),
        commit("c", "elsewhere/x.py"), commit("d", "src/front/x.py", "src/core/y.py"),
    )  # fmt: skip
    found = ranked(*commits, phase="decode")
    assert [weight_of(found, letter, "phase") for letter in "abcd"] == [1.5, 0.5, 1.0, 1.5]
    said = {suspect.sha[0]: factor.words for suspect in found.suspects for factor in suspect.evidence
            if factor.name == "phase"}  # fmt: skip
    assert said == {
        "a": "decode moved, and src/engine.py runs in it",
        "b": "decode moved, and src/front/x.py runs in the part outside the core",
        "d": "decode moved, and src/core/y.py runs in it",
    }
    assert p_of(found, "a") / p_of(found, "b") == pytest.approx(3)
    queue = ranked(*commits, phase="queue")
    assert [weight_of(queue, letter, "phase") for letter in "abcd"] == pytest.approx([0.8, 0.8, 1.0, 1.2])
    unsaid = ranked(*commits)
    assert [weight_of(unsaid, letter, "phase") for letter in "abcd"] == [1.0] * 4


@given(
    phase=st.sampled_from(["queue", "prefill", "decode", "outside"]),
    paths=st.lists(
        st.sampled_from(["src/a.py", "src/core/b.py", "src/front/c.py", "docs/d.md", "else/e.py"]), min_size=1
    ),
)
def test_a_phase_changes_odds_by_less_than_two_times_and_excludes_nothing(
    phase: RequestPhase, paths: list[str]
) -> None:
    suspect = commit("a", *paths)
    with_it, without = (ranked(suspect, commit("b", "else/x.py"), phase=p) for p in (phase, None))
    odds = [p_of(found, "a") / p_of(found, "b") for found in (with_it, without)]
    assert 0.25 < odds[0] / odds[1] < 2
    assert sum(s.p for s in with_it.suspects) + with_it.p_outside_window == pytest.approx(1)


HIT = MeasuredCell("c", True, "A", model="org/Some-A3B", features=frozenset({"rocm", "moe"}))


@pytest.mark.parametrize(
    ("subject", "expected", "said"),
    [
        ("[Perf] Faster loop", 2, "speed"),
        ("[ROCm] Tune", 4, "ROCm"),
        ("[ROCm][TPU] Tune", 4, "ROCm"),
        ("[TPU] Tune", 0.1, "TPU, which no server that was hit runs"),
        ("[Perf][ROCm] MoE for MLA", 2 * 4 * 3, "speed and ROCm and experts"),
        ("MLA", 0.5, "latent attention, which no"),
        ("Tidy", 1, ""),
    ],
)
def test_the_title_against_what_the_cell_runs(subject: str, expected: float, said: str) -> None:
    found = title_factor(commit("a", subject=subject), server_votes((HIT,)), TABLE)
    assert (found.weight if found else 1) == pytest.approx(expected)
    assert said in (found.words if found else "")


def test_a_title_names_nothing_where_no_server_was_hit() -> None:
    spared = replace(HIT, hit=False)
    assert title_factor(commit("a", subject="[TPU] Tune"), server_votes((spared,)), TABLE) is None
    found = title_factor(commit("a", subject="[Perf][TPU] Tune"), (), TABLE)
    assert found is not None and found.weight == 2, "what a change is about holds for all cells"


def test_features_choose_the_parts_that_a_server_runs_and_name_no_cause() -> None:
    cell = replace(STREAMS[0], traits=frozenset(), features=frozenset({"stream"}))
    other = replace(STREAMS[2], hit=False, traits=frozenset(), features=frozenset({"image"}))
    votes = server_votes((cell, other))
    found = cells_factor(commit("a", "src/stream/x.py"), votes, TABLE)
    assert found is not None and found.weight > 1
    assert distinguishing_traits(votes) == frozenset()


def test_a_commit_that_moves_the_engine_below() -> None:
    found = ranked(commit("a", pins=("vLLM v0.18.0", "vLLM v0.19.0")), commit("b"))
    assert p_of(found, "a") == pytest.approx(3 * p_of(found, "b"))
    (first, *_) = found.suspects
    assert "vLLM v0.18.0 to vLLM v0.19.0" in next(f.words for f in first.evidence if f.name == "pins")


def test_an_instrument_change_points_to_the_benchmark() -> None:
    commits = commit("a", "src/engine.py"), commit("b", "bench/client.py")
    assert p_of(ranked(*commits, cause="product"), "a") > p_of(ranked(*commits, cause="product"), "b")
    assert p_of(ranked(*commits, cause="instrument"), "b") > 0.9
    start = commit("a", "src/start.py"), commits[1]
    assert weight_of(ranked(*start, cause="instrument"), "a", "kind") == pytest.approx(0.4 * 0.2), "all code"


def test_a_bad_night_points_to_no_commit() -> None:
    assert ranked(commit("a"), commit("b"), cause="night").p_outside_window == pytest.approx(25 / 27)


class TestLater:
    def test_a_revert_with_recovery_settles_it(self) -> None:
        window = [commit("a", number=7), commit("b")]
        revert = later("recovery", body="This reverts #7.")
        found = ranked(*window, later=(revert,), recovered=True)
        assert p_of(found, "a") == pytest.approx(100 / 101.5)
        assert found.attributed is not None and "#7" in found.attributed.words
        assert ranked(*window, later=(revert,)).attributed is None, "the series has not recovered"
        assert ranked(*window, recovered=True).attributed is None

    def test_nothing_is_settled_between_two_reverts(self) -> None:
        reverts = (later("recovery", body="reverts #7"), later("recovery", body="reverts #8"))
        found = ranked(commit("a", number=7), commit("b", number=8), later=reverts, recovered=True)
        assert found.attributed is None
        assert p_of(found, "a") == p_of(found, "b") == pytest.approx(100 / 200.5)

    def test_a_fix_that_names_it_settles_nothing_by_itself(self) -> None:
        fix = later("recovery", body="Speeds up what #7 made slow.")
        found = ranked(commit("a", number=7), commit("b"), later=(fix,), recovered=True)
        assert weight_of(found, "a", "mended") == 20
        assert found.attributed is None

    def test_a_revert_that_did_not_help_speaks_against_it(self) -> None:
        found = ranked(commit("a", number=7), commit("b"), later=(later("slow", body="Reverts #7"),))
        assert p_of(found, "a") == pytest.approx(0.05 / 1.55)

    def test_a_revert_that_no_night_has_run(self) -> None:
        found = ranked(commit("a", number=7), commit("b"), later=(later("after", body="Reverts #7"),))
        assert p_of(found, "a") == pytest.approx(5 / 6.5)

    def test_a_commit_of_both_windows_answers_those_before_it_alone(self) -> None:
        """Not itself, not those after it; and it is not sure that the window had it."""
        files = ("src/x.py", "src/y.py")
        a, b, c = (
            commit("a", *files, number=7),
            commit("b", *files, body="Reverts #7 and #9"),
            commit("c", number=9),
        )
        both = LaterCommit(b, "recovery")
        found = ranked(a, b, c, later=(both,))
        assert weight_of(found, "a", "reverted") == 100
        assert [weight_of(found, "b", name) for name in ("same files", "undone")] == [1, 1]
        assert weight_of(found, "c", "reverted") == weight_of(found, "a", "undone") == 1

    def test_what_the_window_itself_takes_out_again(self) -> None:
        found = ranked(commit("a", number=7), commit("b", body="Revert #7"), commit("c"))
        assert [weight_of(found, letter, "undone") for letter in "abc"] == [0.1, 0.1, 1.0]


@pytest.mark.parametrize(
    ("commits", "places", "said"),
    [
        ("aa", (OnsetNight("n", 1.0, frozenset({sha("a")})),), "each commit once"),
        ("ab", (OnsetNight("n", 1.5, frozenset({sha("a")})),), "between 0 and 1"),
        ("ab", (OnsetNight("n", 1.0, frozenset({sha("c")})),), "no place"),
        ("ab", (OnsetNight("n", 0.0, frozenset({sha("a")})),), "no place"),
    ],
)
def test_questions_that_are_none(commits: str, places: tuple[OnsetNight, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SuspectQuestion(tuple(commit(letter) for letter in commits), places)


_PATHS = st.sampled_from(
    ["src/x.py", "src/stream/x.py", "src/image/y.py", "docs/a.md", "bench/b.py", "src/models/talk/m.py", "z"]
)


@given(
    files=st.lists(st.lists(_PATHS, max_size=4), min_size=1, max_size=5),
    hits=st.lists(st.booleans(), min_size=4, max_size=4),
    cause=st.sampled_from(["product", "instrument", "workload", "night", "unknown"]),
)
def test_a_ranking_is_a_distribution_that_excludes_nothing(files, hits, cause) -> None:
    commits = [commit(x, files=tuple(map(ChangedFile, f))) for x, f in zip("abcde", files, strict=False)]
    cells = tuple(
        type(c)(c.cell, hit, c.start, c.traits, c.model) for c, hit in zip(STREAMS, hits, strict=True)
    )
    found = ranked(*commits, cells=cells, cause=cause)
    assert all(0 < s.p <= 0.99 for s in found.suspects)
    assert [s.p for s in found.suspects] == sorted((s.p for s in found.suspects), reverse=True)
    total = sum(s.p for s in found.suspects) + found.p_outside_window
    assert total == pytest.approx(1) or max(found.p_outside_window, *(s.p for s in found.suspects)) == 0.99
    assert {s.sha for s in found.suspects} == {c.sha for c in commits}
