"""Images that their registry has no longer, with a stand-in for podman; tests/images has the real one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from perfbisect.environments import images
from perfbisect.environments.base import Builder
from perfbisect.environments.build import BuildRun
from perfbisect.environments.images import STORES, SquashStore
from perfbisect.environments.kept import KeptArtifact, KeptArtifacts
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.environments.builders.test_image import SPEC, add_image, ask
from tests.environments.builders.test_image import store as store
from tests.environments.conftest import World, refusal_of


def keep(world: World, builder: Builder, sha: str) -> KeptArtifact:
    artifact = builder.artifact(Change(sha))
    assert artifact is not None
    wanted = KeptArtifact(sha, builder.spec, 0.0, "asked for")
    return KeptArtifacts(world.cache).keep(artifact, wanted, BuildRun(world.log, 60.0), None)[0]


def remove_images(store: Path) -> None:
    for folder in store.iterdir():
        shutil.rmtree(folder)


@pytest.mark.parametrize("host", ["localhost", "registry.test"], ids=["deleted", "unreachable"])
def test_an_environment_is_the_same_from_what_was_kept(host: str, store: Path, world: World) -> None:
    slow, spec = Change(world.history.slow), SPEC.replace("localhost", host)
    add_image(store, world.history, slow.id)
    (store / f"localhost%tiny={slow.id}").rename(store / f"{host}%tiny={slow.id}")
    before = world.builder(spec)
    kept = keep(world, before, slow.id)
    assert kept.digest == f"sha256:{slow.id}"
    remove_images(store)
    builder = world.builder(spec)
    assert builder.refuses(slow) is None
    assert builder.key(slow) == before.key(slow)
    built = world.ensure(builder, slow)
    assert ask(built, "import tiny_engine; print(tiny_engine.speed())") == "2"
    assert (built.facts["kept"], built.facts["image_id"]) == (kept.digest, kept.digest)
    assert "is taken from what was kept of it" in world.log.read_text()
    assert not (built.folder / "kept").exists()
    (note,) = builder.notes()
    assert note.startswith("1 of 1 changes have images that were kept: ")
    remove_images(store)
    assert ask(world.ensure(world.builder(spec), slow), "import tiny_engine; print(1)") == "1"


def test_a_damaged_image_is_removed_and_never_loaded(store: Path, world: World) -> None:
    slow = Change(world.history.slow)
    add_image(store, world.history, slow.id)
    kept = keep(world, world.builder(SPEC), slow.id)
    remove_images(store)
    (path,) = (world.cache / "kept" / "files").glob("*/image.tar")
    path.write_bytes(b"x" * kept.files[0].bytes)
    with pytest.raises(BuildError, match="no image: podman has no image") as raised:
        world.ensure(world.builder(SPEC), slow)
    assert raised.value.code == "image_missing"
    assert refusal_of(world.builder(SPEC), slow).code == "image_missing"


def test_enroot_by_its_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Path) -> None:
    """Never run: the imported file is kept, and linked in place of an import."""
    asked: list[str] = []

    def make(_store: SquashStore, _build: BuildRun, *argv: str) -> None:
        asked.append(argv[1])
        Path(argv[argv.index("--output") + 1]).write_bytes(b"squash")

    def answer(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 1, "", "error code: 404")

    monkeypatch.setattr(images, "run_tool", answer)
    monkeypatch.setattr(SquashStore, "_run", make)
    kept, build = KeptArtifacts(tmp_path), BuildRun(log, 5.0)
    for tool in ("enroot", "pyxis"):
        kind, program = STORES[tool]
        images_of = kind(program, kept)
        wanted = KeptArtifact("c", "image:x", 0.0, "asked for")
        kept.keep(images_of.artifact("docker.io/vllm/x:a", "sha256:d"), wanted, build, None)
        found = images_of.find(["docker.io/vllm/x:a"])["docker.io/vllm/x:a"]
        assert (found.state, found.digest) == ("found", "sha256:d")
        folder = tmp_path / tool
        assert images_of.fetch(build, "docker.io/vllm/x:a", "sha256:d", folder) == "image.sqsh"
        assert (folder / "image.sqsh").read_bytes() == b"squash"
    assert asked == ["import"]
