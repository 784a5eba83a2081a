"""The history that `make demo-omni` bisects: one commit is slow, and it is where the seed says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from scripts.demo_omni import CHUNKS, COMMITS, DECODER, PLANTS, TARGETS, make_history
from tests.fakes.gitwriter import run_git

STUB = """from vllm.logger import init_logger

logger = init_logger(__name__)


def speak():
    pass
"""
CHUNKING = """def chunk(configured_initial_chunk_size):
    initial_chunk_size = configured_initial_chunk_size
    return initial_chunk_size
"""
DECODING = """import os


class Decoder:
    def forward(self, decoder, request_states):
        request_wavs = decoder.batched_chunked_decode(
            os.name,
            caches=request_states,
        )
        return request_wavs
"""


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    for name in (*TARGETS, CHUNKS, DECODER, "vllm_omni/_version.py"):
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text({CHUNKS: CHUNKING, DECODER: DECODING}.get(name, STUB))
    return tmp_path / "site"


@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.parametrize("place", [1, 5, COMMITS])
def test_only_the_planted_commit_changes_what_is_slow(
    site_packages: Path, tmp_path: Path, name: str, place: int
) -> None:
    plant = PLANTS[name]
    commits = make_history(site_packages, tmp_path / "repo", plant, place)
    assert len(commits) == COMMITS + 1
    touched = [
        run_git(tmp_path / "repo", "diff", "--name-only", before, after).split()
        for before, after in pairwise(commits)
    ]
    assert touched[place - 1] == [plant.file]
    assert touched.count([plant.file]) == 1
    assert all(len(paths) == 1 for paths in touched)


def test_the_first_packet_waits_for_more_frames() -> None:
    space: dict[str, object] = {}
    exec(compile(PLANTS["first-packet"].edit(CHUNKING), CHUNKS, "exec"), space)
    chunk = space["chunk"]
    assert callable(chunk)
    assert [chunk(1), chunk(25)] == [8, 25]


def test_a_window_is_decoded_once_more_on_a_copy_of_its_state() -> None:
    seen: list[dict[str, int]] = []

    class Counting:
        def batched_chunked_decode(self, _: str, *, caches: dict[str, int]) -> int:
            seen.append(caches)
            caches["frames"] += 25
            return caches["frames"]

    space: dict[str, type] = {}
    exec(compile(PLANTS["decoder"].edit(DECODING), DECODER, "exec"), space)
    states = {"frames": 0}
    assert space["Decoder"]().forward(Counting(), states) == 25
    assert len(seen) == 2
    assert states == {"frames": 25}


def test_a_release_that_is_not_known_is_refused(site_packages: Path, tmp_path: Path) -> None:
    (site_packages / CHUNKS).write_text(STUB)
    with pytest.raises(SystemExit, match="not the one that is known"):
        make_history(site_packages, tmp_path / "repo", PLANTS["first-packet"], 3)
    with pytest.raises(SystemExit, match="holds no vLLM-Omni"):
        make_history(tmp_path, tmp_path / "other", PLANTS["first-packet"], 3)
