"""The kit for a GPU machine: what is zeroed in compiled files, and what is packed."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.gpu import kit, world
from scripts.gpu.fatbin import prune
from tests.test_house import declared

PTX, CUBIN = 1, 2
ON_THE_MACHINE = frozenset(
    {"click", "filelock", "jinja2", "markdown-it-py", "markupsafe", "numpy", "packaging", "psutil"}
    | {"pyyaml", "requests", "rich", "scipy", "urllib3"}
)
"""What comes with torch and transformers, or with the usual packages beside them."""
STOOD_IN_FOR = frozenset({"uv"})
FOR_PYTHON = frozenset({"pandas"})
"""What no command of the kit imports."""

Code = tuple[int, int, bytes]
"""Kind, architecture, content."""


def container(*entries: Code) -> bytes:
    body = b""
    for kind, architecture, code in entries:
        padded = code + bytes(-len(code) % 8)
        header = struct.pack("<HHIQ", kind, 0x101, 64, len(padded)) + bytes(12)
        body += (header + struct.pack("<I", architecture)).ljust(64, b"\0") + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(*containers: bytes) -> bytearray:
    """An ELF file with a section of fat binaries, as far as it is read."""
    names, code = b"\0.nv_fatbin\0.names\0", b"".join(containers)
    start = 64 + len(names) + -len(names) % 8
    table = start + len(code)
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 0x28, table)
    struct.pack_into("<HHH", head, 0x3A, 64, 3, 2)

    def section(name: int, at: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 8, 0)

    sections = section(0, 0, 0) + section(1, start, len(code)) + section(12, 64, len(names))
    return bytearray(bytes(head) + names.ljust(start - 64, b"\0") + code + sections)


def test_only_code_that_the_device_loads_is_kept() -> None:
    own, other, ptx, older = b"OWN90cub" * 3, b"for sm80", b"ptx of90", b"ptx of80"
    newer = b"ptx of99"
    data = elf(
        container((CUBIN, 80, other), (CUBIN, 90, own), (PTX, 90, ptx)),
        container((CUBIN, 80, other), (PTX, 80, older), (PTX, 120, newer)),
    )
    size = len(data)
    found = prune(data, 90)
    assert len(data) == size
    assert [text in data for text in (own, other, ptx, older, newer)] == [True, False, False, True, False]
    assert found.kept == {"cubin 90": len(own), "ptx 80": len(older)}
    assert found.zeroed == {"cubin 80": 16, "ptx 90": 8, "ptx 120": 8}
    assert found.without == 1


CODES = st.lists(
    st.tuples(
        st.sampled_from([PTX, CUBIN]), st.sampled_from([80, 90, 100]), st.binary(min_size=8, max_size=40)
    ),
    max_size=4,
)


@given(st.lists(CODES, max_size=4))
def test_every_byte_is_kept_or_zeroed(codes: list[list[Code]]) -> None:
    data = elf(*(container(*entries) for entries in codes))
    before = bytes(data)
    found = prune(data, 90)
    total = sum(len(code) + -len(code) % 8 for entries in codes for _, _, code in entries)
    assert sum(found.kept.values()) + sum(found.zeroed.values()) == total
    assert all(new in (0, old) for new, old in zip(data, before, strict=True))
    again = bytes(data)
    prune(data, 90)
    assert bytes(data) == again


@pytest.mark.parametrize("text, said", [(b"MZ" * 40, "no ELF"), (None, "add up"), (b"", "no ELF")])
def test_file_of_another_layout_is_refused(text: bytes | None, said: str) -> None:
    data = bytearray(text) if text is not None else elf(container((CUBIN, 80, b"x" * 16)))
    if text is None:
        at = data.index(struct.pack("<I", 0xBA55ED50)) + 16
        struct.pack_into("<Q", data, at + 8, 8)
    with pytest.raises(ValueError, match=said):
        prune(data, 90)


def test_the_kit_has_what_perfbisect_needs() -> None:
    lines = (kit.HERE / "requirements.txt").read_text().splitlines()
    packed = {canonicalize_name(Requirement(line).name) for line in lines}
    assert declared() - packed - ON_THE_MACHINE - STOOD_IN_FOR - FOR_PYTHON == set()
    assert [line for line in lines if "==" not in line] == []


def test_stand_in_for_uv_lists_packages() -> None:
    command = [str(kit.HERE / kit.UV), "pip", "list", "--no-config", "--python", sys.executable]
    done = subprocess.run([*command, "--format", "freeze"], capture_output=True, text=True, check=False)
    if done.returncode:  # an environment without pip of its own
        assert "No module named pip" in done.stderr
    else:
        assert f"click=={version('click')}" in done.stdout.splitlines()
    refused = subprocess.run([kit.HERE / kit.UV, "venv", "x"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "not part of the kit" in refused.stderr


def test_manifest_has_digests_that_the_machine_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert kit.write_manifest(tmp_path, ["a"], vllm="1") == 3
    manifest = json.loads((tmp_path / kit.MANIFEST).read_text())
    assert json.loads(capsys.readouterr().out) == manifest
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert manifest["files"] == {"a": {"bytes": 3, "sha256": digest}}
    world.check_digests(tmp_path, manifest["files"])
    (tmp_path / "a").write_bytes(b"abd")
    with pytest.raises(world.StepFailedError, match="damaged"):
        world.check_digests(tmp_path, manifest["files"])
    (tmp_path / "a").unlink()
    with pytest.raises(world.StepFailedError, match="No such file"):
        world.check_digests(tmp_path, manifest["files"])


@pytest.mark.parametrize("size, code", [(kit.LARGEST, 0), (kit.LARGEST + 1, 1)])
def test_kit_that_does_not_fit_one_copy_fails(
    size: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "make", lambda *_: size)
    assert kit.main([str(tmp_path)]) == code


def test_archives_are_the_same_whoever_packs_them(tmp_path: Path) -> None:
    (tmp_path / "site" / "__pycache__").mkdir(parents=True)
    (tmp_path / "site" / "a.py").write_text("x = 1\n")
    (tmp_path / "site" / "__pycache__" / "a.pyc").write_bytes(b"\0")
    kit.pack(tmp_path / "site.tar.xz", [(tmp_path / "site", "site")])
    with tarfile.open(tmp_path / "site.tar.xz") as archive:
        entries = {entry.name: (entry.uid, entry.uname, entry.mtime) for entry in archive}
    assert entries == dict.fromkeys(["site", "site/a.py"], (0, "", 0))
    world.unpack(tmp_path / "site.tar.xz", tmp_path / "out")
    assert (tmp_path / "out" / "site" / "a.py").read_text() == "x = 1\n"


def test_what_is_never_loaded_is_left_out(tmp_path: Path) -> None:
    for name in (*kit.LEFT_OUT, kit.NEEDED):
        path = tmp_path / name
        if "." in path.name:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(elf(container((CUBIN, 80, b"x" * 8), (CUBIN, 90, b"y" * 8))))
        else:
            path.mkdir(parents=True)
    facts = kit.prune_site(tmp_path)
    assert [name for name in kit.LEFT_OUT if (tmp_path / name).exists()] == []
    assert facts == {
        kit.NEEDED: {"kept": {"cubin 90": 8}, "zeroed": {"cubin 80": 8}, "containers_without_cubin": 0}
    }
