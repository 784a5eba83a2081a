"""The ranking of suspects: what each piece of evidence does to the odds, and the report of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.model.commit_details import (
    ChangedFile,
    Commit,
    Evidence,
    Factor,
    MeasuredCell,
    OnsetNight,
    Phase,
    RequestPhase,
    SuspectQuestion,
    distinguishing_traits,
    server_votes,
)
from perfbisect.report.markdown import report_markdown
from perfbisect.report.terminal import report_lines
from perfbisect.series.report import sentences_of, series_report
from perfbisect.series.suspects.job import TrackSuspectsDocument
from perfbisect.series.suspects.ranking import (
    CommitText,
    blast_radius,
    cells_factor,
    find_answer,
    later_evidence,
    parse_commit,
    title_factor,
)
from tests.series.made_alert import made_alert
from tests.series.suspect_worlds import STREAMS, TABLE, commit, later, p_of, ranked, sha, weight_of


def words(factor: Factor) -> str:
    (said,) = sentences_of("factors", (factor,))
    return said


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
    # A commit that two nights may have run first counts with the mean of theirs.
    both = frozenset({sha("b")})
    places = (OnsetNight("04-11", 0.2, both | {sha("a")}), OnsetNight("04-12", 0.8, both | {sha("c")}))
    found = ranked(commit("a"), commit("b"), commit("c"), places=places)
    assert [weight_of(found, letter, "place") for letter in "abc"] == pytest.approx([0.25, 0.625, 1.0])


def test_lines_and_files_of_code_count_and_those_of_documents_do_not() -> None:
    small = commit("a", files=(ChangedFile("src/x.py", 3, 2), ChangedFile("docs/x.md", 500, 0)))
    large = commit("b", files=(ChangedFile("src/y.py", 400, 10),))
    unknown = commit("c", files=(ChangedFile("src/z.py", 3, 2), ChangedFile("src/w.so")))
    found = ranked(small, large, unknown)
    assert [weight_of(found, letter, "size") for letter in "abc"] == [0.5, 2.0, 1.0]
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
    said = {suspect.sha[0]: words(factor) for suspect in found.suspects for factor in suspect.evidence
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
    assert said in (words(found) if found else "")


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
    assert "vLLM v0.18.0 to vLLM v0.19.0" in next(words(f) for f in first.evidence if f.name == "pins")


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
        assert found.attributed is not None and "#7" in words(found.attributed)
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

    @pytest.mark.parametrize(("phase", "p"), [("slow", 0.05 / 1.55), ("after", 5 / 6.5)])
    def test_a_revert_that_did_not_help_and_one_that_no_night_has_run(self, phase: Phase, p: float) -> None:
        found = ranked(commit("a", number=7), commit("b"), later=(later(phase, body="Reverts #7"),))
        assert p_of(found, "a") == pytest.approx(p)

    def test_a_commit_of_both_windows_answers_those_before_it_alone(self) -> None:
        """Not itself, not those after it; and it is not sure that the window had it."""
        files = ("src/x.py", "src/y.py")
        a, b, c = (
            commit("a", *files, number=7),
            commit("b", *files, body="Reverts #7 and #9"),
            commit("c", number=9),
        )
        both = (b, "recovery")
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


def factor(*paths: str, cells: tuple[MeasuredCell, ...] = STREAMS) -> float:
    found = cells_factor(commit("a", *paths), server_votes(cells), TABLE)
    return 1.0 if found is None else found.weight


RAN, MISS, LEAK, CLEAN = 0.8 / 0.5, 0.2 / 0.5, 0.1 / 0.5, 0.9 / 0.5
"""Of one server: hit and runs it, runs it and was spared, hit without running it, neither; against a half."""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/stream/x.py", 0.5 * RAN * RAN * CLEAN * CLEAN + 0.5),
        ("src/image/x.py", 0.9 * LEAK * LEAK * MISS * CLEAN + 0.1),
        ("src/x.py", 0.2 * RAN * RAN * MISS * MISS + 0.8),
        ("src/models/talk/x.py", 0.9 * RAN * LEAK * CLEAN * MISS + 0.1),
        ("src/models/paint/x.py", 0.9 * LEAK * LEAK * MISS * CLEAN + 0.1),
        ("elsewhere/x.py", 1.0),
    ],
)
def test_the_ratio_of_the_likelihoods(path: str, expected: float) -> None:
    assert factor(path) == pytest.approx(expected)


def test_files_weigh_by_the_root_of_their_lines_and_by_their_kind() -> None:
    files = (
        ChangedFile("src/stream/x.py", 15, 0),
        ChangedFile("src/image/x.py", 0, 0),
        ChangedFile("docs/x.md", 99, 0),
    )
    found = cells_factor(commit("a", files=files), server_votes(STREAMS), TABLE)
    stream, image = factor("src/stream/x.py"), factor("src/image/x.py")
    share = 4 + 1 + 0.01 * 10
    assert found is not None
    assert found.weight == pytest.approx((4 * stream + 1 * image + 0.1) / share)


def test_cells_of_one_server_are_one_vote() -> None:
    twins = tuple(replace(STREAMS[0], cell=f"s1-{n}") for n in range(50))
    assert factor("src/stream/x.py", cells=(*STREAMS, *twins)) == pytest.approx(factor("src/stream/x.py"))


def test_a_server_is_hit_where_one_of_its_cells_is() -> None:
    """At low load nothing is seen of a slow-down under load: the spared cell says nothing."""
    idle = replace(STREAMS[0], cell="s1@c1", hit=False, traits=frozenset({"image"}))
    (vote,) = server_votes((STREAMS[0], idle))
    assert vote.hit and vote.cells == (STREAMS[0],)
    assert factor("src/stream/x.py", cells=(*STREAMS, idle)) == pytest.approx(factor("src/stream/x.py"))


def test_many_servers_count_as_six_at_most() -> None:
    """Servers are alike in more than we know: sixty are not sixty independent witnesses."""
    crowd = tuple(replace(cell, start=f"{cell.start}{n}") for cell in STREAMS for n in range(15))
    assert factor("src/stream/x.py", cells=crowd) == pytest.approx(
        0.5 * (RAN * RAN * CLEAN * CLEAN) ** (6 / 4) + 0.5
    )


@pytest.mark.parametrize(
    ("name", "model", "runs"),
    [
        ("qwen3_tts", "Qwen/Qwen3-TTS-12Hz-1.7B-Base", True),
        ("qwen3_omni", "Qwen/Qwen3-TTS-12Hz-1.7B-Base", False),
        ("qwen3_omni_moe", "Qwen/Qwen3-Omni-30B-A3B-Instruct", True),
        ("qwen2_5_omni", "Qwen/Qwen3-Omni-30B-A3B-Instruct", False),
        ("hunyuan_image_3_moe", "tencent/HunyuanImage-3.0", True),
        ("wan2_2", "Wan-AI/Wan2.2-I2V-A14B-Diffusers", True),
        ("wan2_2", "Wan-AI/Wan2.1-T2V", False),
        ("bagel", "ByteDance-Seed/BAGEL-7B-MoT", True),
        ("qwen_image", "Qwen/Qwen-Image-Edit", True),
    ],
)
def test_the_code_of_a_model(name: str, model: str, runs: bool) -> None:
    cells = (MeasuredCell("c", True, "A", model=model),)
    expected = RAN if runs else LEAK
    assert factor(f"src/models/{name}/x.py", cells=cells) == pytest.approx(0.9 * expected + 0.1)


def test_without_cells_nothing_is_told() -> None:
    assert cells_factor(commit("a", "src/stream/x.py"), (), TABLE) is None
    assert cells_factor(commit("a", files=()), server_votes(STREAMS), TABLE) is None


def test_the_radius_in_words() -> None:
    found = blast_radius(server_votes(STREAMS))
    assert found is not None
    said = sentences_of("radius", (found,))
    assert said == ("2 servers that were hit run stream, none of the 2 others does",)
    assert blast_radius(server_votes(STREAMS[:2])) is None, "there is nothing to compare with"
    spoken = replace(STREAMS[3], traits=frozenset({"stream"}))
    assert blast_radius(server_votes((*STREAMS[:3], spoken))) is None, "a spared one streams too"


def test_what_serves_an_unknown_model_says_nothing_of_models() -> None:
    cells = tuple(replace(cell, model="") for cell in STREAMS)
    assert factor("src/models/talk/x.py", cells=cells) == 1.0


TITLE = "[Log] Count what the streams of a stage say to each other"
EARLIER = Commit(
    sha=sha("a"),
    subject=f"{TITLE} (#2551)",
    files=(ChangedFile("src/a.py", 30, 2), ChangedFile("src/b.py", 5, 0), ChangedFile("tests/t.py", 50, 0)),
)


def told(one: Commit) -> CommitText:
    return parse_commit(one, lambda path: path.startswith("src"))


def weighed(one: Commit, *pieces: tuple[Commit, Phase]) -> Factor | None:
    return later_evidence(told(one), [(told(late), phase) for late, phase in pieces], TABLE.weights)


def answer(subject: str = "", body: str = "", *files: ChangedFile) -> str:
    found = find_answer(told(Commit(sha("b"), subject, body=body, files=files)), told(EARLIER))
    return "" if found is None else f"{found[0]}: {found[1]}"


NUMBER, QUOTED = "revert: number", "revert: title"


@pytest.mark.parametrize(
    ("subject", "body", "said"),
    [
        (f'Revert "{TITLE} (#2551)" (#2716)', "", NUMBER),
        ("[Revert] take it out (#2716)", "This reverts #2551, which was slow.", NUMBER),
        ("Back out the counters", "See org/repo/pull/2551", "fix: number"),
        ("Take it out", "Reverts #190. Related discussion in #2551.", "fix: number"),
        ("Take it out", "Reverts #190\nRelated: #2551", "fix: number"),
        ("Take it out", "Related discussion in #190; this reverts commit\n#2551.", NUMBER),
        *(
            ("Take it out", f"This reverts{names}", NUMBER)
            for names in (
                " the following:\n- #190\n- #2551",
                ":\n* org/repo#2551",
                "\nhttps://github.com/org/repo/pull/2551",
                " #190\nand #2551.",
            )
        ),
        ("rolled back PR#2551 (#9)", "", NUMBER),
        *(("x (#9)", f"This reverts commit {'a' * n}.", "revert: hash") for n in (7, 12, 40)),
        (f'Revert "{TITLE}"', "", QUOTED),
        (f'[Revert] Revert "{TITLE[:40]}… (#2716)', "", QUOTED),
        (f'Revert "{TITLE[:40]}..."', "", QUOTED),
        (f"Revert “{TITLE.upper()}” (#2716)", "", QUOTED),
        (f'[CI] Revert "{TITLE}" (#2716)', "", QUOTED),
        ("Speed up what #2551 made slow", "", "fix: number"),
        (f'Revert "{TITLE} for images"', "", ""),
        ('Revert "[Log]…"', "", ""),
        ('Revert "Something else altogether"', "", ""),
        ("Revert (#2551)", "", ""),
        ("Revert #25511", "", ""),
        ("Revert #255", "", ""),
        ("", "See aaaaaa for more", ""),
        (TITLE, "", ""),
        ("Faster again", "", ""),
    ],
)  # fmt: skip
def test_how_a_commit_names_an_earlier_one(subject: str, body: str, said: str) -> None:
    """Not by a longer title, a quotation too short, its own or other numbers, too few digits, words alone."""
    assert answer(subject, body) == said


def test_the_lines_the_other_way_round_are_a_revert_whatever_it_says() -> None:
    """Tests may differ; one file more or less of the product, or other lines, and it is none."""
    back = ChangedFile("src/a.py", 2, 30), ChangedFile("src/b.py", 0, 5)
    assert answer("Tidy up", "", *back, ChangedFile("tests/t.py", 1, 1)) == "revert: mirrored lines"
    assert answer("Tidy up", "", *back, ChangedFile("src/c.py", 1, 1)) == ""
    assert answer("Tidy up", "", back[0]) == ""
    assert answer("Tidy up", "", ChangedFile("src/a.py", 2, 29), back[1]).startswith("same files")


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (later("recovery", body="Reverts #7"), "reverts it in the window of the recovery"),
        (later("after", body=f"Reverts {'a' * 12}"), f"reverts it later: it names it by its hash {'a' * 9}"),
        (later("slow", body="Reverts #7"), "reverts it, and a night that ran it was still slow"),
        (later("recovery", body="as #7 has it"), "answers it in the window of the recovery"),
    ],
)  # fmt: skip
def test_the_words_of_an_answer(late: tuple[Commit, Phase], said: str) -> None:
    found = weighed(commit("a", number=7), late)
    assert found is not None and said in words(found)


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
    assert answer("Better now, see #2551", "", *files) == "revert: number"
    assert find_answer(told(commit("b", "src/a.py")), told(commit("a", "src/a.py"))) is None, "one file"


EVIL = "<script>alert(1)</script> | `x` \x1b[31m @all #1"


WHAT = "ttft of a +10.0 %, step, begun on the night of 2026-04-12, recovered (20260412-product)"
RANKING = ranked(
    commit("a", "src/stream/x.py", subject=EVIL, date="2026-04-12T11:54:23Z", number=7),
    commit("b", "docs/x.md", subject="Docs"),
    commit("c", "src/x.py"),
    cells=STREAMS,
    later=(later("recovery", body="Reverts #7"),),
    recovered=True,
)
DOCUMENT = TrackSuspectsDocument(
    alert="alert-1",
    ranking=replace(RANKING, suspects=RANKING.suspects[:2]),
    bisect="perfbisect bisect x",
    note=(Evidence("clone ends", {"day": "2026-04-12"}),),
    of=3,
    found=made_alert(now="recovered"),
)


def test_the_lines() -> None:
    lines = report_lines(series_report("suspects", document=DOCUMENT))
    assert lines[:2] == ["Suspects of alert-1: 3 commits in its window", f"  {WHAT}"]
    assert lines[3].startswith("  attributed by revert to aaaaaaaaaaaa: ffffffffffff reverts it")
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "×100  ffffffffffff reverts it in the window of the recovery" in text
    assert "less likely than these: 1 more commit" in text
    assert lines[-1] == "  to settle it: perfbisect bisect x"
    assert "first run on the night" not in text, "evidence that says nothing is left out"


def test_the_markdown_shows_the_words_of_others_as_text() -> None:
    text = report_markdown(series_report("suspects", document=DOCUMENT))
    row = next(line for line in text.splitlines() if line.startswith("|") and "`aaaaaaaaaaaa`" in line)
    assert row.count("|") - row.count("\\|") == 5, "a bar in a subject ends no cell"
    assert "\x1b" not in text
    assert "```sh\nperfbisect bisect x\n```" in text
    assert text.startswith("# Suspects of alert-1: 3 commits in its window\n\nttft of a")
    assert "\n\nattributed by revert to `aaaaaaaaaaaa`: ffffffffffff" in text
