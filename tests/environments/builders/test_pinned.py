"""A package on an engine that each commit pins: two pins stand side by side, each over its own engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Environment
from perfbisect.environments.builders import wheel as wheel_builder
from perfbisect.environments.builders.cached import CachedBuilder
from perfbisect.environments.builders.pinned import PinnedCommit, PinnedSettings
from perfbisect.environments.factory import make_builder
from perfbisect.errors import BuildError
from perfbisect.model.change import Change
from tests.environments.conftest import ask, plain_builder, refusal_of
from tests.environments.tiny import write_wheel
from tests.environments.wheel_index import Index, serving
from tests.fakes.gitwriter import HistoryWriter

MAIN = "5" * 40
"""A commit of the engine below."""

_IMAGE = "ARG VLLM_BASE_TAG={tag}\nFROM vllm/vllm-openai:${{VLLM_BASE_TAG}}\n{more}RUN uv pip install .\n"
ASKS = (
    "import importlib.metadata as m, vllm, vllm_omni, omni_helper;"
    "print(vllm.__version__, vllm_omni.SPEED, omni_helper.V,"
    " m.version('vllm_omni'), m.version('numbers-pkg'))"
)


def image(tag: str, *more: str) -> bytes:
    return _IMAGE.format(tag=tag, more="".join(f"{line}\n" for line in more)).encode()


@dataclass(frozen=True)
class Omni:
    """A history whose pin moves; each commit by what it does."""

    path: Path
    before: str
    first: str
    slow: str
    docs: str
    rebase: str
    requirement: str
    wheel: str
    odd: str
    unserved: str


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Omni:
    writer = HistoryWriter(tmp_path_factory.mktemp("omni") / "repo")
    init = b"import vllm\nENGINE = vllm.__version__\nSPEED = %d\n"
    pins = "RUN uv pip install --system 'numbers-pkg==2.0' 'gpu-only==12.9'"
    writer.commit("before", {"vllm_omni/__init__.py": init % 0})
    writer.commit(
        "first",
        {
            "vllm_omni/__init__.py": init % 1,
            **{f"vllm_omni/entrypoints/{name}.py": b"" for name in ("__init__", "cli/__init__", "cli/main")},
            "vllm_omni/deploy/a.yaml": b"x: 1\n",
            "docker/Dockerfile.ci": image("v0.20.0-cu130", pins),
            "requirements/common.txt": b"omni-helper==1.0  # the old one\n",
            "requirements/cpu.txt": b"# of CPUs\n-r common.txt\n",
            "requirements/cuda.txt": b"not-to-be-had==1\n",
        },
    )
    writer.commit("slow", {"vllm_omni/__init__.py": init % 2})
    writer.commit("docs", {"docs/a.md": b"2"})
    writer.commit("rebase", {"docker/Dockerfile.ci": image("v0.21.0", pins)})
    writer.commit("requirement", {"requirements/common.txt": b"omni-helper==1.1\n"})
    at = f"RUN uv pip install vllm --extra-index-url https://wheels.vllm.ai/{MAIN}"
    writer.commit("wheel", {"docker/Dockerfile.ci": image("v0.21.0", at)})
    writer.commit("odd", {"docker/Dockerfile.ci": b"FROM scratch\n"})
    broken = {"vllm_omni/entrypoints/cli/main.py": b"import sys\nimport missing_helper\n"}
    writer.commit("unserved", {**broken, "docker/Dockerfile.ci": image("v0.21.0")})
    return Omni(writer.path, *writer.finish())


def engine(version: str, commit: str | None = None) -> Mapping[str, bytes]:
    return {"vllm/__init__.py": f"__version__ = {version!r}\n__commit__ = {commit!r}\n".encode()}


@pytest.fixture(autouse=True)
def registry_of_two(
    tmp_path_factory: pytest.TempPathFactory, registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del registry
    folder = tmp_path_factory.getbasetemp() / "pinned-wheels"
    if not folder.exists():
        for version in ("0.20.0", "0.21.0"):
            write_wheel(folder, "vllm", version, engine(version), ("numbers-pkg",))
        for version in ("1.0", "1.1"):
            write_wheel(folder, "omni-helper", version, {"omni_helper.py": f"V = {version!r}\n".encode()})
        for version in ("1.9", "2.0", "2.1"):
            write_wheel(folder, "numbers-pkg", version, {"numbers_pkg.py": b""})
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: None)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with serving() as made:
        wheel = write_wheel(
            tmp_path / "served", "vllm", f"0.22.dev7+g{MAIN[:9]}", engine("0.22", MAIN), ("numbers-pkg",)
        )
        made.files[f"/{MAIN}/vllm/"] = f'<a href="../{wheel.name.replace("+", "%2B")}">w</a>'.encode()
        made.files[f"/{MAIN}/{wheel.name}"] = wheel.read_bytes()
        yield made


def builder(omni: Omni, cache: Path, more: str = "") -> CachedBuilder[PinnedSettings, PinnedCommit]:
    made = plain_builder(
        f"pinned:vllm_omni{more}", repository=Repository.open(omni.path), cache=cache / "pinned"
    )
    assert isinstance(made, CachedBuilder)
    return made


def versions(environment: Environment) -> str:
    return ask(environment, ASKS)


@pytest.mark.processes
def test_two_pins_stand_side_by_side(omni: Omni, shared_cache: Path, log: Path) -> None:
    here = builder(omni, shared_cache)
    old = here.ensure(Change(omni.slow), log=log, timeout=120)
    new = here.ensure(Change(omni.rebase), log=log, timeout=120)
    version = "0.1.dev0+g{} 2.0"
    assert versions(old) == f"0.20.0 2 1.0 {version.format(omni.slow[:12])}"
    assert versions(new) == f"0.21.0 2 1.0 {version.format(omni.rebase[:12])}"
    assert versions(old) == f"0.20.0 2 1.0 {version.format(omni.slow[:12])}"
    assert (old.engine_commit, new.engine_commit) == (omni.slow, omni.rebase)
    assert old.engine_version == f"0.1.dev0+g{omni.slow[:12]}"
    assert Path(old.engine_file).is_relative_to(old.folder / "layer" / "vllm_omni")
    assert (Path(old.engine_file).parent / "deploy" / "a.yaml").is_file()
    assert old.facts["below"]["version"] == "0.20.0"
    assert old.facts["replaced"] == ["numbers-pkg==2.0"]
    assert "vllm==0.20.0" in old.facts["packages"]
    assert not any(line.startswith("gpu-only") for line in old.facts["packages"])
    assert old.interpreter != new.interpreter


def test_commits_of_a_pin_share_what_is_below(omni: Omni, shared_cache: Path, log: Path) -> None:
    here = builder(omni, shared_cache)
    first = here.ensure(Change(omni.first), log=log, timeout=120)
    slow = here.ensure(Change(omni.slow), log=log, timeout=120)
    assert first.interpreter == slow.interpreter
    assert first.packages_digest == slow.packages_digest
    assert versions(first).split()[:2] == ["0.20.0", "1"]
    assert first.caches != slow.caches
    changes = [Change(sha) for sha in (omni.first, omni.slow, omni.docs, omni.rebase, omni.requirement)]
    keys = [here.key(change) for change in changes]
    assert keys[1] == keys[2]
    assert len(set(keys)) == 4
    again = builder(omni, shared_cache)
    assert again.cached(Change(omni.docs))
    assert again.minutes(Change(omni.docs)) == 0.0
    assert again.disk([Change(omni.docs)]) == 0
    docs = again.ensure(Change(omni.docs), log=log, timeout=120)
    assert (docs.seconds, docs.engine_commit) == (0.0, omni.docs)


def test_the_groups_of_a_range(omni: Omni, shared_cache: Path) -> None:
    here = builder(omni, shared_cache)
    named = ("before", "first", "slow", "rebase", "requirement", "wheel", "odd")
    changes = [Change(getattr(omni, name)) for name in named]
    here.prepare(changes)
    assert [here.group(change) for change in changes] == [
        *("", "vllm v0.20.0", "vllm v0.20.0", "vllm v0.21.0", "vllm v0.21.0"),
        *("vllm 555555555555", ""),
    ]
    first, image_note = here.notes()
    assert "v0.20.0 under 2 commits, v0.21.0 under 2 commits, 555555555555 under 1 commit" in first
    assert image_note == (f"the image of {omni.first[:12]} is v0.20.0-cu130; installed is the release 0.20.0")


def test_what_cannot_be_told_is_refused(omni: Omni, shared_cache: Path) -> None:
    here = builder(omni, shared_cache)
    reasons = {
        name: here.refuses(Change(getattr(omni, name))) for name in ("before", "first", "wheel", "odd")
    }
    assert reasons["first"] is None
    assert "has no docker/Dockerfile.ci" in str(reasons["before"])
    assert "add wheel=URL with {sha} in it" in str(reasons["wheel"])
    assert "names no vllm of a known form" in str(reasons["odd"])


def test_a_wheel_wins_over_the_tag(omni: Omni, index: Index, shared_cache: Path, log: Path) -> None:
    here = builder(omni, shared_cache, f",wheel={index.address}/{{sha}}")
    made = here.ensure(Change(omni.wheel), log=log, timeout=120)
    assert ask(made, "import vllm; print(vllm.__commit__)") == MAIN
    assert made.facts["below"]["commit"] == MAIN
    assert made.facts["pin"] == "vLLM commit 555555555555 (over the image of v0.21.0)"


def test_a_wheel_of_another_commit(omni: Omni, index: Index, tmp_path: Path, log: Path) -> None:
    file = next(path for path in index.files if path.endswith(".whl"))
    lies = write_wheel(tmp_path / "lies", "vllm", f"0.22.dev7+g{MAIN[:9]}", engine("0.22", "6" * 40), ())
    index.files[file] = lies.read_bytes()
    here = builder(omni, tmp_path, f",wheel={index.address}/{{sha}}")
    with pytest.raises(BuildError, match=f"wheel of vllm 555555555555 says it is commit {'6' * 40}"):
        here.ensure(Change(omni.wheel), log=log, timeout=120)


def test_a_hole_of_the_index(omni: Omni, index: Index, tmp_path: Path) -> None:
    index.files.clear()
    assert (
        "no wheel of 555555555555: HTTP 404"
        in refusal_of(builder(omni, tmp_path, f",wheel={index.address}/{{sha}}"), Change(omni.wheel)).reason
    )


def test_requirements_that_cannot_be_met(omni: Omni, tmp_path: Path, log: Path) -> None:
    with pytest.raises(BuildError, match="not-to-be-had"):
        builder(omni, tmp_path, ",platform=cuda").ensure(Change(omni.first), log=log, timeout=120)


def test_the_module_that_is_served_must_import(omni: Omni, tmp_path: Path, log: Path) -> None:
    """``vllm_omni`` itself imports; without requirements for the platform, the error and the plan say so."""
    failed = (
        r"import vllm_omni\.entrypoints\.cli\.main failed: ModuleNotFoundError: No module named "
        r"'missing_helper', at vllm_omni/entrypoints/cli/main\.py:2"
    )
    here = builder(omni, tmp_path)
    with pytest.raises(BuildError, match=failed) as raised:
        here.ensure(Change(omni.unserved), log=log, timeout=120)
    assert raised.value.next_step is None and len(here.notes()) == 1
    other = builder(omni, tmp_path, ",platform=tpu")
    with pytest.raises(BuildError, match=failed) as raised:
        other.ensure(Change(omni.unserved), log=log, timeout=120)
    (note,) = other.notes()[1:]
    for text in (note, str(raised.value.next_step)):
        assert "neither requirements/tpu.txt (requirements/ has common.txt, cpu.txt, cuda.txt) nor" in text
        assert text.endswith("platform=NAME takes another file of requirements/")


def test_one_package_of_a_pin_at_a_time(omni: Omni, shared_cache: Path, log: Path) -> None:
    """The engine below can be swapped as well: it is a package of the environment, not the change."""
    repository = Repository.open(omni.path)
    here = make_builder("pinned:vllm_omni", repository=repository, cache=shared_cache / "pinned")
    for pip, said in (("numbers-pkg==2.1", "0.20.0 2 2.1"), ("vllm==0.21.0", "0.21.0 2 2.0")):
        made = here.ensure(Change(omni.slow).swapped((pip,)), log=log, timeout=120)
        words = versions(made).split()
        assert f"{words[0]} {words[1]} {words[4]}" == said
        assert made.engine_commit == omni.slow
        assert pip in made.facts["packages"]


def test_a_variant_of_releases_needs_their_index(omni: Omni, tmp_path: Path) -> None:
    """It is known before anything is built, and is no failure of a registry."""
    here = builder(omni, tmp_path, ",release=other-engine,variant=cu129")
    refusal = refusal_of(here, omni.first)
    assert refusal.error and "no index of releases of other-engine is known" in refusal.reason
