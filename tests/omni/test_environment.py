"""What is taken out of an environment stays in the package cache, whose files the environment links."""

from __future__ import annotations

import os
from pathlib import Path

from scripts.omni_cpu import digest, take_out_compiled_parts


def test_what_is_taken_out_stays_in_the_cache(tmp_path: Path) -> None:
    cache, site = tmp_path / "cache", tmp_path / "site"
    names = ("torchvision/_meta_registrations.py", "torchvision/_C.so", "torchaudio/lib/_torchaudio.so")
    for name in names:
        for folder in (cache, site):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text(f"content of {name}")
        os.link(cache / name, site / name)
    before = {name: digest(cache / name) for name in names}
    assert take_out_compiled_parts(site) == before
    assert {name: digest(cache / name) for name in names} == before
    assert [path.name for path in site.rglob("*") if path.is_file()] == ["_meta_registrations.py"]
    assert (site / names[0]).read_text() == ""
