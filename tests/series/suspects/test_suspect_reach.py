"""The difference between the cells that were hit and those that were not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.model.commit_details import ChangedFile, MeasuredCell
from perfbisect.series.suspects.ranking import cells_factor, describe_blast_radius, server_votes
from tests.series.suspect_worlds import STREAMS, TABLE, commit


def factor(*paths: str, cells: tuple[MeasuredCell, ...] = STREAMS) -> float:
    found = cells_factor(commit("a", *paths), server_votes(cells), TABLE)
    return 1.0 if found is None else found.weight


def words(*paths: str, cells: tuple[MeasuredCell, ...] = STREAMS) -> str:
    found = cells_factor(commit("a", *paths), server_votes(cells), TABLE)
    return "" if found is None else found.words


HIT, MISS, LEAK, CLEAN = 0.8 / 0.5, 0.2 / 0.5, 0.1 / 0.5, 0.9 / 0.5
"""Of one server: hit and runs it, runs it and was spared, hit without running it, neither; against a half."""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/stream/x.py", 0.5 * HIT * HIT * CLEAN * CLEAN + 0.5),
        ("src/image/x.py", 0.9 * LEAK * LEAK * MISS * CLEAN + 0.1),
        ("src/x.py", 0.2 * HIT * HIT * MISS * MISS + 0.8),
        ("src/models/talk/x.py", 0.9 * HIT * LEAK * CLEAN * MISS + 0.1),
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
        0.5 * (HIT * HIT * CLEAN * CLEAN) ** (6 / 4) + 0.5
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
    expected = HIT if runs else LEAK
    assert factor(f"src/models/{name}/x.py", cells=cells) == pytest.approx(0.9 * expected + 0.1)


def test_without_cells_nothing_is_told() -> None:
    assert cells_factor(commit("a", "src/stream/x.py"), (), TABLE) is None
    assert cells_factor(commit("a", files=()), server_votes(STREAMS), TABLE) is None


def test_the_radius_in_words() -> None:
    text = describe_blast_radius(server_votes(STREAMS))
    assert text == "2 servers that were hit run stream, none of the 2 others does"
    assert describe_blast_radius(server_votes(STREAMS[:2])) == "", "there is nothing to compare with"
    spoken = replace(STREAMS[3], traits=frozenset({"stream"}))
    assert describe_blast_radius(server_votes((*STREAMS[:3], spoken))) == "", "a spared one streams too"


def test_what_serves_an_unknown_model_says_nothing_of_models() -> None:
    cells = tuple(replace(cell, model="") for cell in STREAMS)
    assert factor("src/models/talk/x.py", cells=cells) == 1.0
