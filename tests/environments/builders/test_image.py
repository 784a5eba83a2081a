"""Environments from images, with a stand-in for podman; tests/images has the real one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from perfbisect.environments import images
from perfbisect.environments.base import Environment
from perfbisect.environments.build import BuildRun, interpreter_environment
from perfbisect.environments.builders.image import REVISION
from perfbisect.environments.factory import make_builder
from perfbisect.environments.images import STORES, DaemonStore, SquashStore
from perfbisect.errors import BuildError, MachineError
from perfbisect.measure.faults import FaultClassifier
from perfbisect.model.change import Change
from perfbisect.setup.doctor import index_checks, run_checks
from tests.environments.conftest import World
from tests.environments.tiny import TinyHistory, version_file
from tests.fakes import container_tool

SPEC = "image:localhost/tiny:{sha},package=tiny_engine,tool=podman"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in is first on PATH; returns its empty store."""
    tools = container_tool.install(tmp_path / "bin", tmp_path / "store")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tmp_path / "store"


def add_image(
    store: Path, history: TinyHistory, sha: str, name: str = "tiny", *, label: str = "", commit: str = ""
) -> None:
    folder = store / f"localhost%{name}={sha}"
    folder.mkdir(parents=True)
    command = ["git", "-C", str(history.path), "archive", sha, "tiny_engine"]
    tree = subprocess.run(command, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=tree, check=True)
    (folder / "tiny_engine" / "_version.py").write_bytes(version_file("1.0", commit))
    image = {"Id": f"sha256:{sha}", "Config": {"Labels": {REVISION: label} if label else None}}
    (folder / "image.json").write_text(json.dumps(image))


def test_an_environment(store: Path, world: World) -> None:
    change = Change(world.history.slow)
    add_image(store, world.history, change.id, label=change.id)
    builder = world.builder(SPEC)
    assert (builder.cached(change), builder.disk([change]), builder.minutes(change)) == (False, 0, None)
    built = world.ensure(builder, change)
    assert built.interpreter == built.folder / "bin" / "python"
    assert (built.engine_commit, built.facts["identified_by"]) == (change.id, "content")
    assert (built.facts["digest"], built.facts["tool"]) == (f"sha256:{change.id}", "podman")
    assert built.engine_file == str(built.folder / "tiny_engine" / "__init__.py")
    assert ask(built, "import tiny_engine; print(tiny_engine.speed())") == "2"
    assert builder.cached(change) and world.ensure(builder, change).seconds == 0.0


def ask(built: Environment, code: str) -> str:
    env = interpreter_environment(built.interpreter, built.env)
    argv = [str(built.interpreter), "-c", code]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_the_digest_is_the_key(store: Path, world: World) -> None:
    slow, docs = Change(world.history.slow), Change(world.history.docs)
    add_image(store, world.history, slow.id)
    add_image(store, world.history, docs.id)
    first = world.builder(SPEC)
    assert first.key(slow) != first.key(docs)
    (store / f"localhost%tiny={docs.id}" / "image.json").write_text(json.dumps({"Id": f"sha256:{slow.id}"}))
    assert first.key(slow) != first.key(docs), "looked up once"
    again = world.builder(SPEC)
    assert again.key(slow) != again.key(docs), "the image is checked for each commit"
    assert again.key(slow) == first.key(slow) and again.key(docs) != first.key(docs)
    assert world.builder(f"{SPEC},run=--cap-add SYS_NICE").key(slow) != again.key(slow)


@pytest.mark.parametrize(
    ("label", "commit", "says"),
    [("f" * 40, "", "label of .* says it is commit ffff"), ("", "fffffff", "says it is commit fffffff")],
)
def test_another_commit(label: str, commit: str, says: str, store: Path, world: World) -> None:
    add_image(store, world.history, world.history.slow, label=label, commit=commit)
    builder = world.builder(SPEC)
    with pytest.raises(BuildError, match=says):
        world.ensure(builder, world.history.slow)
    assert not builder.cached(Change(world.history.slow))


def test_missing_tags_go_to_the_next_builder(store: Path, world: World) -> None:
    change = Change(world.history.slow)
    add_image(store, world.history, change.id)
    missing = SPEC.replace("tiny:", "missing:")
    for spec in (missing, missing.replace("localhost", "registry.test")):
        builder = world.builder(spec)
        refusal = builder.refuses(change)
        assert refusal is not None and (refusal.code, refusal.error) == ("image_missing", False)
        with pytest.raises(BuildError) as raised:
            world.ensure(builder, change)
        assert FaultClassifier(0).row(raised.value, "build").code == "image_missing"
    built = world.ensure(world.builder(f"{missing},{SPEC}"), change)
    assert built.facts["handed_on"] == [f"image: no image: podman has no image localhost/missing:{change.id}"]


def test_a_silent_registry_is_no_hole(world: World) -> None:
    builder = world.builder(SPEC.replace("localhost", "registry.test"))
    with pytest.raises(MachineError, match=r"no registry answers podman: .*connection refused") as raised:
        builder.prepare([Change(world.history.slow)])
    assert raised.value.code == "hub_unreachable"


def test_packages_are_not_put_over_an_image(store: Path, world: World) -> None:
    add_image(store, world.history, world.history.slow)
    builder = make_builder(SPEC, repository=world.repository, cache=world.cache)
    change = Change(world.history.slow).swapped(["tiny-helper==5.0"])
    with pytest.raises(BuildError, match=r"\+pip: cannot change an image"):
        world.ensure(builder, change)


def test_doctor_looks_at_tool_and_registry(store: Path, world: World) -> None:
    add_image(store, world.history, world.history.slow)

    def check(sha: str) -> tuple[str, str]:
        builder = world.builder(SPEC)
        (result,) = run_checks(list(index_checks(lambda: builder, Change(sha))))[1:]
        return result.state, result.found

    state, found = check(world.history.slow)
    assert state == "good" and "by pretend --version: has one for" in found
    state, found = check(world.history.docs)
    assert state == "note" and "no image: podman has no image" in found
    (store.parent / "bin" / "podman").write_text("#!/bin/sh\necho 'cannot set up namespace' >&2\nexit 125\n")
    state, found = check(world.history.slow)
    assert state == "bad" and "podman info: cannot set up namespace" in found


MANIFEST = {"config": {"digest": "sha256:c0"}, "layers": [{"size": 3}, {"size": 4}]}


def platforms(*names: str) -> dict[str, object]:
    rows = [{"digest": f"sha256:{name}", "platform": {"os": "linux", "architecture": name}} for name in names]
    return {"manifests": rows}


@pytest.mark.parametrize(
    ("listed", "state", "digest"),
    [
        (None, "found", "sha256:c0"),
        (platforms("s390x", "mine"), "found", "sha256:c0"),
        (platforms("s390x"), "hole", ""),
        ({"errors": []}, "silent", ""),
    ],
)
def test_manifests(listed: object, state: str, digest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration's digest is that of this machine's platform."""
    answers = {"r.test/x:1": listed or MANIFEST, "r.test/x@sha256:mine": MANIFEST}

    def answer(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 0, json.dumps(answers[argv[-1]]), "warning")

    monkeypatch.setattr(images, "run_tool", answer)
    monkeypatch.setattr(images.platform, "machine", lambda: "mine")
    found = DaemonStore("podman").look_up("r.test/x:1")
    assert (found.state, found.digest, found.bytes) == (state, digest, 7 if digest else None)


@pytest.mark.parametrize(("digest", "moves"), [("sha256:c0", False), ("sha256:c1", True)])
def test_a_tag_that_moves_before_the_pull_is_refused(
    digest: str, moves: bool, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker may name an image by another digest than its configuration's; then the registry decides."""
    pulled: list[str] = []

    def answer(*argv: str) -> subprocess.CompletedProcess[str]:
        if argv[1] == "manifest":
            return subprocess.CompletedProcess(argv, 0, json.dumps(MANIFEST), "")
        is_there = bool(pulled) and argv[-1] == "r.test/x:1"
        return subprocess.CompletedProcess(argv, 0 if is_there else 1, '[{"Id": "sha256:other"}]', "")

    monkeypatch.setattr(images, "run_tool", answer)
    monkeypatch.setattr(DaemonStore, "_run", lambda _self, _build, *argv: pulled.append(argv[-1]))
    build = BuildRun(log, 5.0)
    if moves:
        with pytest.raises(MachineError, match=r"the tag of r\.test/x:1 moved"):
            DaemonStore("docker").fetch(build, "r.test/x:1", digest, log.parent)
    else:
        assert DaemonStore("docker").fetch(build, "r.test/x:1", digest, log.parent) == "sha256:other"
    assert pulled == ["r.test/x:1"]


def test_enroot_by_its_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Path) -> None:
    """Never run: commands as its documents have them."""
    asked: list[tuple[str, ...]] = []

    def answer(*argv: str) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        missing = argv[-1].endswith(":b")
        return subprocess.CompletedProcess(
            argv, int(missing), "" if missing else "sha256:d\n", "error code: 404"
        )

    monkeypatch.setattr(images, "run_tool", answer)
    monkeypatch.setattr(SquashStore, "_run", lambda _self, _build, *argv: asked.append(argv))
    kind, program = STORES["enroot"]
    store = kind(program)
    found = store.find(("docker.io/vllm/x:a", "ghcr.io/x/y:b"))
    assert {name: lookup.state for name, lookup in found.items()} == {
        "docker.io/vllm/x:a": "found", "ghcr.io/x/y:b": "hole",
    }  # fmt: skip
    assert store.fetch(BuildRun(log, 5.0), "ghcr.io/x/y:a", "sha256:d", tmp_path) == "image.sqsh"
    assert set(asked) == {
        ("enroot", "digest", "docker://vllm/x:a"),
        ("enroot", "digest", "docker://ghcr.io#x/y:b"),
        ("enroot", "import", "--output", str(tmp_path / "image.sqsh"), "docker://ghcr.io#x/y:a"),
    }
