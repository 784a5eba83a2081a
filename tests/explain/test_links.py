"""What a function uses of a diff that does not hold it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfbisect.explain.diff import DiffLink, StackDiff, find_link
from tests.explain.diffs import file_diff

SETTINGS = "vllm/v1/settings.py"
BEAT = "vllm/v1/beat.py"
TUNED = "vllm/v1/tuned.json"
TEXTS = {
    SETTINGS: (
        "AUDIT = False\nLIMIT = 3\n\n\ndef limit():\n    return 3\n",
        "AUDIT = True\nLIMIT = 3\n\n\ndef limit():\n    return 30\n",
    ),
    BEAT: ("LOCK = 1\n\n\ndef beat():\n    a()\n", "LOCK = 1\n\n\ndef beat():\n    b()\n"),
    TUNED: ("1\n", "2\n"),
}


@pytest.fixture(scope="module")
def diff() -> StackDiff:
    return StackDiff(tuple(file_diff(path, *texts) for path, texts in TEXTS.items()), ("vllm",))


def reading(diff: StackDiff, source: str) -> StackDiff:
    return replace(diff, read=lambda _path: source)


@pytest.mark.parametrize(
    ("imports", "body", "link"),
    [
        ("from vllm.v1 import settings", "settings.AUDIT", DiffLink("value", "AUDIT", SETTINGS, 1)),
        ("from vllm.v1 import settings as _s", "_s.AUDIT", DiffLink("value", "AUDIT", SETTINGS, 1)),
        ("import vllm.v1.settings as s", "s.AUDIT", DiffLink("value", "AUDIT", SETTINGS, 1)),
        ("from vllm.v1.settings import AUDIT as on", "on", DiffLink("value", "AUDIT", SETTINGS, 1)),
        ("from .settings import AUDIT", "AUDIT", DiffLink("value", "AUDIT", SETTINGS, 1)),
        ("from . import settings", "settings.AUDIT", DiffLink("value", "AUDIT", SETTINGS, 1)),
        ("from ..v1 import settings", "settings.limit()", DiffLink("function", "limit", SETTINGS, 5)),
        ("from vllm.v1.settings import limit", "limit()", DiffLink("function", "limit", SETTINGS, 5)),
        # A thread of a changed module may hold what this function waits for.
        ("from vllm.v1 import beat", "beat.LOCK", DiffLink("module", "beat", BEAT, 5)),
        ("", "open('x/tuned.json')", DiffLink("data file", "x/tuned.json", TUNED, 1)),
        ("from vllm.v1.settings import LIMIT", "LIMIT", None),
        ("from vllm.v2 import settings", "settings.AUDIT", None),
        ("from vllm.v1 import settings", "other.AUDIT", None),
        ("import settings", "settings.AUDIT", None),
    ],
)
def test_what_a_function_uses(diff: StackDiff, imports: str, body: str, link: DiffLink | None) -> None:
    source = (
        f"{imports}\n\n\nclass Scheduler:\n    def schedule(self):\n        x = {body}\n        return x\n"
    )
    assert find_link("vllm/v1/scheduler.py", 7, reading(diff, source)) == link


def test_only_the_function_itself_counts(diff: StackDiff) -> None:
    source = (
        "from vllm.v1 import settings\n\n\ndef f():\n    return settings.AUDIT\n\n\ndef g():\n    return 1\n"
    )
    read = reading(diff, source)
    assert find_link("vllm/a.py", 5, read) is not None
    assert find_link("vllm/a.py", 9, read) is None
    assert find_link("vllm/a.py", 2, read) is None
    assert find_link("vllm/a.py", 1, reading(diff, "def broken(:\n")) is None
    assert find_link("vllm/a.py", 5, diff) is None


def test_an_import_within_the_function_counts(diff: StackDiff) -> None:
    source = (
        "def f():\n    from vllm.v1 import settings as _settings\n    if _settings.AUDIT:\n        pass\n"
    )
    link = find_link("vllm/a.py", 3, reading(diff, source))
    assert link == DiffLink("value", "AUDIT", SETTINGS, 1)


def test_values_are_those_that_changed_lines_assign(diff: StackDiff) -> None:
    assert diff.values(SETTINGS) == (("AUDIT", 1),)
    after = "A = 1\nB: int = (\n    2\n)\n\n\nclass C:\n    d = 3\n\n    def f(self):\n        e = 4\n"
    before = after.replace("1", "5").replace("2", "6").replace("3", "7").replace("4", "8")
    changed = StackDiff((file_diff(BEAT, before, after),), ("vllm",))
    assert changed.lines["after"][BEAT] == {1, 3, 8, 11}
    assert changed.values(BEAT) == (("A", 1), ("B", 3), ("d", 8))
    assert StackDiff((file_diff(BEAT, "A = 1\n", "def broken(:\n"),), ("vllm",)).values(BEAT) == ()
