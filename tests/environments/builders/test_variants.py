"""Which build of a release, of its base or of a commit runs with this machine's driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.environments import packages
from perfbisect.environments.builders import wheel as wheel_builder
from perfbisect.environments.builders.wheel import cuda_refusal
from perfbisect.errors import BuildError, UsageError
from perfbisect.model.change import Change
from tests.environments.conftest import World, plain_builder, refusal_of, release
from tests.environments.tiny import package_files, write_wheel
from tests.environments.wheel_index import Index, serving, wheel_of

OLD, NEW = (Change(f"tiny-engine=={version}", "release") for version in ("1.0", "1.1"))


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index of releases on a machine with a driver for CUDA 12.8; the engine is for CUDA 13 since 1.1."""
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: (12, 8))
    with serving() as site:
        row = packages.EnginePackage(
            "tiny-engine",
            "tiny_engine",
            release_index=f"{site.address}/{{version}}",
            release_cuda=(("1.1", 13), ("0", 12)),
            cuda_pattern=("tiny_engine/envs.py", r"CUDA = (\d+)"),
        )
        monkeypatch.setattr(packages, "_ROWS", (row,))
        monkeypatch.setattr(packages, "PACKAGES", {row.name: row})
        yield site


def serve(index: Index, folder: Path, version: str, variant: str) -> None:
    files = package_files(f"{version}+{variant}")
    index.add(version, write_wheel(folder, "tiny-engine", f"{version}+{variant}", files), variant=variant)


def test_a_release_for_a_newer_cuda_is_taken_for_the_drivers(index: Index, tmp_path: Path, log: Path) -> None:
    serve(index, tmp_path, "1.1", "cu126")
    builder = release(tmp_path / "cache")
    assert [builder.refuses(change) for change in (OLD, NEW)] == [None, None]
    built = [builder.ensure(change, log=log, timeout=60) for change in (OLD, NEW)]
    assert [environment.engine_version for environment in built] == ["1.0", "1.1+cu126"]
    assert [environment.facts["variant"] for environment in built] == ["default", "cu126"]
    assert builder.notes() == (
        "releases of tiny-engine are of the variant cu126, for the driver's CUDA 12.8",
    )
    assert index.asked[:3] == [f"/1.1/{name}/tiny-engine/" for name in ("cu129", "cu128", "cu126")]


def test_a_release_that_does_not_run_here_is_refused(index: Index, tmp_path: Path, log: Path) -> None:
    builder = release(tmp_path / "cache")
    assert "built for CUDA 13, and the driver is for CUDA 12.8" in refusal_of(builder, NEW).reason
    with pytest.raises(BuildError, match="built for CUDA 13"):
        builder.ensure(NEW, log=log, timeout=60)
    assert index.asked


def test_a_named_variant_is_taken_or_refused(index: Index, tmp_path: Path, log: Path) -> None:
    serve(index, tmp_path, "1.0", "cu118")
    cache = tmp_path / "cache"
    builder = release(cache, "release:tiny-engine,variant=cu118")
    assert builder.ensure(OLD, log=log, timeout=60).engine_version == "1.0+cu118"
    assert "of the variant cu118" in refusal_of(builder, NEW).reason
    default = release(cache, "release:tiny-engine,variant=default")
    assert default.refuses(NEW) is None
    plain = release(cache)
    assert len({builder.key(OLD), default.key(NEW), plain.key(OLD)}) == 3
    assert plain.key(OLD) == default.key(OLD)


def test_a_variant_needs_an_index(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs the index of its releases"):
        release(tmp_path, "release:other-engine,variant=cu129")
    release(tmp_path, "release:other-engine,variant=cu129,wheel=http://127.0.0.1:9/{version}")


def test_overlays_over_a_release_that_does_not_run_are_refused(index: Index, world: World) -> None:
    base = world.history.base
    spec = f"overlay:tiny-engine==1.1,base={base}"
    builder = world.builder(spec)
    assert "built for CUDA 13" in refusal_of(builder, Change(base)).reason
    serve(index, world.cache, "1.1", "cu129")
    builder = world.builder(spec)
    assert world.ensure(builder, base).facts["base"] == "tiny-engine==1.1"
    assert "variant cu129" in builder.notes()[0]
    with pytest.raises(UsageError, match="variant= does not apply to an interpreter"):
        world.builder(f"overlay:{world.installed.interpreter},variant=cu129,base=any")


def test_the_wheel_at_a_commits_own_address_says_its_cuda(index: Index, world: World) -> None:
    init = b"from ._version import __version__, __commit_id__\n"
    repository, shas = world.of(
        {"tiny_engine/__init__.py": init, "tiny_engine/envs.py": b"CUDA = 12\n"},
        {"tiny_engine/envs.py": b"CUDA = 13\n"},
    )
    for sha in shas:
        index.add(sha, wheel_of(world.cache / sha, repository, sha))
    spec = f"wheel:{index.address}/{{sha}},package=tiny_engine"
    builder = plain_builder(spec, repository=repository, cache=world.cache)
    builder.prepare([Change(sha) for sha in shas])
    refusals = [builder.refuses(Change(sha)) for sha in shas]
    assert refusals[0] is None
    assert refusals[1] is not None
    assert "built for CUDA 13, and the driver is for CUDA 12.8" in refusals[1].reason
    default = plain_builder(f"{spec},variant=default", repository=repository, cache=world.cache)
    assert default.refuses(Change(shas[1])) is None


@pytest.mark.parametrize("spec", ["release:tiny-engine,with=tiny-helper==5.0", "wheel"])
def test_packages_beside_the_engine(spec: str, index: Index, world: World) -> None:
    sha = world.history.base
    change = OLD
    if spec == "wheel":
        index.add(sha, wheel_of(world.cache / "served", world.repository, sha))
        spec, change = f"wheel:{index.address}/{{sha}},package=tiny_engine,with=tiny-helper==5.0", Change(sha)
    keys = []
    for text in (spec, spec.replace("5.0", "5.1")):
        builder = world.builder(text)
        keys.append(builder.key(change))
    assert keys[0] != keys[1]
    builder = world.builder(spec)
    assert "tiny-helper==5.0" in world.ensure(builder, change).facts["packages"]


def test_vllm_is_for_cuda_13_since_its_release_of_april_2026() -> None:
    vllm = packages.PACKAGES["vllm"]
    assert [vllm.cuda_of(version) for version in ("0.19.1", "0.20.0", "0.26.0rc1")] == [12, 13, 13]
    assert cuda_refusal(13, (12, 8))
    assert [cuda_refusal(*pair) for pair in ((12, (13, 0)), (None, (12, 8)), (13, None))] == [""] * 3
    assert replace(vllm, release_cuda=()).cuda_of("0.26.0") is None
