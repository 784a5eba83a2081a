"""Environments from images: digests, identity, missing tags, registries, chains. Real containers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from perfbisect.environments.build import BuildRun, interpreter_environment
from perfbisect.environments.kept import KeptArtifact, KeptArtifacts
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.fakes import registry
from tests.images.conftest import BAD, BASE, GOOD, MISSING, NAME, TOOL, ImageWorld, image_id, tool

pytestmark = pytest.mark.images

asks_a_registry = pytest.mark.skipif(
    TOOL != "podman", reason="docker reads no manifest from a registry without a certificate"
)


def test_an_environment_of_an_image(images: ImageWorld, tmp_path: Path) -> None:
    builder, change = images.builder(tmp_path), images.change(GOOD)
    builder.prepare([images.change(GOOD), images.change(BAD)])
    assert not builder.cached(change) and builder.key(change) != builder.key(images.change(BAD))
    built = builder.ensure(change, log=tmp_path / "log", timeout=60)
    digest = image_id(f"{NAME}:{change.id}")
    assert built.facts["digest"] == digest
    assert (built.facts["image"], built.facts["labelled_commit"]) == (f"{NAME}:{change.id}", change.id)
    assert (built.facts["identified_by"], built.engine_commit) == ("content", change.id)
    assert Path(built.engine_file).is_relative_to(built.folder) and Path(built.engine_file).is_file()
    again = images.builder(tmp_path)
    assert again.cached(change) and again.ensure(change, log=tmp_path / "log", timeout=60).seconds == 0.0


def test_equal_content_is_one_environment(images: ImageWorld, tmp_path: Path) -> None:
    change = images.change(GOOD)
    tool("tag", f"{NAME}:{change.id}", f"{NAME}:v{change.id[:7]}")
    by_short = images.builder(tmp_path, f"{NAME}:v{{short}}")
    assert by_short.key(change) == images.builder(tmp_path).key(change)


@pytest.mark.parametrize(
    ("label", "files", "told"),
    [
        ("f" * 40, {}, "label of localhost/pretend:wrong-0 says it is commit ffff"),
        ("", {"_version.py": "__version__ = '1'\n__commit_id__ = 'gfffffff'\n"}, "says it is commit fffffff"),
        ("", {"pace.py": "STEP_MS = 1\n"}, "1 of its files are not those of"),
        ("", {"__init__.py": "import missing_helper\n"}, "missing_helper"),
    ],
)
def test_another_commit_in_the_image(
    label: str, files: dict[str, str], told: str, images: ImageWorld, tmp_path: Path
) -> None:
    images.build("wrong-0", label=label, files=files)
    builder = images.builder(tmp_path, f"{NAME}:wrong-{{sha}}")
    tool("tag", f"{NAME}:wrong-0", f"{NAME}:wrong-{images.change(GOOD).id}")
    with pytest.raises(BuildError, match=told.replace("wrong-0", f"wrong-{images.change(GOOD).id}")):
        builder.ensure(images.change(GOOD), log=tmp_path / "log", timeout=60)
    assert not builder.cached(images.change(GOOD))


def test_an_image_without_the_engine(images: ImageWorld, tmp_path: Path) -> None:
    tool("tag", BASE, f"{NAME}:empty-{images.change(GOOD).id}")
    with pytest.raises(BuildError, match="no package vllm in the image"):
        images.builder(tmp_path, f"{NAME}:empty-{{sha}}").ensure(
            images.change(GOOD), log=tmp_path / "log", timeout=60
        )


def test_a_missing_tag_has_a_code_and_goes_to_the_next_builder(images: ImageWorld, tmp_path: Path) -> None:
    change = images.change(GOOD)
    builder = images.builder(tmp_path, f"{NAME}:missing-{{sha}}")
    refusal = builder.refuses(change)
    assert refusal is not None and (refusal.code, refusal.error) == ("image_missing", False)
    with pytest.raises(BuildError) as raised:
        builder.ensure(change, log=tmp_path / "log", timeout=60)
    assert raised.value.code == "image_missing"
    chain = images.builder(tmp_path, f"{NAME}:missing-{{sha}}", f",image:{NAME}:{{sha}},tool={TOOL}")
    built = chain.ensure(change, log=tmp_path / "log", timeout=60)
    assert built.facts["image"] == f"{NAME}:{change.id}"
    assert [reason.partition(":")[0] for reason in built.facts["handed_on"]] == ["image"]


@asks_a_registry
def test_a_registry(images: ImageWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digests are known before the pull; a missing tag is a hole, a silent registry the machine's."""
    change, other, third = (images.change(position) for position in (GOOD, BAD, MISSING))
    ids = {}
    with registry.serving() as served:
        for one in (change, other):
            tool("save", "--format=docker-dir", "-o", str(tmp_path / one.id), f"{NAME}:{one.id}")
            served.add("ci/vllm", one.id, tmp_path / one.id, listed=one is other)
            ids[one.id] = image_id(f"{NAME}:{one.id}")
        settings = tmp_path / "registries.conf"
        settings.write_text(f'[[registry]]\nlocation = "{served.address}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(settings))
        argument = f"{served.address}/ci/vllm:{{sha}}"
        builder = images.builder(tmp_path, argument)
        builder.prepare([change, other, third])
        refusal = builder.refuses(third)
        assert refusal is not None and (refusal.code, refusal.error) == ("image_missing", False)
        assert not any("/blobs/" in path for path in served.asked), "nothing is pulled to look it up"
        # Equal to the key of the local image: it is of the content alone.
        assert builder.key(other) == images.builder(tmp_path).key(other)
        size = builder.disk([other])
        assert size is not None and size > 1_000_000
        for one in (change, other):
            built = builder.ensure(one, log=tmp_path / "log", timeout=60)
            assert built.facts["digest"] == ids[one.id]
        served.failing = True
        with pytest.raises(MachineError, match="no registry answers podman") as raised:
            images.builder(tmp_path, argument).prepare([third])
        assert raised.value.code == "hub_unreachable"
        assert images.builder(tmp_path).cached(change)


@asks_a_registry
def test_an_image_that_was_removed_is_fetched_again(
    images: ImageWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.build("gone", label=images.change(GOOD).id, files={"extra.yaml": "a: 1\n"})
    name = f"{NAME}:gone"
    with registry.serving() as served:
        tool("save", "--format=docker-dir", "-o", str(tmp_path / "saved"), name)
        tool("rmi", name)
        served.add("ci/gone", images.change(GOOD).id, tmp_path / "saved")
        settings = tmp_path / "registries.conf"
        settings.write_text(f'[[registry]]\nlocation = "{served.address}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(settings))
        for _ in range(2):
            builder = images.builder(tmp_path, f"{served.address}/ci/gone:{{sha}}")
            built = builder.ensure(images.change(GOOD), log=tmp_path / "log", timeout=60)
            assert tool("image", "inspect", str(built.facts["image_id"]))
            tool("rmi", "--force", str(built.facts["image_id"]))


def test_an_image_that_the_registry_deleted_is_loaded_from_what_was_kept(
    images: ImageWorld, tmp_path: Path
) -> None:
    """Of both forms of an image: its configuration, whose digest is the key, stays as it is."""
    change = images.change(GOOD)
    forms = ("oci", "docker") if TOOL == "podman" else ("",)
    for form in forms:
        name = f"{NAME}:kept-{form}-{change.id}"
        images.build(f"kept-{form}-{change.id}", label=change.id, files={"extra.yaml": f"a: {form}\n"})
        if form:
            archive = f"{form}-archive:{tmp_path / form}"
            tool("push", name, archive)
            tool("rmi", "--force", name)
            tool("tag", tool("pull", "--quiet", archive).strip().splitlines()[-1], name)
        digest, builder = image_id(name), images.builder(tmp_path, f"{NAME}:kept-{form}-{{sha}}")
        assert builder.key(change)
        artifact = builder.artifact(change)
        assert artifact is not None and artifact.digest == digest
        wanted = KeptArtifact(change.id, builder.spec, 0.0, "asked for")
        KeptArtifacts(tmp_path).keep(artifact, wanted, BuildRun(tmp_path / "log", 60.0), None)
        tool("rmi", "--force", digest)
        again = images.builder(tmp_path, f"{NAME}:kept-{form}-{{sha}}")
        assert again.key(change) == builder.key(change)
        built = again.ensure(change, log=tmp_path / "log", timeout=60)
        assert (built.facts["kept"], image_id(digest)) == (digest, digest)
        assert (built.folder / "vllm" / "extra.yaml").read_text() == f"a: {form}\n"
        tool("rmi", "--force", digest)


def test_what_a_program_inside_gets(
    images: ImageWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allowed variables only, the image's PATH, the caller's user, the model cache and TMPDIR."""
    built = images.environment(tmp_path)
    models, scratch = tmp_path / "models", tmp_path / "scratch"
    models.mkdir()
    scratch.mkdir()
    monkeypatch.setenv("VLLM_NOT_ALLOWED", "1")
    env = interpreter_environment(
        built.interpreter,
        built.env,
        {"HF_HOME": str(models), "TMPDIR": str(scratch), "HF_TOKEN": "hf_secret"},
    )
    code = (
        "import os, tempfile, pathlib, json\n"
        "pathlib.Path(os.environ['HF_HOME'], 'inside').write_text('x')\n"
        "names = ['PATH', 'HF_TOKEN', 'VLLM_NOT_ALLOWED', 'HOME']\n"
        "print(json.dumps([tempfile.gettempdir(), os.getcwd(), os.getuid(),"
        " *(os.environ.get(name) for name in names)]))"
    )
    argv = [str(built.interpreter), "-c", code]
    done = subprocess.run(argv, env=env, cwd=scratch, capture_output=True, text=True, check=True)
    home = str(built.folder / "caches" / "home")
    assert json.loads(done.stdout) == [
        str(scratch), str(scratch), os.getuid(), "/usr/bin", "hf_secret", None, home,
    ]  # fmt: skip
    assert (models / "inside").stat().st_uid == os.getuid()


def test_a_release(images: ImageWorld, tmp_path: Path) -> None:
    images.build("v1.2", files={"_version.py": "__version__ = '1.2'\n__commit_id__ = None\n"})
    tool("tag", f"{NAME}:v1.2", f"{NAME}:v1.3")
    builder = images.builder(tmp_path, f"{NAME}:v{{version}}", ",client=1.2")
    built = builder.ensure(Change("vllm==1.2", "release"), log=tmp_path / "log", timeout=60)
    assert (built.engine_version, built.facts["identified_by"]) == ("1.2", "version")
    client = builder.client()
    assert client is not None and client.key == built.key
    with pytest.raises(BuildError, match=r"version 1\.2, not 1\.3"):
        builder.ensure(Change("vllm==1.3", "release"), log=tmp_path / "log", timeout=60)
    refusal = builder.refuses(images.change(GOOD))
    assert refusal is not None and refusal.error
