"""Overlays over an index: one wheel for all commits with equal build inputs, also in holes of the index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments import packages
from perfbisect.environments.base import Builder
from perfbisect.environments.builders import wheel as wheel_builder
from perfbisect.environments.builders.cached import CachedBuilder
from perfbisect.environments.builders.nearest_wheel import NearestWheel
from perfbisect.environments.spec import pinned_client
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.environments.conftest import World, ask, plain_builder
from tests.environments.tiny import COMPILED
from tests.environments.wheel_index import Index, serving, wheel_of

ENGINE = replace(packages.PACKAGES["vllm"], name="tiny_engine", module="tiny_engine", torch_backend="")


@dataclass(frozen=True)
class Site:
    """An index, and the commits of a history."""

    index: Index
    world: World

    def serve(self, *shas: str, variant: str = "", repository: Repository | None = None) -> None:
        for sha in shas:
            folder = self.world.cache / "served" / sha
            more = {"tiny_engine/_rust_x.abi3.so": COMPILED, "tiny_engine/vllm-rs": COMPILED}
            wheel = wheel_of(folder, repository or self.world.repository, sha, says=sha, more=more)
            self.index.add(sha, wheel, variant=variant)

    def builder(
        self, *shas: str, more: str = ",variant=default", repository: Repository | None = None
    ) -> Builder:
        spec = f"overlay:{self.index.address}/{{sha}},package=tiny_engine{more}"
        builder = plain_builder(spec, repository=repository or self.world.repository, cache=self.world.cache)
        assert isinstance(builder, CachedBuilder)
        assert isinstance(builder.settings, NearestWheel)
        builder.settings.base.settings.index.pause_s = 0.01
        builder.prepare([Change(sha) for sha in shas])
        return builder

    @property
    def pages(self) -> list[str]:
        return [path.split("/")[1] for path in self.index.asked if path.endswith("/")]


@pytest.fixture
def site(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: (13, 0))
    monkeypatch.setattr(packages, "_ROWS", (ENGINE,))
    with serving() as index:
        yield Site(index, world)


@pytest.mark.processes
def test_commits_with_equal_build_inputs_share_a_wheel(site: Site) -> None:
    history = site.world.history
    shas = (history.base, history.slow, history.docs, history.kernel, history.back, history.mended)
    site.serve(*shas)
    builder = site.builder(*shas)
    built = {sha: site.world.ensure(builder, sha) for sha in shas}
    assert [built[sha].facts["base_commit"] for sha in shas] == [
        *[history.base] * 3,
        history.kernel,
        *[history.base] * 2,
    ]
    speeds = [ask(built[sha], "import tiny_engine; print(tiny_engine.speed())") for sha in shas]
    assert speeds == ["1", "2", "2", "3", "3", "4"]
    binaries = [builder.binaries(Change(sha)) for sha in shas]
    assert [binaries.index(name) for name in binaries] == [0, 0, 0, 3, 0, 0]
    assert {environment.engine_commit for environment in built.values()} == set(shas)
    assert sorted(set(site.pages)) == sorted({history.base, history.kernel, history.mended})
    assert len({environment.interpreter for environment in built.values()}) == 2
    assert "6 commits lie over the wheels of 2" in builder.notes()[0]


def test_the_index_is_asked_for_the_size_of_one_wheel(site: Site) -> None:
    history = site.world.history
    shas = (history.base, history.slow, history.kernel)
    site.serve(*shas)
    builder = site.builder(*shas)
    estimated = builder.disk([Change(sha) for sha in shas])
    sizes = [path for path in site.index.asked if path.endswith(".whl")]
    assert len(sizes) == 1
    assert estimated == 2 * 3 * len(site.index.files[sizes[0]]) + 3 * 50_000_000


def test_holes_of_the_index_are_filled(site: Site) -> None:
    history = site.world.history
    site.serve(history.docs, history.mended)
    shas = (history.base, history.slow, history.docs, history.kernel, history.back)
    builder = site.builder(*shas)
    refusals = [builder.refuses(Change(sha)) for sha in shas]
    assert [refusal is None for refusal in refusals] == [True, True, True, False, True]
    assert refusals[3] is not None
    assert "nor is there one of a commit with equal compiled sources" in refusals[3].reason
    assert site.world.ensure(builder, history.base).facts["base_commit"] == history.docs
    with pytest.raises(BuildError, match="HTTP 404"):
        site.world.ensure(builder, history.kernel)
    late = Change(history.mended)
    assert builder.refuses(late) is None
    assert site.world.ensure(builder, late.id).facts["base_commit"] == history.docs


@pytest.mark.processes
def test_compiled_sources_of_this_platform_are_never_overlaid(site: Site) -> None:
    repository, shas = site.world.of(
        {
            "tiny_engine/__init__.py": b"from ._version import __version__, __commit_id__\n",
            "csrc/a.cpp": b"1",
        },
        {"csrc/cpu/a.cpp": b"1", "requirements/rocm.txt": b"1"},
        {"csrc/a.cpp": b"2"},
        {"tiny_engine/more.py": b""},
    )
    site.serve(*shas, repository=repository)
    builder = site.builder(*shas, repository=repository)
    bases = [site.world.ensure(builder, sha).facts["base_commit"] for sha in shas]
    assert bases == [shas[0], shas[0], shas[2], shas[2]]
    site.serve(*shas, variant="cpu", repository=repository)
    builder = site.builder(*shas, more=",variant=cpu", repository=repository)
    bases = [site.world.ensure(builder, sha).facts["base_commit"] for sha in shas]
    assert bases == [shas[0], shas[1], shas[2], shas[2]]


@pytest.mark.processes
def test_optional_files_of_other_sources_are_left_out(site: Site) -> None:
    """What needs them fails: it must not measure those of another commit."""
    repository, shas = site.world.of(
        {"tiny_engine/__init__.py": b"from ._version import __version__, __commit_id__\n", "rust/a.rs": b"1"},
        {"rust/a.rs": b"2"},
        {"rust/a.rs": b"1", "tiny_engine/more.py": b""},
    )
    site.serve(shas[0], repository=repository)
    builder = site.builder(*shas, repository=repository)
    carried = [site.world.ensure(builder, sha).facts["files_carried"] for sha in shas]
    assert carried == [
        ["_ops.abi3.so", "_rust_x.abi3.so", "_version.py", "vllm-rs"],
        ["_ops.abi3.so", "_version.py"],
        ["_ops.abi3.so", "_rust_x.abi3.so", "_version.py", "vllm-rs"],
    ]
    assert len({builder.key(Change(sha)) for sha in shas}) == 3


def test_the_client_is_not_that_of_a_wheel_by_chance(site: Site) -> None:
    history = site.world.history
    site.serve(history.slow)
    assert site.builder().client() is None
    client = site.builder(more=f",variant=default,client={history.slow}").client()
    assert client is not None
    assert client.engine_commit == history.slow
    index = "overlay:https://wheels.example/{sha}"
    assert pinned_client(index, "") == ""
    assert pinned_client(f"{index},overlay:vllm==1,base=v1", "") == "overlay:vllm==1,base=v1"
    assert pinned_client(f"{index},client=v1", "") == f"{index},client=v1"


def test_planning_asks_for_a_page_a_group(site: Site, tmp_path: Path) -> None:
    del tmp_path
    commits: list[dict[str, bytes | None]] = [{"tiny_engine/__init__.py": b"", "setup.py": b""}]
    commits += [
        {"setup.py" if number % 50 == 0 else "tiny_engine/a.py": b"%d" % number} for number in range(1, 400)
    ]
    repository, shas = site.world.of(*commits)
    site.serve(shas[0], repository=repository)
    builder = site.builder(*shas, repository=repository)
    assert sum(builder.refuses(Change(sha)) is None for sha in shas) == 50
    site.index.asked.clear()
    again = site.builder(*shas[:50], repository=repository)
    assert all(again.refuses(Change(sha)) is None for sha in shas[:50])
    assert sorted(set(site.pages)) == sorted({shas[0], shas[49]})
