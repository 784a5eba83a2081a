"""What a page of an index means: which of its wheels is a commit's, on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.tags import Tag

from perfbisect.changes.git import Repository
from perfbisect.environments.builders.cached import CachedBuilder
from perfbisect.environments.builders.wheel import WheelSettings, driver_cuda, variants
from perfbisect.environments.builders.wheel_index import (
    WheelIndex,
    choose_wheel,
    links,
    supported,
)
from perfbisect.errors import MachineError
from perfbisect.model.change import Change
from perfbisect.setup.doctor import check_registry, index_checks, run_checks
from tests.environments.conftest import plain_builder
from tests.environments.tiny import TinyHistory, write_wheel
from tests.environments.wheel_index import serving, wheel_of

SHA = "ab12cd34e" + "0" * 31
HERE = [Tag("cp38", "abi3", "manylinux_2_31_x86_64"), Tag("py3", "none", "any")]


def at(*files: str) -> list[str]:
    return [f"https://example.invalid/{SHA}/{file.replace('+', '%2B')}" for file in files]


def test_links_are_made_absolute_and_keep_their_digests() -> None:
    page = (
        '<html><a href="../../e-1%2Bg1.whl#sha256=aa">e</a><br/><a href="https://cdn.invalid/f-1.whl">f</a>'
        '<a href="../">up</a><a>none</a></html>'
    )
    assert links(page, "https://example.invalid/sha/cu129/e/") == (
        "https://example.invalid/sha/e-1%2Bg1.whl#sha256=aa",
        "https://cdn.invalid/f-1.whl",
    )


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["vllm-0.11.2.dev3+gab12cd34e-cp38-abi3-manylinux_2_31_x86_64.whl"], 0),
        (["vllm-0.11.2.dev3+gab12cd34e.cu129-cp38-abi3-manylinux_2_31_x86_64.whl"], 0),
        (["vllm-9.0-py3-none-any.whl", "vllm-0.1.dev3+gab12cd34e-py3-none-any.whl"], 1),
        (["vllm-1.0-py3-none-any.whl", "vllm-1.1-py3-none-any.whl"], 1),
        (["vllm-1.0-py3-none-any.whl", "vllm-1.0-cp38-abi3-manylinux_2_31_x86_64.whl"], 1),
        (["other-1.0-py3-none-any.whl", "not a wheel.whl", "VLLM-1.0-py3-none-any.whl"], 2),
    ],
)
def test_the_wheel_of_a_commit(files: list[str], chosen: int) -> None:
    answer = choose_wheel(at(*files), "vllm", SHA, HERE)
    assert (answer.state, answer.url, answer.file) == ("found", at(*files)[chosen], files[chosen])


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], "no wheel of vllm that fits this machine"),
        (
            ["vllm-1.0-cp38-abi3-manylinux_2_31_aarch64.whl"],
            "it has vllm-1.0-cp38-abi3-manylinux_2_31_aarch64",
        ),
        (["vllm-1.0.dev3+gffffffff1-py3-none-any.whl"], "the index serves commit ffffffff1"),
    ],
)
def test_pages_without_one(files: list[str], why: str) -> None:
    answer = choose_wheel(at(*files), "vllm", SHA, HERE)
    assert answer.state == "hole"
    assert why in answer.reason


def test_tags_of_another_python() -> None:
    assert Tag("py3", "none", "any") in supported()
    assert any(tag.interpreter == "cp312" and tag.abi == "cp312" for tag in supported("3.12"))
    assert not any(tag.interpreter == "cp312" for tag in supported("3.10"))
    assert supported("/some/python") == supported()


@pytest.mark.parametrize(
    ("codes", "state", "asked"),
    [
        ([], "found", 1),
        ([500, 502, 429], "found", 4),
        ([500] * 9, "silent", 4),
        ([404], "hole", 1),
        ([403], "hole", 1),
        ([401] * 9, "silent", 1),
    ],
)
def test_how_often_a_page_is_asked(codes: list[int], state: str, asked: int) -> None:
    with serving() as index:
        index.files["/page/engine/"] = b'<a href="engine-1-py3-none-any.whl">'
        index.failing["/page/engine/"] = list(codes)
        pages = WheelIndex(f"{index.address}/{{sha}}", "engine", pause_s=0.001)
        if state == "silent":
            with pytest.raises(MachineError, match=f"does not answer: HTTP {codes[0]}"):
                pages.find(("page",), "")
        else:
            assert pages.find(("page",), "")["page"].state == state
        assert len(index.asked) == asked


@pytest.mark.parametrize(
    ("report", "cuda"),
    [
        ("Driver Version   : 570.124.06\nCUDA Version     : 12.8\n", (12, 8)),
        ("Driver Version   : 580.65.06\nCUDA UMD Version : 13.0\n", (13, 0)),
        ("Driver Version   : 535.54.03\nCUDA Version     : Not Found\n", None),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None),
    ],
)
def test_what_the_driver_supports(
    report: str, cuda: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{report}\nEND\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert driver_cuda() == cuda


@pytest.mark.parametrize(
    ("cuda", "best"),
    [
        (None, "cpu"),
        ((13, 0), "cu130"),
        ((13, 2), "cu130"),
        ((12, 9), "cu129"),
        ((12, 2), "cu129"),
        ((11, 8), "cu118"),
        ((11, 4), "cpu"),
    ],
)
def test_variants_for_drivers(cuda: tuple[int, int] | None, best: str) -> None:
    names = variants(cuda)
    assert names[0] == best
    assert cuda is None or best == "cpu" or not any(name > f"cu{cuda[0]}9" for name in names)


def test_the_registry_is_looked_at_through_uvs_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check_registry()
    assert found.state == "bad"  # pip is not among the wheels that uv sees here
    assert "UV_DEFAULT_INDEX" in found.advice
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    down = check_registry()
    assert down.state == "bad"
    assert "cannot be reached" in down.found
    assert str(tmp_path) not in down.found


def test_a_registry_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(tmp_path / "links", "pip", "99.0", {"pip.py": b""})
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    assert check_registry().state == "good"


def test_every_wheel_index_of_a_chain_is_looked_at(
    history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    with serving() as index:
        index.add(history.base, wheel_of(tmp_path, repository, history.base))
        one = f"wheel:{index.address}/{{sha}},package=tiny_engine,variant=default"
        other = "wheel:http://127.0.0.1:9/{sha},package=tiny_engine,variant=default"
        builder = plain_builder(f"{one},{other},source", repository=repository, cache=tmp_path)
        for part in getattr(builder, "builders", ()):
            if isinstance(part, CachedBuilder) and isinstance(part.settings, WheelSettings):
                part.settings.index.pause_s = 0.001
        results = run_checks(list(index_checks(lambda: builder, Change(history.base))))[1:]
        assert [(result.state, result.found.partition("/{sha}")[0]) for result in results] == [
            ("good", f"wheel index {index.address}"),
            ("bad", "wheel index http://127.0.0.1:9"),
        ]
        single = plain_builder(one, repository=repository, cache=tmp_path)
        (hole,) = run_checks(list(index_checks(lambda: single, Change(history.slow))))[1:]
    assert hole.state == "note"
    assert "no wheel: HTTP 404" in hole.found
